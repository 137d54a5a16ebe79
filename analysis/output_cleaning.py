"""What was left out of a window, in one line, for all formats for people."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kdiff.analysis.report import CleaningStep, WindowReport

_WORDS: Final[dict[str, tuple[str, Callable[[int], str]]]] = {
    "copies": ("read twice", lambda n: _some(n, "segment that is a copy", "segments that are copies")),
    "clock": ("of a host whose clock was set or that slept", lambda n: _some(n, "stretch", "stretches")),
    "lossy": ("of stretches that lost events", lambda n: _some(n, "stretch", "stretches")),
    "twice": ("that the store has twice", lambda n: _some(n, "stretch", "stretches")),
    "warm_up": ("of warm-up", lambda n: _some(n, "process", "processes") + " started"),
    "autotune": ("of autotuning", lambda n: _some(n, "burst", "bursts")),
}


def cleaning_line(window: WindowReport) -> str:
    """'left out: 1,204 launches of warm-up (2 processes started), 30 captured'; '' where there is nothing to tell."""
    out = [_step(one) for one in window.cleaning if not one.why]
    out += [f"{count:,} {what}" for count, what in ((window.captured, "captured"), (window.failed, "failed")) if count]
    kept = [f"{_step(one)}: {one.why}" for one in window.cleaning if one.why]
    parts = [f"left out: {', '.join(out)}"] if out else []
    parts += [f"not left out: {one}" for one in kept]
    return "; ".join(parts)


def _step(one: CleaningStep) -> str:
    what, found = _WORDS[one.step]
    if one.step == "copies":
        return f"{one.launches + one.executions:,} rows {what} ({found(one.found)})"
    counts = [f"{one.launches:,} launches"] if one.launches or not one.executions else []
    if one.executions:
        counts.append(f"{one.executions:,} timed")
    return f"{' and '.join(counts)} {what} ({found(one.found)})"


def _some(count: int, one: str, many: str) -> str:
    return f"{count:,} {one if count == 1 else many}"
