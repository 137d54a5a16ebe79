"""Verdicts on device time that was recorded some of the time: rates, losses, and what is said about it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import captures
from captures import AFTER, BEFORE, MINUTE, SECOND, T0, TwoWindows, only
from kdiff.analysis.counts import GRAPHS
from kdiff.analysis.evidence import Evidence
from kdiff.analysis.output import output_format
from kdiff.analysis.verdict import Verdict
from kdiff.queries.store import CaptureStore

pytestmark = pytest.mark.usefixtures("engine")

SIDES = (BEFORE, AFTER)
N = 30_011
TENTH = 10 * SECOND


class Capture(TwoWindows):
    """Two windows of 10 minutes; the device times a second of every `period` of each, or all of it (0)."""

    def __init__(self, root: Path, before: int = TENTH, after: int = TENTH) -> None:
        super().__init__(root)
        self.starts = [
            np.arange(w.from_ns + SECOND // 2, w.to_ns, p or SECOND)
            for w, p in zip(SIDES, (before, after), strict=True)
        ]

    def windows(self, side: int, **columns: Any) -> None:
        self.add("device_windows", captures.device_windows(self.starts[side], **columns))

    def kernel(
        self,
        name: str,
        scales: tuple[float | None, float | None] = (1.0, 1.0),
        counts: tuple[int, int] = (N, N),
        launched: bool = True,
        base: int = 80_000,
        **columns: Any,
    ) -> tuple[int, int]:
        """Launch it evenly; the executions are those in device windows. Returns how many these are."""
        timed = [0, 0]
        for side, (window, scale, count) in enumerate(zip(SIDES, scales, counts, strict=True)):
            if scale is None:
                continue
            times = captures.spread(window.from_ns, window.to_ns, count)
            if launched:
                self.add("cuda_events", captures.launches(name, times, batch_launches=24))
            times = times[captures.inside(times, self.starts[side])]
            draws = np.random.default_rng(self.segments).lognormal(0.0, 0.1, len(times))
            timed[side] = len(times)
            self.add(
                "kernel_executions", captures.executions(name, times, (base * scale * draws).astype(int), **columns)
            )
        return timed[0], timed[1]


@pytest.fixture
def capture(tmp_path: Path) -> Capture:
    made = Capture(tmp_path / "capture")
    for side in (0, 1):
        made.windows(side, executions=101)
    return made


def test_executions_of_a_tenth_of_the_time_decide(capture: Capture) -> None:
    timed = capture.kernel("gelu", (1.0, 1.24))
    report = capture.compare()
    row = only(report)
    assert (row.verdict, row.metric, (row.n_before, row.n_after)) == (Verdict.REGRESSED, "device", timed)
    assert report.before.device is not None
    assert report.before.device.windows == 60
    assert report.before.device.covered_ns == 60 * SECOND
    # The process lives from its first launch to its last.
    last = captures.spread(T0, T0 + 10 * MINUTE, N)[-1] - T0
    assert report.before.device.coverage == pytest.approx(60 * SECOND / last)
    assert report.warnings == ()
    text = output_format("table").render(report, 200, colour=False)
    assert f"{N:,} launches, {timed[0]:,} timed on the device, device time known for 10.0% of the window" in text
    document = json.loads(output_format("json").render(report, 80, colour=False))
    assert document["before"]["device"]["executions"] == 60 * 101


def test_rows_without_device_windows_were_timed_all_the_time(tmp_path: Path) -> None:
    capture = Capture(tmp_path, 0, 0)
    capture.kernel("gelu")
    report = capture.compare()
    assert report.after.device is not None
    assert (report.after.device.windows, report.after.device.coverage) == (0, 1.0)
    assert "device time known" not in output_format("table").render(report, 200, colour=False)


@pytest.mark.parametrize(("uncollected", "dropped", "lost", "lossy"), [(20, 20, 21, False), (20, 20, 22, True)])
def test_losses_of_device_windows_bar_device_time_only(
    tmp_path: Path, uncollected: int, dropped: int, lost: int, lossy: bool
) -> None:
    capture = Capture(tmp_path)
    capture.kernel("gelu", (1.0, 1.24))
    for window, scale in zip(SIDES, (1.0, 1.3), strict=True):
        times = captures.spread(window.from_ns, window.to_ns, N)
        values = (80_000 * scale * np.random.default_rng(5).lognormal(0, 0.1, N)).astype(int)
        capture.add("cuda_events", captures.launches("norm", times, completion_ns=values))
    capture.windows(0, executions=100, ended="yielded")
    missing = np.zeros((3, 60), int)
    missing[:, 7] = uncollected, dropped, lost
    capture.windows(1, executions=101, uncollected=missing[0], dropped=missing[1], lost=missing[2])
    report = capture.compare()
    assert report.after.device is not None
    total = uncollected + dropped + lost
    assert report.after.device.loss == pytest.approx(total / (60 * 101 + total))
    assert only(report, "norm").verdict is Verdict.REGRESSED
    assert report.exit_code == 1
    row = only(report)
    if lossy:
        assert row.verdict is Verdict.INCONCLUSIVE
        assert row.reasons[0].startswith(
            "The device windows of the after window lack 62 of 6,122 executions, 1.01% (limit 1%; not collected 20, "
            "no room in CUPTI 20, agent's ring full 22): no verdict on device time"
        )
        assert only(capture.compare(max_loss=0.02)).verdict is Verdict.REGRESSED
        alone = capture.compare(patterns=["gelu"])
        assert (alone.exit_code, alone.cause) == (3, row.reasons[0].rstrip("."))
        completion = capture.compare(metric="completion", patterns=["norm"])
        assert "device windows" not in " ".join(completion.notes)
    else:
        assert row.verdict is Verdict.REGRESSED


def test_processes_without_device_windows_are_told(capture: Capture) -> None:
    capture.kernel("gelu")
    times = captures.spread(AFTER.from_ns, AFTER.to_ns, 997)
    capture.add("cuda_events", captures.launches("gelu", times, host="host-2", pid=7, batch_launches=24))
    report = capture.compare()
    assert report.exit_code == 0
    assert report.warnings == (
        "997 launches on the host 'host-2' in the after window are of processes without device windows: "
        "device times are of the other processes only",
    )
    assert report.after.device is not None
    # Two processes lived all the time, one of them was timed a tenth of it.
    assert report.after.device.coverage == pytest.approx(0.05, abs=0.001)


def test_a_kernel_that_no_device_window_met_is_not_called_unrecorded(capture: Capture) -> None:
    capture.kernel("norm")
    times = captures.spread(BEFORE.from_ns, AFTER.to_ns, N)
    capture.add("cuda_events", captures.launches("gelu", times, batch_launches=24))
    assert only(capture.compare()).reasons[0].startswith("No run of it fell into a device window, and no launch")
    assert only(capture.compare(metric="device")).reasons[0] == (
        "No run of it fell into a device window in either window."
    )


def test_kernels_inside_graphs_are_judged_by_name(capture: Capture) -> None:
    for window in SIDES:
        times = captures.spread(window.from_ns, window.to_ns, N)
        capture.add("cuda_events", captures.launches("", times, kind="graph_launch", completion_ns=900_000))
    timed = capture.kernel("gelu", (1.0, 1.24), launched=False, graph_id=3, graph_node_id=5)
    capture.kernel("norm", launched=False, graph_id=3, graph_node_id=6)
    report = capture.compare()
    assert [(r.kernel, r.verdict, r.metric) for r in report.kernels] == [
        ("gelu", Verdict.REGRESSED, "device"),
        ("norm", Verdict.PASS, "device"),
    ]
    assert (only(report).n_before, only(report).n_after) == timed
    assert any("are judged by device time" in note for note in report.notes)
    assert GRAPHS not in {row.kernel for row in report.rare}


def test_shares_count_what_ran_not_what_was_timed(capture: Capture) -> None:
    """A kernel inside graphs has no launches of its own: what was timed stands for ten times as many."""
    capture.kernel("gelu", counts=(60_013, 60_013))
    _, timed = capture.kernel("node", counts=(6_007, 6_007), launched=False)
    report = capture.compare()
    assert timed == 601
    # 6,010 of 66,023, not 601 of 60,614: more than --max-unjudged.
    assert [row.kernel for row in report.rare] == []
    assert only(report, "node").verdict is Verdict.NOT_ENOUGH_DATA
    assert only(report, "node").reasons[-1] == (
        "Device time is known for 10.0% of the before window and 10.0% of the after window: "
        "denser device windows hold more executions in the same time."
    )
    report = capture.compare(max_unjudged=0.1)
    assert report.rare_launches == pytest.approx(6_010 / 66_023, rel=1e-3)
    assert report.rare_time == pytest.approx(6_010 / 66_023, rel=0.05)


def test_a_window_that_was_timed_all_the_time_beside_one_that_was_not(tmp_path: Path) -> None:
    """Ten times the executions at one rate: the same traffic."""
    capture = Capture(tmp_path, 0, TENTH)
    capture.windows(0, executions=100)
    capture.windows(1, executions=100)
    before, after = capture.kernel("gelu", counts=(300_007, 300_007))
    assert before > 9 * after
    small = capture.kernel("small", counts=(9_001, 9_001))
    swapped = capture.kernel("swapped", counts=(1_009, 60_013))
    report = capture.compare()
    assert only(report).verdict is Verdict.PASS
    assert [(r.kernel, r.n_before, r.n_after) for r in report.rare] == [("small", *small)]
    assert swapped[0] < 2_000 < swapped[1]
    assert only(report, "swapped").verdict is Verdict.NOT_ENOUGH_DATA


@pytest.mark.parametrize("counts", [(30_011, 300_007), (300_007, 30_011)])
def test_a_faster_kernel_at_another_rate_is_an_improvement(capture: Capture, counts: tuple[int, int]) -> None:
    timed = capture.kernel("gelu", (1.0, 0.5), counts)
    capture.kernel("norm", counts=(N, N))
    report = capture.compare()
    row = only(report)
    assert (row.verdict, report.exit_code) == (Verdict.IMPROVED, 0)
    assert (row.n_before, row.n_after) == timed
    assert only(report, "norm").verdict is Verdict.PASS
    capture.kernel("new", (None, 1.0))
    capture.kernel("old", (1.0, None), counts=(300_007, 1))
    assert only(capture.compare(renames=["old=new"]), "new").verdict is Verdict.PASS


def test_every_measure_stands_beside_the_judged_one(tmp_path: Path) -> None:
    capture = Capture(tmp_path)
    values: dict[str, list[np.ndarray]] = {"completion": [], "launch": []}
    for side, window in enumerate(SIDES):
        times = captures.spread(window.from_ns, window.to_ns, N)
        rng = np.random.default_rng(side)
        values["completion"].append(rng.integers(100_000, 900_000, N))
        values["launch"].append(rng.integers(5_000, 9_000, N))
        columns = {"completion_ns": values["completion"][side], "duration_ns": values["launch"][side]}
        capture.add("cuda_events", captures.launches("gelu", times, **columns, batch_launches=24))
    capture.kernel("gelu", (1.0, 1.24), launched=False)
    capture.kernel("norm")
    report = capture.compare()
    assert [m.metric for m in only(report).others] == ["completion", "launch"]
    for measure in only(report).others:
        told = (measure.value_before, measure.value_after)
        truth = [int(np.quantile(v, 0.99, method="inverted_cdf")) for v in values[measure.metric]]
        assert told == tuple(truth)
        assert measure.ratio == pytest.approx(truth[1] / truth[0])
        assert (measure.n_before, measure.n_after) == (N, N)
    # What passes is shown only where asked for.
    assert only(report, "norm").others == ()
    assert [m.metric for m in only(capture.compare(all_metrics=True), "norm").others] == ["launch"]
    document = json.loads(output_format("json").render(report, 80, colour=False))
    metrics = document["kernels"][0]["metrics"]
    assert [(name, m["judged"]) for name, m in metrics.items()] == [
        ("device", True),
        ("completion", False),
        ("launch", False),
    ]
    table = output_format("table").render(report, 100, colour=False).splitlines()
    (place,) = [i for i, line in enumerate(table) if line.startswith("gelu ")]
    assert [line.split()[:3] for line in table[place + 1 : place + 3]] == [
        ["completion", "not", "judged"],
        ["launch", "not", "judged"],
    ]


def test_graphs_that_no_device_window_met_are_judged_as_graphs(capture: Capture) -> None:
    """Device time of other kernels is none of theirs: their process may not be timed at all."""
    for side, window in enumerate(SIDES):
        times = captures.spread(window.from_ns, window.to_ns, 5_003)
        columns = {"kind": "graph_launch", "completion_ns": 100_000 + 50_000 * side, "host": "host-2"}
        capture.add("cuda_events", captures.launches("", times, **columns))
    capture.kernel("gelu")
    # Seen before only: what its graphs did after is known by the graphs alone.
    capture.kernel("node", (1.0, None), launched=False, graph_id=3)
    report = capture.compare()
    assert only(report, GRAPHS).verdict is Verdict.REGRESSED
    assert only(report, GRAPHS).metric == "graph"
    assert only(report, "gelu").metric == "device"
    assert report.verdict is Verdict.REGRESSED
    assert any("cannot be seen: graphs of their processes were not timed in both" in note for note in report.notes)


def test_graphs_of_a_process_that_is_not_timed_are_judged_beside_others_that_are(capture: Capture) -> None:
    """Of two processes of a host one has device time: the other's graphs are known by their completion alone."""
    timed, untimed, both = "(graph 0a1b2c3d: 2 x gelu)", "(graph 99aabbcc: 2 x gelu)", "(graph 77777777: 3 x gelu)"
    mostly = "(graph 55555555: 4 x gelu)"
    for side, window in enumerate(SIDES):
        times = captures.spread(window.from_ns, window.to_ns, 5_003)
        columns = {"kind": "graph_launch", "host": "host-1"}
        of_both = ((both, 0, 4_503), (both, 7, 500), (mostly, 0, 4_903), (mostly, 7, 100))
        for name, pid, count in ((timed, 0, 5_003), (untimed, 7, 5_003), *of_both):
            slower = 100_000 + 50_000 * side
            rows = captures.launches(name, times[:count], completion_ns=slower, pid=pid, **columns)
            capture.add("cuda_events", rows)
    capture.kernel("gelu", launched=False, graph_id=3)
    with CaptureStore(capture.root) as store:
        evidence = Evidence(store, BEFORE)
        beside = {name: counts.graphs_timed for name, counts in evidence.census().items() if counts.graphs_timed}
        assert beside == {timed: 5_003, both: 4_503, mostly: 4_903}
    report = capture.compare()
    assert {row.kernel: row.metric for row in report.kernels} == {untimed: "graph", both: "graph", "gelu": "device"}
    # A tenth of the launches that nothing was timed of may be a service of its own.
    assert only(report, untimed).verdict is only(report, both).verdict is Verdict.REGRESSED
    assert [note for note in report.notes if "inside" in note] == [
        "The kernels inside 20,012 graph launches are judged by device time, under their own names.",
        "The kernels inside 20,012 graph launches cannot be seen: graphs of their processes were not timed in both "
        "windows.",
    ]


