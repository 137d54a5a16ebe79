"""Cleaning end to end: rows of what happens in production, through the store, with and without it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import kdiff

import captures
from captures import AFTER, BEFORE, SECOND, TwoWindows, only
from kdiff.analysis.compare import Options, compare
from kdiff.analysis.evidence import Evidence, whole_window
from kdiff.analysis.output import output_format
from kdiff.analysis.report import CleaningStep, Report
from kdiff.analysis.verdict import Verdict
from kdiff.analysis.window import Window
from kdiff.queries.store import CaptureStore

pytestmark = pytest.mark.usefixtures("engine")

N = 6_007
MIDDLE = (AFTER.from_ns + AFTER.to_ns) // 2


class Capture(TwoWindows):
    """Two windows of one process that launches two kernels, both timed on the device."""

    def __init__(self, root: Path) -> None:
        self.seed = 0
        super().__init__(root)

    def durations(self, count: int, scale: float = 1.0) -> np.ndarray:
        self.seed += 1
        return (80_000 * scale * np.random.default_rng(self.seed).lognormal(0.0, 0.1, count)).astype(np.int64)

    def runs(self, kernel: str, times: np.ndarray, durations: Any, **columns: Any) -> None:
        """Launches and their executions."""
        registers = columns.pop("registers", 40)
        self.add("cuda_events", captures.launches(kernel, times, batch_launches=24, **columns))
        shared = {"dynamic_shared": columns.pop("shared_bytes")} if "shared_bytes" in columns else {}
        self.add(
            "kernel_executions", captures.executions(kernel, times, durations, registers=registers, **columns, **shared)
        )

    def steady(self, window: Window, without: tuple[int, int] = (0, 0), **columns: Any) -> None:
        """The ordinary traffic of a window; none in the stretch `without`."""
        for kernel in ("gelu", "norm"):
            times = captures.spread(window.from_ns, window.to_ns, N)
            times = times[(times < without[0]) | (times >= without[1])]
            self.runs(kernel, times, self.durations(len(times)), **{"pid": 7, "block_x": 128, **columns})

    def judged(self, **options: Any) -> Report:
        return self.compare(**options)


@pytest.fixture
def capture(tmp_path: Path) -> Capture:
    return Capture(tmp_path / "capture")


def steps(report: Report) -> tuple[dict[str, CleaningStep], dict[str, CleaningStep]]:
    return tuple({one.step: one for one in window.cleaning} for window in (report.before, report.after))  # type: ignore[return-value]


def tune(capture: Capture, at: int, each: int = 15, slow: float = 190_000.0, pid: int = 7) -> int:
    """Six configurations of gelu, one after the other, within two seconds; the cache is cleared in between."""
    for number in range(6):
        begin = at + number * SECOND // 4
        times = captures.spread(begin, begin + SECOND // 5, each)
        columns = {"block_x": 64 << number % 3, "shared_bytes": 1024 * (number + 1), "registers": 32 + 8 * number}
        capture.runs("gelu", times, np.full(each, int(slow)), pid=pid, **columns)
        capture.runs("fill", times + 50_000, 30_000, pid=pid, block_x=512)
    return 6 * each


def test_nothing_is_left_out_of_ordinary_traffic(capture: Capture) -> None:
    capture.steady(BEFORE)
    capture.steady(AFTER)
    report = capture.judged()
    assert (report.exit_code, report.before.cleaning, report.after.cleaning) == (0, (), ())
    assert (report.before.launches, report.after.launches) == (2 * N, 2 * N)


def test_autotuning_moves_p99_and_is_left_out(capture: Capture) -> None:
    capture.steady(BEFORE)
    burst = (MIDDLE - SECOND, MIDDLE + 2 * SECOND)
    capture.steady(AFTER, without=burst)
    tuned = tune(capture, MIDDLE)
    assert 0.0145 < tuned / N < 0.0155
    raw = only(capture.judged(cleaning=False))
    assert raw.ratio is not None
    assert 1.8 < raw.ratio < 1.95
    assert raw.verdict is not Verdict.PASS
    report = capture.judged()
    row = only(report)
    assert row.verdict is Verdict.PASS
    assert row.ratio == pytest.approx(1.0, abs=0.02)
    assert report.exit_code == 0
    (before, after) = steps(report)
    assert before == {}
    left = after["autotune"]
    assert (left.found, left.launches, left.executions, left.why) == (1, 2 * tuned, 2 * tuned, "")
    assert steps(capture.judged(metric="launch"))[1]["autotune"] == left
    assert "left out: 180 launches and 180 timed of autotuning (1 burst)" in output_format("table").render(
        report, 200, False
    )


@pytest.mark.parametrize("how", ["host", "device"])
def test_autotuning_is_seen_by_launches_or_by_executions_alone(capture: Capture, how: str) -> None:
    for window in (BEFORE, AFTER):
        for number, (kernel, times) in enumerate(
            (kernel, captures.spread(window.from_ns, window.to_ns, N)) for kernel in ("gelu", "norm")
        ):
            its = times[(times < MIDDLE - SECOND) | (times >= MIDDLE + 2 * SECOND)]
            durations = capture.durations(len(its)) + number
            if how == "device":
                capture.add("kernel_executions", captures.executions(kernel, its, durations, pid=7, registers=40))
            else:
                capture.add("cuda_events", captures.launches(kernel, its, completion_ns=durations, pid=7, block_x=128))
    for number in range(4):
        times = captures.spread(MIDDLE + number * SECOND // 4, MIDDLE + number * SECOND // 4 + SECOND // 5, 40)
        if how == "device":
            capture.add("kernel_executions", captures.executions("gelu", times, 190_000, pid=7, registers=64 + number))
        else:
            shape = {"block_x": 64 << number % 2, "shared_bytes": 1024 * number}
            capture.add("cuda_events", captures.launches("gelu", times, completion_ns=190_000, pid=7, **shape))
    report = capture.judged()
    left = steps(report)[1]["autotune"]
    assert (left.found, left.launches + left.executions) == (1, 160)
    assert only(report).verdict is Verdict.PASS


def test_shapes_of_ordinary_traffic_are_no_autotuning(capture: Capture) -> None:
    """What a prompt decides: many grids, each for a while and never again; shared memory by length; rare blocks."""
    rng = np.random.default_rng(3)
    for window in (BEFORE, AFTER):
        times = captures.spread(window.from_ns, window.to_ns, N)
        prompt = np.arange(N) // 32
        capture.runs("gelu", times, capture.durations(N), pid=7, grid_x=1000 + prompt, block_x=128)
        capture.runs("attention", times + 1, capture.durations(N), pid=7, block_x=128, shared_bytes=16 * (prompt + 1))
        rare = np.where(rng.random(N) < 0.04, 64 << (prompt % 3), 256)
        capture.runs("reduce", times + 2, capture.durations(N), pid=7, block_x=rare, registers=30 + rare // 64)
    report = capture.judged()
    assert (report.exit_code, report.before.cleaning, report.after.cleaning) == (0, (), ())


def restarted(capture: Capture, at: int, slow_for: int = 30 * SECOND) -> None:
    """AFTER, with the process gone at `at` and another in its place ten seconds later, slow at first."""
    times = captures.spread(AFTER.from_ns, AFTER.to_ns, N)
    for kernel in ("gelu", "norm"):
        old = times[times < at]
        new = times[times >= at + 10 * SECOND]
        capture.runs(kernel, old, capture.durations(len(old)), pid=7, block_x=128)
        slow = np.where(new < at + 10 * SECOND + slow_for, 2.5, 1.0)
        capture.runs(kernel, new, (capture.durations(len(new)) * slow).astype(np.int64), pid=8, block_x=128)


def test_the_warm_up_of_a_restart_is_left_out(capture: Capture) -> None:
    capture.steady(BEFORE)
    restarted(capture, MIDDLE)
    raw = only(capture.judged(warm_up_ns=0))
    assert raw.ratio is not None
    assert raw.ratio > 2.0
    assert raw.verdict is not Verdict.PASS
    report = capture.judged()
    assert report.exit_code == 0
    times = captures.spread(AFTER.from_ns, AFTER.to_ns, N)
    first = int(times[times >= MIDDLE + 10 * SECOND][0])
    warming = 2 * int(((times >= first) & (times < first + 60 * SECOND)).sum())
    before, after = steps(report)
    assert before == {}
    assert after == {"warm_up": CleaningStep("warm_up", 1, warming, warming, 60 * SECOND)}
    document = json.loads(output_format("json").render(report, 0, False))
    assert document["after"]["cleaning"] == [
        {
            "step": "warm_up", "found": 1, "launches": warming, "executions": warming, "cut_ns": 60 * SECOND,
            "why": "", "left_out": True,
        }
    ]  # fmt: skip
    table = output_format("table").render(report, 200, False)
    assert f"left out: {warming:,} launches and {warming:,} timed of warm-up (1 process started)" in table
    junit = output_format("junit").render(report, 0, False)
    assert '<property name="cleaning after" value="left out: ' in junit


def test_the_options_of_the_command(
    capture: Capture, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    capture.steady(BEFORE)
    restarted(capture, MIDDLE)
    for arguments, lengths in (
        ((), [60 * SECOND]),
        (("--warm-up", "90s"), [90 * SECOND]),
        (("--warm-up", "0"), []),
        (("--no-cleaning",), []),
    ):
        asked = (
            "--before",
            str(BEFORE),
            "--after",
            str(AFTER),
            "--store",
            capture.root,
            "--format",
            "json",
            *arguments,
        )
        result = kdiff(monkeypatch, capsys, *asked)
        document = json.loads(result.out)
        assert [step["cut_ns"] for step in document["after"]["cleaning"]] == lengths
        assert (result.code == 0) == bool(lengths)
    result = kdiff(monkeypatch, capsys, *asked, "--warm-up", "2h")
    assert (result.code, result.out) == (2, "")
    assert result.err == "kdiff: --warm-up '2h' is over an hour: give a shorter one, or 0\n"


def test_a_process_that_started_before_the_window_warms_up_into_it(capture: Capture) -> None:
    """Thirty seconds before: half of its warm-up lies in the window."""
    capture.steady(BEFORE)
    start = AFTER.from_ns - 30 * SECOND
    times = captures.spread(start, AFTER.to_ns, N)
    capture.runs("gelu", times, capture.durations(N), pid=8, block_x=128)
    (_, after) = steps(capture.judged(unpaired="ignore"))
    warm = int(((times >= AFTER.from_ns) & (times < start + 60 * SECOND)).sum())
    assert after["warm_up"].launches == warm
    assert after["warm_up"].cut_ns == 30 * SECOND


@pytest.mark.parametrize(("recorded_for", "left_out"), [(2, False), (4, False), (6, True)])
def test_a_process_that_appears_with_the_recording_did_not_start(
    tmp_path: Path, recorded_for: int, left_out: bool
) -> None:
    """An agent that begins finds processes that have run for long: their first launch is only the first it saw."""
    capture = Capture(tmp_path / "capture")
    capture.steady(BEFORE)
    capture.steady(AFTER)
    (capture.root / "agent_health" / "000001.parquet").unlink()
    begun = MIDDLE - 100 * SECOND
    capture.add("agent_health", captures.health(BEFORE.from_ns, AFTER.to_ns))
    capture.add("agent_health", captures.health(begun, AFTER.to_ns, host="host-2"))
    times = captures.spread(begun + recorded_for * SECOND, AFTER.to_ns, N)
    capture.runs("gelu", times, capture.durations(N), pid=5, block_x=128, host="host-2")
    assert ("warm_up" in steps(capture.judged())[1]) == left_out


@pytest.mark.parametrize("length", [20, 360])
def test_a_demo_whose_processes_all_start_in_the_window_is_judged_as_it_is(tmp_path: Path, length: int) -> None:
    """`kdiff-agent record -- COMMAND`: the command starts some seconds after the recording."""
    stores = []
    for number, name in enumerate(("before", "after")):
        root = tmp_path / name
        start = captures.T0 + number * 1000 * SECOND
        times = captures.spread(start + 6 * SECOND, start + (6 + length) * SECOND, N)
        durations = (80_000 * (1.0 + 0.3 * number) * np.random.default_rng(number).lognormal(0, 0.1, N)).astype(
            np.int64
        )
        pids = np.where(np.arange(N) % 2, 11, 12) if length == 360 else 11
        captures.write(root, "cuda_events", captures.launches("gelu", times, pid=pids, completion_ns=durations))
        captures.write(root, "agent_health", captures.health(start, start + (6 + length) * SECOND))
        stores.append(CaptureStore(root))
    with stores[0], stores[1]:
        before, after = (Evidence(store, whole_window(store)) for store in stores)
        report = compare(before, after, Options())
    assert report.exit_code == 1
    its = steps(report)
    if length == 20:
        assert (report.before.launches, report.after.launches) == (N, N)
        for side in its:
            assert side["warm_up"].launches == N
            assert side["warm_up"].why == "that would be 100% of the before window (at most 20%)"
        told = output_format("table").render(report, 200, False)
        assert "not left out: 6,007 launches of warm-up (1 process started): that would be 100% of" in told
    else:
        assert report.before.launches < N
        assert (its[0]["warm_up"].found, its[0]["warm_up"].why) == (2, "")


def lossy_health(capture: Capture, stretches: dict[int, int]) -> None:
    """Accounts of AFTER anew, in another segment: `stretches` says how many launches each ten seconds lost."""
    (capture.root / "agent_health" / "000001.parquet").unlink()
    accounts = captures.health(BEFORE.from_ns, AFTER.to_ns, events=2 * N // 60)
    lost = np.zeros(len(accounts), np.uint64)
    for place, count in stretches.items():
        lost[60 + place] = count
    capture.add(
        "agent_health", accounts.set_column(accounts.column_names.index("lost_launches"), "lost_launches", [lost])
    )


def test_stretches_that_lost_events_are_left_out(capture: Capture) -> None:
    capture.steady(BEFORE)
    capture.steady(AFTER)
    lossy_health(capture, {3: 10, 17: 12})
    report = capture.judged()
    left = steps(report)[1]["lossy"]
    assert (left.found, left.cut_ns, left.why) == (2, 20 * SECOND, "")
    times = captures.spread(AFTER.from_ns, AFTER.to_ns, N) - AFTER.from_ns
    inside = sum(int(((times >= a * SECOND) & (times < (a + 10) * SECOND)).sum()) for a in (30, 170))
    assert left.launches == 2 * inside
    assert report.exit_code == 0
    assert report.after.lost == 22
    assert report.after.loss == pytest.approx(22 / (22 + 2 * N))
    assert report.after.coverage == 1.0


def test_a_window_that_lost_too_much_is_refused_whatever_is_left_out(capture: Capture) -> None:
    capture.steady(BEFORE)
    capture.steady(AFTER)
    lossy_health(capture, {3: 150})
    report = capture.judged()
    assert report.exit_code == 3
    assert report.cause.startswith("The after window lost 1.23% of its events")


def test_many_lossy_stretches_are_judged_and_told(capture: Capture) -> None:
    capture.steady(BEFORE)
    capture.steady(AFTER)
    lossy_health(capture, dict.fromkeys(range(0, 50, 5), 3))
    report = capture.judged()
    left = steps(report)[1]["lossy"]
    assert (left.found, left.why) == (10, "that would be 17% of the after window (at most 10%)")
    assert report.after.launches == 2 * N


def test_a_regression_does_not_disappear_with_the_stretches_that_lost_events(capture: Capture) -> None:
    """What is slow loses events: the slow stretches are lossy, the others are as before."""
    capture.steady(BEFORE)
    slow = {*range(2, 60, 12)}
    for kernel in ("gelu", "norm"):
        times = captures.spread(AFTER.from_ns, AFTER.to_ns, N)
        place = (times - AFTER.from_ns) // (10 * SECOND)
        durations = capture.durations(N) * np.where(np.isin(place, list(slow)) & (kernel == "gelu"), 2.0, 1.0)
        capture.runs(kernel, times, durations.astype(np.int64), pid=7, block_x=128)
    lossy_health(capture, dict.fromkeys(slow, 5))
    report = capture.judged()
    row = only(report)
    assert steps(report)[1]["lossy"].why == ""
    assert (row.verdict, report.exit_code) == (Verdict.INCONCLUSIVE, 3)
    assert row.reasons[0].startswith(
        "With the stretches that are left out since their record is not sound it is slower"
    )
    assert only(report, "norm").verdict is Verdict.PASS
    assert only(capture.judged(cleaning=False)).verdict is Verdict.REGRESSED


@pytest.mark.parametrize("column", ["slept_ns", "clock_set_ns"])
def test_a_stretch_in_which_the_clock_moved_is_left_out(capture: Capture, column: str) -> None:
    capture.steady(BEFORE)
    capture.steady(AFTER)
    (capture.root / "agent_health" / "000001.parquet").unlink()
    accounts = captures.health(BEFORE.from_ns, AFTER.to_ns)
    moved = np.zeros(len(accounts), np.int64)
    moved[60 + 30] = 4 * SECOND
    capture.add("agent_health", accounts.set_column(accounts.column_names.index(column), column, [moved]))
    report = capture.judged()
    left = steps(report)[1]["clock"]
    assert (left.found, left.cut_ns, left.why) == (1, 10 * SECOND, "")
    assert left.launches == report.before.launches - report.after.launches
    assert report.exit_code == 0


def test_a_kernel_that_only_a_cut_keeps_from_being_judged_is_judged(capture: Capture) -> None:
    """It runs at the start of each process, often enough in both windows."""
    capture.steady(BEFORE)
    capture.steady(AFTER)
    for number, window in enumerate((BEFORE, AFTER)):
        times = captures.spread(window.from_ns + 100 * SECOND, window.from_ns + 155 * SECOND, 2_500)
        times = np.append(times, window.to_ns - SECOND)
        capture.runs("load", times, capture.durations(len(times)), pid=20 + number, block_x=128)
    report = capture.judged()
    for side in steps(report):
        assert side["warm_up"].why == "the before window would hold too little of 'load' to judge it"
    assert only(report, "load").n_after == 2_501


def test_jobs_that_are_all_warm_up_are_judged(capture: Capture) -> None:
    """A job every ten seconds beside a service: none of them lives for longer than its warm-up."""
    capture.steady(BEFORE)
    capture.steady(AFTER)
    for window in (BEFORE, AFTER):
        times = captures.spread(window.from_ns, window.to_ns, N)
        pids = 1000 + (times - BEFORE.from_ns) // (10 * SECOND)
        capture.runs("job", times, capture.durations(N), pid=pids, block_x=128)
    report = capture.judged()
    left = [side["warm_up"].launches for side in steps(report) if "warm_up" in side]
    # Only those that may live on behind the end of a window.
    assert all(count <= 6 * N / 60 + 6 for count in left)
    assert only(report, "job").verdict is Verdict.PASS


def test_segments_that_are_there_twice_are_read_once(capture: Capture) -> None:
    capture.steady(BEFORE)
    capture.steady(AFTER)
    whole = capture.judged()
    for table in ("cuda_events", "kernel_executions"):
        for path in sorted((capture.root / table).iterdir()):
            (capture.root / table / f"restored-{path.name}").write_bytes(path.read_bytes())
    report = capture.judged()
    assert (report.before.launches, report.after.executions) == (2 * N, 2 * N)
    assert [(r.kernel, r.ratio, r.ci, r.n_after) for r in report.kernels] == [
        (r.kernel, r.ratio, r.ci, r.n_after) for r in whole.kernels
    ]
    for window in (report.before, report.after):
        assert window.cleaning == (CleaningStep("copies", 4, 2 * N, 2 * N, 0),)
    (calls, executions) = report.warnings
    assert calls.startswith(
        "skipped 4 segments that are copies of another in cuda_events (24,028 rows, which are read once)"
    )
    assert "kernel_executions" in executions


def test_accounts_that_are_there_twice_tell_of_rows_that_are(capture: Capture) -> None:
    """The same rows under other bytes: what was shipped twice under two tokens looks like that."""
    capture.steady(BEFORE)
    capture.steady(AFTER)
    again = Window(AFTER.from_ns + 100 * SECOND, AFTER.from_ns + 130 * SECOND)
    capture.add("agent_health", captures.health(again.from_ns, again.to_ns))
    report = capture.judged()
    left = steps(report)[1]["twice"]
    assert (left.found, left.cut_ns, left.why) == (1, 30 * SECOND, "")


def test_a_window_of_nothing_but_warm_up_and_an_empty_one(capture: Capture) -> None:
    capture.steady(BEFORE)
    times = captures.spread(AFTER.from_ns + 10 * SECOND, AFTER.from_ns + 40 * SECOND, 3_001)
    capture.runs("gelu", times, capture.durations(3_001), pid=9, block_x=128)
    report = capture.judged()
    assert only(report).n_after == 3_001
    assert steps(report)[1] == {} or steps(report)[1]["warm_up"].why
    capture.add("cuda_events", captures.launches("norm", [AFTER.to_ns - 1], pid=31))
    assert only(capture.judged()).n_after == 3_001


def unsound(capture: Capture, slow: set[int], factor: float, shape: bool = False) -> None:
    """AFTER with `slow` stretches of ten seconds that are lossy, and gelu slower in them; of two shapes if `shape`."""
    for window in (BEFORE, AFTER):
        for kernel in ("gelu", "norm"):
            times = captures.spread(window.from_ns, window.to_ns, N)
            there = np.isin((times - window.from_ns) // (10 * SECOND), list(slow)) & (window is AFTER)
            durations = capture.durations(N) * np.where(there & (kernel == "gelu"), factor, 1.0)
            large = np.arange(N) % (10 if window is AFTER else 20) == 0 if shape else np.zeros(N, bool)
            durations = (durations * np.where(large, 5.0, 1.0)).astype(np.int64)
            capture.runs(
                kernel, times, durations, pid=7, block_x=128, block_y=1, block_z=1,
                grid_x=np.where(large, 4096, 64), grid_y=1, grid_z=1,
            )  # fmt: skip
    lossy_health(capture, dict.fromkeys(slow, 5))


@pytest.mark.parametrize("slow", [{30}, {30, 31, 32, 33}])
def test_what_is_slower_in_few_lossy_stretches_is_not_passed_for_a_wide_interval(
    capture: Capture, slow: set[int]
) -> None:
    unsound(capture, slow, 2.0)
    assert only(capture.judged(cleaning=False)).verdict is Verdict.NOT_ENOUGH_DATA
    report = capture.judged()
    row = only(report)
    assert steps(report)[1]["lossy"].why == ""
    assert (row.verdict, report.exit_code) == (Verdict.INCONCLUSIVE, 3)
    assert row.reasons[0].startswith(
        "With the stretches that are left out since their record is not sound it is slower, +"
    )
    assert only(report, "norm").verdict is Verdict.PASS


def test_a_mix_that_moved_is_no_slower_stretch(capture: Capture) -> None:
    """With what was left out a kernel is judged as without it: at one mix."""
    unsound(capture, {30, 31}, 1.0, shape=True)
    report = capture.judged()
    assert steps(report)[1]["lossy"].why == ""
    assert (only(report).verdict, report.exit_code) == (Verdict.PASS, 0)


def again(capture: Capture, window: Window, slow: float, loops: bool = True) -> None:
    """Two hosts' processes; that of one starts anew every 230 s if it `loops`, `slow` for a minute each time."""
    for host in range(2):
        times = captures.spread(window.from_ns, window.to_ns, N)
        since = times - window.from_ns + 37 * SECOND
        number = since // (230 * SECOND) if loops and host == 0 else np.zeros(N, np.int64)
        since = np.where(number > 0, since % (230 * SECOND), 230 * SECOND)
        there = since >= 2 * SECOND
        durations = capture.durations(N) * np.where(since < 60 * SECOND, slow, 1.0)
        pids = np.where(number > 0, 1000 + number + 50 * (window is AFTER), 7 + host)
        capture.runs("gelu", times[there], durations[there].astype(np.int64), pid=pids[there], block_x=128)


