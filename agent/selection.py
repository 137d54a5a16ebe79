"""Which processes of a host are recorded: rules like user=inference, from --include and --exclude."""

from __future__ import annotations

import contextlib
import os
import pwd
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from kdiff.agent import procfs
from kdiff.agent.errors import AgentError
from kdiff.agent.nearest import nearest
from kdiff.queries.address import masked

KINDS: Final = {
    "command": "its name, the path of its program, or all of its command line",
    "user": "name or number",
    "container": "id, from its start",
    "pod": "uid of a Kubernetes pod",
    "unit": "systemd's, like inference.service",
    "cgroup": "path",
}
_POD: Final = re.compile(r"pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})")
_UNIT: Final = re.compile(r"[^/]+\.(?:service|scope)(?=/|$)")


@dataclass(frozen=True)
class Rule:
    """One rule: the process has a fact of a kind that matches a shell pattern."""

    kind: str
    pattern: str

    @classmethod
    def parse(cls, text: str) -> Rule:
        """KIND=PATTERN. Raises AgentError."""
        kind, equals, pattern = text.partition("=")
        kind, pattern = kind.strip(), pattern.strip()
        if kind in KINDS and pattern:
            return cls(kind, pattern)
        if equals and pattern:
            about = f"the rule '{masked(text)}' is about '{masked(kind)}', which no process has"
            raise AgentError(f"{about}: {nearest(kind, KINDS)}")
        raise AgentError(f"the rule '{masked(text)}' is not KIND=PATTERN, like user=inference or command='*serve.py*'")

    def fits(self, facts: Mapping[str, Sequence[str]]) -> bool:
        """Whether one of the facts of this kind matches."""
        pattern = f"{self.pattern}*" if self.kind == "container" else self.pattern
        return any(fnmatchcase(fact, pattern) for fact in facts.get(self.kind, ()))


@dataclass(frozen=True)
class Selection:
    """A process is recorded if a rule of `include` fits, or there is none, and no rule of `exclude` does."""

    include: tuple[Rule, ...] = ()
    exclude: tuple[Rule, ...] = ()

    @classmethod
    def parse(cls, include: Sequence[str], exclude: Sequence[str]) -> Selection:
        """Raises AgentError, one sentence, for a rule that is none."""
        return cls(tuple(map(Rule.parse, include)), tuple(map(Rule.parse, exclude)))

    def __bool__(self) -> bool:
        return bool(self.include or self.exclude)

    def wants(self, pid: int) -> bool:
        """Whether the process is recorded, by what /proc tells of it now."""
        if not self:
            return True
        known = facts(pid)
        if any(rule.fits(known) for rule in self.exclude):
            return False
        return not self.include or any(rule.fits(known) for rule in self.include)


def facts(pid: int) -> dict[str, list[str]]:
    """What rules can be about, by kind; what cannot be read is left out."""
    found: dict[str, list[str]] = {kind: [] for kind in KINDS}
    proc = Path(f"/proc/{pid}")
    stat = procfs.stat(pid)
    if stat is not None:
        found["command"].append(stat.comm)
    if program := procfs.executable(pid):
        found["command"] += [program, os.path.basename(program)]
    if words := procfs.arguments(pid):
        found["command"].append(" ".join(words))
    with contextlib.suppress(OSError):
        uid = proc.stat().st_uid
        found["user"].append(str(uid))
        with contextlib.suppress(KeyError):
            found["user"].append(pwd.getpwuid(uid).pw_name)
    if paths := procfs.cgroups(pid):
        found["cgroup"] = paths
        found["pod"] = list(dict.fromkeys(pod.replace("_", "-") for path in paths for pod in _POD.findall(path)))
        found["unit"] = list(dict.fromkeys(unit for path in paths for unit in _UNIT.findall(path)))
    container = procfs.container_id(pid)
    if container:
        found["container"].append(container)
    return found
