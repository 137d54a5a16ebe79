"""What --control and --canary say: `host=a,b`, `host=gpu-*`, `service=NAME`, or both with a comma between them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kdiff.analysis import timespec
from kdiff.analysis.timespec import SpecError
from kdiff.analysis.window import Window, length_text
from kdiff.queries.printable import quoted

FORMS: Final = "write host=NAME,NAME..., host=gpu-*, service=NAME, or both: service=NAME,host=gpu-*"
_MOST: Final = 1_000
_FINER: Final = ("gpu", "gpu_uuid", "container", "container_id", "pod", "pid")


@dataclass(frozen=True, slots=True)
class Selector:
    """An arm as it is asked for.

    Attributes:
        option: what messages call it.
        hosts: names, in which * is any text and ? any character; none: all that ran the service.
        service: '' is that of --service.
    """

    option: str
    hosts: tuple[str, ...] = ()
    service: str = ""


def parse(text: str, option: str) -> Selector:
    """The arm that `text` selects. Raises SpecError, one sentence."""
    values: dict[str, list[str]] = {"host": [], "service": []}
    key = ""
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if equals:
            key = name.strip()
        if key not in values:
            raise SpecError(f"{option} {quoted(text)}: {_unknown(key, equals)}: {FORMS}")
        value = (value if equals else part).strip()
        if not value:
            raise SpecError(f"{option} {quoted(text)}: a name is empty: {FORMS}")
        values[key].append(value)
    if len(values["service"]) > 1:
        raise SpecError(f"{option} {quoted(text)}: an arm is of one service: name one, or hosts only")
    if len(values["host"]) > _MOST:
        raise SpecError(f"{option} names {len(values['host']):,} hosts: name at most {_MOST:,}, or a pattern, as gpu-*")
    return Selector(option, tuple(dict.fromkeys(values["host"])), "".join(values["service"]))


def _unknown(key: str, equals: str) -> str:
    if key in _FINER:
        return f"arms are told apart by host, not by {quoted(key)}"
    return f"there is no {quoted(key)} to select by" if equals else "it does not say by what to select"


@dataclass(frozen=True, slots=True)
class Asked:
    """A comparison of two arms: what control and canary select, and the window, or the capture whose stretch it is."""

    selectors: tuple[Selector, Selector]
    at: Window | Path

    def warnings(self, now_ns: int) -> list[str]:
        """What may be wrong with the window, one sentence each."""
        if isinstance(self.at, Path) or self.at.to_ns <= now_ns:
            return []
        return [f"the window ends in the future: its last {length_text(self.at.to_ns - now_ns)} have not happened yet"]


def asked(
    arms: tuple[str, str],
    at: str,
    windows: tuple[str, str],
    now_ns: int,
    window: str,
    is_directory: Callable[[str], bool] = lambda text: Path(text).is_dir(),
    prefix: str = "--",
) -> Asked | None:
    """The arms that are asked for; None where two windows are. Raises SpecError, one sentence.

    Args:
        arms: what is said of control and of canary.
        at: the SPEC of their window, by itself the last `window`.
        windows: what is said of before and after, which must be nothing.
        now_ns: Unix time.
        window: a length.
        is_directory: as in timespec.parse.
        prefix: what stands before the names of options in messages.
    """
    control, canary, when, before, after = (
        f"{prefix}{name}" for name in ("control", "canary", "at", "before", "after")
    )
    said = dict(zip((control, canary, when), (*arms, at), strict=True))
    given = [name for name, value in said.items() if value]
    if not given:
        return None
    others = [name for name, value in zip((before, after), windows, strict=True) if value]
    if others:
        raise SpecError(
            f"{' and '.join(others)} name two windows, {' and '.join(given)} two arms of one: leave out one of the two "
            f"ways, and name the window of the arms with {when} SPEC"
        )
    selectors = []
    for name in (control, canary):
        if not said[name]:
            raise SpecError(f"{name} is missing beside {given[0]}: {FORMS}")
        selectors.append(parse(said[name], name))
    length_ns = timespec.parse_length(window)
    span: Window | Path = Window(max(now_ns - length_ns, 0), now_ns)
    if at:
        span = timespec.parse(at, "after", now_ns, length_ns, is_directory, option=when)
    return Asked((selectors[0], selectors[1]), span)