@pytest.mark.parametrize(
    ("loops", "slow", "verdict"),
    [
        (True, (1.0, 2.5), Verdict.INCONCLUSIVE),
        (True, (1.0, 1.0), Verdict.PASS),
        (True, (2.5, 2.5), Verdict.PASS),
        (False, (1.0, 2.5), Verdict.INCONCLUSIVE),
        (False, (1.0, 1.0), Verdict.PASS),
    ],
)
def test_a_process_that_starts_again_and_again_has_no_warm_up_to_hide_behind(
    capture: Capture, loops: bool, slow: tuple[float, float], verdict: Verdict
) -> None:
    """In both windows, or after the rollout only, whose processes then end as well."""
    again(capture, BEFORE, slow[0], loops)
    again(capture, AFTER, slow[1])
    report = capture.judged()
    row = only(report)
    assert steps(report)[1]["warm_up"].why == ""
    assert (row.verdict, report.exit_code) == (verdict, 0 if verdict is Verdict.PASS else 3)
    assert row.ratio == pytest.approx(1.0, abs=0.02)
    if verdict is Verdict.INCONCLUSIVE:
        assert row.reasons[0].startswith("With the warm-up that comes again and again and is left out it is slower, +1")


@pytest.mark.parametrize("slow", [(1.0, 1.0), (1.0, 2.5), (2.5, 2.5)])
def test_bursts_of_both_windows_that_look_like_tuning_do_not_hide_what_is_slower(
    capture: Capture, slow: tuple[float, float]
) -> None:
    for window, factor in ((BEFORE, slow[0]), (AFTER, slow[1])):
        middle = (window.from_ns + window.to_ns) // 2
        capture.steady(window, without=(middle - SECOND, middle + 2 * SECOND))
        tune(capture, middle, slow=80_000 * factor)
    report = capture.judged()
    before, after = steps(report)
    assert (before["autotune"].found, after["autotune"].found, after["autotune"].why) == (1, 1, "")
    row = only(report)
    assert row.ratio == pytest.approx(1.0, abs=0.02)
    if slow[0] == slow[1]:
        assert (row.verdict, report.exit_code) == (Verdict.PASS, 0)
    else:
        assert (row.verdict, report.exit_code) == (Verdict.INCONCLUSIVE, 3)
        assert row.reasons[0].startswith("With the autotuning that comes again and again and is left out it is slower")


