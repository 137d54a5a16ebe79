"""Canary against control at the same time: which hosts an arm is, and what is said of known ones."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import loaded
import numpy as np
import pytest
from command_line import Result, Run
from command_line import kdiff as kdiff_of

import captures
from captures import AFTER, BEFORE, MINUTE, T0, only
from kdiff.analysis import selectors
from kdiff.analysis.arms import compare_arms, resolve
from kdiff.analysis.compare import Options
from kdiff.analysis.interval import ratio_interval, student_quantile, tail_estimate
from kdiff.analysis.judging import judge
from kdiff.analysis.kept import verdicts as kept_verdicts
from kdiff.analysis.output import output_format
from kdiff.analysis.output_text import arm_line
from kdiff.analysis.report import Arm, Report
from kdiff.analysis.sample import Sample
from kdiff.analysis.totals import Total
from kdiff.analysis.verdict import Judgement, Policy, Verdict
from kdiff.analysis.window import Window
from kdiff.queries.address import Address
from kdiff.queries.errors import KdiffError
from kdiff.queries.server import ServerStore
from kdiff.queries.store import CaptureStore, Store

pytestmark = pytest.mark.usefixtures("engine")

POLICY = Policy()
LEVEL = 20_000.0
RUNS = 2_000  # of each host


def hosts(rng: np.random.Generator, levels: list[float], runs: int = RUNS) -> Sample:
    """Launches of hosts at these levels, lognormal with 3% of them slowed."""
    host = np.repeat(np.arange(len(levels), dtype=np.int32), runs)
    durations = np.array(levels)[host] * lognormal(rng, host.size)
    return Sample(durations.astype(np.int64), host, len(levels), clustered=True)


def lognormal(rng: np.random.Generator, size: int) -> np.ndarray:
    slow = np.where(rng.random(size) < 0.03, 1.0 + rng.exponential(0.5, size), 1.0)
    return np.asarray(np.exp(rng.normal(0.0, 0.15, size)) * slow)


def levels(rng: np.random.Generator, number: int, factor: float = 1.0, sd: float = 0.02) -> list[float]:
    return [float(x) for x in LEVEL * factor * np.exp(rng.normal(0.0, sd, number))]


class TestSamples:
    """Verdicts on hand-made samples."""

    def judge(self, control: list[float], canary: list[float], runs: int = RUNS) -> Judgement:
        rng = np.random.default_rng(1)
        return judge(hosts(rng, control, runs), hosts(rng, canary, runs), POLICY)

    def test_the_variance_is_that_of_hosts(self) -> None:
        # Each of 6 hosts has 1,000 launches, and 5, 5, 10, 10, 15 and 15 of the 60 slow ones.
        slow = [5, 5, 10, 10, 15, 15]
        durations = np.concatenate([np.r_[np.arange(1_000, 2_000 - s), np.arange(5_000, 5_000 + s)] for s in slow])
        sample = Sample(durations.astype(np.int64), np.repeat(np.arange(6, dtype=np.int32), 1_000), 6, clustered=True)
        found = tail_estimate(sample, 0.99)
        # p99 is the slowest of the others, 1,994, which two hosts have: none of them counts as above it.
        assert (found.value, found.nu, found.filled, found.even) == (1_994, 5, 6, 6.0)
        assert found.variance == pytest.approx(6 / 5 * 4 * 25)

    @pytest.mark.parametrize("number", [1, 3, 4])
    def test_fewer_than_5_hosts_are_not_enough(self, number: int) -> None:
        judged = self.judge([LEVEL] * 6, [LEVEL] * number)
        assert judged.verdict is Verdict.NOT_ENOUGH_DATA
        noun = "host" if number == 1 else "hosts"
        assert judged.reasons == (f"The after window has launches on {number} {noun}; 5 are needed: add hosts to it.",)

    def test_hosts_of_which_one_has_all_launches_are_not_enough(self) -> None:
        rng = np.random.default_rng(1)
        even = hosts(rng, [LEVEL] * 6)
        one = np.repeat(np.arange(6, dtype=np.int32), [9_500, 100, 100, 100, 100, 100])
        crowded = Sample((LEVEL * lognormal(rng, one.size)).astype(np.int64), one, 6, clustered=True)
        judged = judge(even, crowded, POLICY)
        assert judged.verdict is Verdict.NOT_ENOUGH_DATA
        assert judged.reasons == (
            "The after window's launches crowd onto the equal of 1.1 hosts; 4 are needed: add hosts to it, or spread "
            "its traffic.",
        )

    def test_5_hosts_are_enough_where_stretches_of_time_would_not_be(self) -> None:
        judged = self.judge([LEVEL] * 5, [LEVEL] * 5, runs=20_000)
        assert judged.verdict is Verdict.PASS
        assert judged.reasons == ()

    def test_a_slow_canary_is_found(self) -> None:
        rng = np.random.default_rng(2)
        judged = self.judge(levels(rng, 6), levels(rng, 6, 1.25))
        assert judged.verdict is Verdict.REGRESSED

    def test_one_slow_host_is_no_regression(self) -> None:
        judged = self.judge([LEVEL] * 6, [LEVEL] * 4 + [LEVEL * 1.6, LEVEL])
        assert judged.verdict is Verdict.INCONCLUSIVE
        assert judged.reasons[-1] == (
            "The host number 5 of the after window is slower than its others: p99 51.4 us, that of the others 32.2 us "
            "at the median."
        )

    def test_one_slow_host_of_the_control_hides_nothing(self) -> None:
        judged = self.judge([LEVEL] * 4 + [LEVEL * 1.6, LEVEL], [LEVEL * 1.2] * 6)
        assert judged.verdict is Verdict.INCONCLUSIVE
        assert judged.reasons[-1].startswith("The host number 5 of the before window is slower than its others: p99 ")

    def test_launches_that_are_alike_do_not_hide_that_hosts_are_not(self) -> None:
        """Each host runs a kernel that takes the same time always: p99 of an arm is its slowest host's."""
        fives = [1.0, 1.01, 1.02, 1.03, 1.04], [1.0, 1.01, 1.02, 1.03, 1.13]
        samples = [
            Sample(
                (LEVEL * np.repeat(levels, 2_000)).astype(np.int64),
                np.repeat(np.arange(5, dtype=np.int32), 2_000),
                5,
                clustered=True,
            )
            for levels in fives
        ]
        judged = judge(samples[0], samples[1], POLICY)
        assert judged.ratio == pytest.approx(1.13 / 1.04, abs=1e-4)
        assert judged.verdict is Verdict.INCONCLUSIVE
        estimates = [tail_estimate(sample, 0.99) for sample in samples]
        assert estimates[1].levels is not None
        assert estimates[1].levels.tolist() == [20_000, 20_200, 20_400, 20_600, 22_599]
        # Welch's t of the hosts' logarithms, by hand.
        logs = [np.log(np.trunc(LEVEL * np.array(levels))) for levels in fives]
        errors = [values.var(ddof=1) / 5 for values in logs]
        freedom = sum(errors) ** 2 / sum(error**2 / 4 for error in errors)
        reach = -student_quantile(math.floor(freedom), 0.05) * math.sqrt(sum(errors))
        limits = ratio_interval(estimates[0], estimates[1], 0.05)
        assert limits.low == pytest.approx(logs[1].mean() - logs[0].mean() - reach)

    def test_hosts_with_few_launches_have_no_quantile_of_their_own(self) -> None:
        rng = np.random.default_rng(1)
        host = np.repeat(np.arange(6, dtype=np.int32), [5_000, 5_000, 5_000, 5_000, 299, 299])
        few = Sample((LEVEL * lognormal(rng, host.size)).astype(np.int64), host, 6, clustered=True)
        judged = judge(hosts(rng, [LEVEL] * 6), few, POLICY)
        assert judged.verdict is Verdict.NOT_ENOUGH_DATA
        assert judged.reasons == (
            "The after window has 300 launches or more, for a p99 of its own, on 4 hosts; 5 are needed: take a longer "
            "window, or add hosts to it.",
        )

    def test_what_is_open_is_told_in_hosts(self) -> None:
        rng = np.random.default_rng(4)
        judged = self.judge(levels(rng, 5, sd=0.05), levels(rng, 5, 1.08, sd=0.05))
        assert judged.verdict is Verdict.INCONCLUSIVE
        (reason,) = judged.reasons
        assert reason.endswith("times as many hosts in each window.")

    def test_false_alarms_and_power(self) -> None:
        """At exactly the margin, where false alarms are most likely: tests/bench/bench_canary.py has the rest."""
        seen: dict[float, list[Verdict]] = {1.05: [], 1.2: []}
        for ratio, verdicts in seen.items():
            rng = np.random.default_rng(7)
            for _ in range(100):
                pair = hosts(rng, levels(rng, 8, sd=0.03)), hosts(rng, levels(rng, 8, ratio, sd=0.03))
                verdicts.append(judge(*pair, POLICY).verdict)
        assert seen[1.05].count(Verdict.REGRESSED) <= 2
        assert seen[1.2].count(Verdict.REGRESSED) >= 75

    def test_a_mean_of_hosts_has_their_variance(self) -> None:
        host = np.repeat(np.arange(5, dtype=np.int32), 100)
        samples = [Sample(np.repeat([80, 90, 100, 110, 120], 100).astype(np.int64), host, 5, clustered=True)]
        total = Total.of(samples)
        error, freedom = total.error
        assert freedom == 4
        # Means of 80..120 have a standard deviation of 15.8 and, of five, a standard error of 7.07.
        assert error == pytest.approx(math.sqrt(250.0 / 5) / 100)


