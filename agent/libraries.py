"""Which CUDA libraries a command will load: found before it starts, so that its first call is seen."""

from __future__ import annotations

import glob
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from kdiff.agent.elf import open_elf
from kdiff.agent.errors import ElfError

_LISTED = re.compile(r"^\t(?:\S.* => )?(/.*) \(0x[0-9a-f]+\)$", re.MULTILINE)
_WANTED = re.compile(r"lib(cuda|cudart)\.so(\.|$)")


def command_files(command: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """Files that the command maps, or is likely to open later: itself, what it links to, CUDA's libraries.

    Without a command the libraries that any program here may open.
    """
    found: dict[str, None] = {}
    program = shutil.which(command[0], path=environment.get("PATH")) if command else None
    if program is not None:
        for executable in _interpreters(program, environment):
            found[executable] = None
            found.update(dict.fromkeys(_linked(executable, environment)))
            found.update(dict.fromkeys(_python_packages(executable)))
    for directory in environment.get("LD_LIBRARY_PATH", "").split(":"):
        if directory:
            found.update(dict.fromkeys(glob.glob(f"{glob.escape(directory)}/libcuda*.so*")))
    found.update(dict.fromkeys(_system()))
    return [path for path in found if os.path.isfile(path)]


def _interpreters(program: str, environment: Mapping[str, str]) -> Iterator[str]:
    """The program, and for a script what runs it."""
    for _ in range(5):
        if not os.path.isfile(program):
            return
        try:
            with open(program, "rb") as file:
                first = file.readline(4096)
        except OSError:
            return
        if not first.startswith(b"#!"):
            yield os.path.realpath(program)
            yield os.path.abspath(program)
            return
        words = os.fsdecode(first[2:]).split()
        if words and os.path.basename(words[0]) == "env":
            words = [w for w in words[1:] if not w.startswith("-") and "=" not in w]
        found = shutil.which(words[0], path=environment.get("PATH")) if words else None
        if found is None:
            return
        program = found


def _linked(executable: str, environment: Mapping[str, str]) -> list[str]:
    """What the dynamic loader would map at start, by the loader's own word (it runs nothing of the program)."""
    try:
        with open_elf(executable) as elf:
            loader = elf.interpreter()
        if loader is None:
            return []
        listing = subprocess.run(
            [loader, "--list", executable],
            env=dict(environment),
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (ElfError, OSError, subprocess.SubprocessError):
        return []
    return _LISTED.findall(listing.stdout)


def _python_packages(executable: str) -> list[str]:
    """The CUDA runtime that pip brings lies in site-packages, where no loader path leads."""
    prefix = Path(executable).parent.parent
    return glob.glob(f"{glob.escape(str(prefix))}/lib/python3*/site-packages/nvidia/*/lib/libcudart.so*")


def _system() -> list[str]:
    return [line.rpartition("=> ")[2] for line in loader_cache().splitlines() if _WANTED.match(line.strip())]


def loader_cache() -> str:
    """What `ldconfig -p` prints: the libraries that the loader finds without a path; '' where that cannot be asked."""
    ldconfig = shutil.which("ldconfig", path=f"{os.environ.get('PATH', '')}:/sbin:/usr/sbin")
    if ldconfig is None:
        return ""
    try:
        return subprocess.run([ldconfig, "-p"], capture_output=True, text=True, timeout=10, check=False).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
