"""The excess of completions over device time, and verdicts on what a calibrated bound leaves open."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import captures
from captures import AFTER, BEFORE, MINUTE, SECOND, T0, TwoWindows
from kdiff.analysis import calibration, listing
from kdiff.analysis.calibration import Excess, calibrate, device_interval
from kdiff.analysis.evidence import Evidence
from kdiff.analysis.interval import ratio_interval, tail_estimate
from kdiff.analysis.judging import judge_all
from kdiff.analysis.output import output_format
from kdiff.analysis.report import KernelReport, Report
from kdiff.analysis.sample import Sample
from kdiff.analysis.verdict import Policy, Verdict
from kdiff.analysis.window import Window
from kdiff.queries.store import CaptureStore

pytestmark = pytest.mark.usefixtures("engine")

YESTERDAY = T0 - 1440 * MINUTE
N = 6_007
CALIBRATED = 1_203


class Capture(TwoWindows):
    """Isolated launches of a kernel of `device` ns in two windows, and launches with both times a day before."""

    def __init__(self, root: Path, device: int = 10_000, excess: int = 9_100, spread: int = 2_000) -> None:
        super().__init__(root)
        self.device = device
        self.excess = excess
        self.spread = spread
        self.rng = np.random.default_rng(3)

    def draw(self, count: int) -> np.ndarray:
        return self.excess + self.rng.integers(-self.spread // 2, self.spread // 2 + 1, count)

    def bounds(self, after: float, host: str = "host-1") -> None:
        for i, (window, scale) in enumerate(((BEFORE, 1.0), (AFTER, after))):
            times = captures.spread(window.from_ns, window.to_ns, N)
            device = self.rng.integers(int(0.98 * scale * self.device), int(scale * self.device) + 1, N)
            rows = captures.launches("gelu", times, completion_ns=device + self.draw(N), host=host)
            captures.write(self.root, "cuda_events", rows, f"{i}")

    def calibration(self, host: str = "host-1", count: int = CALIBRATED, start: int = YESTERDAY) -> np.ndarray:
        """Returns the excess of each launch that has both times and is isolated."""
        times = captures.spread(start, start + MINUTE, count)
        device = self.rng.integers(self.device, self.device + 999, count)
        excess = self.draw(count)
        queue = self.rng.integers(1, 5_000, count)
        name = f"{host}-{start}"
        # What must not match: launches that share a sync, other processes, failed ones, and unknown launch times.
        rows = [
            captures.launches("gelu", times, completion_ns=device + excess, host=host, pid=11),
            captures.launches("gelu", times + 1, completion_ns=10**9, host=host, pid=11, batch_launches=2),
            captures.launches("gelu", times, completion_ns=10**9, host=host, pid=12),
            captures.launches("gelu", times + 2, completion_ns=10**9, host=host, pid=11, status=1),
        ]
        for i, data in enumerate(rows):
            captures.write(self.root, "cuda_events", data, f"{name}-{i}")
        ran = [
            captures.executions("gelu", times + queue, device, queue_ns=queue, host=host, pid=11),
            captures.executions("gelu", times + 1 + queue, 1, queue_ns=queue, host=host, pid=11),
            captures.executions("gelu", times + 2 + queue, 1, queue_ns=queue, host=host, pid=11),
            captures.executions("gelu", times, 1, queue_ns=0, host=host, pid=12),
            captures.executions("norm", times + queue, 1, queue_ns=queue, host=host, pid=12),
        ]
        for i, data in enumerate(ran):
            captures.write(self.root, "kernel_executions", data, f"{name}-{i}")
        return excess


def only(report: Report) -> KernelReport:
    (row,) = report.kernels
    return row


def truth(excess: np.ndarray, level: float) -> int:
    return int(np.quantile(excess, level, method="inverted_cdf"))


def test_a_calibrated_bound_speaks_of_the_device(tmp_path: Path) -> None:
    """+24% on the device are +12% of the bound; the excess is exact, from the launches that have both times only."""
    capture = Capture(tmp_path)
    capture.bounds(1.24)
    excess = capture.calibration()
    row = only(capture.compare())
    found = row.calibration
    assert found is not None
    assert (found.n, found.hosts, found.decides) == (CALIBRATED, ("host-1",), True)
    levels = (found.excess_low, found.excess_p50, found.excess_high)
    assert levels == tuple(truth(excess, level) for level in (0.01, 0.5, 0.99))
    assert row.value_before is not None
    assert row.value_after is not None
    assert row.ratio == pytest.approx(row.value_after / row.value_before)
    assert row.ratio < 1.14
    assert found.ratio == pytest.approx((row.value_after - found.excess_p50) / (row.value_before - found.excess_p50))
    assert found.ci is not None
    assert found.ci[0] < 1.24 < found.ci[1]
    assert (row.verdict, row.metric) == (Verdict.REGRESSED, "completion")
    assert row.reasons[0].startswith(
        f"The bound lies {found.excess_p50 / 1000:.2f} us (p50) to {found.excess_high / 1000:.1f} us (p99) above the "
        f"device time, measured on 1,203 launches: on the device p99 moved by about +2"
    )
    document = json.loads(output_format("json").render(capture.compare(), 80, colour=False))
    assert document["kernels"][0]["calibration"]["n"] == CALIBRATED
    assert document["kernels"][0]["calibration"]["ratio"] == pytest.approx(found.ratio)


def test_a_bound_that_did_not_move_passes(tmp_path: Path) -> None:
    capture = Capture(tmp_path)
    capture.bounds(1.0)
    capture.calibration()
    row = only(capture.compare())
    assert row.verdict is Verdict.PASS
    assert row.calibration is not None
    assert row.calibration.ci is not None
    # Less time is left to the device than to the bound, so its ratio is known less well.
    assert row.ci is not None
    assert row.calibration.ci[1] - row.calibration.ci[0] > row.ci[1] - row.ci[0]


def test_a_bound_that_hides_a_slowdown_does_not_pass_once_calibrated(tmp_path: Path) -> None:
    """+40% on a kernel of 1 us are +4% of its bound: within the tolerance, but not on the device."""
    capture = Capture(tmp_path, device=1_000, excess=9_100, spread=200)
    capture.bounds(1.4)
    assert only(capture.compare()).verdict is Verdict.PASS
    capture.calibration()
    assert only(capture.compare()).verdict is Verdict.REGRESSED


def test_an_excess_that_varies_more_than_the_device_time_leaves_it_open(tmp_path: Path) -> None:
    """+30% of 2 us under an excess of 0 to 18 us: 3% of the bound; of the device, from 3% to 30%."""
    capture = Capture(tmp_path, device=2_000, excess=9_100, spread=18_000)
    capture.bounds(1.3)
    assert only(capture.compare()).verdict is Verdict.PASS
    capture.calibration()
    row = only(capture.compare())
    assert row.verdict is Verdict.INCONCLUSIVE
    assert row.calibration is not None
    assert row.calibration.ci is not None
    assert row.calibration.ci[0] < 1.05 < 1.25 < row.calibration.ci[1]
    assert row.reasons[1].startswith("What the bound leaves open of the device time holds the margin")


def test_an_excess_that_may_be_all_of_the_bound_says_nothing(tmp_path: Path) -> None:
    capture = Capture(tmp_path, device=2_000, excess=9_100, spread=18_000)
    capture.calibration()
    capture.spread = 0
    capture.bounds(1.0)
    row = only(capture.compare())
    assert row.verdict is Verdict.INCONCLUSIVE
    assert row.reasons[0].startswith("The bound lies ")


def test_a_calibration_of_another_host_decides_only_where_told(tmp_path: Path) -> None:
    capture = Capture(tmp_path, device=1_000, excess=9_100, spread=200)
    capture.bounds(1.4)
    capture.calibration(host="host-2")
    row = only(capture.compare())
    assert row.verdict is Verdict.PASS
    assert row.calibration is not None
    assert (row.calibration.decides, row.calibration.hosts) == (False, ("host-2",))
    assert "measured on 1,203 launches of 'host-2'. It does not decide: " in row.reasons[0]
    row = only(capture.compare(one_gpu_model=True))
    assert row.verdict is Verdict.REGRESSED
    # Its own host is preferred.
    excess = capture.calibration(count=101)
    row = only(capture.compare())
    assert row.calibration is not None
    assert (row.calibration.n, row.calibration.hosts, row.verdict) == (101, ("host-1",), Verdict.REGRESSED)
    assert row.calibration.excess_p50 == truth(excess, 0.5)


def test_too_few_launches_calibrate_nothing(tmp_path: Path) -> None:
    capture = Capture(tmp_path)
    capture.bounds(1.24)
    capture.calibration(count=99)
    row = only(capture.compare())
    assert row.calibration is None
    assert row.verdict is Verdict.REGRESSED


def test_of_very_many_launches_a_share_is_looked_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of them, the same on both sides of the join: the others must not lose their partners."""
    capture = Capture(tmp_path)
    capture.bounds(1.24)
    excess = capture.calibration(count=20_011)
    # Beside them the store holds the isolated launches of both windows, and those of another process.
    monkeypatch.setattr(calibration, "MAX_LAUNCHES", (2 * 20_011 + 2 * N) // 10 + 1)
    found = only(capture.compare()).calibration
    assert found is not None
    assert found.n == pytest.approx(2_001, rel=0.1)
    assert found.excess_p50 == pytest.approx(truth(excess, 0.5), rel=0.02)


def test_kernels_lists_the_excess(tmp_path: Path) -> None:
    capture = Capture(tmp_path)
    excess = capture.calibration(start=T0)
    captures.write(tmp_path, "cuda_events", captures.launches("alone", [T0]), "alone")
    with CaptureStore(tmp_path) as store:
        found = listing.read(Evidence(store, Window(T0, T0 + MINUTE)))
        text = listing.as_table(found, 140)
        rows = {row["kernel_name"]: row for row in json.loads(listing.as_json(found))["kernels"]}
    told = [rows["gelu"][key] for key in ("excess_n", "excess_p50_ns", "excess_p99_ns")]
    assert told == [CALIBRATED, truth(excess, 0.5), truth(excess, 0.99)]
    assert [rows["alone"][key] for key in ("excess_n", "excess_p50_ns")] == [0, None]
    assert "kernel_key" not in rows["gelu"]
    assert "excess p50" in text
    assert "excess p99" in text


def estimate(values: np.ndarray, q: float = 0.99) -> Any:
    buckets = 60
    return tail_estimate(
        Sample(values.astype(np.int64), (np.arange(len(values)) % buckets).astype(np.int32), buckets), q
    )


def test_no_excess_is_the_interval_of_the_bound() -> None:
    rng = np.random.default_rng(8)
    b, a = (estimate(rng.lognormal(10, 0.2, 6_000)) for _ in range(2))
    none = Excess(1_000, 0, 0, 0, (), False)
    assert device_interval(b, a, none, 0.05) == pytest.approx(ratio_interval(b, a, 0.05))


def test_an_excess_is_not_negative() -> None:
    """A shift below 0 would dilute a change of the bound until it passes."""
    excess = calibrate(np.full(1_009, -1_000_000), 0.99, ["host-1"], False)
    assert excess is not None
    assert (excess.low, excess.p50, excess.high) == (0, 0, 0)


def test_the_interval_is_the_union_over_the_shifts() -> None:
    rng = np.random.default_rng(9)
    b, a = estimate(20_000 + rng.integers(0, 500, 6_000)), estimate(24_000 + rng.integers(0, 500, 6_000))
    some = device_interval(b, a, Excess(1_000, 5_000, 8_000, 12_000, (), False), 0.05)
    assert some.log_ratio == pytest.approx(math.log((a.value - 8_000) / (b.value - 8_000)))
    # The ratio grows with the shift: the ends are those of the smallest and of the largest.
    assert some.low < math.log((a.value - 5_000) / (b.value - 5_000))
    assert some.high > math.log((a.value - 12_000) / (b.value - 12_000))
    everything = device_interval(b, a, Excess(1_000, 5_000, 8_000, 25_000, (), False), 0.05)
    assert (everything.low, everything.high) == (-math.inf, math.inf)


@pytest.mark.parametrize(("factor", "verdict"), [(1.0, Verdict.PASS), (1.3, Verdict.REGRESSED)])
def test_simulated_bounds_are_judged_by_the_device(factor: float, verdict: Verdict) -> None:
    """Device time and excess both vary, independently: A/A is never REGRESSED, and +30% of the device is found."""
    wrong = right = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        device = [20_000 * scale * rng.lognormal(0, 0.05, 6_000) for scale in (1.0, factor)]
        excess = [8_000 * rng.lognormal(0, 0.15, 6_000) for _ in range(3)]
        known = calibrate(excess[2].astype(np.int64), 0.99, ("h",), foreign=False)
        assert known is not None
        samples = [
            Sample((d + e).astype(np.int64), (np.arange(6_000) % 60).astype(np.int32), 60)
            for d, e in zip(device, excess[:2], strict=True)
        ]
        judged = judge_all({0: (samples[0], samples[1])}, Policy(), {0: known})[0].verdict
        right += judged in (verdict, Verdict.IMPROVED if verdict is Verdict.PASS else verdict)
        wrong += judged is (Verdict.REGRESSED if verdict is Verdict.PASS else Verdict.PASS)
    assert wrong == 0
    assert right >= 36


def test_seconds_are_not_touched() -> None:
    assert calibrate(np.full(100, 9 * SECOND, np.int64), 0.99, (), foreign=False) == Excess(
        100, 9 * SECOND, 9 * SECOND, 9 * SECOND, (), False
    )
