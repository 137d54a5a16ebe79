"""kdiff delete: exactly what was asked for goes, from a capture or a server, whenever the command is killed."""

from __future__ import annotations

import fcntl
import os
import pty
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import loaded
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import Result, Run, kdiff, named

import captures
from captures import MINUTE, SECOND, T0
from kdiff.queries import deletion
from kdiff.queries.address import Address
from kdiff.queries.connection import connect
from kdiff.queries.tables import ROLLUPS, TABLES

KDIFF = Path(sys.executable).parent / "kdiff"
HOSTILE = "it's \\ `svc`"
CUT = "2025-11-27T10:05:30"  # rounded down to the minute, on a server to the hour
CUT_NS = T0 + 5 * MINUTE


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    def call(store: Path | Address, *arguments: str) -> Result:
        return kdiff(monkeypatch, capsys, "delete", "--store", named(monkeypatch, store), *arguments)

    return call


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    return write(tmp_path / "capture", T0)


@pytest.fixture
def to_load(tmp_path: Path) -> Path:
    """The same five minutes earlier, so that the cut is on the hour."""
    return write(tmp_path / "to load", T0 - 5 * MINUTE)


def write(root: Path, start_ns: int) -> Path:
    """Ten minutes of two services: segments before, across and after the cut, and of one service or both."""
    for name, service, begin, minutes, count in (
        ("old", HOSTILE, 0, 4, 1_009),
        ("other", "svc", 0, 4, 211),
        ("across", HOSTILE, 4, 2, 503),
        ("new", HOSTILE, 6, 4, 307),
    ):
        times = captures.spread(start_ns + begin * MINUTE, start_ns + (begin + minutes) * MINUTE, count)
        captures.write(root, "cuda_events", captures.launches(f"k {name}", times, service=service), name)
        captures.write(root, "kernel_executions", captures.executions("k", times[:101], 7, service=service), name)
    both = pa.concat_tables(
        captures.launches("both", captures.spread(start_ns, start_ns + MINUTE, 101), service=service)
        for service in (HOSTILE, "svc")
    )
    captures.write(root, "cuda_events", both, "both")
    captures.write(root, "agent_health", captures.health(start_ns, start_ns + 10 * MINUTE, service=HOSTILE))
    captures.write(
        root, "device_windows", captures.device_windows([start_ns + 5 * MINUTE - SECOND // 2], service=HOSTILE)
    )
    captures.write(root, "kernels", captures.table("kernels", {"kernel_id": [1, 2], "service": [HOSTILE, "svc"]}))
    return root


def rows(root: Path) -> Counter[tuple[str, str, int]]:
    """How often each (table, service, time) is there."""
    found: Counter[tuple[str, str, int]] = Counter()
    for table in TABLES:
        for path in (root / table).glob("*.parquet"):
            data = pq.read_table(path)
            time = next(name for name in ("timestamp_ns", "to_ns", "kernel_id") if name in data.column_names)
            found.update(zip([table] * len(data), data["service"].to_pylist(), data[time].to_pylist(), strict=True))
    return found


def old(key: tuple[str, str, int], service: str | None = HOSTILE) -> bool:
    table, whose, time = key
    ended = time <= CUT_NS if table in ("agent_health", "device_windows") else time < CUT_NS
    return table != "kernels" and ended and service in (None, whose)


COUNTS = {
    "agent_health": 30,
    "kernel_executions": 202,  # the first 101 of "across" are before the cut
    "cuda_events": 1_009 + 252 + 101,
}
SAID = ", ".join(f"{rows:,} of {table}" for table, rows in COUNTS.items())
ROLLED = (
    "1 of health_hours, 1 of device_hours, 8 of kernel_minutes, 8 of kernel_totals, 8 of process_minutes, "
    "4 of kernel_hours, 2 of process_hours"
)


def test_what_is_older_goes_and_all_else_stays(run: Run, capture: Path) -> None:
    before = rows(capture)
    untouched = (capture / "cuda_events" / "new.parquet").read_bytes()
    result = run(capture, "--before", CUT, "--service", HOSTILE, "--yes")
    assert result == Result(
        0,
        f"deleted from {capture} what is older than 2025-11-27T10:05:00Z of the service {HOSTILE}: rows {SAID}\n",
        "",
    )
    assert rows(capture) == Counter({key: count for key, count in before.items() if not old(key)})
    assert sorted(path.stem for path in (capture / "cuda_events").iterdir()) == ["across", "both", "new", "other"]
    assert (capture / "cuda_events" / "new.parquet").read_bytes() == untouched
    again = run(capture, "--before", CUT, "--service", HOSTILE, "--yes")
    assert again.code == 0
    assert again.out.startswith("nothing of the service")


def test_a_segment_written_anew_reads_as_before(run: Run, capture: Path) -> None:
    path = capture / "cuda_events" / "across.parquet"
    before = pq.read_table(path)
    assert run(capture, "--before", CUT, "--service", HOSTILE, "--yes").code == 0
    after = pq.read_table(path)
    assert after.schema == before.schema
    assert after.to_pylist() == [row for row in before.to_pylist() if row["timestamp_ns"] >= CUT_NS]
    statistics = pq.read_metadata(path).row_group(0).column(0).statistics
    assert statistics.min >= CUT_NS


def test_the_names_go_with_the_last_of_a_service(run: Run, capture: Path) -> None:
    assert run(capture, "--before", "2025-11-27T10:10", "--service", HOSTILE, "--yes").code == 0
    left = rows(capture)
    assert {service for _, service, _ in left} == {"svc"}
    assert sum(left.values()) == 211 + 101 + 101 + 1
    assert run(capture, "--before", "now", "--all-services", "--yes").code == 0
    assert not rows(capture)


def test_a_torn_segment_is_named_and_stays(run: Run, capture: Path) -> None:
    torn = capture / "cuda_events" / "torn.parquet"
    torn.write_bytes(b"PAR1 torn")
    result = run(capture, "--before", CUT, "--service", HOSTILE, "--yes")
    assert result.code == 0
    assert "warning: skipped" in result.err
    assert "torn.parquet" in result.err
    assert torn.read_bytes() == b"PAR1 torn"


@pytest.mark.parametrize(("notes", "refused"), [("?", True), ("+", True), ("?+", True), ("", False)])
def test_rows_that_a_server_may_have_do_not_move(run: Run, capture: Path, notes: str, refused: bool) -> None:
    (capture / ".shipped").write_text("".join(f"{mark}cuda_events/across.parquet\n" for mark in notes))
    before = rows(capture)
    result = run(capture, "--before", CUT, "--service", HOSTILE, "--yes")
    assert (result.code == 2) == refused == (rows(capture) == before)
    assert ("is known to a server: ship the capture to its end" in result.err) == refused
    own = "host-0123abcd-1764237600000000000-00000001.parquet"
    (capture / "cuda_events" / "across.parquet").rename(capture / "cuda_events" / own)
    (capture / ".shipped").write_text(f"?cuda_events/{own}\n+cuda_events/{own}\n")
    assert run(capture, "--before", CUT, "--service", HOSTILE, "--yes").code == 0


def test_a_segment_that_is_being_shipped_stays(run: Run, capture: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deletion, "_PATIENCE_S", 0.1)
    with open(capture / "cuda_events" / "across.parquet", "rb") as shipping:
        fcntl.flock(shipping, fcntl.LOCK_SH)
        result = run(capture, "--before", CUT, "--service", HOSTILE, "--yes")
        assert result.code == 2
        assert "across.parquet is being shipped: wait until it is, and delete again" in result.err
    assert run(capture, "--before", CUT, "--service", HOSTILE, "--yes").code == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "--before missing: try `kdiff delete --before -30d --service NAME`"),
        (["--before", CUT], "give either --service NAME or --all-services"),
        (["--before", CUT, "--service", "a", "--all-services"], "give either --service NAME or --all-services"),
        (["--before", "2099-01-01", "--all-services"], "is in the future"),
        (["--before", "-1h/5m", "--all-services"], "--before: '1h/5m' is not a length of time"),
        (["--before", CUT, "--all-services"], "there is no terminal to ask on: give --yes"),
    ],
)
def test_what_is_refused_deletes_nothing(run: Run, capture: Path, arguments: list[str], words: str) -> None:
    before = rows(capture)
    result = run(capture, *arguments)
    assert (result.code, result.out) == (2, "")
    assert words in result.err
    assert rows(capture) == before


