"""kdiff.agent.guard: an alarm where windows slow a process down, none where they do not."""

from __future__ import annotations

import numpy as np
import pytest

from kdiff.agent.guard import Guard, slower

SECOND = 1_000_000_000


def ratios(rng: np.random.Generator, slowdown: float, noise: float, windows: int) -> list[float]:
    """Rates inside over rates around, each with its own noise."""
    inside, before, after = (1 + noise * rng.standard_normal((3, windows))).clip(0.05)
    return list((1 - slowdown) * 2 * inside / (before + after))


@pytest.mark.parametrize(("noise", "allowed"), [(0.01, 0), (0.05, 0), (0.3, 3)])
def test_no_alarm_where_nothing_is_slower(noise: float, allowed: int) -> None:
    """1,000 runs of 30 windows, looked at after each of them."""
    rng = np.random.default_rng(7)
    alarms = 0
    for _ in range(1000):
        run = ratios(rng, 0.0, noise, 30)
        alarms += any(slower(run[:count]) is not None for count in range(5, 31))
    assert alarms <= allowed


def test_a_tenth_slower_is_found_after_five_windows() -> None:
    rng = np.random.default_rng(8)
    found = [slower(ratios(rng, 0.10, 0.005, 5)) for _ in range(200)]
    assert sum(share is not None for share in found) > 190
    assert np.median([share for share in found if share]) == pytest.approx(0.10, abs=0.01)


def test_a_tenth_slower_is_found_in_noise_too() -> None:
    rng = np.random.default_rng(9)
    assert all(slower(ratios(rng, 0.10, 0.02, 15)) is not None for _ in range(200))


def test_what_is_tolerated_and_what_is_too_little() -> None:
    assert slower([0.985] * 30) is None
    assert slower([0.5] * 4) is None
    assert slower([0.5] * 5) is not None
    assert slower([1.0] * 15 + [0.01] * 14) is None, "half of the windows are as fast"


def launches(rate: float, inside: float, windows: int, period: int = 10 * SECOND) -> tuple[np.ndarray, list[int]]:
    """Times of launches at a rate, another one in windows of a second, and when those open."""
    opens = [5 * SECOND + i * period for i in range(windows)]
    edges, rates = [0], []
    for opened in opens:
        edges += [opened, opened + SECOND]
        rates += [rate, inside]
    edges.append(edges[-1] + 5 * SECOND)
    rates.append(rate)
    parts = [np.arange(a, b, SECOND / r).astype(np.int64) for a, b, r in zip(edges, edges[1:], rates, strict=False)]
    return np.concatenate(parts), opens


def watch(guard: Guard, times: np.ndarray, opens: list[int], length: int = SECOND) -> list[dict[int, float]]:
    """Feeds twice a second, as a recording does, and collects what is said."""
    said = []
    waiting = list(opens)
    for now in range(SECOND // 2, int(times[-1]) + 3 * SECOND, SECOND // 2):
        guard.feed(42, times[(times >= now - SECOND // 2) & (times < now)])
        while waiting and waiting[0] + length <= now:
            guard.window(42, waiting[0], waiting[0] + length)
            waiting.pop(0)
        found = guard.slowed(now)
        if found:
            said.append(found)
    return said


def test_a_process_that_windows_slow_down_is_said_once() -> None:
    times, opens = launches(5_000, 4_500, 6)
    said = watch(Guard(), times, opens)
    assert len(said) == 1
    assert said[0] == {42: pytest.approx(0.10, abs=0.005)}


@pytest.mark.parametrize(
    ("rate", "inside", "windows"),
    [(5_000, 5_000, 12), (5_000, 4_950, 12), (5_000, 4_500, 4), (900, 500, 12)],
    ids=["as fast", "tolerated", "too few windows", "too few launches"],
)
def test_no_alarm(rate: float, inside: float, windows: int) -> None:
    times, opens = launches(rate, inside, windows)
    assert watch(Guard(), times, opens) == []


def test_windows_without_a_gap_cannot_be_compared() -> None:
    times, _ = launches(5_000, 5_000, 6)
    opens = [5 * SECOND + i * SECOND for i in range(40)]
    assert watch(Guard(), times, opens) == []


def test_a_drift_of_the_rate_is_no_slowdown() -> None:
    times = (np.cumsum(np.linspace(1, 5, 120_000)) * 100_000).astype(np.int64)  # from 10,000 a second to 2,000
    opens = list(range(5 * SECOND, int(times[-1]) - 2 * SECOND, 3 * SECOND))
    assert len(opens) >= 8
    assert watch(Guard(), times, opens) == []


def test_a_process_is_forgotten() -> None:
    guard = Guard()
    guard.window(7, 0, SECOND)  # of which no launch was seen
    guard.feed(42, np.array([], np.int64))
    guard.feed(42, np.array([SECOND], np.int64))
    guard.forget(42)
    guard.forget(42)
    assert guard.slowed(100 * SECOND) == {}


class Counted(int):
    """A time that counts how often it is compared with another for being the same."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return int.__eq__(self, other)  # type: ignore[operator]

    def __ne__(self, other: object) -> bool:
        Counted.compared += 1
        return int.__ne__(self, other)  # type: ignore[operator]

    __hash__ = int.__hash__


def test_many_windows_at_once_are_looked_at_one_by_one() -> None:
    guard = Guard()
    guard.feed(42, np.array([SECOND], np.int64))
    for number in range(3_000):
        guard.window(42, Counted(number * SECOND), Counted((number + 1) * SECOND))
    assert guard.slowed(1_500 * SECOND) == {}
    assert len(guard._processes[42].due) == 1_503  # not over, or not long enough ago
    assert guard.slowed(4_000 * SECOND) == {}
    assert guard._processes[42].due == []
    assert Counted.compared < 3_000 * 64 * 3  # with the last 64, and none with all
