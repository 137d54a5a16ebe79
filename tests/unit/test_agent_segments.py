"""kdiff.agent.segments: whole segments or none, whatever goes wrong while one is written."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from captures import launches, table
from kdiff.agent.errors import AgentError
from kdiff.agent.segments import SegmentWriter
from kdiff.queries.tables import TABLES

BOOT = "0123456789abcdef"


def writer(directory: Path, host: str = "host-1", began_ns: int = 1764237600) -> SegmentWriter:
    return SegmentWriter(directory, host, BOOT, began_ns)


def rows(count: int = 100) -> pa.Table:
    return launches([f"k{i % 3}" for i in range(count)], np.arange(count) * 1000, stream=np.arange(count))


def files(directory: Path) -> list[str]:
    return sorted(str(p.relative_to(directory)) for p in directory.rglob("*") if p.is_file())


def test_what_is_written_is_read(tmp_path: Path) -> None:
    to = writer(tmp_path / "a" / "b")
    path = to.write("cuda_events", rows())
    assert path.parent == tmp_path / "a" / "b" / "cuda_events"
    assert path.name == "host-1-01234567-1764237600-00000000.parquet"
    assert pq.read_table(path, schema=TABLES["cuda_events"]).equals(rows())
    assert to.bytes_written == path.stat().st_size
    assert (to.write("cuda_events", rows()).name, to.segments_written) == (
        "host-1-01234567-1764237600-00000001.parquet",
        2,
    )


@pytest.mark.parametrize("name", list(TABLES))
def test_every_table_keeps_its_types(tmp_path: Path, name: str) -> None:
    data = table(name, {}, rows=3)
    path = writer(tmp_path).write(name, data)
    assert pq.read_table(path, schema=TABLES[name]).equals(data)
    assert pq.read_schema(path).names == TABLES[name].names
    assert pq.read_metadata(path).row_group(0).column(0).compression == "ZSTD"


def test_no_rows_is_a_segment_too(tmp_path: Path) -> None:
    path = writer(tmp_path).write("cuda_events", rows(0))
    assert pq.read_table(path).num_rows == 0


def test_times_are_stored_as_differences_and_measures_by_their_bytes(tmp_path: Path) -> None:
    path = writer(tmp_path).write("cuda_events", rows())
    group = pq.read_metadata(path).row_group(0)
    encodings = {group.column(i).path_in_schema: group.column(i).encodings for i in range(group.num_columns)}
    assert "DELTA_BINARY_PACKED" in encodings["timestamp_ns"]
    for column in ("duration_ns", "completion_ns"):
        assert "BYTE_STREAM_SPLIT" in encodings[column]
    assert "RLE_DICTIONARY" in encodings["kernel_name"]
    statistics = group.column(0).statistics
    assert (statistics.min, statistics.max) == (0, 99_000), "readers skip segments by the times in them"


@pytest.mark.parametrize("host", ["gpu/../../etc", "a b", "é\n", "", "."])
def test_a_host_name_is_no_path(tmp_path: Path, host: str) -> None:
    path = writer(tmp_path / "x", host).write("kernels", table("kernels", {}, rows=1))
    assert path.parent == tmp_path / "x" / "kernels"
    assert path.is_file()
    assert files(tmp_path) == [f"x/kernels/{path.name}"]


class _TornFile:
    """A file on a disk that is full after some bytes."""

    def __init__(self, file: Any, room: int) -> None:
        self._file, self._room = file, room

    def write(self, data: Any) -> int:
        size = len(memoryview(data).cast("B"))
        if self._file.tell() + size > self._room:
            self._file.write(memoryview(data).cast("B")[: max(0, self._room - self._file.tell())])
            raise OSError(errno.ENOSPC, "No space left on device")
        return int(self._file.write(data))

    def __enter__(self) -> _TornFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


@pytest.mark.parametrize("room", [0, 4, 100, 1000, 2000])
def test_a_disk_that_fills_up_leaves_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    to = writer(tmp_path)
    to.write("kernels", table("kernels", {}, rows=1))
    before = files(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("builtins.open", lambda path, mode, _open=open: _TornFile(_open(path, mode), room), raising=True)
        with pytest.raises(OSError, match="No space left"):
            to.write("cuda_events", rows(5000))
    assert files(tmp_path) == before
    assert (to.segments_written, to.write("cuda_events", rows()).name[-16:]) == (1, "00000001.parquet")


@pytest.mark.parametrize("call", ["os.fsync", "pathlib.Path.rename"])
def test_a_step_that_fails_leaves_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    to = writer(tmp_path)

    def fails(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(call, fails)
        with pytest.raises(OSError, match="Input/output"):
            to.write("cuda_events", rows())
    assert files(tmp_path) == []
    assert (to.bytes_written, to.segments_written) == (0, 0)


def test_an_interrupt_in_the_middle_leaves_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    to = writer(tmp_path)
    monkeypatch.setattr(pq, "write_table", interrupted)
    with pytest.raises(KeyboardInterrupt):
        to.write("cuda_events", rows())
    assert files(tmp_path) == []


def test_on_disk_before_it_is_seen_and_its_name_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[tuple[str, str]] = []
    real_fsync, real_rename = os.fsync, Path.rename

    def fsync(fd: int) -> None:
        path = os.readlink(f"/proc/self/fd/{fd}")
        if os.path.isfile(path):
            assert pq.read_table(path).num_rows == 100, "everything has been handed to the kernel"
        steps.append(("fsync", os.path.relpath(path, tmp_path)))
        real_fsync(fd)

    def rename(self: Path, target: Path) -> Path:
        steps.append(("rename", str(target.relative_to(tmp_path))))
        return real_rename(self, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "rename", rename)
    name = "host-1-01234567-1764237600-00000000.parquet"
    writer(tmp_path).write("cuda_events", rows())
    assert steps[-3:] == [
        ("fsync", f"cuda_events/.{name}.tmp"),
        ("rename", f"cuda_events/{name}"),
        ("fsync", "cuda_events"),
    ]


def test_a_reader_sees_whole_segments_only(tmp_path: Path) -> None:
    """Whatever has a name that does not begin with a dot can be read at any time."""
    to, stop, wrong = writer(tmp_path), threading.Event(), []

    def read() -> None:
        while not stop.is_set():
            for path in tmp_path.glob("cuda_events/[!.]*"):
                if pq.read_metadata(path).num_rows != 3000:
                    wrong.append(path)

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(20):
        to.write("cuda_events", rows(3000))
    stop.set()
    reader.join()
    assert wrong == []
    assert len(files(tmp_path)) == 20


def test_writers_of_one_capture_do_not_meet(tmp_path: Path) -> None:
    several = [writer(tmp_path, began_ns=began) for began in (1, 2, 3)]
    threads = [
        threading.Thread(target=lambda to=to: [to.write("cuda_events", rows()) for _ in range(10)]) for to in several
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(files(tmp_path)) == 30
    assert pq.read_table(tmp_path / "cuda_events").num_rows == 3000


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(AgentError, match=r"file/x cannot be written \(Not a directory\): name another directory"):
        writer(tmp_path / "file" / "x")
    with pytest.raises(AgentError, match="proc/kdiff cannot be written"):
        writer(Path("/proc/kdiff"))


def test_starting_leaves_nothing_behind(tmp_path: Path) -> None:
    writer(tmp_path)
    assert list(tmp_path.iterdir()) == []


# Faults


def test_another_writers_half_file_is_left_alone(tmp_path: Path) -> None:
    to = writer(tmp_path)
    other = tmp_path / "cuda_events" / ".host-1-01234567-1764237600-00000000.parquet.tmp"
    other.parent.mkdir()
    other.touch()
    with pytest.raises(FileExistsError):
        to.write("cuda_events", rows())
    assert other.exists()


def test_a_new_folder_is_on_disk_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (synced.append(os.readlink(f"/proc/self/fd/{fd}")), real(fd)))
    writer(tmp_path).write("cuda_events", rows())
    assert str(tmp_path) in synced