def test_a_share_above_what_a_step_may_take_is_not_told_as_that(capture: Capture) -> None:
    """121 s of 600 s: 20.2%."""
    capture.steady(BEFORE)
    for kernel in ("gelu", "norm"):
        times = captures.spread(AFTER.from_ns, AFTER.to_ns, N)
        pids = np.where(times < AFTER.from_ns + 100 * SECOND, 7, 8)
        capture.runs(kernel, times, capture.durations(N), pid=pids, block_x=128)
    report = capture.judged(warm_up_ns=121 * SECOND)
    assert steps(report)[1]["warm_up"].why == "that would be over 20% of the after window (at most 20%)"


def test_a_group_does_not_pass_without_its_slow_stretches_either(capture: Capture) -> None:
    for kernel, window in (("first", BEFORE), ("second", BEFORE), ("fused", AFTER)):
        times = captures.spread(window.from_ns, window.to_ns, N)
        there = np.isin((times - window.from_ns) // (10 * SECOND), (30, 31, 32)) & (window is AFTER)
        durations = capture.durations(N) * np.where(there, 4.0, 1.0) * (2 if kernel == "fused" else 1)
        capture.runs(kernel, times, durations.astype(np.int64), pid=7, block_x=128)
    lossy_health(capture, dict.fromkeys((30, 31, 32), 3))
    report = capture.judged(renames=("first+second=fused",))
    row = only(report, "fused")
    assert steps(report)[1]["lossy"].why == ""
    assert row.ratio == pytest.approx(1.0, abs=0.01)
    assert (row.verdict, report.exit_code) == (Verdict.INCONCLUSIVE, 3)
    assert row.reasons[0].startswith(
        "With the stretches that are left out since their record is not sound it is slower, +1"
    )
