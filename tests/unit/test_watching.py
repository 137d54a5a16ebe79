"""The watch: evidence that holds however often one looks, and what a look waits for or leaves out."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Result, Run, kdiff
from hypothesis import given
from hypothesis import strategies as st

import captures
from captures import MINUTE, SECOND, T0
from kdiff.analysis import compare, watching
from kdiff.analysis.evidence import Evidence
from kdiff.analysis.sequential import BETS, EProcess
from kdiff.analysis.window import Window
from kdiff.queries.errors import KdiffError, StoreError
from kdiff.queries.store import CaptureStore

START = T0 + 10 * MINUTE
RATE = 2_003  # launches a minute


# ---- the evidence ----


def test_of_the_expected_share_nothing_follows() -> None:
    process = EProcess(0.99)
    assert process.see(1, 100) == pytest.approx(1.0, abs=1e-12)
    assert process.see(0, 0) == process.value
    assert (process.stretches, process.launches, process.above) == (1, 100, 1)


def test_a_stretch_where_all_are_slow() -> None:
    assert EProcess(0.99).see(7, 7) == pytest.approx(np.mean([1 + bet * 99 for bet in BETS]))
    assert EProcess(0.5).see(7, 7) == pytest.approx(np.mean([1 + bet for bet in BETS]))


@given(st.integers(1, 40), st.sampled_from([0.5, 0.9, 0.99, 0.999]), st.lists(st.integers(0, 3), max_size=4))
def test_where_nothing_is_slower_no_growth_is_expected(n: int, q: float, earlier: list[int]) -> None:
    """Over all outcomes of a stretch, weighted as chance has them, whatever came before."""
    before = EProcess(q)
    for above in earlier:
        before.see(above, 3)
    expected = 0.0
    for above in range(n + 1):
        after = EProcess(q, before.wealth.copy())
        expected += math.comb(n, above) * (1 - q) ** above * q ** (n - above) * after.see(above, n)
    assert expected == pytest.approx(before.value, rel=1e-9)


@given(st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 10**9)), max_size=300))
def test_it_never_overflows_nor_dies(stretches: list[tuple[int, int]]) -> None:
    process = EProcess(0.999)
    for one, other in stretches:
        assert 0 < process.see(min(one, other), max(one, other)) < math.inf


@pytest.mark.parametrize(("above", "launches"), [(1, 0), (-1, 3), (4, 3)])
def test_impossible_counts_are_refused(above: int, launches: int) -> None:
    with pytest.raises(ValueError, match="cannot be above"):
        EProcess(0.99).see(above, launches)


def test_false_stops_are_as_rare_as_promised() -> None:
    """Exactly 1% above, 4,000 watches of 200 looks: at most 1% reach 100; that chance exceeds 74 has p = 1e-6."""
    rng = np.random.default_rng(5)
    stopped = 0
    for _ in range(4_000):
        process = EProcess(0.99)
        stopped += any(process.see(int(above), 30) >= 100 for above in rng.binomial(30, 0.01, 200))
    assert stopped <= 74


# ---- a watch ----


def minute(root: Path, at: int, scale: float, seed: int, **columns: object) -> None:
    """A minute of launches of a kernel, its agent's account with it."""
    begin = START + at * MINUTE
    values = (80_000 * scale * np.random.default_rng(seed).lognormal(0, 0.1, RATE)).astype(np.int64)
    times = captures.spread(begin, begin + MINUTE, RATE)
    captures.write(root, "cuda_events", captures.launches("gelu", times, completion_ns=values), f"{seed:03d}")
    captures.write(root, "agent_health", captures.health(begin, begin + MINUTE, **columns), f"{seed:03d}")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A capture with ten minutes of baseline."""
    for at in range(-10, 0):
        minute(tmp_path, at, 1.0, at + 100)
    return tmp_path


class Clock:
    """Time that passes only while it is slept, and what happens then."""

    def __init__(self, now_ns: int, wakes: Callable[[int], None]) -> None:
        self.time = now_ns
        self.wakes = wakes

    def now_ns(self) -> int:
        return self.time

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.time += math.ceil(seconds * SECOND)
        self.wakes(self.time)


def run_watch(
    root: Path, minutes: int, clock: Clock, options: watching.Options | None = None
) -> list[tuple[str, float, int]]:
    """(why it was left out, evidence, when in s after the start) of each look."""
    options = options or watching.Options()

    @contextmanager
    def opened(window: Window) -> Iterator[Evidence]:
        with CaptureStore(root) as store:
            yield Evidence(store, window)

    with CaptureStore(root) as store:
        baseline = watching.read_baseline(Evidence(store, Window(START - 10 * MINUTE, START)), options)
    state = watching.Watch(baseline, options)
    window = Window(START, START + minutes * MINUTE)
    return [
        (look.left_out, state.ranked[0].evidence.value, (clock.time - START) // SECOND)
        for look in watching.watch(state, window, opened, clock.now_ns, clock.sleep)
    ]


def test_a_slower_kernel_stops_it_soon_after_it_is_seen(root: Path) -> None:
    written: list[int] = []

    def wakes(now_ns: int) -> None:
        """Two minutes as before, then twice as slow; each is there 7 s after its end."""
        at = len(written)
        if now_ns >= START + (at + 1) * MINUTE + 7 * SECOND:
            written.append(at)
            minute(root, at, 1.0 if at < 2 else 2.0, at)

    looks = run_watch(root, 30, Clock(START, wakes))
    assert [when for _, _, when in looks] == [70, 130, 190, 250]
    assert all(value < 1 for _, value, _ in looks[:2])
    assert looks[2][1] < 100 <= looks[3][1]


def test_a_host_that_is_gone_is_waited_for_once(root: Path) -> None:
    begin, end = START - 10 * MINUTE, START
    captures.write(root, "agent_health", captures.health(begin, end, host="host-2"), "200")
    for at in range(3):
        minute(root, at, 1.0, at)
    looks = run_watch(root, 3, Clock(START, lambda _now: None))
    assert [when for _, _, when in looks] == [60 + 120, 180, 180]  # the next ones are over by then
    assert [why for why, _, _ in looks] == ["", "", ""]


def test_a_look_without_an_account_or_with_loss_is_left_out(root: Path) -> None:
    minute(root, 0, 9.0, 0, lost_launches=1_000)
    minute(root, 2, 1.0, 2)
    looks = run_watch(root, 3, Clock(START + 60 * MINUTE, lambda _now: None))
    assert [why for why, _, _ in looks] == ["it lost 75% of its events", "no agent accounted for it", ""]
    assert looks[0][1] == looks[1][1] == 1.0
    assert looks[2][1] < 1


def test_a_store_that_is_away_is_waited_for_but_not_for_ever(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    minute(root, 0, 1.0, 0)
    back_ns = START + 100 * SECOND
    clock = Clock(START, lambda _now: None)
    recording = Evidence.recording

    def away(self: Evidence) -> object:
        if clock.time < back_ns and self.window.from_ns >= START:
            raise KdiffError("away")
        return recording(self)

    monkeypatch.setattr(Evidence, "recording", away)
    assert [when for _, _, when in run_watch(root, 1, clock)] == [100]
    back_ns = START + 60 * MINUTE
    clock.time = START
    with pytest.raises(KdiffError, match="away"):
        run_watch(root, 1, clock)
    assert clock.time == START + (60 + 120) * SECOND


def test_the_comparison_at_the_end_waits_for_a_store_too() -> None:
    clock = Clock(START, lambda _now: None)

    def ask(back_ns: int, error: KdiffError) -> int:
        if clock.time < back_ns:
            raise error
        return 7

    def patiently(back_ns: int, error: KdiffError) -> int:
        return watching.patiently(lambda: ask(back_ns, error), 120 * SECOND, clock.now_ns, clock.sleep)

    assert patiently(START + 93 * SECOND, StoreError("away")) == 7
    assert clock.time == START + 95 * SECOND
    with pytest.raises(StoreError, match="away"):
        patiently(START + 60 * MINUTE, StoreError("away"))
    assert clock.time == START + (95 + 120) * SECOND
    with pytest.raises(KdiffError, match="nothing"):
        patiently(START + 60 * MINUTE, KdiffError("nothing"))
    assert clock.time == START + (95 + 120) * SECOND


# ---- the command ----


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.setenv("COLUMNS", "80")

    def call(*arguments: str) -> Result:
        return kdiff(monkeypatch, capsys, "watch", *arguments)

    return call


OPTIONS = ["--baseline", "2025-11-27T10:00/10m", "--start", "2025-11-27T10:10", "--for", "5m"]


def test_a_regression_is_1_at_once(run: Run, root: Path) -> None:
    for at in range(5):
        minute(root, at, 2.0, at)
    result = run("--store", str(root), *OPTIONS)
    assert result.code == 1
    first, second = result.out.splitlines()
    assert first == "REGRESSED after 2m, 2 looks from 2025-11-27T10:10:00Z on"
    assert second.startswith("gelu: 4,006 of 4,006 launches (100.0%) took longer than ")
    assert second.endswith(" us (completion), 1% may; evidence 359, needed 100")
    assert len(result.err.splitlines()) == 2

    found = json.loads(run("--store", str(root), *OPTIONS, "--format", "json").out)
    assert found["report"] is None
    assert (found["watch"]["looks"], found["watch"]["stopped"], found["watch"]["verdict"]) == (2, True, "REGRESSED")
    (row,) = found["watch"]["kernels"]
    assert (row["launches"], row["above"], row["regressed"]) == (4_006, 4_006, True)


def test_without_one_both_windows_are_compared_at_the_end(run: Run, root: Path) -> None:
    for at in range(5):
        minute(root, at, 1.0, at)
    result = run("--store", str(root), *OPTIONS)
    assert result.code == 0
    assert result.out.splitlines()[-1] == "PASS: 1 kernel, none over +5% at p99 (completion)"
    found = json.loads(run("--store", str(root), *OPTIONS, "--format", "json").out)
    assert (found["watch"]["stopped"], found["watch"]["verdict"]) == (False, "PASS")
    assert found["report"]["verdict"] == "PASS"


def test_a_server_that_is_away_at_the_end_does_not_lose_the_watch(
    run: Run, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for at in range(5):
        minute(root, at, 1.0, at)
    compared = compare.compare
    failures = [StoreError("away"), StoreError("away")]

    def away(*arguments: Any) -> Any:
        if failures:
            raise failures.pop()
        return compared(*arguments)

    monkeypatch.setattr(compare, "compare", away)
    monkeypatch.setattr("time.sleep", lambda _seconds: None)
    assert run("--store", str(root), *OPTIONS).code == 0
    assert failures == []


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--baseline", "2025-11-27T10:00/11m"], "begins before the baseline ends"),
        (["--every", "6m"], "--every is 6m"),
        (["--every", "500ms"], "--every is 500ms"),
        (["--for", "30d", "--every", "1s"], "more than 10,000 looks"),
        (["--baseline", "2025-11-27T10:00/30s"], "each needs 2,000 launches"),
        (["--baseline", "2025-11-26T10:00/10m"], "no kernel of the baseline"),
        (["--metric", "device"], "device time not recorded"),
        (["--kernel", "nothing"], "no kernel matches"),
        (["--baseline", ""], "--baseline is missing"),
    ],
)
def test_what_cannot_be_watched_is_said(run: Run, root: Path, options: list[str], why: str) -> None:
    result = run("--store", str(root), *OPTIONS, *options)
    assert (result.code, result.out) == (2, "")
    assert why in result.err
    assert len(result.err.splitlines()) == 1


def test_a_baseline_that_is_the_store_itself_is_no_baseline_of_what_follows_in_it(run: Run, root: Path) -> None:
    minute(root, 0, 1.0, 0)
    result = run("--store", str(root), *OPTIONS, "--baseline", f"{root}/.")
    assert (result.code, result.out) == (2, "")
    assert "begins before the baseline ends" in result.err
