"""What to call the service that a process is of: the same at each restart and deploy of it, on every host.

kdiff compares two periods of one service, so nothing of a name may be of one start only: no pid, no container's id, no
hash of a ReplicaSet. The first of these that tells is the name:

1. the process's environment, as it was started: KDIFF_SERVICE, then OTEL_SERVICE_NAME;
2. in a Kubernetes pod, Knative's K_SERVICE, else the pod's name without what the controller appended to it;
3. in a container, the host name that it was given, else its main program;
4. in a machine of systemd-nspawn or LXC, the machine's name;
5. the job's name in Slurm;
6. the systemd unit, with its instance, if it is of one service: a login session, cron or a container runtime is not;
7. the program; of an interpreter what it runs.

All of it is told by the process itself or by whoever may make control groups: nothing is believed but that it is text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Final

LONGEST: Final = 100
"""Characters of a name."""
UNKNOWN: Final = "unknown"
"""A process that had ended before it was looked at."""

_SAID: Final = ("KDIFF_SERVICE", "OTEL_SERVICE_NAME")
_POD_NAMES: Final = ("POD_NAME", "MY_POD_NAME", "K8S_POD_NAME", "HOSTNAME")
ENVIRONMENT: Final = frozenset({*_SAID, *_POD_NAMES, "K_SERVICE", "KUBERNETES_SERVICE_HOST", "SLURM_JOB_NAME"})
"""The variables that can tell."""


@dataclass(frozen=True)
class Program:
    """A running program. `executable`: the name of its file; `arguments`: what it was called with, by its own word."""

    executable: str = ""
    arguments: Sequence[str] = ()


@dataclass(frozen=True)
class Facts:
    """What is known of a process.

    Attributes:
        cgroups: its paths in the hierarchies of control groups, those that systemd and runtimes name first.
        environment: of ENVIRONMENT, what it was started with.
        programs: its own, then those of its ancestors in the same control group, its parent's first.
        hosts: names of this host.
        own_hostname: whether it may have another name for the host than the host itself (a UTS namespace).
    """

    cgroups: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    programs: Sequence[Program] = ()
    hosts: frozenset[str] = frozenset()
    own_hostname: bool = True


def service_of(facts: Facts) -> str:
    """The name, printable, of 1 to LONGEST characters. Raises nothing."""
    return next((name for said in _told(facts) if (name := clean(said))), UNKNOWN)


def clean(text: str) -> str:
    """`text` as a name can be: what is not printable becomes a question mark, and the end of a long one is cut off."""
    kept = "".join(c if c.isprintable() else "?" for c in text[: 4 * LONGEST].strip())
    return kept[:LONGEST].strip()


def _told(facts: Facts) -> Iterator[str]:
    """The names that the sources give, the best first."""
    environment = {name: value[: 4 * LONGEST] for name, value in facts.environment.items()}
    yield from (environment.get(name, "") for name in _SAID)
    place = next((found for path in facts.cgroups if (found := _place(path))), _Place())
    contained = place.pod or place.container is not None
    if place.pod or (contained and "KUBERNETES_SERVICE_HOST" in environment):
        yield environment.get("K_SERVICE", "")
        yield from (_of_pod(name, facts.hosts) for name in _host_names(facts, environment, place, _POD_NAMES))
    elif contained:
        yield from _host_names(facts, environment, place, ("HOSTNAME",))
    if contained:
        yield _main_program(facts.programs)
    yield place.named
    if place.slurm and not _RUNS_OTHERS.fullmatch(name := environment.get("SLURM_JOB_NAME", "")):
        yield name
    yield _own_program(facts.programs)


# Control groups


@dataclass(frozen=True)
class _Place:
    """Where in the control groups. `named`: by a unit or a machine; '' where others' programs run."""

    pod: bool = False
    container: str | None = None  # its id
    slurm: bool = False
    named: str = ""


