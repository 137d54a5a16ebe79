"""A moved mix of shapes is not a slower kernel, and a slower shape is one: the comparison on real rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import loaded
import numpy as np
import pytest
from command_line import kdiff

from captures import AFTER, BEFORE, MINUTE, SECOND, TwoWindows, executions, health, launches, only, spread, table, write
from kdiff.analysis.compare import Options, compare
from kdiff.analysis.evidence import Evidence
from kdiff.analysis.load import with_loads
from kdiff.analysis.output import output_format
from kdiff.analysis.report import KernelReport, MixReport, Report
from kdiff.analysis.verdict import Verdict
from kdiff.analysis.window import Window
from kdiff.queries.address import Address
from kdiff.queries.server import ServerStore
from kdiff.queries.store import CaptureStore

N = 50_000
GRIDS = (64, 256, 4096)
TIMES = (20_000, 26_000, 91_000)
"""Median device time of each shape, ns."""
SAME = (1.0, 1.0, 1.0)
BIG_RARE, BIG_MORE, BIG_OFTEN = (0.6, 0.392, 0.008), (0.6, 0.387, 0.013), (0.6, 0.37, 0.03)
THREE = (0.5, 0.4, 0.1)
SHAPE = {"grid_y": 1, "grid_z": 1, "block_x": 256, "block_y": 1, "block_z": 1}


def traffic(
    window: Window, seed: int, shares: Sequence[float], factors: Sequence[float] = SAME, n: int = N
) -> dict[str, Any]:
    """Columns of executions, independent lognormal times (sigma 0.15); as many of each shape as `shares` say."""
    rng = np.random.default_rng(seed)
    sizes = [round(share * n) for share in shares]
    shape = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    typical = (np.array(TIMES) * np.array(factors))[shape]
    return {
        "times": spread(window.from_ns, window.to_ns, n),
        "durations": np.rint(typical * rng.lognormal(0.0, 0.15, n)).astype(np.int64),
        "grid_x": np.array(GRIDS)[shape],
        **SHAPE,
    }


def two(root: Path, before: dict[str, Any], after: dict[str, Any]) -> TwoWindows:
    capture = TwoWindows(root)
    for window, columns in ((BEFORE, before), (AFTER, after)):
        capture.add("kernel_executions", executions("gelu", **columns))
        capture.add("cuda_events", launches("gelu", spread(window.from_ns, window.to_ns, len(columns["times"]))))
    return capture


def mix_of(row: KernelReport) -> MixReport:
    assert row.mix is not None
    return row.mix


def text(report: Report) -> str:
    return output_format("table").render(report, 400, colour=False)


def test_a_big_shape_that_comes_more_often_is_the_mix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    capture = two(tmp_path, traffic(BEFORE, 1, BIG_RARE), traffic(AFTER, 2, BIG_MORE))
    report = capture.compare()
    row, mix = only(report), mix_of(only(report))
    assert (report.exit_code, row.verdict) == (0, Verdict.PASS)
    assert mix.raw_ratio == pytest.approx(2.13, abs=0.1)
    assert row.ratio == mix.kernel_effect == pytest.approx(0.998, abs=0.02)
    assert mix.mix_effect == pytest.approx(mix.raw_ratio / (row.ratio or 0.0))
    assert (mix.support_before, mix.support_after, mix.decides) == (pytest.approx(1.0), pytest.approx(1.0), False)
    assert [(s.n_before, s.n_after, s.tested) for s in mix.strata] == [
        (30_000, 30_000, True),
        (19_600, 19_350, True),
        (400, 650, False),
    ]
    assert row.reasons == (
        f"p99 of all launches moved by x{mix.raw_ratio:.3g}, of which x{mix.mix_effect:.3g} is the mix of shapes: "
        "grid 2^12 blocks of 2^8 threads went from 0.8% to 1.3% of the launches. At the mix of the before window it is "
        f"x{row.ratio:.3g}.",
    )
    # The quantiles beside it are those of all launches; the judged one is at the mix of the before window.
    assert row.quantiles_after is not None
    assert row.quantiles_after.p99 > 2 * (row.value_after or 0)
    windows = [f"--{name}={w.from_ns}..{w.to_ns}" for name, w in (("before", BEFORE), ("after", AFTER))]
    done = kdiff(monkeypatch, capsys, *windows, f"--store={tmp_path}", "--no-strata", "--format=json")
    raw = json.loads(done.out)["kernels"][0]
    assert (done.code, raw["verdict"], raw["mix"], raw["mix_effect"]) == (1, "REGRESSED", None, None)
    assert raw["ratio"] == pytest.approx(mix.raw_ratio)


def test_a_slower_kernel_behind_a_smaller_share_of_big_launches(tmp_path: Path) -> None:
    capture = two(tmp_path, traffic(BEFORE, 1, BIG_OFTEN), traffic(AFTER, 2, BIG_RARE, (1.15, 1.15, 1.15)))
    report = capture.compare()
    row, mix = only(report), mix_of(only(report))
    assert (report.exit_code, row.verdict) == (1, Verdict.REGRESSED)
    assert row.ratio == pytest.approx(1.15, abs=0.02)
    assert mix.raw_ratio == pytest.approx(0.45, abs=0.03)
    assert not mix.decides
    assert only(capture.compare(strata=False)).verdict is Verdict.IMPROVED


def test_a_slower_shape_that_all_together_do_not_show(tmp_path: Path) -> None:
    capture = two(tmp_path, traffic(BEFORE, 1, THREE), traffic(AFTER, 2, THREE, (1.3, 1.0, 1.0)))
    report = capture.compare()
    row, mix = only(report), mix_of(only(report))
    assert (report.exit_code, row.verdict) == (1, Verdict.REGRESSED)
    assert mix.raw_ratio == pytest.approx(0.99, abs=0.02)
    assert row.ratio == pytest.approx(0.996, abs=0.02)
    assert mix.decides
    assert mix.worst == mix.strata[0]
    assert mix.strata[0].ratio == pytest.approx(1.3, abs=0.02)
    assert mix.strata[0].name == "grid 2^6 blocks of 2^8 threads"
    assert row.reasons[0].startswith("At grid 2^6 blocks of 2^8 threads, 50% of the launches, p99 moved by +")
    assert row.reasons[0].endswith("%) do not show it.")
    assert "REGRESSED: gelu p99 at grid 2^6 blocks of 2^8 threads +" in text(report)
    document = json.loads(output_format("json").render(report, 80, colour=False))["kernels"][0]
    assert document["mix_effect"] == pytest.approx(mix.mix_effect)
    assert document["mix"]["worst"]["ratio"] == mix.strata[0].ratio
    argo = json.loads(output_format("argo").render(report, 80, colour=False))
    assert argo["largest_ratio"] == mix.strata[0].ratio
    assert only(capture.compare(strata=False)).verdict is Verdict.PASS


def test_shapes_that_only_one_window_has(tmp_path: Path) -> None:
    report = two(tmp_path, traffic(BEFORE, 1, (0.8, 0.2, 0.0)), traffic(AFTER, 2, (0.8, 0.0, 0.2))).compare()
    row = only(report)
    assert (report.exit_code, report.word, row.verdict) == (3, "UNDECIDED", Verdict.MIX_NOT_COMPARABLE)
    assert row.reasons[0].startswith(
        "Of the launches 80% before and 80% after are of shapes that both windows have 300 launches of; 90% are "
        "needed. Others: grid 2^8 blocks of 2^8 threads (20.0% before, 0.0% after); grid 2^12 blocks of 2^8 threads "
        "(0.0% before, 20.0% after) (--no-strata judges all launches together). In the common shapes p99 moved by "
    )
    assert mix_of(row).support_before == pytest.approx(0.8)
    assert "MIX_NOT_COMPARABLE" in output_format("junit").render(report, 80, colour=False)


def test_one_shape_takes_the_way_without_shapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kdiff.analysis.evidence.Evidence.strata", _never)
    capture = two(tmp_path / "one", traffic(BEFORE, 1, (1.0,), (1.0, 1, 1), 5_000), traffic(AFTER, 2, (1.0,), n=5_000))
    report = capture.compare()
    assert report.kernels == capture.compare(strata=False).kernels
    assert only(report).mix is None
    no_shape = {"grid_x": 0, "grid_y": 0, "grid_z": 0, "block_x": 0, "block_y": 0, "block_z": 0}
    unknown = [traffic(window, 1, THREE, n=5_000) | no_shape for window in (BEFORE, AFTER)]
    assert only(two(tmp_path / "none", *unknown).compare()).mix is None


def _never(*_: Any) -> Any:
    raise AssertionError("no strata are read where there is one")


def test_graphs_and_gpus_are_strata_too(tmp_path: Path) -> None:
    before, after = (traffic(window, seed, (1.0,), n=5_000) for seed, window in ((1, BEFORE), (2, AFTER)))
    report = two(tmp_path / "graph", before, after | {"graph_id": 7}).compare()
    row = only(report)
    assert row.verdict is Verdict.MIX_NOT_COMPARABLE
    assert row.reasons[0].startswith("In the before window it was launched outside graphs, in the after window")
    capture = two(tmp_path / "gpu", before | {"gpu_uuid": "GPU-a"}, after | {"gpu_uuid": "GPU-b"})
    for uuid, name in (("GPU-a", "NVIDIA H100"), ("GPU-b", "NVIDIA H200")):
        columns = {"timestamp_ns": [BEFORE.from_ns - SECOND], "gpu_uuid": uuid, "gpu_name": name, "host": "host-1"}
        capture.add("gpu_samples", table("gpu_samples", columns))
    row = only(capture.compare())
    assert row.verdict is Verdict.MIX_NOT_COMPARABLE
    assert any("NVIDIA H100" in reason and "NVIDIA H200" in reason for reason in row.reasons)
    assert mix_of(row).kernel_effect is None


def test_completions_have_shapes(tmp_path: Path) -> None:
    capture = TwoWindows(tmp_path)
    for seed, window, shares in ((1, BEFORE, BIG_RARE), (2, AFTER, BIG_MORE)):
        columns = traffic(window, seed, shares)
        times, done = columns.pop("times"), columns.pop("durations")
        capture.add("cuda_events", launches("gelu", times, completion_ns=done, **columns))
    row = only(capture.compare())
    assert (row.metric, row.isolated, row.verdict) == ("completion", True, Verdict.PASS)
    assert mix_of(row).raw_ratio == pytest.approx(2.13, abs=0.1)
    # The time of a host call does not depend on what it launches.
    assert only(capture.compare(metric="launch")).mix is None


def test_faster_but_called_twice_as_often(tmp_path: Path) -> None:
    capture = TwoWindows(tmp_path)
    for seed, window, n, factor in ((1, BEFORE, 20_000, 1.0), (2, AFTER, 40_000, 0.8)):
        columns = traffic(window, seed, (1.0,), (factor, 1, 1), n)
        capture.add("kernel_executions", executions("gelu", **columns))
        capture.add("cuda_events", launches("gelu", columns["times"]))
        beside = traffic(window, 10 + seed, (1.0,), n=20_000)
        capture.add("kernel_executions", executions("norm", **beside))
        capture.add("cuda_events", launches("norm", beside["times"]))
    report = capture.compare()
    row = only(report)
    assert row.verdict is Verdict.IMPROVED
    assert row.load_before is not None
    assert row.load_after is not None
    assert row.load_before.launches_per_s == pytest.approx(20_000 / 600)
    assert row.load_after.launches_per_s == pytest.approx(40_000 / 600)
    assert row.load_before.device_ns_per_s == pytest.approx(20_000 / 600 * 20_000 * 1.0113, rel=0.01)
    assert row.load_before.device_share == pytest.approx(0.5, abs=0.01)
    assert row.load_after.device_share == pytest.approx(1.6 / 2.6, abs=0.01)
    (reason,) = [reason for reason in row.reasons if "as often" in reason]
    assert (
        reason
        == "Faster, but called 2 times as often, 33.3 -> 66.7 a second: 673 us -> 1.08 ms of device time a second."
    )
    assert not any("as often" in reason for reason in only(report, "norm").reasons)


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_busier_traffic_of_all_kernels_is_no_news(tmp_path: Path, share: float) -> None:
    capture = TwoWindows(tmp_path)
    for window, n in ((BEFORE, 5_000), (AFTER, 10_000)):
        for name in ("gelu", "norm", "rope"):
            columns = traffic(window, 3, (1.0 - share, share), n=n)
            capture.add("kernel_executions", executions(name, **columns))
            capture.add("cuda_events", launches(name, columns["times"]))
    assert {reason for row in capture.compare().kernels for reason in row.reasons if "as often" in reason} == set()


def test_nothing_is_said_of_kernels_that_ran_once() -> None:
    assert with_loads([], [], ({}, {}), (0.0, 0.0), (0.0, 0.0), 0.05) == []


@pytest.mark.usefixtures("engine")
def test_roll_ups_of_a_server_say_the_same(own_database: Address, tmp_path: Path) -> None:
    before = Window(BEFORE.from_ns, BEFORE.from_ns + 120 * MINUTE)
    after = Window(before.to_ns, before.to_ns + 120 * MINUTE)
    write(tmp_path, "agent_health", health(before.from_ns, after.to_ns, step=10 * MINUTE))
    for side, (window, shares) in enumerate(((before, BIG_RARE), (after, BIG_MORE))):
        for name, factors in (("gelu", SAME), ("norm", (1.0 + 0.3 * side, 1.0, 1.0))):
            columns = traffic(window, side, THREE if name == "norm" else shares, factors)
            write(tmp_path, "kernel_executions", executions(name, **columns), f"{name}-{side}")
            calls = launches(name, columns["times"], **SHAPE, grid_x=columns["grid_x"])
            write(tmp_path, "cuda_events", calls, f"{name}-{side}")
    loaded.load(own_database, tmp_path)
    with ServerStore(own_database) as server, CaptureStore(tmp_path) as store:
        rolled = compare(Evidence(server, before), Evidence(server, after), Options())
        capture = compare(Evidence(store, before), Evidence(store, after), Options())
        rows = compare(Evidence(store, before, exact=True), Evidence(store, after, exact=True), Options())
    assert [(k.kernel, k.verdict, k.value_after, k.ci, k.mix) for k in rolled.kernels] == [
        (k.kernel, k.verdict, k.value_after, k.ci, k.mix) for k in capture.kernels
    ]
    for name, verdict in (("gelu", Verdict.PASS), ("norm", Verdict.REGRESSED)):
        one, other = only(rolled, name), only(rows, name)
        assert one.verdict is other.verdict is verdict
        assert [(s.grid, s.n_before, s.n_after) for s in mix_of(one).strata] == [
            (s.grid, s.n_before, s.n_after) for s in mix_of(other).strata
        ]
        assert mix_of(one).raw_ratio == pytest.approx(mix_of(other).raw_ratio, rel=0.005)
        assert one.ratio == pytest.approx(other.ratio or 0.0, rel=0.005)
    assert mix_of(only(rolled, "norm")).decides


@pytest.mark.parametrize(
    ("before", "after", "slow", "verdict", "said"),
    [
        ((0.5, 0.5, 0.0), (0.49, 0.49, 0.02), 1.0, "MIX_NOT_COMPARABLE", "(0.0% before, 2.0% after)"),
        ((0.5, 0.45, 0.05, 0.0), (0.5, 0.45, 0.0, 0.05), 10.0, "MIX_NOT_COMPARABLE", "(0.0% before, 5.0% after)"),
        ((0.5, 0.45, 0.05, 0.0), (0.5, 0.45, 0.0, 0.05), 1.0, "PASS", ""),
        ((0.5, 0.499, 0.001), (0.5, 0.47, 0.03), 1.0, "PASS", ""),
        ((0.5, 0.499, 0.001), (0.5, 0.47, 0.03), 2.0, "MIX_NOT_COMPARABLE", "(0.1% before, 3.0% after)"),
        ((0.5, 0.5, 0.0), (0.499, 0.499, 0.002), 10.0, "PASS", ""),
    ],
)
def test_a_slow_tail_of_shapes_that_are_not_compared_is_no_pass(
    tmp_path: Path, before: tuple[float, ...], after: tuple[float, ...], slow: float, verdict: str, said: str
) -> None:
    """A new kernel may launch the same work in another shape; what ran before in the same shape may have got rarer."""
    grids, times = (64, 256, 4096, 16_384), np.array([20_000, 26_000, 91_000, 91_000])
    sides = []
    for seed, window, shares in ((1, BEFORE, before), (2, AFTER, after)):
        columns = traffic(window, seed, (1.0,))
        sizes = [round(share * N) for share in shares]
        which = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))
        factor = np.where((which >= 2) & (window is AFTER), slow, 1.0)
        columns["durations"] = np.rint(columns["durations"] * times[which] / TIMES[0] * factor).astype(np.int64)
        sides.append(columns | {"grid_x": np.array(grids)[which]})
    report = two(tmp_path, *sides).compare()
    row = only(report)
    assert (row.verdict.value, report.exit_code) == (verdict, 0 if verdict == "PASS" else 3)
    if said:
        assert row.reasons[0].endswith(f"{said}. No PASS (--no-strata judges all launches together).")
        assert (
            "of the launches after are slower than the margin allows and of shapes that are too rare in the before"
            in (row.reasons[0])
        )
        assert row.ratio == pytest.approx(1.0, abs=0.03)


@pytest.mark.parametrize(("factor", "verdict"), [(1.0, Verdict.PASS), (2.0, Verdict.INCONCLUSIVE)])
def test_a_large_shape_bars_a_pass_though_it_has_not_what_a_verdict_needs(
    tmp_path: Path, factor: float, verdict: Verdict
) -> None:
    """30% of 5,000 launches: p99 of 1,500 is not judged by itself, but is seen to have doubled."""
    sides = [
        traffic(w, seed, (0.3, 0.0, 0.7), (f, 1, 1), 5_000) for seed, w, f in ((1, BEFORE, 1.0), (2, AFTER, factor))
    ]
    row = only(two(tmp_path, *sides).compare())
    assert row.verdict is verdict
    assert row.ratio == pytest.approx(1.0, abs=0.04)
    if verdict is Verdict.INCONCLUSIVE:
        assert row.reasons[0].startswith(
            "All shapes together are within the margin, but grid 2^6 blocks of 2^8 threads is at +"
        )