@pytest.mark.parametrize("pids", [(1, 1), (1, 2)])
def test_device_times_of_other_processes_give_no_verdict(tmp_path: Path, pids: tuple[int, int]) -> None:
    """The host that is timed changes, and its GPU is faster: the kernel is not."""
    capture = Capture(tmp_path)
    for side, window in enumerate(SIDES):
        timed = f"host-{side + 1}"
        capture.windows(side, host=timed, pid=pids[side])
        for host in ("host-1", "host-2"):
            times = captures.spread(window.from_ns, window.to_ns, N)
            capture.add("cuda_events", captures.launches("gelu", times, host=host, pid=pids[side]))
        scales = (1.0, None) if side == 0 else (None, 0.7)
        capture.kernel("gelu", scales, launched=False, host=timed, pid=pids[side])
    report = capture.compare()
    assert only(report).verdict is Verdict.INCONCLUSIVE
    assert only(report).reasons[0].startswith("100% of the executions that were timed in the before window are of")
    assert report.exit_code == 3


def test_a_process_that_came_or_went_is_no_other(tmp_path: Path) -> None:
    capture = Capture(tmp_path)
    for side, scales in enumerate([(1.0, None), (None, 1.0)]):
        capture.windows(side, pid=side + 1)
        capture.kernel("gelu", scales, pid=side + 1)
    assert only(capture.compare()).verdict is Verdict.PASS


