"""SPEC, the way a user names a window.

    2026-11-27T10:00/15m       start and length
    A..B                       from A to B
    2026-11-27T10:00  -2h      an instant: the window that ends there (before) or starts there (after)
    ./captures/tuesday         a capture directory: its whole recorded stretch

An instant is a date, a date and a time (UTC unless a zone follows: Z, +01:00, [Europe/Berlin]), `now`, `now-30m`,
`-30m`, or Unix time in s, ms, us or ns, told apart by magnitude. What can be read as a time is one: write ./NAME
for a directory whose name looks like a time.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Final, Literal
from zoneinfo import ZoneInfo

from kdiff.analysis.window import NS, Window, length_text, utc_short
from kdiff.queries.errors import KdiffError
from kdiff.queries.printable import quoted

Side = Literal["before", "after"]

DEFAULT_WINDOW_NS: Final = 15 * 60 * NS

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LIMIT_NS: Final = 2**63
_MAX_LENGTH_NS: Final = 100 * 366 * 86_400 * NS
_UNIT_NS: Final = {
    "ns": 1,
    "us": 1_000,
    "ms": 1_000_000,
    "s": NS,
    "m": 60 * NS,
    "min": 60 * NS,
    "h": 3_600 * NS,
    "d": 86_400 * NS,
    "w": 7 * 86_400 * NS,
}
_LENGTH_PART: Final = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)(ns|us|ms|min|s|m|h|d|w)")
_DATE: Final = re.compile(
    r"(?P<year>[0-9]{4})-(?P<month>[0-9]{2})-(?P<day>[0-9]{2})"
    r"(?:[Tt ](?P<hour>[0-9]{2}):(?P<minute>[0-9]{2})(?::(?P<second>[0-9]{2})(?:\.(?P<fraction>[0-9]{1,9}))?)?"
    r"(?P<offset>[Zz]|[+-][0-9]{2}(?::?[0-9]{2})?)?)?"
    r"(?:\[(?P<zone>[^\]\[]*)\])?"
)
_DOTS: Final = re.compile(r"\.\.(?![^\[]*\])")  # not inside the brackets of a zone
_UNIX: Final = re.compile(r"[0-9]{1,19}(?:\.[0-9]{1,18})?")
_ZONE: Final = re.compile(r"[A-Za-z][A-Za-z0-9_+/-]{0,63}")
# The smallest value of each unit: below 1e8 s (March 1973) a number is more likely 20261127 or a slip.
_MAGNITUDES: Final = ((10**17, 1), (10**14, 1_000), (10**11, 1_000_000), (10**8, NS))
_FORMS: Final = "write 2026-11-27T10:00/15m, A..B, -2h, a Unix time or a capture directory"


class SpecError(KdiffError):
    """A SPEC, a length or a share that cannot be understood or makes no window."""


def parse(
    text: str,
    side: Side,
    now_ns: int,
    window_ns: int = DEFAULT_WINDOW_NS,
    is_directory: Callable[[str], bool] = lambda text: Path(text).is_dir(),
    option: str = "",
) -> Window | Path:
    """The window that `text` names, or the path of the capture whose whole stretch is meant.

    Pure but for `is_directory`, asked only about text that is not a time. `option` is what messages call the
    SPEC, --before or --after by itself. Raises SpecError, one sentence.
    """
    option = option or f"--{side}"
    if not text.strip():
        raise SpecError(f"{option} is empty: {_FORMS}")
    if text.startswith("@"):
        raise SpecError(f"{option}: there is no mark named {quoted(text[1:])} in the store: give a time instead")
    if text.startswith((".", "/", "~")):
        return _directory(text, option, is_directory)
    try:
        window = _window(text, side, now_ns, window_ns)
    except _NotATimeError:
        return _directory(text, option, is_directory)
    except SpecError as error:
        raise SpecError(f"{option} {quoted(text)}: {error}") from error
    if window.from_ns >= now_ns:
        raise SpecError(
            f"{option} {quoted(text)}: the window starts at {utc_short(window.from_ns)}, in the future "
            f"(it is {utc_short(now_ns)}): wait, or name an earlier time"
        )
    return window


def parse_length(text: str) -> int:
    """Nanoseconds of 15m, 1h30m, 1.5h, 90s, 500ms. Raises SpecError: not a length, zero, or over a century."""
    total = Decimal(0)
    position = 0
    while position < len(text):
        part = _LENGTH_PART.match(text, position)
        if part is None:
            break
        total += Decimal(part[1]) * _UNIT_NS[part[2]]
        position = part.end()
    if not text or position < len(text):
        raise SpecError(f"{quoted(text)} is not a length of time: write 90s, 15m, 1h30m or 2d")
    if total < 1:
        raise SpecError(f"the length {quoted(text)} is empty: give at least 1ns")
    if total > _MAX_LENGTH_NS:
        raise SpecError(f"the length {quoted(text)} is over a century: give a shorter one")
    return int(total)


def parse_instant(text: str, now_ns: int) -> int:
    """Unix nanoseconds of an instant. Raises SpecError."""
    text = text.strip()
    relative = text[3:] if text[:3].lower() == "now" else text if text[:1] == "-" else None
    if relative == "":
        return now_ns
    if relative is not None:
        if relative[0] not in "+-":
            raise _NotATimeError(f"{quoted(text)} is not a time: write now, now-30m or -30m")
        shift = parse_length(relative[1:].strip())
        return _bounded(now_ns + shift if relative[0] == "+" else now_ns - shift, text)
    if _UNIX.fullmatch(text):
        return _unix(text)
    match = _DATE.fullmatch(text)
    if match is None:
        raise _NotATimeError(f"{quoted(text)} is not a time: write 2026-11-27T10:00, -2h, now or a Unix time")
    return _calendar(match, text)


def check_pair(before: Window, after: Window, now_ns: int, same_store: bool) -> list[str]:
    """Warnings about two windows, one sentence each. Raises SpecError where they share time in one store.

    Launches that are in both windows pull the ratio to 1: a regression would pass.
    """
    common = before.overlap_ns(after)
    if same_store and common:
        raise SpecError(
            f"the before and after windows overlap by {length_text(common)} ({before.brief()} and {after.brief()}): "
            "give windows that share no time"
        )
    warnings = []
    for side, window in (("before", before), ("after", after)):
        if window.to_ns > now_ns:
            missing = length_text(window.to_ns - now_ns)
            warnings.append(f"the {side} window ends in the future: its last {missing} have not happened yet")
    if before.from_ns > after.from_ns and same_store:
        warnings.append("the before window is later than the after window: a ratio above 1 means it got faster")
    return warnings


class _NotATimeError(SpecError):
    """Not even the form of a time, so it may be a path."""


def _window(text: str, side: Side, now_ns: int, window_ns: int) -> Window:
    ends = _DOTS.split(text, maxsplit=1)
    if len(ends) == 2:
        return _ordered(parse_instant(ends[0], now_ns), parse_instant(ends[1], now_ns))
    start, length = _split_length(text)
    instant = parse_instant(start, now_ns)
    if length is not None:
        return _ordered(instant, _bounded(instant + parse_length(length.strip()), text))
    if side == "before":
        return _ordered(_bounded(instant - window_ns, text), instant)
    return _ordered(instant, _bounded(instant + window_ns, text))


def _split_length(text: str) -> tuple[str, str | None]:
    """Split at the last slash, unless it belongs to a zone in brackets."""
    head, slash, tail = text.rpartition("/")
    return (head, tail) if slash and "]" not in tail else (text, None)


def _ordered(from_ns: int, to_ns: int) -> Window:
    if to_ns == from_ns:
        raise SpecError(f"the window is empty: it starts and ends at {utc_short(from_ns)}")
    if to_ns < from_ns:
        raise SpecError(
            f"the window is reversed: it ends at {utc_short(to_ns)}, before its start {utc_short(from_ns)}: "
            "swap the two"
        )
    return Window(from_ns, to_ns)


def _directory(text: str, option: str, is_directory: Callable[[str], bool]) -> Path:
    # A NUL, a name too long, no such user: not a directory either way.
    with suppress(OSError, ValueError, RuntimeError):
        path = Path(text).expanduser() if text.startswith("~") else Path(text)
        if is_directory(str(path)):
            return path
    raise SpecError(f"{option} {quoted(text)} is neither a time nor a capture directory: {_FORMS}")


def _unix(text: str) -> int:
    value = Decimal(text)
    for smallest, factor in _MAGNITUDES:
        if value >= smallest:
            return _bounded(int(value * factor), text)
    raise SpecError(f"{text} is too small to be a Unix time of our days: write dates as 2026-11-27")


def _calendar(match: re.Match[str], text: str) -> int:
    fields = {name: int(match[name] or 0) for name in ("year", "month", "day", "hour", "minute", "second")}
    try:
        local = datetime(**fields)  # type: ignore[arg-type]
    except ValueError as error:
        raise SpecError(f"{quoted(text)} is not in the calendar ({error}): correct it") from error
    offset = _offset(match["offset"], text)
    zone = None if match["zone"] is None else _zone(match["zone"])
    try:
        moment = _place(local, offset, zone, match["zone"] or "")
        since = moment - _EPOCH
    except OverflowError as error:
        raise SpecError(f"{quoted(text)} is outside the calendar: correct it") from error
    fraction = int((match["fraction"] or "").ljust(9, "0"))
    return _bounded((since.days * 86_400 + since.seconds) * NS + fraction, text)


def _place(local: datetime, offset: timezone | None, zone: ZoneInfo | None, name: str) -> datetime:
    if zone is None:
        return local.replace(tzinfo=offset or UTC)
    choices = [local.replace(tzinfo=zone, fold=fold) for fold in (0, 1)]
    real = [c for c in choices if c.astimezone(UTC).astimezone(zone).replace(tzinfo=None) == local]
    if not real:
        raise SpecError(f"the clocks of {name} skip {local.isoformat()}: name a time that exists, or use UTC")
    if offset is not None:
        fixed = local.replace(tzinfo=offset)
        if all(fixed.utcoffset() != c.utcoffset() for c in real):
            raise SpecError(f"{name} is not at that offset on {local.isoformat()}: leave one of the two out")
        return fixed
    first, last = real[0].utcoffset(), real[-1].utcoffset()
    if first != last:
        options = " or ".join(c.strftime("%z")[:3] + ":" + c.strftime("%z")[3:5] for c in real)
        raise SpecError(
            f"the clocks of {name} show {local.isoformat()} twice: "
            f"add the offset ({options}) in place of the zone, or use UTC"
        )
    return real[0]


def _offset(text: str | None, whole: str) -> timezone | None:
    if text is None:
        return None
    if text in "Zz":
        return UTC
    hours, minutes = int(text[1:3]), int(text[-2:]) if len(text) > 3 else 0
    if hours > 14 or minutes > 59:
        raise SpecError(f"{quoted(whole)} has the offset {text}, which no clock has: write it as +01:00")
    shift = timedelta(hours=hours, minutes=minutes)
    return timezone(-shift if text[0] == "-" else shift)


def _zone(name: str) -> ZoneInfo:
    if _ZONE.fullmatch(name):
        # The name is a path below the zone files: a folder, or nothing, is an OSError, ValueError or KeyError.
        with suppress(ValueError, KeyError, OSError):
            return ZoneInfo(name)
    raise SpecError(f"there is no time zone {quoted(name)}: write one as [Europe/Berlin], or +01:00")


def _bounded(time_ns: int, text: str) -> int:
    if not 0 <= time_ns < _LIMIT_NS:
        raise SpecError(f"{quoted(text)} is outside the years 1970 to 2262: correct it")
    return time_ns
