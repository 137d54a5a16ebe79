"""Monotonic times as Unix times, where Unix time is steered, set or stands still."""

from __future__ import annotations

import time

import numpy as np
import pytest

from kdiff.agent import clock
from kdiff.agent.clock import Steps, UnixClock

S = 1_000_000_000


class Host:
    """A host whose clocks the test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monotonic_ns = 1000 * S
        self.offset_ns = 1_700_000_000 * S
        monkeypatch.setattr(time, "monotonic_ns", lambda: self.monotonic_ns)
        self.slept_ns = 40 * S
        monkeypatch.setattr(clock, "unix_offset_ns", lambda: self.offset_ns)
        monkeypatch.setattr(clock, "sleep_ns", lambda: self.slept_ns)

    def passes(self, seconds: float, unix: float | None = None, slept: float = 0.0) -> None:
        """`unix`: how far Unix time moves meanwhile; `slept`: for how long it was suspended besides."""
        self.monotonic_ns += int(seconds * S)
        self.offset_ns += (0 if unix is None else int((unix - seconds) * S)) + int(slept * S)
        self.slept_ns += int(slept * S)


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
    assert its.take_steps().sentence == (
        f"this host's clock was set {said}: durations are right, but windows that touch that moment are not as long as "
        "they say"
    )
    host.passes(1)
    unix(its, host.monotonic_ns)
    assert its.take_steps() == Steps()
    assert its.take_steps().sentence == ""


def test_a_clock_that_is_steered_is_not_set(host: Host) -> None:
    its = UnixClock()
    for seconds in (1, 1, 600, 1):
        unix(its, host.monotonic_ns)
        host.passes(seconds, seconds * 1.0005)
    assert its.take_steps() == Steps()


def test_a_sleep_is_told_from_a_clock_that_is_set(host: Host) -> None:
    """CLOCK_MONOTONIC stands still while a host is suspended, CLOCK_BOOTTIME does not."""
    its = UnixClock()
    its.refresh()
    host.passes(1, slept=3600)
    its.refresh()
    assert its.take_steps() == Steps(0, 3600 * S)
    host.passes(1, unix=-6, slept=60)  # NTP sets it after the sleep
    its.refresh()
    steps = its.take_steps()
    assert steps == Steps(-7 * S, 60 * S)
    assert steps.sentence.startswith(
        "this host's clock was set back by 7.0 s and this host slept for 60.0 s: durations"
    )


def test_a_second_is_read_as_it_begins_not_when_its_calls_are_known(host: Host) -> None:
    """A launch that waits for its sync for 5 s, and a clock that is set meanwhile."""
    its = UnixClock()
    its.refresh()
    launched, offset = host.monotonic_ns + 5, host.offset_ns
    for _ in range(5):
        host.passes(1)
        its.refresh()
    host.passes(1, unix=-3599)
    its.refresh()
    assert unix(its, launched) == [launched + offset]
    assert unix(its, host.monotonic_ns) == [host.monotonic_ns + offset - 3600 * S]


@pytest.mark.parametrize("by_s", [-3600, -2, 3600])
def test_raw_times_are_had_back_whatever_is_done_to_the_clock(host: Host, by_s: int) -> None:
    its = UnixClock()
    raw, when, offsets = [], [], []
    rng = np.random.default_rng(3)
    for second in range(20):
        times = host.monotonic_ns + np.sort(rng.integers(0, S, 101))
        its.refresh()
        raw.append(times)
        offsets.append(its.offsets(times))
        when.append(its.unix(times))
        host.passes(1, 1 + (by_s if second == 9 else rng.normal() * 1e-4), slept=second == 15)
    rebuilt = np.concatenate(when) - np.concatenate(offsets)
    assert rebuilt.tolist() == np.concatenate(raw).tolist()
    assert (np.diff(rebuilt) >= 0).all()
    assert (np.diff(np.concatenate(when)) < 0).any() == (by_s < 0)  # else the test shows nothing
    assert its.take_steps() == Steps(by_s * S, S)


def test_a_stretch_has_all_times_that_its_calls_may_have(host: Host) -> None:
    its = UnixClock()
    start, offset = host.monotonic_ns + S // 4, host.offset_ns
    its.refresh()
    assert its.hull(start, start) == (start + offset, start + offset)
    assert its.hull(start, start + 7) == (start + offset, start + offset + 7)
    for second in range(10):
        host.passes(1, -3599 if second == 4 else 1)
        its.refresh()
    set_at = 1005 * S
    end = host.monotonic_ns + S // 2
    assert its.hull(start, end) == (set_at + offset - 3600 * S, set_at + offset)
    assert its.hull(start, set_at - 1) == (start + offset, set_at - 1 + offset)
    assert its.hull(set_at, end) == (set_at + offset - 3600 * S, end + offset - 3600 * S)


def test_what_lasts_through_a_clock_that_is_set_is_as_long_as_it_was(host: Host) -> None:
    its = UnixClock()
    its.refresh()
    begun, offset = host.monotonic_ns, host.offset_ns
    host.passes(2, 7)
    its.refresh()
    assert its.span(begun, begun + 2 * S) == (begun + offset, begun + 2 * S + offset)
    host.passes(1, 1.0005)  # steered: the end of a window is the begin of the next
    its.refresh()
    assert its.span(begun + 2 * S, begun + 3 * S) == tuple(unix(its, begun + 2 * S, begun + 3 * S))


def test_the_clocks_of_this_host() -> None:
    assert abs(clock.unix_offset_ns() - (time.time_ns() - time.monotonic_ns())) < 50_000_000
    assert clock.sleep_ns() > -1_000_000
    its = UnixClock()
    now = time.monotonic_ns()
    assert its.offset(now) == int(its.offsets(np.array([now], np.int64))[0])