@pytest.mark.parametrize(("answer", "code"), [("n", 2), ("", 2), ("y", 0)])
def test_it_asks_on_a_terminal(capture: Path, answer: str, code: int) -> None:
    before = rows(capture)
    ours, theirs = pty.openpty()
    command = [str(KDIFF), "delete", "--store", str(capture), "--before", CUT, "--service", HOSTILE]
    process = subprocess.Popen(command, stdin=theirs, stderr=theirs, stdout=subprocess.PIPE)
    os.close(theirs)
    said = b""
    while b"[y/N]" not in said:
        said += os.read(ours, 4096)
    question = " ".join(said.decode().split())
    assert f"delete from {capture} all of the service {HOSTILE} that is older than" in question
    assert SAID in question
    os.write(ours, f"{answer}\n".encode())
    process.communicate(timeout=60)
    os.close(ours)
    assert process.returncode == code
    assert (rows(capture) == before) == (code == 2)


# Forks a child that deletes and dies at its n-th call that opens, renames, removes or syncs, for n = 1, 2, ... until
# one lives; after each the rows are as they were, or as they should be.
KILLED = """
import os, shutil, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
import kdiff.queries.deletion as deletion
from kdiff.queries.deletion import CaptureDeletion, Selection

source, work = Path(sys.argv[1]), Path(sys.argv[2])
selection = Selection(int(sys.argv[4]), sys.argv[5])
for step in range(1, 1000):
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(source, work)
    child = os.fork()
    if child == 0:
        calls = 0
        def count(event, arguments):
            global calls
            if event in ("open", "os.rename", "os.remove"):
                calls += 1
                if calls == step:
                    os.kill(os.getpid(), signal.SIGKILL)
        planned = CaptureDeletion(work, selection)
        sys.addaudithook(count)
        planned.run(lambda more: None)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    print(step, os.waitstatus_to_exitcode(status), flush=True)
    sys.stdin.readline()
    if os.waitstatus_to_exitcode(status) == 0:
        break
"""


