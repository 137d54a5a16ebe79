"""A server answers as the capture does that was loaded into it."""

from __future__ import annotations

import json
import os
import shutil
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from threading import Barrier
from typing import Any

import loaded
import numpy as np
import pytest
from command_line import Result, Run, kdiff, named

import captures
from captures import AFTER, BEFORE, T0
from kdiff.queries import store as store_module
from kdiff.queries.address import Address
from kdiff.queries.errors import StoreError
from kdiff.queries.server import ServerStore
from kdiff.queries.store import CaptureStore, Params, load_sql, open_store
from server import TRITON, StandIn

HOSTILE = [
    'it\'s "quoted" `back` \\n \\',
    "<b>&amp;</b>{x:String}; DROP TABLE cuda_events; --",
    "two\nlines\tand\x1b[31m colour",
    "Größe 日本語 \U0001f600",
    "%s %(name)s {0}",
]
pytestmark = pytest.mark.usefixtures("engine")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.setenv("COLUMNS", "100")

    def call(store: Path | Address, *arguments: str) -> Result:
        monkeypatch.setenv("KDIFF_STORE", named(monkeypatch, store))
        return kdiff(monkeypatch, capsys, *arguments)

    return call


@pytest.fixture(scope="module")
def swap(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recording before and after a swap as one capture."""
    root = tmp_path_factory.mktemp("triton")
    for side in ("before", "after"):
        shutil.copytree(TRITON / side, root, dirs_exist_ok=True)
    return root


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("hostile")
    rng = np.random.default_rng(11)
    for number, window in enumerate((BEFORE, AFTER)):
        for place, name in enumerate(HOSTILE):
            times = captures.spread(window.from_ns, window.to_ns, 2_003 + place)
            values = (9_000 * (1 + place * number) * rng.lognormal(0, 0.05, len(times))).astype(np.int64)
            given = {"completion_ns": values, "service": HOSTILE[0], "comm": name, "host": HOSTILE[2]}
            captures.write(root, "cuda_events", captures.launches(name, times, **given), f"{number}-{place}")
        health = captures.health(window.from_ns, window.to_ns, service=HOSTILE[0], host=HOSTILE[2])
        captures.write(root, "agent_health", health, f"{number}")
    return root


def without_store(text: str) -> Any:
    """A JSON answer without the name of its store."""
    document = json.loads(text)
    for part in (document, document.get("before", {}), document.get("after", {})):
        part.pop("store", None)
    return document


def same(run: Run, capture: Path, there: Address, *arguments: str) -> tuple[int, Any]:
    """What both stores answer, word for word the same."""
    code, out, err = run(capture, *arguments, "--format", "json")
    assert code != 2, err
    server_code, server_out, server_err = run(there, *arguments, "--format", "json")
    assert (server_code, without_store(server_out), server_err) == (code, without_store(out), err)
    return code, json.loads(out)


def test_a_recording_reads_alike_for_a_user_who_only_reads(run: Run, swap: Path, triton: Address) -> None:
    pair = ["--before", "1795820774.4..1795820795", "--after", "1795820802.6..1795820816.3"]
    ours = "KDIFF_TEST_CLICKHOUSE" not in os.environ
    reader, strict = (replace(triton, user=user if ours else triton.user) for user in ("reader", "readonly"))
    code, compared = same(run, swap, reader, *pair, "--on-undecided", "pass")
    assert code == 1
    assert [k["kernel"] for k in compared["kernels"] if k["verdict"] == "REGRESSED"] == ["fused_gelu"]
    _, listed = same(run, swap, strict, "kernels")
    assert sum(k["launches"] for k in listed["kernels"]) == 80_002


def test_hostile_names_read_alike(run: Run, hostile: Path, database: Address) -> None:
    loaded.load(database, hostile)
    pair = ["--before", str(BEFORE), "--after", str(AFTER), "--service", HOSTILE[0]]
    code, compared = same(run, hostile, database, *pair)
    assert code == 1
    assert {k["kernel"] for k in compared["kernels"]} == set(HOSTILE)
    code, out, _ = run(database, *pair, "--kernel", HOSTILE[1], "--format", "json")
    assert [k["kernel"] for k in json.loads(out)["kernels"]] == [HOSTILE[1]]
    for store in (hostile, database):
        code, out, err = run(store, *pair, "--service", "no\x1b'such")
        assert (code, out) == (2, "")
        assert "\x1b" not in err


def test_a_window_of_a_server_against_a_capture(run: Run, triton: Address) -> None:
    window = "1795820774.4..1795820795"
    code, out, _ = run(triton, "--before", window, "--after", str(TRITON / "after"))
    assert code == 1
    assert "REGRESSED: fused_gelu" in out.splitlines()[-1]


def test_what_was_loaded_comes_back_row_by_row(swap: Path, triton: Address) -> None:
    with ServerStore(triton) as remote, CaptureStore(swap) as capture:
        params: Params = {
            "from_ns": T0,
            "to_ns": 2 * T0,
            "service": "",
            "bucket_ns": 1 << 40,
            "outside": 0,
            "kind": "launch",
        }
        keys = [row["kernel_key"] for row in capture.query("census", params).to_pylist()]
        for name in ("samples_completion", "samples_launch"):
            tables = [store.query(name, {**params, "keys": keys}) for store in (capture, remote)]
            first, second = (table.sort_by([(c, "ascending") for c in table.column_names]) for table in tables)
            assert first.num_rows > 40_000
            assert first.equals(second)


def test_many_keys_fit_into_one_question(triton: Address) -> None:
    with ServerStore(triton) as store:
        params: Params = {
            "from_ns": 0,
            "to_ns": 1,
            "service": "",
            "bucket_ns": 1,
            "keys": list(range(2**63, 2**63 + 5_003)),
        }
        assert store.query("samples_device", params).num_rows == 0


def test_a_query_is_bounded_in_time_and_memory(own_database: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded.load(own_database)
    statements = {
        "bounds": "SELECT toInt64(getSetting('max_execution_time')) AS seconds, "
        "toInt64(getSetting('max_memory_usage')) AS bytes",
        "endless": "SELECT count() AS n FROM system.numbers",
    }
    monkeypatch.setattr(store_module, "load_sql", lambda name: statements.get(name) or load_sql(name))
    with ServerStore(replace(own_database, timeout_s=7)) as store:
        assert store.query("bounds").to_pylist() == [{"seconds": 7, "bytes": 16 << 30}]
    with ServerStore(replace(own_database, timeout_s=1)) as store, pytest.raises(StoreError, match="shorter window"):
        store.query("endless")
    with ServerStore(replace(own_database, user="readonly")) as store:
        assert store.query("services").num_rows == 0


def test_a_server_that_restarts_between_two_queries(tmp_path: Path, hostile: Path) -> None:
    with StandIn(tmp_path / "data") as running:
        address = running.address("default")
        loaded.load(address, hostile)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            down = ("127.0.0.1", free.getsockname()[1])
        with ServerStore(replace(address, hosts=(down, *address.hosts))) as store:
            before = store.query("services")
            running.restart()
            assert store.query("services").equals(before)
            running.fault("truncate", match="SELECT\n    service")
            assert store.query("services").equals(before)
            running.kill()
            with pytest.raises(StoreError, match="nothing listens on"):
                store.query("services")


def test_a_server_that_restarts_while_two_threads_ask(tmp_path: Path, hostile: Path) -> None:
    """Each of them goes on, on the new connection."""
    with StandIn(tmp_path / "data") as running:
        address = running.address("default")
        loaded.load(address, hostile)
        with ServerStore(address) as store:
            expected, ready = store.query("services"), Barrier(3, timeout=60)

            def ask() -> list[bool]:
                same = []
                for _ in range(3):
                    ready.wait()  # the server restarts
                    ready.wait()
                    same += [store.query("services").equals(expected) for _ in range(2)]
                return same

            with ThreadPoolExecutor(2) as pool:
                answers = [pool.submit(ask) for _ in range(2)]
                for _ in range(3):
                    ready.wait()
                    running.restart()
                    ready.wait()
                assert [answer.result() for answer in answers] == [[True] * 6] * 2


def test_what_names_the_store(monkeypatch: pytest.MonkeyPatch, triton: Address, swap: Path) -> None:
    monkeypatch.setenv("KDIFF_CLICKHOUSE_PASSWORD", triton.password)
    with closing(open_store(str(triton))) as store:
        assert store.name == str(triton)
        assert store.warnings == []
    with pytest.raises(StoreError, match="is closed"):
        store.query("services")
    with closing(open_store(str(swap))) as store:
        assert store.name == str(swap)
    with pytest.raises(StoreError, match="write clickhouse://user@host:8123/kdiff"):
        open_store("http://localhost:8123")


def test_long_windows_come_from_rollups_unless_exact(run: Run, tmp_path: Path, database: Address) -> None:
    hours = 120 * captures.MINUTE
    rng = np.random.default_rng(3)
    for number in range(2):
        begin = T0 + number * hours
        times = captures.spread(begin, begin + hours, 6_007)
        values = (80_000 * rng.lognormal(0, 0.1, len(times))).astype(np.int64)
        captures.write(tmp_path, "cuda_events", captures.launches("k", times, completion_ns=values), f"{number}")
        captures.write(tmp_path, "agent_health", captures.health(begin, begin + hours), f"{number}")
    loaded.load(database, tmp_path)
    pair = ["--before", "2025-11-27T10:00/2h", "--after", "2025-11-27T12:00/2h", "--on-undecided", "pass"]
    _, rolled = same(run, tmp_path, database, *pair)
    _, exact = same(run, tmp_path, database, *pair, "--exact")
    (binned,), (kernel,) = rolled["kernels"], exact["kernels"]
    assert (binned["verdict"], binned["n_before"]) == (kernel["verdict"], kernel["n_before"]) == ("PASS", 6_007)
    for name in ("value_before", "value_after"):
        assert binned[name] != kernel[name]
        assert abs(binned[name] / kernel[name] - 1) <= 0.0025
