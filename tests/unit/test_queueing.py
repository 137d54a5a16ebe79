"""What a comparison says of queues and overlap, on captures whose truth is known."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import captures
from captures import AFTER, BEFORE, SECOND, TwoWindows, only
from kdiff.analysis.output import output_format
from kdiff.analysis.report import Report
from kdiff.analysis.verdict import Verdict

pytestmark = pytest.mark.usefixtures("engine")

STEP = 100_000
COUNT = 3_001  # executions a device window of 0.3001 s
OPENED = 40


class Capture(TwoWindows):
    """Device windows of 0.3001 s in every 15 s; in each, kernels that start every 100 us."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.starts = [np.arange(window.from_ns, window.to_ns, 15 * SECOND) for window in (BEFORE, AFTER)]
        for side, starts in enumerate(self.starts):
            rows = captures.device_windows(starts, COUNT * STEP, executions=COUNT)
            captures.write(root, "device_windows", rows, f"{side}")

    def run(self, side: int, name: str, stream: int, offset: int, duration: int, queue: int, **columns: int) -> None:
        """Each execution of the side starts at `offset` of its step; the queue is `queue`, and 1 to 3 ns."""
        times = (self.starts[side][:, None] + STEP * np.arange(COUNT)).ravel() + offset
        waits = queue + 1 + np.arange(times.size) % 3
        rows = captures.executions(name, times, duration, stream=stream, queue_ns=waits, **columns)
        captures.write(self.root, "kernel_executions", rows, f"{name}-{side}")
        launched = captures.launches(name, times - waits, batch_launches=24)
        captures.write(self.root, "cuda_events", launched, f"{name}-{side}")


@pytest.fixture
def serialised(tmp_path: Path) -> Report:
    """`wide` gets faster, 40 to 30 us, but `beside`, which ran with 30 us of it, now waits until it is done."""
    capture = Capture(tmp_path)
    capture.run(0, "wide", 1, 0, 40_000, 3_000)
    capture.run(0, "beside", 2, 10_000, 40_000, 3_000)
    capture.run(1, "wide", 1, 0, 30_000, 3_000, dynamic_shared=200_000)
    capture.run(1, "beside", 2, 30_000, 40_000, 23_000)
    return capture.compare()


def test_a_faster_kernel_that_serialises_says_so(serialised: Report) -> None:
    lost = "It no longer runs beside other kernels: 75% of its time overlapped others before, 0% after."
    assert serialised.exit_code == 0
    wide, beside = only(serialised, "wide"), only(serialised, "beside")
    fills = (
        "Its usual launch changed: shared memory a block, bytes, 0 -> 200,000. "
        "A block now fills a multiprocessor and leaves no room for another."
    )
    assert (wide.verdict, wide.reasons) == (Verdict.IMPROVED, (lost, fills))
    assert (beside.verdict, beside.reasons) == (Verdict.PASS, (lost,))
    assert serialised.notes == (
        "The device was busy 70% of the timed windows (50% before).",
        "'beside' waited longer in the queue, p50 3.00 us -> 23.0 us: see `queue` in the JSON.",
    )
    for name in ("table", "markdown", "junit"):
        assert "no longer runs beside" in " ".join(output_format(name).render(serialised, 100, colour=False).split())


def test_the_numbers_are_exact(serialised: Report) -> None:
    before, after = only(serialised, "beside").queue_before, only(serialised, "beside").queue_after
    assert before is not None
    assert after is not None
    assert (before.n, before.p50, before.p99) == (OPENED * COUNT, 3_002, 3_003)
    assert (after.n, after.p50, after.p99) == (OPENED * COUNT, 23_002, 23_003)
    assert (before.overlap, after.overlap) == (0.75, 0.0)
    assert (before.stream_busy, after.stream_busy) == pytest.approx((0.4, 0.4))
    document = json.loads(output_format("json").render(serialised, 80, colour=False))
    assert document["before"]["device"]["busy"] == pytest.approx(0.5)
    assert document["after"]["device"]["busy"] == pytest.approx(0.7)
    (row,) = [row for row in document["kernels"] if row["kernel"] == "beside"]
    assert row["queue"]["after"] == {
        "n": OPENED * COUNT,
        "p50": 23_002,
        "p99": 23_003,
        "overlap": 0.0,
        "stream_busy": pytest.approx(0.4),
    }


def test_the_same_says_nothing(tmp_path: Path) -> None:
    capture = Capture(tmp_path)
    for side in (0, 1):
        capture.run(side, "wide", 1, 0, 40_000, 3_000)
        # 4 us longer in the queue, and 8% less of its time beside the other.
        capture.run(side, "beside", 2, 10_000 + 3_000 * side, 40_000, 3_000 + 4_000 * side)
    report = capture.compare()
    assert report.notes == ()
    assert [row.reasons for row in report.kernels] == [(), ()]


def test_a_slower_kernel_says_why_it_may_be(tmp_path: Path) -> None:
    capture = Capture(tmp_path)
    capture.run(0, "wide", 1, 0, 40_000, 3_100)
    capture.run(0, "beside", 2, 40_000, 40_000, 3_000)
    capture.run(1, "wide", 1, 0, 50_000, 210_000)
    capture.run(1, "beside", 2, 40_000, 40_000, 3_000)
    report = capture.compare()
    row = only(report, "wide")
    assert row.verdict is Verdict.REGRESSED
    assert row.reasons == (
        "It runs more beside other kernels: 0% of its time overlapped others before, 20% after.",
        "It waited longer in the queue: p50 3.10 us -> 210 us.",
    )
    # What passes and runs beside more is no reason for anything.
    assert only(report, "beside").reasons == ()