def test_a_kill_anywhere_loses_nothing_and_doubles_nothing(capture: Path, tmp_path: Path) -> None:
    shutil.rmtree(capture / "kernel_executions")
    before = rows(capture)
    should_stay = Counter({key: count for key, count in before.items() if not old(key)})
    work = tmp_path / "work"
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, capture, work, str(Path(__file__).parents[1]), str(CUT_NS), HOSTILE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    killed = 0
    for line in process.stdout:
        left = rows(work)
        assert {key: count for key, count in left.items() if not old(key)} == should_stay
        assert all(count <= before[key] for key, count in left.items())
        if line.split()[1] == "0":
            assert left == should_stay
        else:
            killed += 1
        process.stdin.write("\n")
        process.stdin.flush()
    process.communicate()
    assert process.returncode == 0
    assert killed > 12


# ---- on a server ----


def counts(address: Address) -> dict[str, dict[str, int]]:
    with connect(address) as client:
        return {
            table: dict(client.query(f"SELECT service, count() FROM {table} GROUP BY service").result_rows)
            for table in TABLES
        }


def test_a_server_loses_the_same(run: Run, to_load: Path, database: Address) -> None:
    loaded.load(database, to_load)
    with connect(database) as client:
        for table in ROLLUPS:  # so that what is said does not hang on what was merged
            client.command(f"OPTIMIZE TABLE {table} FINAL")
    before = counts(database)
    result = run(database, "--before", CUT, "--service", HOSTILE, "--yes")
    assert (result.code, result.err) == (0, "")
    assert result.out.endswith(f"of the service {HOSTILE}: rows {SAID}, {ROLLED}\n")
    after = counts(database)
    assert {t: before[t][HOSTILE] - after[t].get(HOSTILE, 0) for t in TABLES if t in COUNTS} == COUNTS
    with connect(database) as client:
        rolled = client.query("SELECT service, sum(launches) FROM kernel_minutes GROUP BY service").result_rows
    assert dict(rolled) == after["cuda_events"]
    assert all(before[table].get("svc") == after[table].get("svc") for table in TABLES)
    assert run(database, "--before", "now", "--all-services", "--yes").code == 0
    assert counts(database) == {table: {} for table in TABLES}
    assert run(database, "--before", "now", "--all-services", "--yes").out.startswith("nothing of every service")


def test_who_may_only_read_deletes_nothing(run: Run, to_load: Path, own_database: Address) -> None:
    loaded.load(own_database, to_load)
    before = counts(own_database)
    for user, words in (("reader", "lacks a right"), ("writer", "GRANT ALTER")):
        result = run(replace(own_database, user=user), "--before", CUT, "--service", HOSTILE, "--yes")
        assert (result.code, result.out) == (2, "")
        assert words in result.err
    assert counts(own_database) == before
