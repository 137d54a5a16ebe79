from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import captures
from captures import AFTER, BEFORE, MINUTE, SECOND, T0, TwoWindows, only
from kdiff.analysis.compare import Options, compare
from kdiff.analysis.counts import GRAPHS
from kdiff.analysis.evidence import Evidence, whole_window
from kdiff.analysis.output import FORMATS, output_format
from kdiff.analysis.pairing import PairingError
from kdiff.analysis.report import Report
from kdiff.analysis.verdict import Policy, Verdict
from kdiff.analysis.window import Window
from kdiff.queries.errors import KdiffError
from kdiff.queries.store import CaptureStore
from kdiff.queries.tables import EventFlags

pytestmark = pytest.mark.usefixtures("engine")

N = 6_007
CAPTURED, UNRESOLVED = int(EventFlags.CAPTURED), int(EventFlags.UNRESOLVED)


class Capture(TwoWindows):
    """A capture of both windows under construction."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.seed = 0

    def durations(self, count: int, scale: float, base: int = 80_000) -> np.ndarray:
        self.seed += 1
        draws = np.random.default_rng(self.seed).lognormal(0.0, 0.1, count)
        return (base * scale * draws).astype(np.int64)

    def device(self, name: str, before: float | None = 1.0, after: float | None = 1.0, count: int = N) -> None:
        for window, scale in ((BEFORE, before), (AFTER, after)):
            if scale is not None:
                times = captures.spread(window.from_ns, window.to_ns, count)
                self.add("kernel_executions", captures.executions(name, times, self.durations(count, scale)))
                self.add("cuda_events", captures.launches(name, times, batch_launches=24))

    def host(
        self, name: str, before: float | None = 1.0, after: float | None = 1.0, count: int = N, **columns: Any
    ) -> None:
        for window, scale in ((BEFORE, before), (AFTER, after)):
            if scale is not None:
                times = captures.spread(window.from_ns, window.to_ns, count)
                given = {"completion_ns": self.durations(count, scale)} | columns
                self.add("cuda_events", captures.launches(name, times, **given))


@pytest.fixture
def capture(tmp_path: Path) -> Capture:
    return Capture(tmp_path / "capture")


def test_a_slower_kernel_is_found_and_the_others_pass(capture: Capture) -> None:
    capture.device("gelu", 1.0, 1.24)
    capture.device("norm")
    report = capture.compare()
    assert report.verdict is Verdict.REGRESSED
    assert report.exit_code == 1
    assert [(r.kernel, r.verdict, r.metric) for r in report.kernels] == [
        ("gelu", Verdict.REGRESSED, "device"),
        ("norm", Verdict.PASS, "device"),
    ]
    assert report.summary()["REGRESSED"] == report.summary()["PASS"] == 1
    assert (report.before.launches, report.before.executions) == (2 * N, 2 * N)
    assert report.warnings == ()


def test_counts_and_quantiles_are_exact(capture: Capture) -> None:
    capture.device("gelu", 1.0, 0.8)
    row = only(capture.compare())
    assert (row.n_before, row.n_after) == (N, N)
    assert row.verdict is Verdict.IMPROVED
    for seed, scale, value, quantiles in (
        (1, 1.0, row.value_before, row.quantiles_before),
        (2, 0.8, row.value_after, row.quantiles_after),
    ):
        draws = np.random.default_rng(seed).lognormal(0.0, 0.1, N)
        durations = (80_000 * scale * draws).astype(np.int64)
        expected = np.quantile(durations, [0.5, 0.9, 0.99, 0.999], method="inverted_cdf")
        assert quantiles is not None
        assert [quantiles.p50, quantiles.p90, quantiles.p99, quantiles.p999] == expected.tolist()
        assert value == expected[2]


def test_another_quantile_and_tolerance(capture: Capture) -> None:
    capture.device("gelu", 1.0, 1.24)
    report = capture.compare(policy=Policy(tolerance=0.5, quantile=0.9))
    assert report.exit_code == 0
    row = only(report)
    assert row.quantiles_before is not None
    assert row.value_before == row.quantiles_before.p90


def test_auto_judges_isolated_launches_where_device_time_is_missing(capture: Capture) -> None:
    capture.host("gelu", 1.0, 1.3)
    report = capture.compare()
    row = only(report)
    assert (row.verdict, row.metric) == (Verdict.REGRESSED, "completion")
    assert any("isolated" in note for note in report.notes)


def test_device_time_in_one_window_only_is_not_used(capture: Capture) -> None:
    capture.device("gelu", 1.0, None)
    capture.host("gelu")
    assert only(capture.compare()).metric == "completion"
    row = only(capture.compare(metric="device"))
    assert row.verdict is Verdict.INCONCLUSIVE
    assert row.reasons[0] == "Device time not recorded in the after window."


def test_batch_bound_launches_never_pass(capture: Capture) -> None:
    capture.host("gelu", batch_launches=24)
    report = capture.compare()
    row = only(report)
    assert report.exit_code == 3
    assert row.verdict is Verdict.INCONCLUSIVE
    assert row.reasons[0].startswith("Device time not recorded")
    assert (row.n_before, row.n_after) == (N, N)
    assert [(m.metric, m.n_before, m.n_after) for m in row.others] == [("completion", N, N), ("launch", N, N)]
    assert row.others[0].ci is not None
    assert row.others[0].ci[0] < 1.0 < row.others[0].ci[1]


def test_batch_bound_launches_that_moved_are_not_a_regression_but_are_told(capture: Capture) -> None:
    capture.host("gelu", 1.0, 1.3, batch_launches=24)
    row = only(capture.compare())
    assert row.verdict is Verdict.INCONCLUSIVE
    moved = row.others[0]
    assert moved.metric == "completion"
    assert moved.ci is not None
    assert 1.2 < moved.ci[0] < 1.3 < moved.ci[1] < 1.4


def test_completion_by_request_judges_all_and_says_so(capture: Capture) -> None:
    capture.host("gelu", batch_launches=24)
    report = capture.compare(metric="completion")
    assert (report.exit_code, only(report).metric) == (0, "completion")
    assert any("launches that share a sync share its end" in note for note in report.notes)


def test_few_isolated_launches_do_not_speak_for_a_kernel(capture: Capture) -> None:
    batch = np.full(60_000, 24)
    batch[:: 60_000 // 2_500] = 1
    capture.host("gelu", count=60_000, batch_launches=batch)
    row = only(capture.compare())
    assert row.n_before == 2_500
    assert row.verdict is Verdict.INCONCLUSIVE
    assert "too few to speak for the kernel" in " ".join(row.reasons)


def test_launch_by_request(capture: Capture) -> None:
    capture.host("gelu", completion_ns=0, duration_ns=capture.durations(N, 1.0))
    report = capture.compare(metric="launch")
    assert (report.exit_code, only(report).metric) == (0, "launch")
    assert any("says nothing of the kernel's time on the device" in note for note in report.notes)


def test_unprobed_returns_have_no_launch_time(capture: Capture) -> None:
    capture.host("gelu", duration_ns=7, flags=int(EventFlags.NO_RETURN))
    assert "No time in the host call is known" in only(capture.compare(metric="launch")).reasons[0]


def test_a_graph_that_was_seen_captured_is_judged_by_itself(capture: Capture) -> None:
    decode, prefill = "(graph 0a1b2c3d: 12 x fused_gelu)", "(graph 99aabbcc: 12 x fused_gelu, 1 x softmax)"
    capture.host("", kind="graph_launch")
    capture.host("fused_gelu")
    capture.host(decode, kind="graph_launch", after=1.3)
    capture.host(prefill, kind="graph_launch")
    report = capture.compare()
    assert {row.kernel: row.verdict.name for row in report.kernels if row.kernel.startswith("(graph")} == {
        decode: "REGRESSED", prefill: "PASS", GRAPHS: "PASS",
    }  # fmt: skip
    assert only(report, decode).metric == "graph"
    assert any(f"inside {6 * N:,} graph launches cannot be seen" in note for note in report.notes)
    assert [row.kernel for row in capture.compare(patterns=("fused_gelu",)).kernels] == ["fused_gelu"]
    assert [row.kernel for row in capture.compare(patterns=("(graph 0a1b*",)).kernels] == [decode]


def test_graphs_are_judged_as_graphs(capture: Capture) -> None:
    capture.host("", kind="graph_launch")
    capture.host("gelu")
    report = capture.compare()
    assert only(report, GRAPHS).metric == "graph"
    assert any(f"inside {2 * N:,} graph launches cannot be seen" in note for note in report.notes)
    report = capture.compare(metric="graph")
    assert [row.kernel for row in report.kernels] == [GRAPHS]
    assert report.exit_code == 0
    capture.device("gelu")
    assert {row.kernel: row.metric for row in capture.compare().kernels} == {"gelu": "device", GRAPHS: "graph"}
    for window in (BEFORE, AFTER):
        capture.add("kernel_executions", captures.executions("gelu", [window.from_ns], 80_000, graph_id=1))
    assert [row.kernel for row in capture.compare().kernels] == ["gelu"]


def test_captured_and_failed_launches_are_left_out_and_counted(capture: Capture) -> None:
    capture.host("gelu")
    capture.host("gelu", count=31, flags=CAPTURED, completion_ns=10**9)
    capture.host("gelu", count=7, status=1, completion_ns=10**9)
    row = only(capture.compare())
    assert (row.n_before, row.verdict) == (N, Verdict.PASS)
    assert "Left out: failed launches, 7 before and 7 after." in row.reasons
    assert "Left out: launches captured into graphs, 31 before and 31 after." in row.reasons


def test_many_failed_launches_bar_a_pass(capture: Capture) -> None:
    capture.host("gelu", 1.0, 1.0)
    capture.host("gelu", None, 1.0, count=700, status=719)
    row = only(capture.compare())
    assert row.verdict is Verdict.INCONCLUSIVE
    assert "of the launches in the after window failed" in " ".join(row.reasons)


def test_a_kernel_that_only_fails_now_is_not_gone(capture: Capture) -> None:
    capture.host("norm")
    capture.host("gelu", 1.0, None)
    capture.host("gelu", None, 1.0, status=700)
    assert only(capture.compare()).verdict is Verdict.INCONCLUSIVE


def test_a_name_that_is_not_certain_gets_no_verdict(capture: Capture) -> None:
    capture.host("gelu", flags=UNRESOLVED)
    row = only(capture.compare())
    assert row.verdict is Verdict.INCONCLUSIVE
    assert "The name is not certain for 100.0%" in " ".join(row.reasons)


@pytest.mark.parametrize(("lost", "lossy"), [(60, False), (62, True)])
def test_loss_above_the_limit_gets_no_verdict(capture: Capture, lost: int, lossy: bool) -> None:
    capture.device("gelu", 1.0, 1.24)
    capture.device("norm", None, None)
    # 60 stretches of 10 s overlap the after window; a loss anywhere in one counts whole.
    capture.add(
        "agent_health",
        captures.health(AFTER.from_ns, AFTER.from_ns + 10 * SECOND, events=0, lost_launches=lost),
    )
    report = capture.compare()
    assert report.after.lost == lost
    assert report.before.loss == 0.0
    assert report.after.loss == pytest.approx(lost / (N + lost))
    if lossy:
        assert report.exit_code == 3
        assert report.verdict is Verdict.INCONCLUSIVE
        assert {row.verdict for row in report.kernels} == {Verdict.INCONCLUSIVE}
        assert "The after window lost 1.02% of its events (limit 1%)" in report.cause
        assert capture.compare(max_loss=0.02).exit_code == 1
    else:
        assert report.exit_code == 1


def test_lost_syncs_matter_where_times_end_at_syncs(capture: Capture) -> None:
    capture.host("gelu")
    capture.host("", kind="sync", count=100, completion_ns=0)
    capture.add("agent_health", captures.health(AFTER.from_ns, AFTER.to_ns, events=0, lost_syncs=1))
    report = capture.compare()
    assert report.after.loss == pytest.approx(60 / 160)
    assert report.exit_code == 3
    assert capture.compare(metric="launch").exit_code == 0


def test_partial_and_missing_coverage_are_told(tmp_path: Path) -> None:
    capture = Capture(tmp_path / "whole")
    capture.device("gelu")
    for path in (capture.root / "agent_health").iterdir():
        path.unlink()
    report = capture.compare()
    assert (report.before.loss, report.before.coverage) == (None, 0.0)
    assert "what was lost is not known" in report.warnings[0]
    half = captures.health(BEFORE.from_ns, BEFORE.from_ns + 5 * MINUTE)
    capture.add("agent_health", half)
    capture.add("agent_health", captures.health(AFTER.from_ns, AFTER.to_ns))
    capture.add("agent_health", captures.health(AFTER.from_ns, AFTER.from_ns + MINUTE, host="host-2"))
    report = capture.compare()
    assert report.before.coverage == pytest.approx(0.5)
    assert "only 50% of the before window" in report.warnings[0]
    assert "the host 'host-2' recorded only 10% of the after window" in report.warnings[1]


def test_a_window_without_anything_names_what_the_store_holds(capture: Capture) -> None:
    capture.device("gelu")
    nowhere = Window(T0 - 30 * MINUTE, T0 - 20 * MINUTE)
    with CaptureStore(capture.root) as store, pytest.raises(KdiffError) as caught:
        compare(Evidence(store, nowhere), Evidence(store, AFTER), Options())
    assert "nothing was recorded in the before window" in str(caught.value)
    assert "holds 2025-11-27T10:00:00Z..2025-11-27T10:19:59.9" in str(caught.value)
    with CaptureStore(capture.root) as store, pytest.raises(KdiffError, match=r"service nope \(services: svc\)"):
        compare(Evidence(store, BEFORE, "nope"), Evidence(store, AFTER, "nope"), Options())


def test_no_traffic_is_undecided_not_a_regression(capture: Capture) -> None:
    report = capture.compare()
    assert (report.exit_code, report.verdict) == (3, Verdict.INCONCLUSIVE)
    capture.device("gelu", 1.0, None)
    report = capture.compare()
    assert (report.exit_code, report.cause) == (3, "nothing ran in the after window")


def test_new_and_gone_show_and_a_swap_under_another_name_is_undecided(capture: Capture) -> None:
    capture.device("norm")
    capture.device("gelu_v2", None, 1.0)
    report = capture.compare()
    assert only(report, "gelu_v2").verdict is Verdict.NEW
    assert only(report, "gelu_v2").n_after == N
    assert report.exit_code == 0
    capture.device("gelu", 1.0, None)
    report = capture.compare()
    row = only(report, "gelu_v2")
    assert (row.verdict, row.before_names) == (Verdict.RENAME_SUSPECTED, ("gelu",))
    assert report.exit_code == 3
    assert "--map 'gelu=gelu_v2'" in report.cause
    assert capture.compare(unpaired="ignore").exit_code == 0
    report = capture.compare(renames=["gelu=gelu_v2"])
    assert only(report, "gelu_v2").verdict is Verdict.PASS
    assert report.exit_code == 0


def test_map_finds_a_slower_replacement(capture: Capture) -> None:
    capture.device("f<a=b>", 1.0, None)
    capture.device("g==h", None, 1.3)
    report = capture.compare(renames=["f<a=b>=g==h"])
    assert [(row.kernel, row.verdict) for row in report.kernels] == [("g==h", Verdict.REGRESSED)]


def test_map_exchanges_names(capture: Capture) -> None:
    capture.device("a", 1.0, 2.0)
    capture.device("b", 2.0, 1.0)
    report = capture.compare(renames=["a=b", "b=a"])
    assert {row.verdict for row in report.kernels} == {Verdict.PASS}


def test_map_during_a_partial_rollout_leaves_the_old_kernel_out(capture: Capture) -> None:
    capture.device("old")
    capture.device("new", None, 1.3)
    report = capture.compare(renames=["old=new"])
    assert [(row.kernel, row.verdict) for row in report.kernels] == [("new", Verdict.REGRESSED)]
    assert f"'old' still ran in the after window ({N:,} launches)" in report.warnings[0]


@pytest.mark.parametrize("text", ["gelu", "=", "gelu=", "nope=gelu", "gelu=nope"])
def test_map_that_names_nothing_is_refused(capture: Capture, text: str) -> None:
    capture.device("gelu")
    with pytest.raises(PairingError, match="--map"):
        capture.compare(renames=[text])


def test_kernel_pattern(capture: Capture) -> None:
    capture.device("void gelu<float*>(float*)", 1.0, 1.3)
    capture.device("norm")
    for pattern in ("norm", "no", "n*m"):
        assert [row.kernel for row in capture.compare(patterns=[pattern]).kernels] == ["norm"]
    assert capture.compare(patterns=["gelu<float*>"]).exit_code == 1
    with pytest.raises(PairingError, match="no kernel matches 'nothing': these ran: 'norm', 'void gelu"):
        capture.compare(patterns=["nothing"])


def rare(report: Report) -> list[tuple[str, int, int]]:
    return [(r.kernel, r.n_before, r.n_after) for r in report.rare]


def test_a_one_off_kernel_does_not_decide_the_run(capture: Capture) -> None:
    capture.device("gelu", count=20_011)
    capture.device("init", count=3)
    capture.device("boot", 1.0, None, count=2)
    report = capture.compare()
    assert report.exit_code == 0
    assert [row.kernel for row in report.kernels] == ["gelu"]
    assert rare(report) == [("init", 3, 3), ("boot", 2, 0)]
    assert report.rare_launches == pytest.approx(5 / 20_016)
    assert report.rare_time == pytest.approx(5 / 20_016, rel=0.3)
    # Asked for, it is judged: it has not enough launches.
    assert only(capture.compare(patterns=["init"]), "init").verdict is Verdict.NOT_ENOUGH_DATA
    assert only(capture.compare(renames=["init=init"]), "init").verdict is Verdict.NOT_ENOUGH_DATA
    report = capture.compare(max_unjudged=0.0)
    assert (report.exit_code, rare(report)) == (3, [])


def test_rare_kernels_share_one_budget_and_the_smallest_go_first(capture: Capture) -> None:
    capture.device("gelu", count=30_011)
    for i in range(4):
        capture.device(f"small{i}", count=480 + 20 * i)
    report = capture.compare()
    # Of 32,051 launches the first three have 4.7%, all four 6.4%.
    assert [name for name, _, _ in rare(report)] == ["small2", "small1", "small0"]
    assert report.rare_launches == pytest.approx(1_500 / 32_051)
    assert (report.exit_code, only(report, "small3").verdict) == (3, Verdict.NOT_ENOUGH_DATA)
    assert capture.compare(max_unjudged=0.08).exit_code == 0


@pytest.mark.parametrize("window", ["before", "after"])
def test_the_budget_holds_in_each_window(capture: Capture, window: str) -> None:
    capture.device("gelu", count=20_011)
    scales = (100.0, 1.0) if window == "before" else (1.0, 100.0)
    capture.device("huge", *scales, count=30)
    report = capture.compare()
    # 30 launches, but 100 times as long: 13% of the time in one window.
    assert rare(report) == []
    assert only(report, "huge").verdict is Verdict.NOT_ENOUGH_DATA


@pytest.mark.parametrize(("metric", "column"), [("completion", "completion_ns"), ("launch", "duration_ns")])
def test_without_device_time_the_budget_is_in_the_judged_measure(capture: Capture, metric: str, column: str) -> None:
    capture.host("gelu", count=20_011, **{column: 10_000})
    capture.host("small", count=30, **{column: 10_000})
    capture.host("huge", count=30, **{column: 1_000_000})
    report = capture.compare(metric=metric)
    assert rare(report) == [("small", 30, 30)]
    assert only(report, "huge").verdict is Verdict.NOT_ENOUGH_DATA


def test_new_and_gone_kernels_are_rare_only_if_few(capture: Capture) -> None:
    capture.device("gelu", count=60_013)
    capture.device("new", None, 1.0, count=2_003)
    capture.device("gone", 1.0, None, count=1_999)
    report = capture.compare()
    assert only(report, "new").verdict is Verdict.NEW
    assert rare(report) == [("gone", 1_999, 0)]
    assert report.exit_code == 0


def test_a_kernel_at_the_border_is_rare_but_not_one_that_was_swapped_in(capture: Capture) -> None:
    capture.device("gelu", count=200_003)
    for name, before, after in (("border", 1_990, 2_010), ("canary", 30, 5_003), ("retired", 5_003, 30)):
        capture.device(name, 1.0, None, count=before)
        capture.device(name, None, 1.0, count=after)
    report = capture.compare()
    assert rare(report) == [("border", 1_990, 2_010)]
    assert {only(report, name).verdict for name in ("canary", "retired")} == {Verdict.NOT_ENOUGH_DATA}


def test_another_quantile_needs_fewer(capture: Capture) -> None:
    capture.device("gelu", count=60_013)
    capture.device("small", count=301)
    assert rare(capture.compare()) == [("small", 301, 301)]
    report = capture.compare(policy=Policy(quantile=0.9))
    assert rare(report) == []
    assert only(report, "small").verdict is not Verdict.NOT_ENOUGH_DATA


def test_where_every_kernel_is_rare_the_run_is_undecided(capture: Capture) -> None:
    for i in range(30):
        capture.device(f"small{i}", count=50)
    report = capture.compare()
    assert (report.exit_code, len(report.rare)) == (3, 1)


def test_on_undecided(capture: Capture) -> None:
    capture.host("gelu", batch_launches=24)
    assert capture.compare().exit_code == 3
    assert capture.compare(on_undecided="pass").exit_code == 0
    assert capture.compare(on_undecided="fail").exit_code == 1


def test_two_captures(tmp_path: Path) -> None:
    roots = []
    for name, scale in (("before", 1.0), ("after", 1.3)):
        capture = Capture(tmp_path / name)
        capture.device("gelu", scale, None)
        roots.append(capture.root)
    with CaptureStore(roots[0]) as one, CaptureStore(roots[1]) as two:
        report = compare(Evidence(one, whole_window(one)), Evidence(two, whole_window(two)), Options())
    assert report.exit_code == 1
    assert (report.before.executions, report.after.executions) == (N, N)


def test_services_are_kept_apart(capture: Capture) -> None:
    capture.host("gelu", service="a")
    capture.host("gelu", 1.0, 1.5, service="b")
    with CaptureStore(capture.root) as store:
        codes = {
            service: compare(Evidence(store, BEFORE, service), Evidence(store, AFTER, service), Options()).exit_code
            for service in ("a", "b", "")
        }
    assert codes == {"a": 0, "b": 1, "": 1}


HOSTILE = [
    "\x1b[31mred\x1b[0m",
    "[red]markup[/red]",
    "x" * 2_000,
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>, 3ul>(int, int)",
    "void at::native::vectorized_elementwise_kernel<8, at::native::CUDAFunctor_add<c10::BFloat16>, 3ul>(int, int)",
    "new\nline\ttab\rreturn\x00nul",
    "\u202ereversed",
    "核" * 60,
    "| pipe `tick` <b>",
    "",
]


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Report:
    capture = Capture(tmp_path_factory.mktemp("hostile"))
    for i, name in enumerate(HOSTILE):
        capture.device(name, 1.0, 2.0 if i % 2 == 0 else 1.0, count=12_007)
    return capture.compare()


def test_shares_have_two_digits() -> None:
    from kdiff.analysis.output_text import two_digits

    shares = (0, 0.0000213, 0.0123, 0.5, 0.994, 0.9951, 1)
    assert [two_digits(share) for share in shares] == ["0%", "0.0021%", "1.2%", "50%", "99%", "100%", "100%"]


def test_short_names_keep_what_tells_kernels_apart() -> None:
    from kdiff.analysis.output_text import short_names

    add = "void at::native::vectorized_elementwise_kernel<{}, at::native::CUDAFunctor_add<c10::{}>, 3ul>(int, int)"
    names = [add.format(4, "Half"), add.format(8, "Half"), add.format(8, "BFloat16"), "a::k<int>()", "b::k<int>()"]
    assert short_names(names, 200) == {name: name for name in names}
    assert list(short_names(names, 61).values()) == [
        "vectorized_elementwise_kernel<4, CUDAFunctor_add<Half>, 3ul>",
        "vectorized_elementwise_kernel<8, CUDAFunctor_add<Half>, 3ul>",
        "vectorized_elementwise_kernel<8, CUDAFu…r_add<BFloat16>, 3ul>",
        *names[3:],
    ]
    graphs = ["(graph 0a1b2c3d: 12 x fused_gelu, 3 more)", "(graph 0a1b2c3e: 12 x fused_gelu, 3 more)"]
    assert list(short_names(graphs, 30).values()) == [f"(graph 0a1b2c3{d}: 12 x fused_g…" for d in "de"]
    assert list(short_names(graphs, 16).values()) == ["(graph 0a1b2c3d…", "(graph 0a1b2c3e…"]
    for width in (40, 30, 20):
        shown = short_names(names, width)
        assert len(set(shown.values())) == len(names)
        assert max(map(len, shown.values())) <= width
        assert shown[names[0]].startswith("vector")


def test_a_reason_that_kernels_share_is_told_once(capture: Capture) -> None:
    for name in ("a", "b", "c"):
        capture.host(name, batch_launches=24)
    report = capture.compare()
    text = output_format("table").render(report, 80, colour=False)
    assert text.count("Device time not recorded") == 1
    assert text.count("INCONCLUSIVE [1]") == 3
    assert "\n[1] Device time not recorded, and no launch" in text
    assert "\n- [1] Device time not recorded" in output_format("markdown").render(report, 80, colour=False)
    document = json.loads(output_format("json").render(report, 80, colour=False))
    assert all(row["reasons"][0].startswith("Device time") for row in document["kernels"])


@pytest.mark.parametrize("width", [40, 60, 80, 100, 140, 400])
def test_the_table_fits_its_width(hostile: Report, width: int) -> None:
    from kdiff.queries.printable import cells

    text = output_format("table").render(hostile, width, colour=False)
    lines = text.splitlines()
    assert max(map(cells, lines)) <= width
    assert all(line.isprintable() for line in lines)
    assert text.count("\n") == len(lines)
    assert lines[-1].startswith("REGRESSED: ") or width == 40
    if width >= 60:
        rows = [line.split("  ")[0] for line in lines if " REGRESSED " in line or " PASS " in line]
        assert len(set(rows)) == len(HOSTILE)


@pytest.mark.parametrize("name", FORMATS)
def test_hostile_names_break_no_format(hostile: Report, name: str) -> None:
    text = output_format(name).render(hostile, 80, colour=False)
    assert text.endswith("\n")
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_names_stay_apart_and_whole_in_json(hostile: Report) -> None:
    document = json.loads(output_format("json").render(hostile, 80, colour=False))
    assert {row["kernel"] for row in document["kernels"]} == {name or "(no name)" for name in HOSTILE}


def test_colour_only_where_asked(hostile: Report) -> None:
    assert "\x1b[31;1mREGRESSED" in output_format("table").render(hostile, 80, colour=True)
    plain = output_format("table").render(hostile, 80, colour=False)
    assert "\x1b" not in plain


def test_json_holds_no_infinity(hostile: Report) -> None:
    row = dataclasses.replace(hostile.kernels[0], ratio=float("inf"), ci=(0.0, float("inf")), p_regressed=float("nan"))
    report = dataclasses.replace(hostile, kernels=(row,))
    document = json.loads(output_format("json").render(report, 80, colour=False), parse_constant=pytest.fail)
    assert document["kernels"][0]["ratio"] is None
    assert document["kernels"][0]["ci"] == [0.0, None]


def test_junit_has_a_case_a_kernel(hostile: Report) -> None:
    from xml.etree import ElementTree as ET

    root = ET.fromstring(output_format("junit").render(hostile, 80, colour=False))
    suite = root[0]
    assert len(suite.findall("testcase")) == int(suite.attrib["tests"]) == len(HOSTILE)
    assert len(suite.findall("testcase/failure")) == int(suite.attrib["failures"]) == 5


def test_markdown_rows_have_equal_cells(hostile: Report) -> None:
    import re

    lines = output_format("markdown").render(hostile, 80, colour=False).splitlines()
    rows = [line for line in lines if line.startswith("|")]
    assert len([row for row in rows if not row.startswith("|  | not judged")]) == len(HOSTILE) + 2
    assert len([row for row in rows if row.startswith("|  | not judged")]) == 5
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {9}
