"""Values by stratum: every one of its launch's shape and GPU, from rows and from roll-ups."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import loaded
import numpy as np
import pytest
from fleets import GPUS, HOSTS, KERNELS, LOG2, MODELS, PIDS, WINDOW, Fleet

import captures
from captures import MINUTE, SECOND, T0
from kdiff.analysis import strata_reading
from kdiff.analysis.counts import Metric
from kdiff.analysis.evidence import Evidence
from kdiff.analysis.scope import Cut, Scope
from kdiff.analysis.strata import Stratum
from kdiff.analysis.window import Window
from kdiff.queries.address import Address
from kdiff.queries.server import ServerStore
from kdiff.queries.store import CaptureStore, Store

pytestmark = pytest.mark.usefixtures("engine")

FLEET = Fleet.random(9_001, 8)
SHORT = Window(WINDOW.from_ns, WINDOW.from_ns + 29 * MINUTE)
SCOPES = (
    Scope(),
    Scope(hosts=HOSTS[:2], cuts=(Cut(HOSTS[1], PIDS[2], WINDOW.from_ns, WINDOW.from_ns + 9 * MINUTE + 1),)),
    Scope(hosts=HOSTS[1:], by_host=True),
    Scope(cuts=(Cut("", PIDS[0], WINDOW.from_ns, WINDOW.from_ns + 3 * SECOND), Cut(HOSTS[0], 0, 0, 2**62))),
)


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return FLEET.write(tmp_path_factory.mktemp("strata") / "capture")


@pytest.fixture(scope="module")
def rows(engine: None, capture: Path) -> Iterator[CaptureStore]:
    with CaptureStore(capture) as store:
        yield store


@pytest.fixture
def server(own_database: Address, capture: Path) -> Iterator[ServerStore]:
    loaded.load(own_database, capture)
    with ServerStore(own_database) as store:
        yield store


def stratum(row: int, in_graphs: bool) -> Stratum:
    return Stratum(*LOG2[FLEET.shape[row]], MODELS.get(GPUS[FLEET.gpu[row]], ""), in_graphs and bool(FLEET.graph[row]))


def is_true(store: Store, window: Window, scope: Scope, exact: bool) -> Evidence:
    evidence = Evidence(store, window, exact=exact, scope=scope)
    kept = FLEET.kept(scope, MINUTE if evidence.rolled else 1)
    kept &= (FLEET.time >= window.from_ns) & (FLEET.time < window.to_ns)
    keys = {key: KERNELS.index(name) for name, counts in evidence.census().items() for key in counts.keys}
    values: dict[Metric, np.ndarray] = {"device": FLEET.device, "completion": FLEET.completion, "launch": FLEET.call}
    for metric, of in values.items():
        for isolated in (False, True):
            true: dict[int, dict[Stratum, list[int]]] = {}
            chosen = kept & (FLEET.batch == 1) if isolated and metric == "completion" else kept
            for row in np.flatnonzero(chosen).tolist():
                its = true.setdefault(int(FLEET.kernel[row]), {})
                its.setdefault(stratum(row, metric == "device" and not evidence.rolled), []).append(row)
            shapes = evidence.shapes(metric, keys, isolated)
            assert shapes == {i: {s: len(r) for s, r in its.items()} for i, its in true.items()}
            samples = evidence.strata(metric, keys, isolated)
            assert {i: its.keys() for i, its in samples.items()} == {i: its.keys() for i, its in true.items()}
            for index, by_stratum in samples.items():
                whole = evidence.values(metric, keys)[index].choose(isolated)
                assert whole is not None
                for one, sample in by_stratum.items():
                    rows = np.array(true[index][one])
                    assert sample.size == rows.size
                    assert sample.below is None
                    assert (sample.buckets, sample.clustered) == (whole.buckets, whole.clustered)
                    assert (sample.binned, sample.tick) == (whole.binned, whole.tick)
                    counts = np.ones(rows.size, np.int64) if sample.counts is None else sample.counts
                    place = np.repeat(sample.bucket, counts)
                    found = np.repeat(sample.durations_ns, counts)
                    order = np.lexsort((found, place))
                    stretch = (FLEET.time[rows] - window.from_ns) // evidence.window.buckets()[1]
                    if scope.by_host:
                        stretch = np.array([scope.hosts.index(HOSTS[h]) for h in FLEET.host[rows]])
                    told = np.lexsort((of[rows], stretch))
                    assert (place[order] == stretch[told]).all()
                    assert np.allclose(found[order], of[rows][told], rtol=0.0026 if evidence.rolled else 0, atol=0.5)
    return evidence


@pytest.mark.parametrize("scope", SCOPES)
def test_rows_of_a_capture(rows: CaptureStore, scope: Scope) -> None:
    assert not is_true(rows, SHORT, scope, exact=False).rolled
    assert is_true(rows, WINDOW, scope, exact=False).rolled
    assert not is_true(rows, WINDOW, scope, exact=True).rolled


def test_rows_and_roll_ups_of_a_server(server: ServerStore) -> None:
    for scope in SCOPES:
        assert not is_true(server, SHORT, scope, exact=False).rolled
        assert is_true(server, WINDOW, scope, exact=False).rolled
        assert not is_true(server, WINDOW, scope, exact=True).rolled


def test_graphs_are_of_one_stratum_and_kernels_of_one_index_are_added_up(tmp_path: Path) -> None:
    times = captures.spread(T0, T0 + MINUTE, 701)
    for name in ("(graph a: 2 x gelu)", "(graph b: 3 x gelu)"):
        rows = captures.launches(name, times, kind="graph_launch", completion_ns=9_000, gpu_uuid="GPU-7")
        captures.write(tmp_path, "cuda_events", rows, name[7])
    with CaptureStore(tmp_path) as store:
        evidence = Evidence(store, Window(T0, T0 + MINUTE))
        keys = [key for counts in evidence.census().values() for key in counts.keys]
        one = Stratum(-1, -1, "", False)
        assert evidence.shapes("graph", dict.fromkeys(keys, 5)) == {5: {one: 1_402}}
        assert evidence.shapes("graph", dict(zip(keys, (0, 1), strict=True)), isolated=True) == {
            0: {one: 701},
            1: {one: 701},
        }
        samples = evidence.strata("graph", dict.fromkeys(keys, 5))
        assert samples[5][one].size == 1_402
        assert evidence.strata("graph", {}) == {} == evidence.shapes("graph", {})
        assert evidence.strata("device", dict.fromkeys(keys, 0)) == {} == evidence.shapes("device", {1: 0})


def test_launches_in_device_windows_are_left_out_where_that_is_asked(rows: CaptureStore) -> None:
    for window in (SHORT, WINDOW):
        evidence = Evidence(rows, window)
        keys = {key: KERNELS.index(name) for name, counts in evidence.census().items() for key in counts.keys}
        outside = evidence.strata("completion", keys, isolated=True, outside=True)
        for index, values in evidence.values("completion", keys, outside=True).items():
            sample = values.choose(True)
            assert sample is not None
            assert sum(its.size for its in outside[index].values()) == sample.size
            assert sample.size < evidence.census()[KERNELS[index]].isolated


def test_kernels_are_read_a_few_at_a_time(rows: CaptureStore, monkeypatch: pytest.MonkeyPatch) -> None:
    evidence = Evidence(rows, WINDOW)
    keys = {key: KERNELS.index(name) for name, counts in evidence.census().items() for key in counts.keys}
    at_once = evidence.strata("device", keys)
    monkeypatch.setattr(strata_reading, "_AT_ONCE", 1)
    one_by_one = evidence.strata("device", keys)
    assert list(one_by_one) == list(at_once) == [0, 1]
    for index, its in at_once.items():
        assert its.keys() == one_by_one[index].keys()
        for stratum_, sample in its.items():
            assert (sample.durations_ns == one_by_one[index][stratum_].durations_ns).all()
            other = one_by_one[index][stratum_].counts
            assert sample.counts is not None
            assert other is not None
            assert np.array_equal(sample.counts, other)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 31, 32, 33, 2**31 - 1, 2**31, 2**32 - 1])
def test_sizes_are_told_by_powers_of_two(tmp_path: Path, size: int) -> None:
    grid = {"grid_x": size, "grid_y": 1, "grid_z": 1}
    captures.write(tmp_path, "kernel_executions", captures.executions("k", [T0 + 1], 5, **grid))
    with CaptureStore(tmp_path) as store:
        evidence = Evidence(store, Window(T0, T0 + MINUTE))
        (key,) = evidence.census()["k"].keys
        assert list(evidence.shapes("device", {key: 0})[0]) == [Stratum((size - 1).bit_length(), -1, "", False)]