# kubelet's uid, with underscores where systemd makes the groups; of a static pod the hash of its file
_POD: Final = re.compile(r"(?:^|-)pod(?:[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?=\.slice|:|$)")
_CONTAINER: Final = re.compile(r"(?:^|[-:])([0-9a-f]{64})(?:\.scope)?$")
_MACHINE: Final = re.compile(r"(?:machine-(.+)\.scope|systemd-nspawn@(.+)\.service|lxc\.payload\.(.+))")
_SLURM: Final = re.compile(r"job_\d+")
_UNIT: Final = re.compile(r"(.+)\.(?:service|scope)")
# Units without a name of their own, and those whose programs are others' services
_NO_SERVICE: Final = re.compile(
    r"session-.*|user@.*|(?:vte|tmux)-spawn-.*|run-(?:u?\d+|r[0-9a-f]{32}|p\d+-i\d+)|dbus-.*|app-.*(?:-\d+|@.*)"
    r"|(?:apptainer|singularity)-\d+|docker|containerd|crio|podman|kubelet|k3s|nomad|pbs(?:_jobs)?|slurmd|slurmstepd"
    r"|sshd?|sshd@.*|crond?|atd|(?:serial-)?getty@.*|systemd-logind|gdm\d*|lightdm|sddm"
)
_UUID: Final = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_NOMAD: Final = re.compile(rf"{_UUID}\.(.+)")  # an allocation's task
_OF_ONE_START: Final = re.compile(rf"{_UUID}|(?<![0-9a-z])[0-9a-f]{{12,}}(?![0-9a-z])")


def _place(path: str) -> _Place | None:
    """What the innermost telling part of a path says; None if none of them does."""
    parts = path.split("/")
    for index in reversed(range(len(parts))):
        part = parts[index]
        if _POD.search(part):
            return _Place(pod=True)
        if container := _CONTAINER.search(part):
            return _Place(pod=any(_POD.search(outer) for outer in parts[:index]), container=container[1])
        if machine := _MACHINE.fullmatch(part):
            return _Place(named=_unescaped(next(filter(None, machine.groups()))))
        if _SLURM.fullmatch(part):
            return _Place(slurm=True)
        if part == "init.scope":  # systemd itself: of a machine, or of a user
            continue
        if unit := _UNIT.fullmatch(part):
            slurm = part in ("slurmstepd.scope", "slurmd.service")
            return _Place(slurm=slurm, named=_of_unit(unit[1]))
        if index and parts[index - 1] in ("lxc", "lxc.payload") and part:
            return _Place(named=part)
    return None


def _of_unit(unit: str) -> str:
    """Its name; '' where others' programs run in it, and where it is made for one start."""
    if nomad := _NOMAD.fullmatch(unit):
        unit = nomad[1]
    return "" if _NO_SERVICE.fullmatch(unit) or _OF_ONE_START.search(unit) else _unescaped(unit)


def _unescaped(unit: str) -> str:
    """Of a unit's name as systemd escapes it: `a\\x2db` is a-b."""
    return re.sub(r"\\x([0-9a-f]{2})", lambda found: chr(int(found[1], 16)), unit)


# Pods and containers

_SUFFIX: Final = "[bcdfghjklmnpqrstvwxz2456789]{5}"  # what Kubernetes makes names unique with
_TEMPLATE: Final = r"(?:[456789bcdf]{6,10}|\d{9,10})"  # a ReplicaSet's hash of its pods' template; formerly decimal
_GENERATED: Final = re.compile(rf"(.+?)(?:-{_TEMPLATE}|-\d{{8,10}})?-{_SUFFIX}")  # the number: of a CronJob's run
_ORDINAL: Final = re.compile(r"(.+?)-\d{1,5}")
_LONGEST_POD: Final = 63


def _of_pod(name: str, hosts: Set[str]) -> str:
    """A pod's name without what its controller appended: of a Deployment, a StatefulSet, a DaemonSet, a Job."""
    if ".svc." in name:
        name = name.partition(".")[0]
    for host in hosts:  # what the kubelet appends, where the pod is a file of the host
        name = name.removesuffix(f"-{host}") or name
    if len(name) == _LONGEST_POD:  # cut off before the suffix was appended
        return re.sub(rf"-(?:{_TEMPLATE}|[456789bcdf]{{1,10}})?-?$", "", name[:-5])
    found = _GENERATED.fullmatch(name) or _ORDINAL.fullmatch(name)
    return found[1] if found else name


def _host_names(facts: Facts, environment: Mapping[str, str], place: _Place, variables: Sequence[str]) -> Iterator[str]:
    """Names that were given to it: neither the host's own nor, as runtimes make them up, the start of its id."""
    for variable in variables:
        name = environment.get(variable, "")
        made_up = len(name) >= 12 and place.container is not None and place.container.startswith(name)
        of_host = name in facts.hosts or (variable == "HOSTNAME" and not facts.own_hostname)
        if not (made_up or of_host):
            yield name


