"""kdiff export: a window of a server as a capture that says the same."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import loaded
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import Result, Run, kdiff, named
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import captures
from captures import AFTER, BEFORE, T0
from kdiff.queries import export
from kdiff.queries.address import Address
from kdiff.queries.connection import connect
from kdiff.queries.store import CaptureStore
from kdiff.queries.tables import TABLES
from server import TRITON

KDIFF = Path(sys.executable).parent / "kdiff"
SWAP = ["--before", "1795820774.4..1795820795", "--after", "1795820802.6..1795820816.3"]

pytestmark = pytest.mark.usefixtures("engine")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    def call(store: Path | Address, *arguments: str | Path) -> Result:
        monkeypatch.setenv("KDIFF_STORE", named(monkeypatch, store))
        return kdiff(monkeypatch, capsys, *arguments)

    return call


def rows(table: str, *roots: Path) -> pa.Table:
    """All rows of a table, in one order."""
    parts = [loaded.whole(table, pq.read_table(path)) for root in roots for path in (root / table).glob("*.parquet")]
    plain = pa.schema([(c.name, pa.string() if pa.types.is_dictionary(c.type) else c.type) for c in TABLES[table]])
    found = pa.concat_tables([TABLES[table].empty_table().cast(plain), *(part.cast(plain) for part in parts)])
    order = [name for name in plain.names if name.endswith("_ns") or name in ("kernel_id", "pid", "tid")]
    return found.sort_by([(name, "ascending") for name in order]).combine_chunks()


def test_an_export_says_what_the_server_says(
    run: Run, triton: Address, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "MAX_ROWS", 10_007)
    whole = tmp_path / "whole"
    result = run(triton, "export", "1795820774..1795820817", "-o", whole)
    assert (result.code, result.err) == (0, "")
    assert "rows 160,002 of cuda_events" in result.out
    for table in TABLES:
        assert rows(table, whole).equals(rows(table, TRITON / "before", TRITON / "after"))
    assert len(list((whole / "cuda_events").iterdir())) >= 16
    asked = [*SWAP, "--format", "json", "--on-undecided", "pass"]
    answers = [json.loads(run(store, *asked).out) for store in (triton, whole)]
    for answer in answers:
        del answer["before"]["store"], answer["after"]["store"]
    assert answers[0] == answers[1]
    # Each window by itself, against the other on the server.
    after = tmp_path / "after"
    assert run(triton, "export", SWAP[3], "-o", after).code == 0
    mixed = json.loads(run(triton, *SWAP[:2], "--after", after, "--format", "json", "--on-undecided", "pass").out)
    for kernel, there in zip(mixed["kernels"], answers[0]["kernels"], strict=True):
        exact = [name for name in there if re.fullmatch("kernel|verdict|n_.*|value_.*|p[0-9]+_.*", name)]
        assert len(exact) == 14
        assert {name: kernel[name] for name in exact} == {name: there[name] for name in exact}


def test_only_one_service_is_exported(run: Run, database: Address, tmp_path: Path) -> None:
    source = tmp_path / "source"
    for service, count in (("a'b", 1_009), ("other", 499)):
        times = captures.spread(BEFORE.from_ns, AFTER.to_ns, count)
        captures.write(source, "cuda_events", captures.launches("k", times, service=service), service)
        captures.write(source, "kernel_executions", captures.executions("k", times, 5, service=service), service)
        captures.write(source, "agent_health", captures.health(T0, AFTER.to_ns, service=service), service)
        names = captures.table("kernels", {"kernel_id": [0], "kernel_name": "k", "service": service})
        captures.write(source, "kernels", names, service)
    loaded.load(database, source)
    for store, name in ((database, "server"), (source, "capture")):
        target = tmp_path / name
        assert run(store, "export", str(AFTER), "--service", "a'b", "-o", target).code == 0
        counts = {table: len(rows(table, target)) for table in TABLES}
        assert counts == {
            "cuda_events": 504,
            "kernel_executions": 504,
            "device_windows": 0,
            "kernels": 1,
            "agent_health": 60,
            "gpu_samples": 0,
        }
        assert set(rows("cuda_events", target)["service"].to_pylist()) == {"a'b"}


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_slices_hold_each_row_once(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    times = np.array(sorted(data.draw(st.lists(st.integers(0, 3_000), min_size=1, max_size=60))), np.int64)
    limit = data.draw(st.integers(1, 20))
    begin, end = sorted(data.draw(st.lists(st.integers(0, 3_100), min_size=2, max_size=2, unique=True)))
    root = tmp_path_factory.mktemp("slices")
    captures.write(root, "cuda_events", captures.launches("k", T0 + times))
    captures.write(root, "kernel_executions", captures.executions("k", T0 + times[::2], 5))
    with pytest.MonkeyPatch.context() as patch, CaptureStore(root) as store:
        patch.setattr(export, "MAX_ROWS", limit)
        pieces = export.slices(store, T0 + begin, T0 + end, "")
    for table, expected in (("cuda_events", times), ("kernel_executions", times[::2])):
        expected = expected[(expected >= begin) & (expected < end)] + T0
        ours = [piece for piece in pieces if piece.table == table]
        inside = [int(((expected >= p.from_ns) & (expected < p.to_ns)).sum()) for p in ours]
        assert inside == [piece.rows for piece in ours]
        assert sum(inside) == len(expected)
        assert all(p.rows <= limit or p.to_ns - p.from_ns == 1 for p in ours)
    shutil.rmtree(root)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["export"], "try `kdiff export 2026-11-27T10:00/15m -o DIR`"),
        (["export", "1795820774..1795820817"], "try `kdiff export"),
        (["export", str(TRITON), "-o", "x"], "is a capture directory already: copy it"),
        (["export", "1795820774..1795820817", "-o", str(TRITON)], "not an empty directory: name another with -o"),
        (["export", "1795820774..1795820817", "-o", "/no/such/x"], "no directory can be made in /no/such"),
        (["export", "1795820774..1795820817", "-o", "/proc/x"], "/proc"),
        (["export", "2020-01-01/1h", "-o", "nothing-there"], "holds nothing of that window"),
    ],
)
def test_what_is_refused_leaves_nothing(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(TRITON / "before", *arguments)
    assert (result.code, result.out) == (2, "")
    assert words in result.err
    assert list(tmp_path.iterdir()) == []


def test_into_an_empty_directory(run: Run, tmp_path: Path) -> None:
    target = tmp_path / "empty"
    target.mkdir()
    assert run(TRITON / "before", "export", "1795820774..1795820817", "-o", target).code == 0
    assert len(rows("cuda_events", target)) == 80_001


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_what_is_ended_halfway_is_no_capture(triton: Address, tmp_path: Path, number: signal.Signals) -> None:
    target = tmp_path / "target"
    program = "import sys, kdiff.queries.export as e; e.MAX_ROWS = 500; from kdiff.analysis.cli import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", program, "export", "1795820774..1795820817", "-o", target, "--store", str(triton)],
        env=os.environ | {"KDIFF_CLICKHOUSE_PASSWORD": triton.password},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    while not list(tmp_path.glob(".target.*.partial/cuda_events/*.parquet")):
        time.sleep(0.005)
        assert process.poll() is None
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert (out, err) == (b"", b"")
    assert process.returncode == {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}[number]
    assert not target.exists()
    left = list(tmp_path.iterdir())
    assert all(path.name.startswith(".target.") for path in left)
    assert bool(left) == (number == signal.SIGKILL)


def test_a_window_whose_rows_are_gone_in_part_is_refused(run: Run, own_database: Address, tmp_path: Path) -> None:
    """The capture would claim, by the agents' accounts, to be whole."""
    times = captures.spread(BEFORE.from_ns, BEFORE.to_ns, 997)
    captures.write(tmp_path / "there", "cuda_events", captures.launches("gelu", times, completion_ns=9_000))
    captures.write(tmp_path / "there", "agent_health", captures.health(BEFORE.from_ns, BEFORE.to_ns))
    loaded.load(own_database, tmp_path / "there")
    with closing(connect(own_database)) as client:
        client.command(f"DELETE FROM cuda_events WHERE timestamp_ns < {BEFORE.from_ns + captures.MINUTE}")
    half_minute = captures.MINUTE // 2
    straddles = f"{BEFORE.from_ns + half_minute}..{BEFORE.from_ns + 3 * half_minute}"
    for spec in (str(BEFORE), straddles):
        told = run(own_database, "export", spec, "-o", tmp_path / "out")
        assert (told.code, told.out) == (2, "")
        assert re.search(r"100 launches and executions are kept in roll-ups only", told.err)
        assert not (tmp_path / "out").exists()
    later = f"{BEFORE.from_ns + captures.MINUTE}..{BEFORE.to_ns}"
    assert run(own_database, "export", later, "-o", tmp_path / "out").code == 0


def test_a_table_that_was_altered_is_one_sentence(run: Run, own_database: Address, tmp_path: Path) -> None:
    captures.write(tmp_path / "there", "agent_health", captures.health(BEFORE.from_ns, BEFORE.to_ns))
    loaded.load(own_database, tmp_path / "there")
    with closing(connect(own_database, settings={"mutations_sync": 2})) as client:
        client.command("ALTER TABLE agent_health MODIFY COLUMN drain_lag_ns Nullable(Int64)")
        client.command("ALTER TABLE agent_health UPDATE drain_lag_ns = NULL WHERE 1")
    told = run(own_database, "export", str(BEFORE), "-o", tmp_path / "out")
    assert (told.code, told.out) == (2, "")
    assert "the column drain_lag_ns lacks values" in told.err
    with closing(connect(own_database)) as client:
        client.command("ALTER TABLE agent_health DROP COLUMN drain_lag_ns")
    told = run(own_database, "export", str(BEFORE), "-o", tmp_path / "out")
    assert told.code == 2
    assert "the column drain_lag_ns is not what kdiff writes" in told.err
