"""Queries narrowed to a scope say what they say of a store that holds no more, and none forgets to."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from fleets import HOSTS, WINDOW, Fleet, some_cuts
from hypothesis import given, settings
from hypothesis import strategies as st

import captures
from captures import MINUTE, SECOND, T0
from kdiff.analysis.columns import difference
from kdiff.analysis.evidence import Evidence
from kdiff.analysis.scope import Cut, Scope
from kdiff.analysis.window import Window
from kdiff.queries.narrowing import Narrowing, NotNarrowedError
from kdiff.queries.store import CaptureStore, Store, load_sql

pytestmark = pytest.mark.usefixtures("engine")

FLEET = Fleet.random(12_007, 3)
SHORT = Window(WINDOW.from_ns, WINDOW.from_ns + 17 * MINUTE)
CUTS = some_cuts(np.random.default_rng(4), 300)


@pytest.fixture(scope="module")
def rows(engine: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CaptureStore]:
    with CaptureStore(FLEET.write(tmp_path_factory.mktemp("narrowing") / "capture")) as store:
        yield store


ROW: dict[str, int | str | list[int]] = {  # what queries of rows are asked beside the window
    "kind": "launch", "measure": "completion", "isolated": 0, "outside": 0, "bucket_ns": 7 * SECOND, "slices": 1,
    "slice_ns": 7 * SECOND, "chosen": 2**32, "most": 10**6,
}  # fmt: skip
OF_ROWS = (
    *("bins", "calibration_counts", "census", "census_device", "configurations", "event_counts", "executions"),
    *("executions_count", "kernels_between", "processes", "samples_completion", "samples_device", "samples_launch"),
    *("sequence_executions", "sequence_launches", "shapes", "strata", "tails", "waits_completion", "waits_launch"),
)
OF_HOSTS = ("device_windows", "extent", "gpu_samples", "health")
ODD = ("calibration", "graphs_timed", "waits_completion", "waits_known")


def answers(store: Store, name: str, scope: Scope, window: Window = SHORT) -> list[str]:
    evidence = Evidence(store, window, scope=scope)
    keys = sorted(key for counts in Evidence(store, window).census().values() for key in counts.keys)
    floors = {"floors": [0] * len(keys), "every": [1] * len(keys)}
    table = evidence.query(name, {**ROW, "keys": keys, **floors})
    return sorted(map(repr, table.to_pylist()))


@pytest.mark.parametrize("name", OF_ROWS + OF_HOSTS)
def test_each_query_says_of_a_scope_what_it_says_of_a_store_that_holds_no_more(
    rows: CaptureStore, tmp_path: Path, name: str
) -> None:
    scope = Scope(HOSTS[1:], () if name in OF_HOSTS else CUTS)
    held = FLEET.only(FLEET.kept(scope)).write(tmp_path / "held", hosts=HOSTS[1:])
    with CaptureStore(held) as store:
        expected = answers(store, name, Scope())
    assert answers(rows, name, scope) == expected
    assert answers(rows, name, Scope()) != expected


def odd(root: Path, hosts: tuple[str, ...]) -> Path:
    """Graphs of processes that are timed, isolated launches whose execution is known, and threads that waited."""
    count = 211
    for number, host in enumerate(HOSTS):
        if host not in hosts:
            continue
        times = captures.spread(T0, T0 + MINUTE, count) + 1_000 * number
        place = {"host": host, "pid": 7}
        waits = {"runnable_ns": np.full(count, 50), "runnable_before_ns": np.full(count, 30)} if number == 0 else {}
        launched = captures.launches("gelu", times, completion_ns=9_000 + number, **place, **waits)
        ended = captures.launches("", times + 8_000, kind="sync", duration_ns=1_000 + number, **place, **waits)
        graphs = captures.launches("(graph: gelu)", times + 20, kind="graph_launch", **place)
        captures.write(root, "cuda_events", launched, f"a{number}")
        captures.write(root, "cuda_events", ended, f"b{number}")
        captures.write(root, "cuda_events", graphs, f"c{number}")
        ran = captures.executions("gelu", times + 500, 700, queue_ns=500, graph_id=int(number != 1), **place)
        captures.write(root, "kernel_executions", ran, f"{number}")
    return root


@pytest.mark.parametrize("name", ODD)
def test_queries_that_join_processes_keep_to_the_scope_on_both_sides(tmp_path: Path, name: str) -> None:
    window = Window(T0, T0 + MINUTE)
    every, held = odd(tmp_path / "every", HOSTS), odd(tmp_path / "held", HOSTS[1:])
    with CaptureStore(every) as store, CaptureStore(held) as less:
        expected = answers(less, name, Scope(), window)
        assert answers(store, name, Scope(HOSTS[1:]), window) == expected
        cut = Cut(HOSTS[0], 7, T0, T0 + MINUTE)
        assert answers(store, name, Scope(cuts=(cut,)), window) == expected
        assert answers(store, name, Scope(), window) != expected


def test_every_query_says_which_hosts_it_reads() -> None:
    """Or says that it is not for a scope, by failing at once."""
    narrowing = Narrowing(hosts=("one",))
    silent = set()
    for path in resources.files("kdiff.queries").joinpath("sql").iterdir():
        name = path.name.removesuffix(".sql")
        text = re.sub(r"--.*", "", load_sql(name))
        read = r"FROM (?:cuda_events|kernel_executions|\w+_minutes|\w+_bins|gpu_samples)\b"
        tables = len(re.findall(read, text))
        if "/* AND scope(" in text:
            narrowed, params = narrowing.narrow(name, load_sql(name))
            assert params["hosts_0"] == ["one"]
            tables = len(re.findall(read, re.sub(r"--.*", "", narrowed)))
            assert narrowed.count("{hosts_0:Array(String)}") == tables or name in ("waits_completion", *OF_HOSTS), name
            assert not re.search(r"FROM (?:kernel_totals|kernel_bins_|hour_bins|kernel_hours)\b", narrowed), name
        elif tables or "_hours" in text:
            silent.add(name)
            if name != "gpu_models":
                with pytest.raises(NotNarrowedError, match=f"the query {name} does not say"):
                    narrowing.narrow(name, load_sql(name))
    asked_of_a_scope = {*OF_ROWS, *OF_HOSTS, *ODD, "minutes_seen", "minutes_processes", "scoped_bins", "scoped_tails"}
    assert not silent & asked_of_a_scope


def sums(counted: dict[tuple[str, int], tuple[int, float]]) -> pa.Table:
    names = pa.array([name for name, _ in counted], pa.string()).dictionary_encode()
    columns = {"name": names, "key": pa.array([key for _, key in counted], pa.uint64())}
    columns["met"] = pa.array([met for met, _ in counted.values()], pa.uint64())
    return pa.table(columns | {"ns": pa.array([ns for _, ns in counted.values()], pa.float64())})


COUNTED = st.dictionaries(
    st.tuples(st.sampled_from(["", "b", "a"]), st.integers(2**64 - 3, 2**64 - 1)),
    st.tuples(st.integers(1, 2**62), st.just(0.5)),
    max_size=9,
)


@settings(max_examples=200, deadline=None)
@given(COUNTED, COUNTED)
def test_sums_without_others(whole: dict[tuple[str, int], Any], part: dict[tuple[str, int], Any]) -> None:
    found = difference(sums(whole), sums(part), ("name", "key"))
    expected = {
        group: met - part.get(group, (0, 0))[0] for group, (met, _) in whole.items() if met > part.get(group, (0, 0))[0]
    }
    assert found.schema.names == ["name", "key", "met", "ns"]
    told = {(row["name"], row["key"]): row["met"] for row in found.to_pylist()}
    assert told == expected
    if part and whole:
        assert list(told) == sorted(told)