# Programs

_PYTHON: Final = re.compile(r"(?:python|pypy)[\d.]*[a-z]?")
_SHELL: Final = re.compile(r"-?(?:ba|da|z|k|a|c|tc|fi)?sh|busybox")
_TAKES_MORE: Final = frozenset("WX")  # Python's options with an argument
_LAUNCHER: Final = re.compile(
    r"torchrun|accelerate|deepspeed|horovodrun|(?:ddtrace|newrelic|scalene|kernprof)(?:-run)?|opentelemetry-instrument"
    r"|debugpy|torch\.distributed\.(?:run|launch)|accelerate\.commands\.launch"
)
_FIRST: Final = re.compile(
    r"tini(?:-static)?|dumb-init|docker-init|catatonit|s6-.*|runsv.*|supervisord|init|systemd|sleep|pause"
)
_RUNS_OTHERS: Final = re.compile(
    rf"|interactive|wrap|{_PYTHON.pattern}|{_SHELL.pattern}|srun|salloc|sbatch|torchrun|env"
)


def command_name(arguments: Sequence[str]) -> str:
    """What a command line runs: the program's name, for Python its script's or module's; '' where that has no name."""
    if not arguments:
        return ""
    name = PurePosixPath(arguments[0]).name
    if _PYTHON.fullmatch(name):
        return _of_python(arguments[1:])
    if _LAUNCHER.fullmatch(name):
        return _launched(arguments[1:]) or name
    if _SHELL.fullmatch(name):
        script = next((word for word in arguments[1:] if not word.startswith(("-", "+"))), "")
        return "" if any(re.fullmatch(r"-[a-z]*c", word) for word in arguments[1:]) else PurePosixPath(script).name
    return name


def _of_python(words: Sequence[str]) -> str:
    """What Python runs, by its arguments."""
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if word == "--check-hash-based-pycs":
            at += 1
        if not word.startswith("-"):
            return _script(word, words[at:])
        if word == "-" or word.startswith("--"):
            continue
        for place, letter in enumerate(word[1:], 2):
            rest = word[place:]
            if letter == "c":
                return ""
            if letter == "m":
                module = rest or (words[at] if at < len(words) else "")
                following = words[at if rest else at + 1 :]
                return (_launched(following) if _LAUNCHER.fullmatch(module) else "") or module.removesuffix(".__main__")
            if letter in _TAKES_MORE:
                at += not rest
                break
    return ""


def _script(path: str, following: Sequence[str]) -> str:
    """The name of a script; of one that only starts another, that one's."""
    script = PurePosixPath(path)
    if _LAUNCHER.fullmatch(script.name) and (launched := _launched(following)):
        return launched
    if script.name == "__main__.py":
        script = script.parent
    return script.name.removesuffix(".py")


def _launched(words: Sequence[str]) -> str:
    """The script or module among the arguments of a launcher, whose own options are not known here."""
    for index, word in enumerate(words):
        if word in ("-m", "--module"):
            return words[index + 1] if index + 1 < len(words) else ""
        if word.endswith(".py") and not word.startswith("-"):
            return _script(word, ())
    return ""


def _names(program: Program) -> str:
    """What a running program is called; '' where its arguments do not tell, or are a title that it gave itself."""
    if not _PYTHON.fullmatch(program.executable) and not _SHELL.fullmatch(program.executable):
        return program.executable or command_name(program.arguments)
    said = PurePosixPath(program.arguments[0]).name if program.arguments else ""
    same = _PYTHON if _PYTHON.fullmatch(program.executable) else _SHELL
    return command_name(program.arguments) if same.fullmatch(said) else ""


def _own_program(programs: Sequence[Program]) -> str:
    """The process's program; where it was forked off to run a piece of another, as multiprocessing does, that one."""
    for program in programs:
        if name := _names(program):
            return name
        if _SHELL.fullmatch(program.executable):
            break
    own = programs[0] if programs else Program()
    title = re.match(r"[\w.+-]+", own.arguments[0]) if own.arguments and "/" not in own.arguments[0] else None
    return title[0] if title and not _PYTHON.fullmatch(title[0]) else own.executable


def _main_program(programs: Sequence[Program]) -> str:
    """The program that a container was started for: the outermost that is no shell and no init."""
    for program in reversed(programs):
        name = "" if _SHELL.fullmatch(program.executable) else _names(program)
        if name and not _FIRST.fullmatch(name):
            return name
    return ""
