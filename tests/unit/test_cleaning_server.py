"""Cleaning of what a server holds, by rows and by roll-ups of minutes, and how much a fleet's processes cost it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import loaded
import numpy as np
import pytest

import captures
from captures import MINUTE, SECOND, T0
from kdiff.analysis.cleaning import clean
from kdiff.analysis.compare import Options, compare
from kdiff.analysis.evidence import Evidence
from kdiff.analysis.report import CleaningStep, Report
from kdiff.analysis.verdict import Verdict
from kdiff.analysis.window import Window
from kdiff.queries.address import Address
from kdiff.queries.server import ServerStore
from kdiff.queries.store import CaptureStore, Store

pytestmark = pytest.mark.usefixtures("engine")

N = 9_001
HOUR = 60 * MINUTE
BEFORE = Window(T0, T0 + 3 * HOUR)
AFTER = Window(BEFORE.to_ns, BEFORE.to_ns + 3 * HOUR)
SHORT = Window(AFTER.from_ns + 80 * MINUTE, AFTER.from_ns + 100 * MINUTE)
SHORT_BEFORE = Window(BEFORE.from_ns + 80 * MINUTE, BEFORE.from_ns + 100 * MINUTE)
RESTART = AFTER.from_ns + 90 * MINUTE + 20 * SECOND
"""The process of host-2 goes, and the next one is slow for half a minute."""


@pytest.fixture(scope="module")
def restart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("cleaning") / "capture"
    rng = np.random.default_rng(11)
    for host, count in (("host-1", N), ("host-2", 5 * N)):
        times = captures.spread(BEFORE.from_ns, AFTER.to_ns, 2 * count)
        new = (times >= RESTART) & (host == "host-2")
        slow = np.where(new & (times < RESTART + 30 * SECOND), 3.0, 1.0)
        durations = (80_000 * slow * rng.lognormal(0.0, 0.1, len(times))).astype(np.int64)
        where: dict[str, Any] = {"host": host, "pid": np.where(new, 8, 7), "block_x": 128}
        captures.write(root, "cuda_events", captures.launches("gelu", times, batch_launches=24, **where), host)
        captures.write(root, "kernel_executions", captures.executions("gelu", times, durations, **where), host)
        captures.write(root, "agent_health", captures.health(BEFORE.from_ns, AFTER.to_ns, 50, MINUTE, host=host), host)
    return root


def judged(store: Store, before: Window, after: Window, exact: bool = False, **options: Any) -> Report:
    return compare(Evidence(store, before, exact=exact), Evidence(store, after, exact=exact), Options(**options))


def launched(from_ns: int, to_ns: int) -> int:
    """By the process that is new, in a stretch."""
    times = captures.spread(BEFORE.from_ns, AFTER.to_ns, 10 * N)
    return int(((times >= max(RESTART, from_ns)) & (times < to_ns)).sum())


@pytest.mark.parametrize("where", ["capture", "server"])
def test_a_restart_in_a_window_of_rows(restart: Path, own_database: Address, where: str) -> None:
    loaded.load(own_database, restart)
    with CaptureStore(restart) if where == "capture" else ServerStore(own_database) as store:
        report = judged(store, SHORT_BEFORE, SHORT)
    first = int(next(t for t in captures.spread(BEFORE.from_ns, AFTER.to_ns, 10 * N) if t >= RESTART))
    count = launched(first, first + MINUTE)
    assert report.before.cleaning == ()
    assert report.after.cleaning == (CleaningStep("warm_up", 1, count, count, MINUTE),)
    assert report.exit_code == 0


@pytest.mark.parametrize("where", ["capture", "server"])
def test_a_restart_in_a_window_of_minutes(restart: Path, own_database: Address, where: str) -> None:
    """Whole minutes are left out; on a server only where they may matter, which a minute in three hours does."""
    loaded.load(own_database, restart)
    with CaptureStore(restart) if where == "capture" else ServerStore(own_database) as store:
        report = judged(store, BEFORE, AFTER)
        whole = judged(store, BEFORE, AFTER, cleaning=False)
    count = launched(RESTART, RESTART // MINUTE * MINUTE + 2 * MINUTE)
    assert report.before.cleaning == ()
    assert report.after.cleaning == (CleaningStep("warm_up", 1, count, count, 2 * MINUTE),)
    assert report.after.launches == whole.after.launches - count
    assert report.after.executions == whole.after.executions - count
    assert (report.kernels[0].verdict, whole.kernels[0].verdict) == (Verdict.PASS, Verdict.INCONCLUSIVE)


def test_what_is_too_little_to_matter_is_not_read_by_the_minute(restart: Path, own_database: Address) -> None:
    """At p50 a minute of one process moves nothing: the window is read as if there had been no restart."""
    loaded.load(own_database, restart)
    with ServerStore(own_database) as store:
        both = [Evidence(store, window).at(0.5) for window in (BEFORE, AFTER)]
        cleaned = clean(both[0], both[1], MINUTE, 0.01)
        assert cleaned.steps == ((), ())
        assert (cleaned.before, cleaned.after) == (both[0], both[1])


def test_thousands_of_processes_that_start_are_left_out_in_bounded_time(tmp_path: Path) -> None:
    """Beside a service with most launches: 3,000 processes of 50 hosts that live on, with a launch a minute each."""
    root = tmp_path / "capture"
    before, after = Window(T0, T0 + 15 * MINUTE), Window(T0 + 15 * MINUTE, T0 + 30 * MINUTE)
    times = captures.spread(before.from_ns, after.to_ns, 100_003)
    durations = (80_000 * np.random.default_rng(2).lognormal(0.0, 0.1, len(times))).astype(np.int64)
    captures.write(
        root, "cuda_events", captures.launches("gelu", times, completion_ns=durations, pid=7, host="big"), "1"
    )
    hosts = [f"host-{number}" for number in range(50)]
    for host in (*hosts, "big"):
        captures.write(root, "agent_health", captures.health(before.from_ns, after.to_ns, host=host), host)
    number = np.arange(3_000)
    start = after.from_ns + 10 * SECOND + number * (600 * SECOND // 3_000)
    its = (start[:, None] + np.arange(5) * MINUTE).reshape(-1)
    order = np.argsort(its, kind="stable")
    pids, names = np.repeat(number + 100, 5)[order], [hosts[n % 50] for n in np.repeat(number, 5)[order]]
    captures.write(
        root, "cuda_events", captures.launches("gelu", its[order], completion_ns=80_000, pid=pids, host=names), "2"
    )
    with CaptureStore(root) as store:
        begin = time.process_time()
        whole = judged(store, before, after, cleaning=False)
        without = time.process_time() - begin
        begin = time.process_time()
        report = judged(store, before, after)
        spent = time.process_time() - begin
    (step,) = report.after.cleaning
    assert (step.step, step.found, step.launches, step.why) == ("warm_up", 3_000, 3_000, "")
    assert report.after.launches == whole.after.launches - 3_000
    assert spent < without + 5.0
