"""kdiff.agent.segments: whole segments or none, whatever goes wrong while one is written."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from captures import launches, table
from kdiff.agent.announced import Announced
from kdiff.agent.errors import AgentError
from kdiff.agent.health import Losses
from kdiff.agent.names import Kernel
from kdiff.agent.segments import SegmentWriter, Spool, hold
from kdiff.queries import segments_write
from kdiff.queries.segments_write import remove_torn, replacing
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


def test_a_directory_that_was_removed_is_made_anew_with_the_names_of_kernels(tmp_path: Path) -> None:
    capture = tmp_path / "capture"
    to = writer(capture)
    to.hold()
    announced = Announced("host")
    spool = Spool(to, names=announced.again)
    for at_ns, known in enumerate((("a", "b"), ("c", "a")), start=7):
        fresh = announced.fresh([(Kernel(name, name, "load"), "svc") for name in known], at_ns)
        assert fresh is not None
        spool.put("kernels", fresh)
    spool.put("cuda_events", rows())
    assert spool.write() == (None, 0)
    assert not spool.renewed
    shutil.rmtree(capture)
    spool.put("cuda_events", rows(7))
    assert spool.write() == (None, 0)
    assert spool.renewed
    again = pq.read_table(capture / "kernels").to_pylist()
    assert {(row["kernel_name"], row["first_seen_ns"]) for row in again} == {("a", 7), ("b", 7), ("c", 8)}
    assert len(again) == 3
    assert pq.read_table(capture / "cuda_events").num_rows == 7
    with pytest.raises(AgentError, match="another kdiff-agent records"):
        hold(capture)
    to.let_go()
    os.close(hold(capture))


def test_names_that_wait_are_not_lost_with_the_directory_where_they_are_more_than_are_remembered(
    tmp_path: Path,
) -> None:
    capture = tmp_path / "capture"
    to = writer(capture)
    to.hold()
    announced = Announced("host", most=3)
    spool = Spool(to, names=announced.again)
    spool.put("cuda_events", rows())
    assert spool.write() == (None, 0)
    shutil.rmtree(capture)
    fresh = announced.fresh([(Kernel(f"k{number}", f"k{number}", "load"), "svc") for number in range(11)], 7)
    assert fresh is not None
    spool.put("kernels", fresh)
    assert spool.write() == (None, 0)
    assert spool.renewed
    assert set(pq.read_table(capture / "kernels")["kernel_name"].to_pylist()) == {f"k{number}" for number in range(11)}
    to.let_go()


def test_a_directory_that_another_recording_has_made_anew_is_not_written(tmp_path: Path) -> None:
    capture = tmp_path / "capture"
    to = writer(capture)
    to.hold()
    spool = Spool(to)
    shutil.rmtree(capture)
    capture.mkdir()
    held = hold(capture)
    spool.put("cuda_events", rows(7))
    refused, dropped = spool.write()
    assert refused is not None
    assert (refused.strerror, dropped, spool.events) == ("another kdiff-agent records there", 0, 7)
    os.close(held)
    assert spool.write() == (None, 0)
    assert pq.read_table(capture / "cuda_events").num_rows == 7
    to.let_go()


def test_what_goes_for_room_is_counted_by_service_and_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    spool = Spool(writer(tmp_path), keep_at_most=10)
    monkeypatch.setattr(spool.writer, "write", refuse)
    for service, kinds in (("a", ["launch"] * 4 + ["sync"]), ("b", ["graph_launch", "sync"]), ("b", ["launch"] * 9)):
        spool.put("cuda_events", table("cuda_events", {"service": service, "kind": kinds}, rows=len(kinds)))
    refused, dropped = spool.write()
    assert refused is not None
    assert (dropped, spool.events) == (7, 9)
    assert spool.take_dropped() == {"a": Losses(4, 1), "b": Losses(1, 1)}
    assert spool.take_dropped() == {}


# Faults


def aged(path: Path, seconds: float = 2.0) -> Path:
    then = time.time() - seconds
    os.utime(path, (then, then))
    return path


def own_torn(folder: Path, number: int) -> Path:
    """Where a recording has a segment half written."""
    return folder / f".host-1-0123abcd-17-{number:08d}.parquet.tmp"


def test_what_killed_writers_left_is_removed_and_what_is_being_written_stays(tmp_path: Path) -> None:
    folder = tmp_path / "cuda_events"
    folder.mkdir()
    killed, fresh, pipe, link = (own_torn(folder, number) for number in range(4))
    killed.write_bytes(b"x")
    fresh.write_bytes(b"x")
    (tmp_path / "src").mkdir()
    foreign = [
        own_torn(tmp_path / "src", 0),
        own_torn(tmp_path, 1),
        folder / ".b.tmp",
        folder / ".results.parquet.tmp",
        folder / ".run-0123abcd-1.parquet.tmp",
    ]
    for path in foreign:
        path.touch()
    os.mkfifo(pipe)
    link.symlink_to(foreign[0])
    whole = writer(tmp_path).write("cuda_events", rows())
    slow = own_torn(folder, 4)
    with replacing(folder / slow.name[1:].removesuffix(".tmp")) as file:
        file.write(b"x")
        file.flush()
        for path in (killed, pipe, whole, slow, *foreign):
            aged(path, 1e6)
        remove_torn(tmp_path)
    stay = [*foreign, fresh, pipe, link]
    assert [path for path in stay if not os.path.lexists(path)] == [], "of whoever has files there"
    names = {path.name for path in folder.iterdir()} - {path.name for path in stay}
    assert names == {whole.name, slow.name[1:].removesuffix(".tmp")}


def test_on_a_file_system_without_locks_half_files_stay_for_an_hour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(fd: int, how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(segments_write.fcntl, "flock", flock)
    (tmp_path / "kernels").mkdir()
    old, recent = (own_torn(tmp_path / "kernels", number) for number in range(2))
    for path, seconds in ((old, 3601), (recent, 3500)):
        path.touch()
        aged(path, seconds)
    remove_torn(tmp_path)
    assert list(recent.parent.iterdir()) == [recent]


def test_a_recording_removes_what_a_killed_one_left(tmp_path: Path) -> None:
    (tmp_path / "kernels").mkdir()
    aged_path = own_torn(tmp_path / "kernels", 0)
    aged_path.touch()
    aged(aged_path)
    os.close(hold(tmp_path))
    assert list((tmp_path / "kernels").iterdir()) == []


def test_a_directory_that_cannot_be_opened_is_said(tmp_path: Path) -> None:
    with pytest.raises(AgentError, match=r"gone cannot be read \(No such file or directory\): name another directory"):
        hold(tmp_path / "gone")


def test_a_killed_recordings_descriptor_in_a_process_that_it_was_starting_is_waited_for(tmp_path: Path) -> None:
    held = hold(tmp_path)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=[held])
    os.close(held)
    timer = threading.Timer(0.5, child.communicate, (b"\n",))
    timer.start()
    began = time.monotonic()
    os.close(hold(tmp_path))
    assert 0.4 < time.monotonic() - began < 10
    timer.join()


def test_a_directory_that_another_recording_holds_is_refused(tmp_path: Path) -> None:
    held = hold(tmp_path)
    with pytest.raises(AgentError, match="another kdiff-agent records to"):
        hold(tmp_path)
    os.close(held)


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
