from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import shipped
from chaos import AGENT
from shipped import count, ship

import captures
from kdiff.agent import shipping
from kdiff.agent.blocks import OpenSegment
from kdiff.agent.cli import main
from kdiff.agent.segment_files import Listing
from kdiff.agent.shipping import EndedError, Hooks, Shipper
from kdiff.queries.address import Address
from kdiff.queries.errors import StoreError
from kdiff.queries.tables import TABLES
from server import PASSWORD


@pytest.fixture(scope="module")
def database(server_address: Address) -> Iterator[Address]:
    """A migrated database."""
    with shipped.migrated(server_address, f"test_ship_{os.getpid()}") as address:
        yield address


def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str]:
    monkeypatch.setattr("sys.argv", ["kdiff-agent", *argv])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0), capsys.readouterr().err


# ---- what arrives ----


def test_every_table_arrives_whole_and_once(database: Address, store: Any, tmp_path: Path) -> None:
    shipped.write(tmp_path, [1009, 3, 20_011])
    executions = captures.executions("k", shipped_times(997), np.arange(997))
    captures.write(tmp_path, "kernel_executions", executions, "host-1-01234567-5-00000000")
    now = time.time_ns()
    captures.write(tmp_path, "device_windows", captures.table("device_windows", {"from_ns": [now], "to_ns": now + 5}))
    first = ship(database, tmp_path)
    assert (first.segments, first.known, first.rows) == (9, 0, 1009 + 3 + 20_011 + 3 + 3 + 997 + 1)
    again = ship(database, tmp_path)
    assert (again.segments, again.known, again.rows) == (0, 9, 0)
    for table in TABLES:
        assert shipped.checksum_of_server(store, table) == shipped.checksum_of_files(store, [tmp_path], table)
    assert store.query(shipped.ROLLED_UP).result_rows == store.query(shipped.FROM_ROWS).result_rows


def shipped_times(n: int) -> np.ndarray[Any, Any]:
    return time.time_ns() - 10**12 + np.arange(n) * 1000