class Fleet:
    """A capture of hosts over the 20 minutes of BEFORE and AFTER, or another window."""

    def __init__(self, root: Path, window: Window | None = None) -> None:
        self.root = root
        self.window = window or replace(BEFORE, to_ns=AFTER.to_ns)
        self.rng = np.random.default_rng(3)
        self.segments = 0
        self.pids: dict[tuple[str, str], int] = {}

    def add(
        self,
        host: str,
        factor: float = 1.0,
        service: str = "svc",
        runs: int = RUNS,
        kernel: str = "gelu",
        drift: float = 1.0,
        **columns: Any,
    ) -> None:
        """A host that runs all the time, `factor` slower than others, and `drift` slower at the end than at first."""
        self.segments += 1
        times = captures.spread(self.window.from_ns, self.window.to_ns, runs)
        moved = np.exp(np.linspace(0.0, math.log(drift), runs))
        durations = (LEVEL * factor * moved * np.exp(self.rng.normal(0.0, 0.05, runs))).astype(np.int64)
        if (host, service) not in self.pids:
            self.pids[host, service] = 100 + self.segments
            self.agent(host, service, runs)
        place = {"host": host, "service": service, "pid": self.pids[host, service]} | columns
        name = f"{self.segments:06d}"
        captures.write(self.root, "kernel_executions", captures.executions(kernel, times, durations, **place), name)
        captures.write(self.root, "cuda_events", captures.launches(kernel, times, batch_launches=9, **place), name)

    def agent(self, host: str, service: str = "svc", events: int = 1_000) -> None:
        self.segments += 1
        data = captures.health(self.window.from_ns, self.window.to_ns, events, host=host, service=service)
        captures.write(self.root, "agent_health", data, f"{self.segments:06d}")

    def gpu(self, host: str, model: str) -> None:
        self.segments += 1
        times = captures.spread(self.window.from_ns, self.window.to_ns, 100)
        given = {"timestamp_ns": times, "host": host, "gpu_uuid": f"GPU-{host}", "gpu_name": model}
        data = captures.table("gpu_samples", given | {"gpu_utilization": 50}, rows=100)
        captures.write(self.root, "gpu_samples", data, f"{self.segments:06d}")

    def compare(self, control: str, canary: str, service: str = "", **options: Any) -> Report:
        with CaptureStore(self.root) as store:
            report = self.compare_in(store, control, canary, service, **options)
        for name in ("json", "argo"):
            output_format(name).render(report, 80, colour=False)
        return report

    def compare_in(self, store: Store, control: str, canary: str, service: str = "", **options: Any) -> Report:
        arms = tuple(selectors.parse(text, f"--{name}") for name, text in (("control", control), ("canary", canary)))
        return compare_arms(resolve(store, self.window, (arms[0], arms[1]), service), Options(**options))


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.delenv("KDIFF_STORE", raising=False)
    monkeypatch.setenv("COLUMNS", "120")

    def call(*arguments: str) -> Result:
        return kdiff_of(monkeypatch, capsys, *arguments)

    return call


