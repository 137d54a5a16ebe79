"""Monotonic times as Unix times, where Unix time is steered, set or stands still."""

from __future__ import annotations

import time

import numpy as np
import pytest

from kdiff.agent import clock
from kdiff.agent.clock import UnixClock

S = 1_000_000_000


class Host:
    """A host whose clocks the test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monotonic_ns = 1000 * S
        self.offset_ns = 1_700_000_000 * S
        monkeypatch.setattr(time, "monotonic_ns", lambda: self.monotonic_ns)
        monkeypatch.setattr(clock, "unix_offset_ns", lambda: self.offset_ns)

    def passes(self, seconds: float, unix: float | None = None) -> None:
        """`unix`: how far Unix time moves meanwhile."""
        self.monotonic_ns += int(seconds * S)
        self.offset_ns += 0 if unix is None else int((unix - seconds) * S)


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(monkeypatch)


def unix(its: UnixClock, *monotonic_ns: int) -> list[int]:
    return its.unix(np.array(monotonic_ns, np.int64)).tolist()


@pytest.mark.parametrize(
    ("by_s", "said"), [(-7, "back by 7.0 s"), (3600, "forward by 3600.0 s"), (-0.2, "back by 0.2 s")]
)
def test_a_clock_that_is_set_is_said_once_and_what_came_before_keeps_its_time(
    host: Host, by_s: float, said: str
) -> None:
    its = UnixClock()
    early = host.monotonic_ns
    before = unix(its, early)
    host.passes(2, 2 + by_s)
    assert unix(its, early, host.monotonic_ns) == [*before, early + 2 * S + host.offset_ns]
    assert f"clock was set {said}" in its.take_step()
    host.passes(1)
    unix(its, host.monotonic_ns)
    assert its.take_step() == ""


def test_a_clock_that_is_steered_is_not_set(host: Host) -> None:
    its = UnixClock()
    for seconds in (1, 1, 600, 1):
        unix(its, host.monotonic_ns)
        host.passes(seconds, seconds * 1.0005)
    assert its.take_step() == ""