def test_hostile_windows_neither_crash_nor_hide_a_loss(capture: Capture) -> None:
    capture.kernel("gelu")
    start = [BEFORE.from_ns + 5 * SECOND]
    capture.add("device_windows", captures.device_windows(start, -SECOND, pid=99))
    assert only(capture.compare()).verdict is Verdict.PASS
    lost = np.full(2, 2**63, np.uint64)
    capture.add("device_windows", captures.device_windows(start * 2, lost=lost))
    report = capture.compare()
    assert only(report).verdict is Verdict.INCONCLUSIVE
    assert report.before.device is not None
    assert report.before.device.lost == 2**64


@pytest.mark.parametrize("period", [TENTH, 40 * SECOND])
@pytest.mark.parametrize(("on", "slower", "verdict"), [(1, 0, Verdict.PASS), (0, 2_000, Verdict.REGRESSED)])
def test_calls_in_device_windows_of_one_window_only_are_left_out(
    tmp_path: Path, on: int, slower: int, verdict: Verdict, period: int
) -> None:
    """They take longer: device time switched on is no slowdown, and switched off hides none."""
    capture = Capture(tmp_path, period, period)
    capture.windows(on)
    left = []
    for side, window in enumerate(SIDES):
        times = captures.spread(window.from_ns, window.to_ns, N)
        values = 26_000 + slower * side + np.random.default_rng(side).integers(0, 500, N)
        if side == on:
            met = captures.inside(times, capture.starts[on])
            values = values + 3_000 * met
            # Windows of another process leave out nothing.
            capture.add("device_windows", captures.device_windows([window.from_ns], SECOND, pid=99))
        left.append(N - int(met.sum()) if side == on else N)
        capture.add("cuda_events", captures.launches("gelu", times, completion_ns=values))
    report = capture.compare()
    assert only(report).metric == "completion"
    assert (only(report).n_before, only(report).n_after) == tuple(left)
    assert min(left) < N
    assert only(report).verdict is verdict
    assert any("those in them are left out" in note for note in report.notes)