def two_arms(fleet: Fleet, number: int, factor: float = 1.0, drift: float = 1.0) -> Fleet:
    """Hosts old-N and as many new-N, which differ a little in each arm; the new ones are `factor` slower."""
    for i in range(number):
        fleet.add(f"old-{i}", 1.0 + 0.01 * (i % 3), drift=drift)
        fleet.add(f"new-{i}", factor * (1.0 + 0.01 * (i % 3)), drift=drift)
    return fleet


OLD, NEW = "host=old-*", "host=new-*"


@pytest.fixture(scope="module")
def slower(tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    """6 hosts old-N, and 6 new-N that are 20% slower."""
    return two_arms(Fleet(tmp_path_factory.mktemp("slower")), 6, 1.2)


@pytest.fixture(scope="module")
def slower_report(engine: None, slower: Fleet) -> Report:
    return slower.compare(OLD, NEW)


def test_a_canary_20_percent_slower_is_regressed(slower_report: Report) -> None:
    report = slower_report
    assert (report.verdict, report.exit_code) == (Verdict.REGRESSED, 1)
    row = only(report)
    assert (row.metric, row.n_before, row.n_after) == ("device", 6 * RUNS, 6 * RUNS)
    assert row.ratio == pytest.approx(1.2, abs=0.04)
    assert report.arms is not None
    assert report.arms[0].hosts == tuple(f"old-{i}" for i in range(6))
    assert report.arms[1].hosts == tuple(f"new-{i}" for i in range(6))
    assert (report.before.launches, report.after.launches) == (6 * RUNS, 6 * RUNS)
    assert (report.before.window, report.before.buckets) == (report.after.window, 6)


def test_equal_arms_pass(fleet: Fleet) -> None:
    report = two_arms(fleet, 6).compare(OLD, NEW)
    assert (report.verdict, report.exit_code) == (Verdict.PASS, 0)


def test_three_hosts_are_not_enough(fleet: Fleet) -> None:
    report = two_arms(fleet, 3, 1.5).compare(OLD, NEW)
    assert (report.verdict, report.exit_code) == (Verdict.NOT_ENOUGH_DATA, 3)
    assert only(report).reasons[:2] == (
        "The control has launches on 3 hosts; 5 are needed: add hosts to it.",
        "The canary has launches on 3 hosts; 5 are needed: add hosts to it.",
    )
    assert report.warnings[:2] == (
        "the control has 3 hosts, and 5 are needed for a verdict",
        "the canary has 3 hosts, and 5 are needed for a verdict",
    )


def test_gpus_of_another_model_are_no_control(fleet: Fleet) -> None:
    two_arms(fleet, 6, 1.2)
    for i in range(6):
        fleet.gpu(f"old-{i}", "NVIDIA H100")
        fleet.gpu(f"new-{i}", "NVIDIA H200")
    report = fleet.compare(OLD, NEW)
    assert report.verdict is Verdict.MIX_NOT_COMPARABLE
    assert (
        "The GPUs of the control are 'NVIDIA H100', those of the canary 'NVIDIA H200': what is another GPU and what "
        "another kernel cannot be told apart."
    ) in only(report).reasons


@pytest.mark.parametrize(("factor", "verdict"), [(1.0, Verdict.PASS), (1.2, Verdict.REGRESSED)])
@pytest.mark.parametrize("hours", [0, 3])
def test_a_server_says_the_same(
    tmp_path: Path, own_database: Address, hours: int, factor: float, verdict: Verdict
) -> None:
    """Of rows, and of three hours from roll-ups, which tell hosts apart from about the quantile on."""
    fleet = Fleet(tmp_path, Window(T0, T0 + hours * 60 * MINUTE) if hours else None)
    two_arms(fleet, 6, factor)
    loaded.load(own_database, tmp_path)
    with ServerStore(own_database) as store:
        there = fleet.compare_in(store, OLD, NEW)
    here = fleet.compare(OLD, NEW)
    assert (there.verdict, here.verdict) == (verdict, verdict)
    assert (only(there).n_before, only(there).n_after) == (6 * RUNS, 6 * RUNS)
    assert (only(there).ratio, only(there).ci) == (only(here).ratio, only(here).ci)


def test_one_slow_host_of_a_long_window(tmp_path: Path) -> None:
    fleet = two_arms(Fleet(tmp_path, Window(T0, T0 + 180 * MINUTE)), 6)
    fleet.add("new-9", 1.7)
    report = fleet.compare(OLD, NEW)
    assert report.verdict is Verdict.INCONCLUSIVE
    assert "The host 'new-9' of the canary is slower than its others: p99 " in " ".join(only(report).reasons)


def test_drift_of_all_hosts_is_in_both_arms(fleet: Fleet) -> None:
    """Twice as slow at the end: two windows in a row would have said REGRESSED of any kernel."""
    report = two_arms(fleet, 6, drift=2.0).compare(OLD, NEW)
    assert report.verdict is Verdict.PASS


def test_one_slow_canary_host_is_named_and_regresses_nothing(fleet: Fleet) -> None:
    two_arms(fleet, 6)
    fleet.add("new-9", 1.7)
    report = fleet.compare(OLD, NEW)
    assert (report.verdict, report.exit_code) == (Verdict.INCONCLUSIVE, 3)
    (reason,) = (reason for reason in only(report).reasons if "new-9" in reason)
    assert reason.startswith("The host 'new-9' of the canary is slower than its others: p99 ")


def test_arms_by_service(fleet: Fleet) -> None:
    for i in range(6):
        fleet.add(f"gpu-{i}", 1.0 + 0.01 * (i % 3), service="llm")
        fleet.add(f"gpu-{i + 10}", 1.2 + 0.01 * (i % 3), service="llm-canary")
        fleet.add(f"gpu-{i}", 5.0, service="batch", kernel="other")
    report = fleet.compare("service=llm", "service=llm-canary")
    assert report.verdict is Verdict.REGRESSED
    assert [row.kernel for row in report.kernels] == ["gelu"]
    assert report.arms is not None
    assert [(len(arm.hosts), arm.service) for arm in report.arms] == [(6, "llm"), (6, "llm-canary")]


def test_both_services_on_the_same_hosts(fleet: Fleet) -> None:
    for i in range(6):
        fleet.add(f"gpu-{i}", 1.0 + 0.01 * (i % 3), service="llm")
        fleet.add(f"gpu-{i}", 1.3 + 0.01 * (i % 3), service="llm-canary")
    report = fleet.compare("service=llm", "service=llm-canary")
    assert report.verdict is Verdict.REGRESSED
    assert report.warnings[0] == (
        "'gpu-0', 'gpu-1', 'gpu-2', 'gpu-3', 'gpu-4', 'gpu-5' run both arms: where these share a GPU, what one does to "
        "the other is in the ratio"
    )


def test_the_service_of_an_arm_goes_before_that_of_the_option(fleet: Fleet) -> None:
    for i in range(5):
        fleet.add(f"gpu-{i}", service="llm")
        fleet.add(f"gpu-{i + 10}", service="next")
    report = fleet.compare("host=gpu-*", "service=next", service="llm")
    assert report.arms is not None
    assert [arm.service for arm in report.arms] == ["llm", "next"]


def test_a_fusion_is_judged_by_hosts_too(fleet: Fleet) -> None:
    for i in range(6):
        fleet.add(f"old-{i}", 1.0 + 0.01 * (i % 3), kernel="a")
        fleet.add(f"old-{i}", 1.0 + 0.01 * (i % 3), kernel="b")
        fleet.add(f"new-{i}", 2.5 * (1.0 + 0.01 * (i % 3)), kernel="c")
    report = fleet.compare(OLD, NEW, renames=["a+b=c"])
    row = only(report, "c")
    assert (row.verdict, row.metric) == (Verdict.REGRESSED, "device_total")
    assert row.ratio == pytest.approx(1.25, abs=0.02)
    assert "for each launch of 'a' in the control, of 'c' for each launch of 'c' in the canary" in row.reasons[0]


def test_a_kernel_of_one_arm_is_told_in_its_words(fleet: Fleet) -> None:
    two_arms(fleet, 5)
    fleet.add("new-0", kernel="added")
    report = fleet.compare(OLD, NEW)
    row = only(report, "added")
    assert (row.verdict, row.reasons[0]) == (Verdict.NEW, "The kernel ran only in the canary.")


def test_a_host_that_recorded_and_ran_nothing_is_left_out(fleet: Fleet) -> None:
    two_arms(fleet, 5)
    fleet.agent("new-8")
    report = fleet.compare(OLD, NEW)
    assert report.verdict is Verdict.PASS
    assert report.arms is not None
    assert len(report.arms[1].hosts) == 5
    assert report.warnings[0] == (
        "--canary: 'new-8' recorded, but launched nothing in the window 2025-11-27T10:00:00Z..2025-11-27T10:20:00Z: "
        "left out"
    )


def test_names_of_hosts_are_told_as_they_are(fleet: Fleet) -> None:
    """Brackets are no pattern, and a quote ends no name: what is in it is not reworded."""
    names = ("gpu[1]", "gpu[!a]", "it's before.", "\u202ex=y", "new\nline")
    for i in range(5):
        fleet.add(f"old-{i}")
    for name in names[:4]:
        fleet.add(name, runs=500)
    fleet.add(names[4], 1.9, runs=500)
    report = fleet.compare(OLD, "host=gpu[1],gpu[!a],it's*,?x?y,new?line")
    assert report.arms is not None
    assert report.arms[1].hosts == tuple(sorted(names))
    assert "The host 'new\\nline' of the canary is slower" in " ".join(only(report).reasons)
    with pytest.raises(KdiffError, match=r"no host matches 'gpu\[12\]'"):
        fleet.compare(OLD, "host=gpu[12]")


@pytest.mark.parametrize(
    ("control", "canary", "words"),
    [
        (OLD, "host=new-7", "--canary: no host matches 'new-7' in the window 2025-11-27T10:00:00Z.."
         "2025-11-27T10:20:00Z: hosts are 'new-0', 'new-1', 'old-0', 'old-1'"),
        (OLD, "host=new-0,new-7", "--canary: no host matches 'new-7'"),
        (OLD, "host=idle", "--canary: 'idle' recorded, but launched nothing in the window"),
        ("host=*", NEW, "--control and --canary share 'new-0', 'new-1': name each host in one of them, or tell the "
         "arms apart by service="),
        ("service=svc", "host=new-0", "--control and --canary share 'new-0'"),
        (OLD, "service=nope", "--canary: nothing of the service 'nope' was recorded in the window"),
        ("service=svc,host=zzz", NEW, "--control: no host matches 'zzz' in the window 2025-11-27T10:00:00Z.."
         "2025-11-27T10:20:00Z: hosts of the service 'svc' are"),
    ],
)  # fmt: skip
def test_arms_that_cannot_be_are_one_sentence(fleet: Fleet, control: str, canary: str, words: str) -> None:
    two_arms(fleet, 2)
    fleet.agent("idle")
    with pytest.raises(KdiffError) as error:
        fleet.compare(control, canary)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["table", "markdown", "junit", "sentence", "argo", "json"])
