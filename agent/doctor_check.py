"""One finding of `kdiff-agent doctor`, and what findings together say."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How a check ended."""

    OK = "ok"
    WARN = "warn"
    FAIL = "FAIL"  # recording does not work


class Answer(StrEnum):
    """Whether something works on this host."""

    WORKS = "works"
    UNSURE = "unsure"  # it depends on the program
    FAILS = "fails"


@dataclass(frozen=True)
class Check:
    """What was looked at, what was found, and the mend where something is wrong.

    `device_time`: what the finding means for device time; what fails recording fails that too.
    """

    group: str
    name: str
    level: Level
    fact: str
    mend: str = ""
    device_time: Answer = Answer.WORKS


def ok(group: str, name: str, fact: str) -> Check:
    """All is well."""
    return Check(group, name, Level.OK, fact)


def warn(group: str, name: str, fact: str, mend: str, device_time: Answer = Answer.WORKS) -> Check:
    """Recording works, but something will be missing."""
    return Check(group, name, Level.WARN, fact, mend, device_time)


def fail(group: str, name: str, fact: str, mend: str) -> Check:
    """Recording does not work."""
    return Check(group, name, Level.FAIL, fact, mend, Answer.FAILS)


def recording(checks: Iterable[Check]) -> Answer:
    """Whether `record` works."""
    return Answer.FAILS if any(check.level is Level.FAIL for check in checks) else Answer.WORKS


def device_time(checks: Iterable[Check]) -> Answer:
    """Whether device time can be recorded too: the worst answer of any check."""
    worst = list(Answer)
    return max((check.device_time for check in checks), key=worst.index, default=Answer.WORKS)
