"""A stretch of time, how it is cut into buckets, and how times, lengths and shares read on paper."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

NS: Final = 1_000_000_000
MINUTE_NS: Final = 60 * NS
HOUR_NS: Final = 60 * MINUTE_NS
BUCKETS: Final = 120
"""interval.RECOMMENDED_BUCKETS, repeated: importing it would make `kdiff --help` import numpy and scipy."""
MOST_BUCKETS: Final = 480
"""More than enough degrees of freedom: more stretches would cost time and memory only."""
_UNITS_OF_ROLLUPS: Final = (HOUR_NS, MINUTE_NS)
_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s"))
_MAX_NS: Final = 253_402_300_799 * NS  # the last second that a calendar date can name


@dataclass(frozen=True, slots=True)
class Window:
    """[from_ns, to_ns) in Unix nanoseconds; never empty.

    Raises ValueError where to_ns <= from_ns.
    """

    from_ns: int
    to_ns: int

    def __post_init__(self) -> None:
        if self.to_ns <= self.from_ns:
            raise ValueError("a window ends after it starts")

    @property
    def length_ns(self) -> int:
        """The length in nanoseconds."""
        return self.to_ns - self.from_ns

    def overlap_ns(self, other: Window) -> int:
        """The time common to both, in nanoseconds."""
        return max(0, min(self.to_ns, other.to_ns) - max(self.from_ns, other.from_ns))

    def buckets(self) -> tuple[int, int]:
        """(count, width in ns) of the equal stretches that tile the window, the last of which may be shorter.

        120 of them; in a longer window whole minutes, in one of days whole hours: one each, more where there are more
        than MOST_BUCKETS of these. The width is rounded up to whole nanoseconds, so that (t - from_ns) // width < count
        for every t in the window.
        """
        unit = self.unit_ns
        if unit:
            width = -(-self.length_ns // unit // MOST_BUCKETS) * unit
            return -(-self.length_ns // width), width
        count = min(BUCKETS, self.length_ns)
        return count, -(-self.length_ns // count)

    def whole(self) -> Window:
        """The UTC hours that lie in it where they are BUCKETS or more, else the minutes if they are; else itself.

        So long a window is cut into hours or minutes, those that roll-ups are made of.
        """
        for unit in _UNITS_OF_ROLLUPS:
            start, end = -(-self.from_ns // unit) * unit, self.to_ns // unit * unit
            if end - start >= BUCKETS * unit:
                return Window(start, end)
        return self

    def around(self) -> Window:
        """The UTC hours or minutes that it touches, where `whole` would narrow it to these; else itself."""
        unit = self.whole().unit_ns
        if not unit:
            return self
        return Window(self.from_ns // unit * unit, -(-self.to_ns // unit) * unit)

    @property
    def unit_ns(self) -> int:
        """An hour or a minute, the longer one of which it is made, BUCKETS or more of them; else 0."""
        for unit in _UNITS_OF_ROLLUPS:
            if self.length_ns >= BUCKETS * unit and self.from_ns % unit == self.to_ns % unit == 0:
                return unit
        return 0

    def brief(self) -> str:
        """A..B to the millisecond, for people; str() is exact and can be given as a SPEC."""
        return f"{utc_short(self.from_ns)}..{utc_short(self.to_ns)}"

    def __str__(self) -> str:
        return f"{utc(self.from_ns)}..{utc(self.to_ns)}"


def utc(time_ns: int) -> str:
    """ISO 8601 in UTC, exact: 2026-11-27T10:00:00Z, with as many digits of the second as it has."""
    if not 0 <= time_ns <= _MAX_NS:
        return f"{time_ns} ns"
    seconds, rest = divmod(time_ns, NS)
    text = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{text}.{rest:09d}".rstrip("0") + "Z" if rest else f"{text}Z"


def utc_second(time_ns: int) -> str:
    """The same to the second: what tells two windows, or two verdicts, apart."""
    return utc(time_ns // NS * NS)


def utc_short(time_ns: int) -> str:
    """The same to the millisecond, for people."""
    return utc(time_ns // 1_000_000 * 1_000_000)


def length_text(length_ns: int) -> str:
    """15m, 1h30m, 22.5s, 1d2h, 500ms; at most two units."""
    for size, unit in ((1, "ns"), (1_000, "us"), (1_000_000, "ms")):
        if length_ns / size < 999.5:  # not rounded to 1000
            return f"{length_ns / size:.3g}{unit}"
    if length_ns < 60 * NS:
        return f"{length_ns / NS:.3g}s"
    rest = round(length_ns / NS)
    parts: list[str] = []
    for size, unit in _UNITS:
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts[:2])