def test_every_format_speaks_of_arms(slower_report: Report, name: str) -> None:
    report = slower_report
    text = output_format(name).render(report, 120, colour=False)
    assert "canary" in text
    assert "control" in text
    if name != "json":  # whose keys stay
        assert "before" not in text.replace("value_before", "")
        assert "after" not in text.replace("value_after", "")
    if name in ("table", "markdown", "junit"):
        assert "6 hosts: new-0, new-1, new-2, new-3, new-4, new-5" in text
        assert "90% intervals, 6 hosts each" in text
    if name == "sentence":
        assert text.endswith(" (canary on 6 hosts against control on 6 hosts, 2025-11-27T10:00:00Z/20m).\n")
    if name == "json":
        document = json.loads(text)
        assert document["arms"]["canary"] == {"hosts": [f"new-{i}" for i in range(6)], "service": ""}
        assert document["after"]["buckets"] == 6


def test_the_command(run: Run, slower: Fleet) -> None:
    at = ("--at", f"{BEFORE.from_ns}..{AFTER.to_ns}", "--store", str(slower.root))
    result = run("--control", OLD, "--canary", NEW, *at)
    assert result.code == 1, result.err
    assert result.out.startswith("control 2025-11-27T10:00:00Z .. 2025-11-27T10:20:00Z (20m)\n")
    assert "kernel verdict" in " ".join(result.out.split())


