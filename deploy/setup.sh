#!/usr/bin/env bash
# Sets up a checkout: packages that only the distribution has, and a virtual environment in .venv with kdiff in it.
# Safe to repeat, to interrupt and to run twice at once; with everything there it calls neither apt nor pip.
# PYTHON=... picks the Python that .venv is made from.
set -euo pipefail
cd -P "$(dirname "${BASH_SOURCE[0]}")/.."

readonly venv=$PWD/.venv stamp=.venv/.set-up half_made=.venv/.half-made
readonly install='apt-get install -y --no-install-recommends'

fail() {
    echo "kdiff: $*" >&2
    exit 1
}

# Whether $1 is a Python that kdiff runs on.
new_enough() {
    [[ $("$1" -c 'import sys; print(sys.version_info >= (3, 11))' 2>/dev/null) == True ]]
}

# Whether $1 can make virtual environments: Debian keeps that in a package of its own.
makes_venvs() {
    "$1" -c 'import ensurepip, venv' 2>/dev/null
}

# The Python to make .venv from: the distribution's if it will do.
find_python() {
    local candidate
    if [[ -n ${PYTHON:-} ]]; then
        command -v "$PYTHON" >/dev/null || fail "PYTHON=$PYTHON is not there"
        new_enough "$PYTHON" || fail "PYTHON=$PYTHON is no Python 3.11 or newer"
        python=$PYTHON
        return
    fi
    for candidate in /usr/bin/python3 python3 python3.{14,13,12,11}; do
        if new_enough "$candidate"; then
            python=$candidate
            return
        fi
    done
    python=''
}

missing_packages() {
    local -A of=([gcc]=gcc [objcopy]=binutils [git]=git [openssl]=openssl)
    local tool
    for tool in "${!of[@]}"; do
        command -v "$tool" >/dev/null || echo "${of[$tool]}"
    done
    [[ -e /usr/include/stdio.h ]] || echo libc6-dev
    [[ -e /usr/lib/python3/dist-packages/bcc/libbcc.py ]] || echo python3-bpfcc
    if [[ -z $python ]]; then
        echo python3 python3-venv
    elif [[ $python == /usr/bin/python3 ]] && ! makes_venvs "$python"; then
        echo python3-venv
    fi
}

install_packages() {
    local -a packages
    read -r -a packages <<<"$(missing_packages | sort | tr '\n' ' ')"
    ((${#packages[@]})) || return 0
    command -v apt-get >/dev/null || fail "install what this distribution calls ${packages[*]}, then run this again"
    ((EUID == 0)) || fail "run as root: apt-get update && $install ${packages[*]}"
    echo "kdiff: installing with apt: ${packages[*]}"
    export DEBIAN_FRONTEND=noninteractive
    apt-get -qq -o DPkg::Lock::Timeout=300 update >/dev/null
    # Never the starting make's standard input: a package's question would wait for ever.
    $install -qq -o DPkg::Lock::Timeout=300 "${packages[@]}" </dev/null >/dev/null
    find_python
    [[ -n $python ]] || fail "this distribution has no Python 3.11: install one and run make with PYTHON=its path"
}

# What the environment depends on. A checkout that was moved needs another one: scripts in it name its place.
state() {
    echo "$venv"
    cat pyproject.toml deploy/setup.sh
}

# Whether .venv was made from the Python that PYTHON asks for, if it asks.
wanted_python() {
    local which='import sys; print(sys.version, sys.base_prefix)'
    [[ -z ${PYTHON:-} || $("$PYTHON" -c "$which") == "$(.venv/bin/python -c "$which" 2>/dev/null)" ]]
}

# Whether .venv works and belongs here; an interrupted installation is never trusted.
usable_venv() {
    [[ ! -e $half_made ]] || return 1
    wanted_python || return 1
    new_enough .venv/bin/python || return 1
    .venv/bin/python -c 'import os, sys, pip; sys.exit(not os.path.samefile(sys.prefix, sys.argv[1]))' "$venv" \
        2>/dev/null || return 1
    # A script's first line names the place the environment was made in.
    [[ ! -e .venv/bin/pip ]] || grep -qF "$venv/bin/python" .venv/bin/pip
}

install_python_packages() {
    if ! usable_venv; then
        [[ -n $python ]] || find_python
        makes_venvs "$python" || fail "$python cannot make virtual environments: install its venv and ensurepip modules"
        echo "kdiff: making .venv from $("$python" --version)"
        rm -rf .venv
        "$python" -m venv .venv
    fi
    touch "$half_made"
    rm -f "$stamp"
    echo 'kdiff: installing Python packages into .venv (about 1.5 GB, a minute or two)'
    .venv/bin/python -m pip --disable-pip-version-check install --quiet -e '.[dev]'
    state >"$stamp"
    rm "$half_made"
}

# One set-up at a time in a checkout; the second finds everything done. The lock is this file.
exec 9<deploy/setup.sh
flock --nonblock 9 || {
    echo 'kdiff: waiting for another set-up of this checkout'
    flock 9
}

python=''
find_python
# What these start must not hold the lock.
install_packages 9<&-
if [[ -e $half_made ]] || ! state | cmp -s - "$stamp" || ! new_enough .venv/bin/python || ! wanted_python; then
    install_python_packages 9<&-
fi
