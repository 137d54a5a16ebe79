from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import captures
from captures import MINUTE, SECOND, T0
from kdiff.queries.errors import StoreError
from kdiff.queries.segments_read import scan
from kdiff.queries.store import CaptureStore, engine_type, load_sql, open_store
from kdiff.queries.tables import TABLES

pytestmark = pytest.mark.usefixtures("engine")

_ALL = sorted(path.stem for path in Path(__file__).parents[2].glob("queries/sql/*.sql"))
_ROLLED = ("minutes_", "hours_", "scoped_", "verdicts_", "calibrations_")  # those need a server's tables
QUERIES = [name for name in _ALL if not name.startswith(_ROLLED)]
WHOLE: Final[dict[str, int | str | list[int]]] = {"from_ns": T0, "to_ns": T0 + MINUTE, "service": ""}
LAUNCHES = 997  # prime: no rounding can hide a row lost or doubled


def small(root: Path, count: int = LAUNCHES) -> Path:
    times = captures.spread(T0, T0 + MINUTE, count)
    values = np.random.default_rng(7).integers(1_000, 9_000, count)
    captures.write(root, "cuda_events", captures.launches("gelu", times, completion_ns=values))
    captures.write(root, "kernel_executions", captures.executions("gelu", times, values // 2))
    captures.write(root, "agent_health", captures.health(T0, T0 + MINUTE))
    return root


def kernels(store: CaptureStore) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = store.query("kernels_between", WHOLE).to_pylist()
    return rows


@pytest.mark.parametrize("count", [1, 2, 100, 101, LAUNCHES])
def test_launches_average_and_p99_are_exact(tmp_path: Path, count: int) -> None:
    small(tmp_path, count)
    values = np.random.default_rng(7).integers(1_000, 9_000, count)
    with open_store(str(tmp_path)) as store:
        (row,) = kernels(store)
    assert row["launches"] == row["completions"] == row["executions"] == count
    assert row["completion_avg_ns"] == pytest.approx(values.mean())
    place = min(int(0.99 * count), count - 1)
    assert row["completion_p99_ns"] == np.sort(values)[place]
    assert row["device_p99_ns"] == np.sort(values // 2)[place]
    assert row["device_total_ns"] == (values // 2).sum()
    assert (row["first_ns"], row["last_ns"]) == (T0, captures.spread(T0, T0 + MINUTE, count)[-1])


def test_nothing_timed_is_null_not_zero(tmp_path: Path) -> None:
    captures.write(tmp_path, "cuda_events", captures.launches("gelu", [T0]))
    with open_store(str(tmp_path)) as store:
        (row,) = kernels(store)
    assert row["launches"] == 1
    assert row["completion_p99_ns"] is None
    assert row["device_avg_ns"] is None


def test_a_window_is_half_open(tmp_path: Path) -> None:
    captures.write(tmp_path, "cuda_events", captures.launches("gelu", [T0, T0 + 1, T0 + 2]))
    with open_store(str(tmp_path)) as store:
        (row,) = store.query("kernels_between", {"from_ns": T0, "to_ns": T0 + 2, "service": ""}).to_pylist()
    assert row["launches"] == 2


@pytest.mark.parametrize("name", QUERIES)
def test_every_query_runs_on_empty_tables_and_on_any_engine(tmp_path: Path, name: str) -> None:
    captures.write(tmp_path, "kernels", captures.table("kernels", {"kernel_id": [1]}))
    params = WHOLE | {"bucket_ns": SECOND, "keys": [1], "every": [1], "outside": 1, "kind": "launch", "most": 100}
    params |= {"measure": "device", "isolated": 0, "floors": [1], "slice_ns": SECOND, "slices": 1, "chosen": 1}
    params |= {"source": "launch", "variants": [1], "host": "host-1", "pid": 1, "kernel_key": 1}
    with open_store(str(tmp_path)) as store:
        store.query(name, params)
    assert "file(" not in load_sql(name)


@pytest.mark.parametrize("table", TABLES)
def test_every_column_type_has_a_name_in_the_engine(table: str) -> None:
    assert all(engine_type(column) for column in TABLES[table])


HOSTILE = [
    "it's",
    'double"quote',
    "glob*?[a]{b,c}",
    "with space",
    "new\nline",
    "tab\tand \\ backslash",
    "únïcode-核",
    "a.zip :: b",
    "-rf",
    "$(touch x)",
    "\x1b[31mred",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_directory_names_mean_nothing(tmp_path: Path, name: str) -> None:
    root = tmp_path / name
    root.mkdir()
    small(root)
    segment = root / "cuda_events" / "000001.parquet"
    segment.rename(segment.with_name(f"{name.replace('/', '')}.parquet"))
    (root / "cuda_events" / f"torn {name}.parquet").write_bytes(b"PAR1")
    with open_store(str(root)) as store:
        (row,) = kernels(store)
        (warning,) = store.warnings
    assert row["launches"] == LAUNCHES
    assert "torn" in warning
    assert warning.isprintable()


def test_relative_path_survives_a_change_of_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small(tmp_path / "capture")
    monkeypatch.chdir(tmp_path)
    with open_store("capture") as store:
        monkeypatch.chdir("/")
        assert kernels(store)[0]["launches"] == LAUNCHES


def test_bad_segments_are_skipped_by_name_and_the_rest_is_exact(tmp_path: Path) -> None:
    small(tmp_path)
    folder = tmp_path / "cuda_events"
    good = (folder / "000001.parquet").read_bytes()
    (folder / "empty.parquet").touch()
    (folder / "torn.parquet").write_bytes(good[: len(good) // 2])
    (folder / "zeroed.parquet").write_bytes(bytes(len(good)))
    (folder / "foreign.parquet").write_bytes(b"not parquet at all")
    pq.write_table(pa.table({"x": [1, 2]}), folder / "other.parquet")
    pq.write_table(pa.table({"timestamp_ns": ["a"], "kind": ["launch"], "kernel_name": ["k"]}), folder / "type.parquet")
    (folder / "folder.parquet").mkdir()
    (folder / "dangling.parquet").symlink_to(tmp_path / "nowhere")
    os.mkfifo(folder / "fifo.parquet")
    (folder / "notes.txt").write_text("hello")
    # Being written: no warning.
    (folder / ".000002.parquet").write_bytes(good[:50])
    (folder / "000003.parquet.tmp").write_bytes(good[:50])
    with open_store(str(tmp_path)) as store:
        (row,) = kernels(store)
        warnings = store.warnings
    assert row["launches"] == LAUNCHES
    for name, reason in {
        "empty.parquet": "empty file",
        "torn.parquet": "torn",
        "zeroed.parquet": "torn",
        "foreign.parquet": "not a Parquet file",
        "other.parquet": "not a segment of cuda_events (no column timestamp_ns, kind, kernel_name)",
        "type.parquet": "column timestamp_ns is string, not int64",
        "folder.parquet": "not a regular file",
        "dangling.parquet": "a link to nothing",
        "fifo.parquet": "not a regular file",
        "notes.txt": "not named *.parquet",
    }.items():
        (line,) = [w for w in warnings if name in w]
        assert reason in line
        assert "\n" not in line
    assert len(warnings) == 10


def test_newer_and_older_schemas_are_read(tmp_path: Path) -> None:
    small(tmp_path)
    newer = captures.launches("gelu", [T0]).append_column("cluster_x", pa.array([4]))
    captures.write(tmp_path, "cuda_events", newer, "newer")
    older = captures.launches("gelu", [T0]).select(["timestamp_ns", "kind", "kernel_name"])
    captures.write(tmp_path, "cuda_events", older, "older")
    plain = pa.table({"timestamp_ns": [T0], "kind": ["launch"], "kernel_name": pa.array(["gelu"], pa.large_string())})
    captures.write(tmp_path, "cuda_events", plain, "plain")
    (tmp_path / "a_table_of_the_future").mkdir()
    with open_store(str(tmp_path)) as store:
        assert store.warnings == []
        assert kernels(store)[0]["launches"] == LAUNCHES + 3


def test_segments_without_rows_are_fine(tmp_path: Path) -> None:
    small(tmp_path)
    captures.write(tmp_path, "cuda_events", TABLES["cuda_events"].empty_table(), "none")
    with open_store(str(tmp_path)) as store:
        assert kernels(store)[0]["launches"] == LAUNCHES
        assert store.warnings == []


def test_names_come_back_byte_for_byte(tmp_path: Path) -> None:
    names = ["x" * 200_000, "a\x00b", "\x1b[31m", "'; DROP TABLE cuda_events; --", "void f<g<int, 3ul> >(h*)", "核"]
    captures.write(tmp_path, "cuda_events", captures.launches(names, captures.spread(T0, T0 + SECOND, len(names))))
    with open_store(str(tmp_path)) as store:
        assert {row["kernel_name"] for row in kernels(store)} == set(names)


def test_what_an_agent_writes_later_is_not_seen(tmp_path: Path) -> None:
    small(tmp_path)
    with open_store(str(tmp_path)) as store:
        captures.write(tmp_path, "cuda_events", captures.launches("late", [T0]), "000002")
        assert [row["kernel_name"] for row in kernels(store)] == ["gelu"]


def test_a_segment_that_vanishes_is_named_and_left_out(tmp_path: Path) -> None:
    small(tmp_path)
    extra = captures.write(tmp_path, "cuda_events", captures.launches("gelu", [T0]), "000002")
    with open_store(str(tmp_path)) as store:
        assert kernels(store)[0]["launches"] == LAUNCHES + 1
        extra.unlink()
        assert kernels(store)[0]["launches"] == LAUNCHES
        (warning,) = store.warnings
    assert str(extra) in warning
    assert "removed" in warning


def test_when_all_segments_vanish_the_tables_are_empty(tmp_path: Path) -> None:
    small(tmp_path)
    with open_store(str(tmp_path)) as store:
        for path in tmp_path.glob("*/*.parquet"):
            path.unlink()
        assert kernels(store) == []
        assert len(store.warnings) == 3


def test_damaged_pages_under_a_good_footer_are_named_and_left_out(tmp_path: Path) -> None:
    small(tmp_path)
    values = np.random.default_rng(1).integers(0, 1 << 40, 20_000)
    times = captures.spread(T0, T0 + MINUTE, len(values))
    bad = captures.write(tmp_path, "cuda_events", captures.launches("gelu", times, completion_ns=values), "bad")
    data = bytearray(bad.read_bytes())
    data[4 : len(data) * 3 // 4] = b"\xff" * (len(data) * 3 // 4 - 4)
    bad.write_bytes(data)
    with open_store(str(tmp_path)) as store:
        assert kernels(store)[0]["launches"] == LAUNCHES
        (warning,) = store.warnings
    assert str(bad) in warning
    assert "damaged" in warning
    assert "\n" not in warning


def test_several_stores_in_one_process(tmp_path: Path) -> None:
    small(tmp_path / "a", 3)
    small(tmp_path / "b", 5)
    with open_store(str(tmp_path / "a")) as a, open_store(str(tmp_path / "b")) as b:
        assert kernels(a)[0]["launches"] == 3
        assert kernels(b)[0]["launches"] == 5
        a.close()
        a.close()
        assert kernels(b)[0]["launches"] == 5
        with pytest.raises(StoreError, match="closed"):
            kernels(a)
    with open_store(str(tmp_path / "a")) as again:
        assert kernels(again)[0]["launches"] == 3


def links(directory: Path) -> list[Path]:
    return list(directory.glob("kdiff-*"))


def test_close_removes_the_links_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small(tmp_path / "capture")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    with open_store(str(tmp_path / "capture")):
        assert len(links(temporary)) == 1
    assert links(temporary) == []
    assert len(list((tmp_path / "capture").glob("*/*.parquet"))) == 3


def test_links_are_removed_when_opening_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small(tmp_path / "capture")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def fail() -> None:
        raise StoreError("no engine")

    monkeypatch.setattr("kdiff.queries.store._connect", fail)
    with pytest.raises(StoreError, match="no engine"):
        open_store(str(tmp_path / "capture"))
    assert links(tmp_path) == []


def test_a_temporary_directory_with_a_hostile_name_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small(tmp_path / "capture")
    hostile = tmp_path / "it's {a,b}*"
    hostile.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(hostile))
    with open_store(str(tmp_path / "capture")) as store:
        assert kernels(store)[0]["launches"] == LAUNCHES
        assert links(hostile) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_leave_no_links_behind(tmp_path: Path, number: signal.Signals) -> None:
    small(tmp_path / "capture")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    program = (
        "import sys, time; from kdiff.analysis import cli\n"
        "from kdiff.analysis import compare\n"
        "def wait(*_): print('open', flush=True); time.sleep(60)\n"
        "compare.compare = wait\n"
        f"sys.argv[1:] = ['--before', {str(tmp_path / 'capture')!r}, '--after', {str(tmp_path / 'again')!r}]\n"
        "cli.main()"
    )
    small(tmp_path / "again")
    environment = os.environ | {"TMPDIR": str(temporary)}
    with subprocess.Popen(
        [sys.executable, "-c", program],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "open\n"
        assert len(links(temporary)) == 2
        process.send_signal(number)
        assert process.wait(30) == (130 if number is signal.SIGINT else 143)
        assert "Traceback" not in process.stderr.read()
    assert links(temporary) == []


def test_not_there(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"there is no capture at .*nowhere: record one with `kdiff-agent record -o"):
        open_store(str(tmp_path / "nowhere"))


def test_a_file_an_empty_folder_and_other_folders_are_no_capture(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match="is not a directory"):
        open_store(str(tmp_path / "file"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(StoreError, match="there is no capture at"):
        open_store(str(tmp_path / "empty"))
    (tmp_path / "fresh" / "cuda_events").mkdir(parents=True)
    with pytest.raises(StoreError, match="holds no segment yet"):
        open_store(str(tmp_path / "fresh"))
    (tmp_path / "fresh" / "cuda_events" / "a.parquet").touch()
    with pytest.raises(StoreError, match=r"none of the segments .*a\.parquet: empty file"):
        open_store(str(tmp_path / "fresh"))


@pytest.mark.parametrize("spec", ["", "a\0b", "x" * 5000, "http://localhost:8123", "~no-such-user/x"])
def test_names_that_cannot_be_a_directory(spec: str) -> None:
    with pytest.raises(StoreError) as caught:
        open_store(spec)
    assert "\n" not in str(caught.value)


# Gives up root's right to pass over permissions (PR_CAPBSET_DROP of CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH).
UNPRIVILEGED = """
import ctypes, os, sys
for capability in (1, 2):
    ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


@pytest.mark.parametrize("closed", ["", "cuda_events", "cuda_events/000001.parquet"])
def test_no_permission(tmp_path: Path, closed: str) -> None:
    root = small(tmp_path / "capture")
    kdiff = str(Path(sys.executable).parent / "kdiff")
    command = [sys.executable, "-c", UNPRIVILEGED, kdiff, "kernels", "--store", str(root)]
    shut = root / closed
    mode = shut.stat().st_mode
    shut.chmod(0)
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    finally:
        shut.chmod(mode)
    if closed.endswith(".parquet"):
        assert done.stderr == f"kdiff: warning: skipped {shut}: no permission to read it\n"
        assert "0 launches of 1 kernel" in done.stdout  # the device's side is still there
        assert done.returncode == 0
    else:
        assert done.stderr == f"kdiff: no permission to read {shut}: run as its owner or as root\n"
        assert (done.returncode, done.stdout) == (2, "")


def test_no_permission_as_the_system_says_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small(tmp_path)
    real = os.scandir

    def refuse(path: str | Path) -> Iterator[os.DirEntry[str]]:
        if Path(path).name == "cuda_events":
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(StoreError, match=r"no permission to read .*cuda_events"):
        scan(tmp_path)


def minutes(root: Path, count: int) -> list[Path]:
    """One segment of each table a minute; the last row of each is the last nanosecond of its minute."""
    written = []
    for i in range(count):
        start = T0 + i * MINUTE
        times = [start, start + SECOND, start + MINUTE - 1]
        written.append(captures.write(root, "cuda_events", captures.launches("gelu", times), f"{i}"))
        captures.write(root, "kernel_executions", captures.executions("gelu", times, 5), f"{i}")
        captures.write(root, "agent_health", captures.health(start, start + MINUTE, step=MINUTE), f"{i}")
    return written


@pytest.mark.parametrize(
    ("start", "end", "launches", "stretches", "opened"),
    [
        (2 * MINUTE, 3 * MINUTE, 3, 1, {2}),
        (2 * MINUTE - 1, 3 * MINUTE + 1, 5, 3, {1, 2, 3}),
        (2 * MINUTE + 1, 2 * MINUTE + 2, 0, 1, {2}),
        (0, 5 * MINUTE, 15, 5, {0, 1, 2, 3, 4}),
        (-5 * MINUTE, 0, 0, 0, set()),
        (5 * MINUTE, 6 * MINUTE, 0, 0, set()),
    ],
)
def test_a_window_opens_only_segments_that_may_hold_rows_of_it(
    tmp_path: Path, start: int, end: int, launches: int, stretches: int, opened: set[int]
) -> None:
    segments = minutes(tmp_path, 5)
    params: dict[str, int | str | list[int]] = {"from_ns": T0 + start, "to_ns": T0 + end, "service": ""}
    with open_store(str(tmp_path)) as store:
        for number, segment in enumerate(segments):
            if number not in opened:
                segment.unlink()
        assert sum(row["launches"] for row in store.query("census", params).to_pylist()) == launches
        assert sum(row["executions"] for row in store.query("census_device", params).to_pylist()) == launches
        assert store.query("health", params).num_rows == stretches
        assert store.warnings == []
        # All segments are asked for what is not about a window.
        found = {row["source"]: row["rows"] for row in store.query("extent", {"service": ""}).to_pylist()}
        assert found["cuda_events"] == 3 * len(opened)
        assert len(store.warnings) == 5 - len(opened)


def test_a_footer_without_statistics_is_read(tmp_path: Path) -> None:
    minutes(tmp_path, 3)
    bare = captures.launches("gelu", [T0 + MINUTE])
    pq.write_table(bare, tmp_path / "cuda_events" / "bare.parquet", write_statistics=False)
    with open_store(str(tmp_path)) as store:
        params: dict[str, int | str | list[int]] = {"from_ns": T0 + MINUTE, "to_ns": T0 + MINUTE + 1, "service": ""}
        (row,) = store.query("kernels_between", params).to_pylist()
    assert row["launches"] == 2


def test_many_segments_open_fast(tmp_path: Path) -> None:
    for i in range(501):
        captures.write(tmp_path, "cuda_events", captures.launches("gelu", [T0 + i]), f"{i:06d}")
    start = time.monotonic()
    with open_store(str(tmp_path)) as store:
        assert kernels(store)[0]["launches"] == 501
    assert time.monotonic() - start < 20


def test_of_many_windows_the_tables_of_the_last_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who reads a history window by window must not fill the engine."""
    monkeypatch.setattr("kdiff.queries.store._MOST_DATABASES", 3)
    for place in range(7):
        times = captures.spread(T0 + place * SECOND, T0 + (place + 1) * SECOND, 101 + place)
        captures.write(tmp_path, "cuda_events", captures.launches("gelu", times), f"{place:06d}")
    with CaptureStore(tmp_path) as store:
        for place in (*range(7), 0, 6, 0):
            window = {"from_ns": T0 + place * SECOND, "to_ns": T0 + (place + 1) * SECOND, "service": ""}
            (row,) = store.query("kernels_between", window).to_pylist()
            assert row["launches"] == 101 + place
        assert len(store._databases) == len(list(store._links.iterdir())) == 3