def test_a_copy_on_another_machine_adds_nothing_after_the_tokens_are_forgotten(
    database: Address, store: Any, tmp_path: Path
) -> None:
    shipped.write(tmp_path / "a", [1009, 101])
    ship(database, tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    store.command("ALTER TABLE cuda_events MODIFY SETTING non_replicated_deduplication_window = 0")
    assert ship(database, tmp_path / "b").rows == 0
    assert count(store) == 1110
    store.command("ALTER TABLE cuda_events MODIFY SETTING non_replicated_deduplication_window = 1000")


def test_two_ship_the_same_directory_at_once(database: Address, store: Any, tmp_path: Path) -> None:
    shipped.write(tmp_path, [503] * 7)
    tallies: list[shipping.Tally] = []
    threads = [threading.Thread(target=lambda: tallies.append(ship(database, tmp_path))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(tallies) == 3
    assert shipped.checksum_of_server(store) == shipped.checksum_of_files(store, [tmp_path])
    assert store.query(shipped.ROLLED_UP).result_rows == store.query(shipped.FROM_ROWS).result_rows


def test_names_then_rows_then_their_account(database: Address, store: Any, tmp_path: Path) -> None:
    shipped.write(tmp_path, [101, 103])
    order = [file.table for file in Listing(tmp_path, print).read()]
    assert order == ["kernels", "cuda_events", "agent_health", "cuda_events", "agent_health"]
    # Files that no recording named: by table.
    for table in TABLES:
        captures.write(tmp_path / "foreign", table, captures.table(table, {}, rows=1))
    order = [file.table for file in Listing(tmp_path / "foreign", print).read()]
    assert order == ["kernels", "cuda_events", "kernel_executions", "device_windows", "gpu_samples", "agent_health"]


# ---- what else lies in a directory ----


def test_foreign_files_of_one_name_are_told_apart_by_their_content(
    database: Address, store: Any, tmp_path: Path
) -> None:
    for name, rows in (("a", 101), ("b", 103)):
        captures.write(tmp_path / name, "cuda_events", captures.launches("k", shipped_times(rows)))
        ship(database, tmp_path / name)
        ship(database, tmp_path / name)
    assert count(store) == 204


def test_torn_and_foreign_files_are_named_and_the_rest_arrives(database: Address, store: Any, tmp_path: Path) -> None:
    shipped.write(tmp_path, [1009, 101])
    good = sorted((tmp_path / "cuda_events").iterdir())
    whole = good[0].read_bytes()
    (tmp_path / "cuda_events" / "torn.parquet").write_bytes(whole[:-1000])
    (tmp_path / "cuda_events" / "\x1b[31mred'`.parquet").write_bytes(b"")
    (tmp_path / "agent_health" / "events.parquet").write_bytes(whole)
    (tmp_path / "kernels" / "notes.txt").touch()
    (tmp_path / "cuda_events" / ".half.parquet.tmp").write_bytes(b"x")
    os.mkfifo(tmp_path / "cuda_events" / "pipe.parquet")
    # A good footer does not prove good pages.
    broken = bytearray(whole)
    broken[200 : len(broken) // 2] = bytes(len(broken) // 2 - 200)
    (tmp_path / "cuda_events" / "pages.parquet").write_bytes(broken)
    notes: list[str] = []
    shipper = Shipper(lambda: database, Hooks(note=notes.append))
    shipper.ship(Listing(tmp_path, notes.append).read())
    shipper.close()
    said = "\n".join(notes)
    assert count(store) == 1110
    assert len(shipper.tally.left) == 5
    assert "torn.parquet: torn or not a Parquet file" in said
    assert "\\x1b[31mred'`.parquet: empty file" in said
    assert "events.parquet: not a segment of agent_health" in said
    assert "notes.txt: not named *.parquet" in said
    assert "pipe.parquet: not a regular file" in said
    assert "pages.parquet: damaged" in said
    assert "\x1b" not in said


def test_columns_that_are_missing_get_defaults_and_others_are_left_out(
    database: Address, store: Any, tmp_path: Path
) -> None:
    rows = captures.launches("k", shipped_times(101)).drop_columns(["flags", "gpu_uuid", "completion_ns"])
    rows = rows.append_column("colour", pa.array(["red"] * 101))
    captures.write(tmp_path, "cuda_events", rows)
    assert ship(database, tmp_path).rows == 101
    found = store.query(
        "SELECT count(), sum(flags), sum(completion_ns), max(gpu_uuid), max(kernel_name) FROM cuda_events"
    )
    assert found.first_row == (101, 0, 0, "", "k")


def test_nulls_and_names_that_look_like_sql_arrive_as_they_are(database: Address, store: Any, tmp_path: Path) -> None:
    hostile = "'; DROP TABLE cuda_events; -- \\ \x1b[2J \u202e {x} %s ünï"
    rows = captures.launches([hostile] * 3, shipped_times(3), service=hostile)
    rows = rows.set_column(1, "duration_ns", pa.array([1, None, 3], pa.int64()))
    captures.write(tmp_path, "cuda_events", rows, "it's # a `name`?&x=1")
    assert ship(database, tmp_path).rows == 3
    assert store.query("SELECT DISTINCT kernel_name, service FROM cuda_events").result_rows == [(hostile, hostile)]
    assert store.query("SELECT sum(duration_ns) FROM cuda_events").first_row == (4,)
    assert ship(database, tmp_path).known == 1


def test_an_empty_segment_is_confirmed(database: Address, store: Any, tmp_path: Path) -> None:
    captures.write(tmp_path, "cuda_events", captures.table("cuda_events", {}, rows=0))
    assert ship(database, tmp_path).segments == 1
    assert ship(database, tmp_path).known == 1


def test_another_segment_of_a_recordings_name_is_not_taken_for_it(
    database: Address, store: Any, tmp_path: Path
) -> None:
    began = time.time_ns()
    name = f"host-1-01234567-{began}-00000001"
    shipped.write(tmp_path, [101], began_ns=began)
    ship(database, tmp_path)
    shutil.rmtree(tmp_path / "cuda_events")
    captures.write(tmp_path, "cuda_events", captures.launches("k", shipped_times(103)), name)
    tally = ship(database, tmp_path)
    assert count(store) == 101
    [why] = tally.left.values()
    assert "has a segment of that name with 101 rows, this one has 103" in why
    # One that some rows were deleted from is still the one that was shipped.
    captures.write(tmp_path, "cuda_events", captures.launches("k", shipped_times(50)), name)
    assert ship(database, tmp_path).left == {}


def test_rows_of_more_days_than_a_block_may_have_are_refused_with_a_sentence(
    database: Address, store: Any, tmp_path: Path
) -> None:
    shipped.write(tmp_path, [101])
    days = time.time_ns() - np.arange(1500) * 86_400_000_000_000
    captures.write(tmp_path, "cuda_events", captures.launches("k", days))
    tally = ship(database, tmp_path)
    assert count(store) == 101
    [why] = tally.left.values()
    assert "is refused" in why
    assert "partitions" in why


def test_rows_that_the_server_drops_for_their_age_are_told_and_not_deleted(
    environment: str, store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shipped.write(tmp_path, [101, 103], began_ns=time.time_ns() - 9 * 86_400_000_000_000)
    code, err = run(monkeypatch, capsys, "ship", str(tmp_path), "--delete", "--store", environment)
    assert code == 0
    assert "older than 7 days is dropped by the server" in err
    assert err.count("kdiff migrate") == 1
    assert sorted(path.parent.name for path in tmp_path.rglob("*.parquet")) == ["cuda_events", "cuda_events"]
    assert store.query(shipped.ROLLED_UP).first_row[0] > 0


def test_a_server_that_stays_away_is_given_up_with_a_sentence(tmp_path: Path) -> None:
    shipped.write(tmp_path, [101])
    nowhere = Address.parse("clickhouse://127.0.0.1:1/kdiff", {})
    with pytest.raises(StoreError, match=r"given up after 0 s: nothing listens on 127.0.0.1:1"):
        ship(nowhere, tmp_path, retry_for_s=0.0)


def test_waiting_for_a_server_ends_when_told(tmp_path: Path) -> None:
    shipped.write(tmp_path, [101])
    ending = threading.Event()
    threading.Timer(0.2, ending.set).start()
    with pytest.raises(EndedError):
        ship(Address.parse("clickhouse://127.0.0.1:1/kdiff", {}), tmp_path, ending=ending)


# ---- the command ----


@pytest.fixture
def environment(database: Address, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address, as a user would write it."""
    monkeypatch.setenv("KDIFF_CLICKHOUSE_PASSWORD", database.password)
    return str(database)


def test_what_is_confirmed_may_be_deleted_and_nothing_else(
    environment: str, store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shipped.write(tmp_path, [1009, 101])
    (tmp_path / "cuda_events" / "torn.parquet").write_bytes(b"torn")
    monkeypatch.setenv("KDIFF_STORE", environment)
    code, err = run(monkeypatch, capsys, "ship", str(tmp_path), "--delete")
    assert code == 2
    assert "shipped 5 segments · 1,115 rows" in err
    assert "left: 1 segment: cuda_events/torn.parquet" in err
    assert [path.name for path in tmp_path.rglob("*.parquet")] == ["torn.parquet"]
    assert count(store) == 1110
    (tmp_path / "cuda_events" / "torn.parquet").unlink()


def test_what_cannot_be_removed_is_said_once(
    environment: str, store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(path: Path, missing_ok: bool = False) -> None:
        raise PermissionError(1, "Operation not permitted")

    shipped.write(tmp_path, [101, 103])
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse)
        code, err = run(monkeypatch, capsys, "ship", str(tmp_path), "--delete", "--store", environment)
    assert code == 0
    assert err.count("cannot be removed (Operation not permitted)") == 1
    assert count(store) == 204


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"password": "guessed"}, "wrong password"),
        ({"user": "reader", "password": PASSWORD}, "reader"),
        ({"database": "nowhere_at_all"}, "there is no database nowhere_at_all"),
        ({"hosts": (("127.0.0.1", 1),)}, "nothing listens on 127.0.0.1:1"),
    ],
)
def test_what_will_not_pass_is_one_sentence(
    change: dict[str, Any], said: str, database: Address, store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    shipped.write(tmp_path, [101])
    address = replace(database, **change)
    monkeypatch.setenv("KDIFF_CLICKHOUSE_PASSWORD", address.password)
    began = time.monotonic()
    code, err = run(monkeypatch, capsys, "ship", str(tmp_path), "--store", str(address), "--retry-for", "0")
    assert code == 2
    assert time.monotonic() - began < 5
    summary, left, sentence = err.splitlines()
    assert summary.startswith("shipped 0 segments · 0 rows")
    assert left == "left: 3 segments"
    assert said in sentence
    assert address.password not in err
    assert count(store) == 0


def test_without_a_capture_or_a_server_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KDIFF_STORE", str(tmp_path))
    assert run(monkeypatch, capsys, "ship", str(tmp_path)) == (
        2,
        "kdiff-agent: no server is named: give --store clickhouse://user@host:8123/kdiff, or set KDIFF_STORE\n",
    )
    monkeypatch.setenv("KDIFF_STORE", "clickhouse://127.0.0.1:1/kdiff")
    code, err = run(monkeypatch, capsys, "ship", str(tmp_path / "none"))
    assert code == 2
    assert err.startswith(f"kdiff-agent: there is no capture at {tmp_path}/none")


@pytest.mark.parametrize(
    "argv",
    [
        ["ship", "clickhouse:u:hunter2@h"],
        ["ship", ".", "clickhouse://u:hunter2@h"],
        ["ship", ".", "--store", "u:hunter2@h:8123/kdiff"],
        ["run", "clickhouse://u:hunter2@h"],
        ["run", "-o", "clickhouse://u:hunter2@h"],
        ["run", "--store", "clickhouse:u:hunter2@h"],
        ["run", "--metrics", "u:hunter2@h"],
        ["run", "--max-bytes", "u:hunter2@h"],
        ["run"],
    ],
    ids=" ".join,
)
def test_a_password_in_the_wrong_place_is_not_repeated(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], argv: list[str]
) -> None:
    monkeypatch.setenv("KDIFF_STORE", "clickhouse:u:hunter2@h")
    code, err = run(monkeypatch, capsys, *argv)
    assert code == 2
    assert "***@h" in err
    assert "hunter2" not in err


@pytest.mark.parametrize("command", ["ship", "run"])
def test_help_names_neither_the_store_nor_arguments_that_are_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    monkeypatch.setenv("KDIFF_STORE", "clickhouse://u:hunter2@h")
    monkeypatch.setattr("sys.argv", ["kdiff-agent", command, "--help"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert "hunter2" not in said
    [usage] = [line.strip() for line in said.splitlines() if "Usage:" in line]
    assert usage == f"Usage: kdiff-agent {command} [OPTIONS]{' {DIR}' * (command == 'ship')}"


def test_follow_ships_what_appears_until_it_is_told_to_end(environment: str, store: Any, tmp_path: Path) -> None:
    writer = shipped.write(tmp_path, [101])
    following = subprocess.Popen(
        [AGENT, "ship", str(tmp_path), "--store", environment, "--follow"], stderr=subprocess.PIPE, text=True
    )
    try:
        wait_for(lambda: count(store) == 101)
        writer.write("cuda_events", shipped.events(103, 9, time.time_ns()))
        wait_for(lambda: count(store) == 204)
        following.send_signal(signal.SIGTERM)
        _, err = following.communicate(timeout=20)
    finally:
        following.kill()
    assert following.returncode == 0
    assert "shipped 4 segments · 208 rows" in err


def wait_for(what: Any, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_memory_is_bounded_by_a_block(tmp_path: Path) -> None:
    captures.write(tmp_path, "cuda_events", captures.launches("k", np.arange(1_200_007)))
    [file] = Listing(tmp_path, print).read()
    before = pa.total_allocated_bytes()
    with OpenSegment(file, block_rows=50_021) as segment:
        most = rows = 0
        for block, body in segment.bodies():
            rows += pq.read_metadata(body).num_rows
            assert block.rows <= 50_021
            most = max(most, pa.total_allocated_bytes() - before)
    assert rows == 1_200_007
    assert most < 45 << 20
