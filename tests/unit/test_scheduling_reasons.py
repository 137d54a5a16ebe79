"""What a verdict says of the host: preempted or not, by what threads waited for a processor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import captures
from captures import AFTER, BEFORE, TwoWindows, only
from kdiff.analysis.output import output_format
from kdiff.analysis.report import KernelReport, Scheduling
from kdiff.analysis.scheduling import waiting_reason
from kdiff.analysis.verdict import Verdict

pytestmark = pytest.mark.usefixtures("engine")

COUNT = 6_007
SLOW = 50  # each 50th


def values(seed: int) -> np.ndarray:
    return (80_000 * np.random.default_rng(seed).lognormal(0.0, 0.1, COUNT)).astype(np.int64)


def calls(root: Path, longer: int, waited: int | None, metric: str = "launch", **sync: Any) -> KernelReport:
    """`gelu`, whose each 50th call takes `longer` ns more in AFTER, `waited` of them ready to run; None: unknown."""
    made = TwoWindows(root)
    for seed, window in enumerate((BEFORE, AFTER)):
        times, took = captures.spread(window.from_ns, window.to_ns, COUNT), values(seed)
        waits = np.zeros(COUNT, np.int64)
        if window is AFTER:
            took[::SLOW] += longer
            waits[::SLOW] = waited or 0
        known: dict[str, Any] = {} if waited is None else {"blocked_ns": 0, "blocked_before_ns": 0}
        if metric == "launch":
            if waited is not None:
                known |= {"runnable_ns": waits, "runnable_before_ns": 5_000_000}
            made.add("cuda_events", captures.launches("gelu", times, duration_ns=took, batch_launches=24, **known))
            continue
        # A third of the wait in each: in the launch, between the calls, in the sync.
        third = waits // 3
        if waited is not None:
            known |= {"runnable_ns": third, "runnable_before_ns": 7_000_000}
        made.add("cuda_events", captures.launches("gelu", times, completion_ns=took, tid=7, **known))
        if waited is not None:
            known |= {"runnable_ns": third, "runnable_before_ns": waits - 2 * third}
        entered = times + took - 30_000
        at = {"kind": "sync", "duration_ns": 30_000, "tid": 7, "api": "cuStreamSynchronize"} | sync
        made.add("cuda_events", captures.launches("gelu", entered, **(at | known)))
    return only(made.compare(metric=metric))


def said(row: KernelReport) -> list[str]:
    return [reason for reason in row.reasons if "preempted" in reason]


def p99(taken: np.ndarray) -> int:
    return int(np.quantile(taken, 0.99, method="inverted_cdf"))


@pytest.mark.parametrize("metric", ["launch", "completion"])
def test_calls_that_are_slower_because_the_host_was_preempted(tmp_path: Path, metric: str) -> None:
    row = calls(tmp_path, 4_000_000, 4_000_000, metric)
    assert row.verdict is Verdict.REGRESSED
    slow = values(1)
    slow[::SLOW] += 4_000_000
    assert row.scheduling_before == Scheduling(COUNT, COUNT, 0, p99(values(0)), p99(values(0)))
    waited = 4_000_000 * -(-COUNT // SLOW)
    assert row.scheduling_after == Scheduling(COUNT, COUNT, waited, p99(slow), p99(values(1)))
    assert said(row) == [
        "The host was preempted: without the time in which its threads were ready to run and had no processor p99 is "
        "101 us -> 101 us, with it 101 us -> 4.08 ms."
    ]


def test_the_json_has_it(tmp_path: Path) -> None:
    calls(tmp_path, 4_000_000, 4_000_000)
    made = TwoWindows(tmp_path)
    kernel = json.loads(output_format("json").render(made.compare(metric="launch"), 80, colour=False))["kernels"][0]
    assert list(kernel["scheduling"]) == ["before", "after"]
    assert list(kernel["scheduling"]["after"]) == ["n", "known", "waited_ns", "value", "value_without"]
    assert kernel["scheduling"]["before"]["value"] == p99(values(0))


def test_calls_that_are_slower_by_themselves(tmp_path: Path) -> None:
    row = calls(tmp_path, 4_000_000, 100_000)
    assert row.verdict is Verdict.REGRESSED
    assert [reason.split(":")[0] for reason in said(row)] == ["The host was not preempted"]


def test_calls_that_are_slower_by_both(tmp_path: Path) -> None:
    assert [reason.split(":")[0] for reason in said(calls(tmp_path, 4_000_000, 2_000_000))] == [
        "In part the host was preempted"
    ]


def test_nothing_is_said_where_it_was_not_recorded(tmp_path: Path) -> None:
    row = calls(tmp_path, 4_000_000, None)
    assert row.verdict is Verdict.REGRESSED
    assert said(row) == []
    assert (row.scheduling_before, row.scheduling_after) == (None, None)


def test_nothing_is_said_where_another_thread_waited_for_the_device(tmp_path: Path) -> None:
    row = calls(tmp_path, 4_000_000, 4_000_000, "completion", tid=8)
    assert row.verdict is Verdict.REGRESSED
    assert said(row) == []
    assert row.scheduling_after == Scheduling(COUNT, 0, 0, None, None)


def test_calls_that_did_not_get_slower_are_not_explained(tmp_path: Path) -> None:
    row = calls(tmp_path, 0, 0)
    assert row.verdict is Verdict.PASS
    assert (said(row), row.scheduling_after) == ([], None)


@pytest.mark.parametrize(
    ("after", "begins"),
    [
        (Scheduling(100, 100, 9, 200, 119), "The host was preempted"),
        (Scheduling(100, 100, 9, 200, 121), "In part"),
        (Scheduling(100, 100, 9, 200, 180), "In part"),
        (Scheduling(100, 100, 9, 200, 181), "The host was not"),
        (Scheduling(100, 89, 9, 200, 100), ""),
        (Scheduling(100, 90, 9, 200, 100), "The host was preempted"),
        (Scheduling(100, 100, 9, 100, 90), ""),
        (Scheduling(100, 0, 0, None, None), ""),
    ],
)
def test_how_much_of_the_growth_is_waiting(after: Scheduling, begins: str) -> None:
    reason = waiting_reason(Scheduling(100, 100, 0, 100, 100), after, 0.99)
    assert reason.startswith(begins)
    assert bool(reason) == bool(begins)