def test_a_host_with_an_endless_name_is_shortened() -> None:
    line = arm_line(Arm(("z" * 2_000, "new\nline"), "svc"))
    assert line.startswith("2 hosts of svc: zzz")
    assert line.endswith("zzz, new\\nline")
    assert len(line) == len("2 hosts of svc: ") + 60 + len(", new\\nline")


def test_what_is_kept_says_which_hosts_it_was_of(slower_report: Report) -> None:
    [kept] = kept_verdicts(slower_report, "", "", T0, "run")
    assert kept.reasons[0] == (
        "Before is the control, 6 hosts: old-0, old-1, old-2, old-3, old-4, old-5; after is the canary, 6 hosts: "
        "new-0, new-1, new-2, new-3, new-4, new-5."
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--control", "host=a"], "--canary is missing beside --control: write host=NAME"),
        (["--canary", "host=a", "--at", "-1h"], "--control is missing beside --canary"),
        (["--at", "-1h"], "--control is missing beside --at"),
        (["--control", "host=a", "--canary", "host=b", "--before", "-1h"],
         "--before name two windows, --control and --canary two arms of one: leave out one of the two ways, and name "
         "the window of the arms with --at SPEC"),
        (["--control", "a", "--canary", "host=b"], "--control 'a': it does not say by what to select: write host="),
        (["--control", "gpu=GPU-1", "--canary", "host=b"], "arms are told apart by host, not by 'gpu': write host="),
        (["--control", "rack=1", "--canary", "host=b"], "there is no 'rack' to select by: write host="),
        (["--control", "host=a,", "--canary", "host=b"], "--control 'host=a,': a name is empty: write host="),
        (["--control", "service=a,b", "--canary", "host=b"], "an arm is of one service: name one, or hosts only"),
        (["--control", "host=a", "--canary", "host=b", "--at", "2125-01-01"], "--at '2125-01-01': the window starts"),
        (["--control", "host=a", "--canary", "host=b", "--window", "x"], "'x' is not a length of time"),
    ],
)  # fmt: skip
def test_usage_errors_are_2(run: Run, tmp_path: Path, arguments: list[str], words: str) -> None:
    result = run(*arguments, "--store", str(tmp_path))
    assert result.code == 2
    assert words in result.err
    assert result.err.count("\n") == 1


def test_the_window_is_the_last_minutes_by_itself() -> None:
    now = T0 + 60 * MINUTE
    found = selectors.asked(("host=a", "host=b"), "", ("", ""), now, "15m")
    assert found is not None
    assert found.at == replace(BEFORE, from_ns=T0 + 45 * MINUTE, to_ns=now)
    assert found.warnings(now) == []
    ahead = selectors.asked(("host=a", "host=b"), "-1m", ("", ""), now, "5m")
    assert ahead is not None
    assert ahead.warnings(now) == ["the window ends in the future: its last 4m have not happened yet"]
    assert selectors.asked(("", ""), "", ("-2h", "-1h"), now, "15m") is None
