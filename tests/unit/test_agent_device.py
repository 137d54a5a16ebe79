"""kdiff.agent.device_*: batches of any bytes, windows, clocks, rows; and what --device-time accepts."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from kdiff.agent.clock import UnixClock, unix_offset_ns
from kdiff.agent.device import DeviceTime
from kdiff.agent.device_batches import Batch, Name, decode
from kdiff.agent.device_option import DeviceOption, provide_library
from kdiff.agent.device_rows import Place, kernel_of
from kdiff.agent.device_windows import MOST_EXECUTIONS, DeviceProcess, timed
from kdiff.agent.elf import open_elf
from kdiff.agent.errors import AgentError
from kdiff.agent.names import Kernel
from kdiff.agent.pairing import PAIRED
from kdiff.probes.device_wire import (
    BATCH,
    BATCH_BYTES,
    DEVICE,
    EXECUTION,
    HANDED,
    NAME_HEADER,
    STATE,
    VERSION,
    WINDOW,
    Block,
    Ended,
    State,
)

PID = os.getpid()
NOTHING = np.zeros(0, PAIRED)
SECOND = 1_000_000_000
NOW = time.monotonic_ns() - 100 * SECOND
DEVICE_CLOCK = 1_700_000_000_000_000_007


def handed(
    block: int, records: bytes, count: int, *, window: int = 1, at: int = NOW, **header: int
) -> NDArray[np.void]:
    """One record as BPF hands it over."""
    head = np.zeros(1, BATCH)
    head["window"], head["version"], head["block"], head["count"] = window, VERSION, block, count
    head["bytes"] = BATCH.itemsize + len(records)
    for name, value in header.items():
        head[name] = value
    data = head.tobytes() + records
    record = np.zeros(1, HANDED)
    record["timestamp_ns"], record["pid"], record["tid"], record["bytes"] = at, PID, PID, len(data)
    record["batch"][0, : len(data)] = np.frombuffer(data, np.uint8)
    return record


def executions(starts: NDArray[np.int64], lasted: int = 1_000, **fields: int) -> NDArray[np.void]:
    """Executions that start so many ns after the window's opening, on the device's clock."""
    rows = np.zeros(len(starts), EXECUTION)
    rows["start"] = (DEVICE_CLOCK + starts).astype(np.uint64)
    rows["end"] = rows["start"] + np.uint64(lasted)
    rows["correlation"] = np.arange(len(starts))
    rows["grid"] = rows["block"] = 1
    for name, value in fields.items():
        rows[name] = value
    return rows


def window(closed: bool = True, opened: int = NOW, length: int = SECOND, drift: float = 0.0, **fields: int) -> bytes:
    record = np.zeros(1, WINDOW)
    record["opened_ns"] = record["host_open_ns"] = opened
    record["device_open_ns"] = DEVICE_CLOCK
    if closed:
        record["closed_ns"] = record["host_close_ns"] = opened + length
        record["device_close_ns"] = DEVICE_CLOCK + round(length * (1 + drift))
        record["ended"] = Ended.DURATION
    for name, value in fields.items():
        record[name] = value
    return record.tobytes()


def name(number: int, mangled: bytes, whole: int = 1) -> bytes:
    header = np.zeros(1, NAME_HEADER)
    header["number"], header["length"], header["whole"] = number, len(mangled), whole
    return header.tobytes() + mangled + b"\0" * (-len(mangled) % 8)


def put(device: DeviceTime, block: int, records: NDArray[np.void] | bytes, count: int = 1, **how: int) -> None:
    data = records if isinstance(records, bytes) else records.tobytes()
    device.feed(handed(block, data, count if isinstance(records, bytes) else len(records), **how), 0.0)


class Device(DeviceTime):
    """With what it says, and which processes it stops listening to."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.silenced: list[int] = []
        super().__init__(
            UnixClock(),
            self.place,
            lambda *_: Kernel("unresolved:unknown", "unresolved:unknown", "unresolved"),
            lambda pid, _: self.silenced.append(pid),
            self.said.append,
        )

    def place(self, pid: int, monotonic_ns: int) -> Place:
        return Place("service", "host", "container", "GPU-of-process", "boot")

    def rows(self) -> tuple[pa.Table | None, list[dict[str, Any]]]:
        self.finish(1000.0, NOTHING, last=True)
        taken = self.take()
        return (
            pa.concat_tables(taken.executions) if taken.executions else None,
            [row for table in taken.windows for row in table.to_pylist()],
        )


# Batches


def hostile(data: st.DataObject) -> NDArray[np.void]:
    """Any bytes, or a batch that is nearly right."""
    size = data.draw(st.integers(0, 2 * BATCH_BYTES))
    content = bytearray(data.draw(st.binary(max_size=600)))
    if data.draw(st.booleans()):
        head = np.zeros(1, BATCH)
        head["version"] = VERSION
        head["block"] = data.draw(st.integers(0, 7))
        head["count"] = data.draw(st.sampled_from([0, 1, 2, 3, 2**31, 2**32 - 1]))
        head["window"] = data.draw(st.integers(0, 3))
        head["bytes"] = size = data.draw(st.sampled_from([0, 31, 32, 32 + len(content), 16384, 2**32 - 1]))
        content[:0] = head.tobytes()
    record = np.zeros(1, HANDED)
    record["pid"], record["bytes"], record["timestamp_ns"] = PID, size, data.draw(st.integers(0, 2**64 - 1))
    record["batch"][0, : len(content)] = np.frombuffer(bytes(content), np.uint8)
    return record


@settings(max_examples=500, deadline=None)
@given(data=st.data())
def test_no_bytes_raise(data: st.DataObject) -> None:
    device = Device()
    for _ in range(data.draw(st.integers(1, 5))):
        device.feed(hostile(data), 0.0)
    table, windows = device.rows()
    assert (0 if table is None else len(table)) == sum(int(w["executions"]) for w in windows)
    assert len(device.said) <= 2
    assert device.rows() == (None, [])


@settings(max_examples=300, deadline=None)
@given(
    record=st.binary(min_size=WINDOW.itemsize, max_size=WINDOW.itemsize),
    closing=st.binary(min_size=WINDOW.itemsize, max_size=WINDOW.itemsize),
    opened=st.integers(0, NOW),
    rows=st.binary(min_size=7 * EXECUTION.itemsize, max_size=7 * EXECUTION.itemsize),
)
def test_no_numbers_raise(record: bytes, closing: bytes, opened: int, rows: bytes) -> None:
    """Any window and any executions, the window's own times just plausible enough to be believed."""
    device = Device()
    for data, closed in ((record, 0), (closing, NOW)):
        forged = np.frombuffer(data, WINDOW).copy()
        forged["opened_ns"], forged["closed_ns"] = opened, closed
        put(device, Block.WINDOW, forged)
    put(device, Block.EXECUTIONS, np.frombuffer(rows, EXECUTION))
    _, windows = device.rows()
    for row in windows:
        assert row["executions"] + row["uncollected"] >= 7 or row["uncollected"] == 2**63 - 1
        assert row["lost"] == 0


@pytest.mark.parametrize(
    "batch",
    [
        handed(Block.STATE, bytes(STATE.itemsize), 1, version=VERSION + 1),
        handed(6, bytes(STATE.itemsize), 1),
        handed(Block.STATE, bytes(STATE.itemsize), 2),
        handed(Block.STATE, bytes(STATE.itemsize - 1), 1),
        handed(Block.STATE, bytes(STATE.itemsize), 1, bytes=BATCH_BYTES),
        handed(Block.STATE, np.array([(9, 0, b"")], STATE).tobytes(), 1),
        handed(Block.NAMES, name(1, b"k1"), 2),
        handed(Block.NAMES, np.array([(1, 2**32 - 1, 1, 0)], NAME_HEADER).tobytes(), 1),
        np.zeros(1, HANDED),
    ],
)
def test_a_foreign_batch_is_counted_and_said_once(batch: NDArray[np.void]) -> None:
    batch["pid"] = PID
    device = Device()
    for _ in range(3):
        device.feed(batch, 0.0)
    assert device.summary.foreign == 3
    assert len(device.said) == 1
    assert f"process {PID} hands over device times that kdiff does not know" in device.said[0]


def test_batches_of_every_block() -> None:
    both = name(7, b"_Z2k2Pf") + name(8, b"k1", whole=0)
    records = np.concatenate(
        [
            handed(Block.NAMES, both, 2, window=0, sequence=5),
            handed(Block.EXECUTIONS, executions(np.arange(3)).tobytes(), 3, window=9),
        ]
    )
    names, ran = decode(records)
    assert isinstance(names, Batch)
    assert isinstance(ran, Batch)
    assert (names.pid, names.sequence, names.names) == (PID, 5, (Name(7, b"_Z2k2Pf", True), Name(8, b"k1", False)))
    assert (ran.window, ran.block, ran.records["correlation"].tolist()) == (9, Block.EXECUTIONS, [0, 1, 2])


def test_memory_of_a_process_is_bounded() -> None:
    process = DeviceProcess(PID)
    rows = executions(np.arange(186))
    for number in range(MOST_EXECUTIONS // 186 + 20):
        process.feed(Batch(PID, NOW, number, 1, Block.EXECUTIONS, rows), 0.0)
    assert process.held <= MOST_EXECUTIONS
    assert process.windows[1].refused > 0
    assert process.windows[1].received == (MOST_EXECUTIONS // 186 + 20) * 186
    for number in range(200_000):
        process.feed(Batch(PID, NOW, 0, 0, Block.NAMES, rows[:0], (Name(number, b"x" * 1000, True),)), 0.0)
        process.feed(Batch(PID, NOW, 0, number, Block.EXECUTIONS, rows[:1]), 0.0)
    assert sum(len(kept.mangled) for kept in process.names.values()) <= 16 << 20
    assert len(process.windows) <= 16
    for number in range(200_000):
        process.feed(Batch(PID, NOW, 0, 0, Block.NAMES, rows[:0], (Name(1, b"x" * (number % 1000), True),)), 0.0)
    assert process.name_bytes == sum(len(kept.mangled) for kept in process.names.values())


# Windows


@pytest.mark.parametrize("drift", [0.0, 2e-5, -2e-5])
def test_times_are_moved_to_the_hosts_clock(drift: float) -> None:
    device = Device()
    put(device, Block.NAMES, name(3, b"_Z2k2Pf"), window=0)
    put(device, Block.DEVICES, np.array([(1, 0, np.arange(16))], DEVICE), window=0)
    at = np.arange(0, SECOND, 7_654_321)
    put(
        device,
        Block.EXECUTIONS,
        executions(np.rint(at * (1 + drift)).astype(np.int64), name=3, device=1),
        at=NOW + SECOND,
    )
    put(
        device,
        Block.WINDOW,
        window(drift=drift, executions=len(at), error_ns=31, inside_ns=5_000, skipped=2),
        at=NOW + SECOND,
    )
    table, windows = device.rows()
    assert table is not None
    unix = table["timestamp_ns"].to_numpy() - unix_offset_ns() - NOW
    assert np.abs(unix - at).max() < 5_000  # what the offset may have moved since
    assert (np.abs(np.diff(unix) - np.diff(at)) <= 2).mean() > 0.97  # but for seconds that begin
    assert set(table["duration_ns"].to_pylist()) == {1_000}
    assert set(table["kernel_name"].to_pylist()) == {"k2(float*)"}
    assert set(table["kernel_id"].to_pylist()) == {Kernel("_Z2k2Pf", "", "").id}
    assert set(table["gpu_uuid"].to_pylist()) == {"GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"}
    assert set(table["queue_ns"].to_pylist()) == {0}
    raw = table["timestamp_ns"].to_numpy() - table["clock_offset_ns"].to_numpy() - NOW
    assert np.abs(raw - at).max() <= 2  # the rounding of the two clocks
    assert set(table["boot_id"].to_pylist()) == {"boot"}
    (row,) = windows
    assert int(row["from_ns"]) - int(row.pop("clock_offset_ns")) == NOW
    assert abs(int(row.pop("to_ns")) - int(row.pop("from_ns")) - SECOND) < 5_000
    assert row == {
        "service": "service", "host": "host", "pid": PID, "container_id": "container", "executions": len(at),
        "uncollected": 0, "dropped": 0, "lost": 0, "clock_error_ns": 31, "inside_ns": 5_000, "ended": "duration",
        "skipped": 2, "boot_id": "boot",
    }  # fmt: skip
    assert (device.summary.executions, device.summary.windows, device.summary.skipped) == (len(at), 1, 2)


def test_what_makes_no_sense_is_counted_not_written() -> None:
    process = DeviceProcess(PID)
    rows = executions(np.array([5, 5, 5, 5, 5, -60 * SECOND, 60 * SECOND, 5]))
    rows["end"][1] = rows["start"][1]
    rows["end"][2] = rows["start"][2] - np.uint64(1)
    rows["start"][3] = 0
    rows["end"][4] = 2**64 - 1
    process.feed(Batch(PID, NOW, 1, 1, Block.EXECUTIONS, rows), 0.0)
    process.feed(Batch(PID, NOW + SECOND, 2, 1, Block.WINDOW, np.frombuffer(window(), WINDOW)), 0.0)
    (only,) = process.finished(10.0, ended=False)
    of_window = timed(only)
    assert of_window.executions["correlation"].tolist() == [0, 7]
    assert of_window.senseless == 6
    assert of_window.start_ns.tolist() == [NOW + 5, NOW + 5]


def test_a_window_waits_a_second_and_then_no_more_comes() -> None:
    process = DeviceProcess(PID)
    process.feed(Batch(PID, NOW, 1, 1, Block.EXECUTIONS, executions(np.arange(3))), 0.0)
    process.feed(Batch(PID, NOW + SECOND, 2, 1, Block.WINDOW, np.frombuffer(window(), WINDOW)), 5.0)
    assert process.finished(5.9, ended=False) == []
    assert [w.number for w in process.finished(6.0, ended=False)] == [1]
    process.feed(Batch(PID, NOW + SECOND, 3, 1, Block.EXECUTIONS, executions(np.arange(3))), 7.0)
    assert process.windows == {}
    assert process.foreign == 1
    assert process.held == 0


def test_exec_begins_anew() -> None:
    """The pid stays, sequences, windows and names are numbered from 1 again."""
    device = Device()
    for first, mangled in ((11, b"before"), (1, b"after")):
        put(device, Block.NAMES, name(1, mangled), sequence=first)
        put(device, Block.EXECUTIONS, executions(np.full(3, SECOND), name=1), window=7, sequence=first + 1)
        put(device, Block.WINDOW, window(), at=NOW + SECOND, window=7, sequence=first + 2)
    rows, windows = device.rows()
    assert rows is not None
    assert rows["kernel_name"].to_pylist() == ["before"] * 3 + ["after"] * 3
    assert len(windows) == 2
    assert device.summary.foreign == 0


def test_windows_that_follow_each_other_quickly() -> None:
    """A window every 10 ms: a hundred wait for their second, and none is foreign."""
    process = DeviceProcess(PID)
    for number in range(1, 308):
        now, at = number / 100, NOW + number * SECOND // 100
        opened, closed = window(False, at, SECOND // 200), window(True, at, SECOND // 200)
        process.feed(Batch(PID, at, 3 * number, number, Block.WINDOW, np.frombuffer(opened, WINDOW)), now)
        process.feed(Batch(PID, at, 3 * number + 1, number, Block.EXECUTIONS, executions(np.arange(3))), now)
        process.feed(Batch(PID, at + SECOND, 3 * number + 2, number, Block.WINDOW, np.frombuffer(closed, WINDOW)), now)
    assert (process.foreign, process.held) == (0, 3 * 307)
    assert [w.number for w in process.finished(3.0, ended=False)] == list(range(1, 201))
    assert len(process.finished(4.5, ended=False)) == 107


@pytest.mark.parametrize(("ended", "why"), [(True, "exit"), (False, "unheard")])
def test_a_window_without_its_end(ended: bool, why: str) -> None:
    """A killed program, or a recording that is over: by the opening clock alone."""
    device = Device()
    put(device, Block.WINDOW, window(closed=False))
    put(device, Block.EXECUTIONS, executions(np.arange(0, 700, 100)), at=NOW + SECOND // 2)
    device.lost(11)
    if ended:
        device.ended(PID)
    table, (row,) = device.rows()
    assert table is not None
    assert len(table) == 7
    assert row["ended"] == why
    assert row["lost"] == 11
    assert int(row["to_ns"]) - int(row["from_ns"]) == pytest.approx(SECOND // 2, abs=5_000)


class Renamed(Device):
    """Whose process is another service whenever it is asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []
        super().__init__()

    def place(self, pid: int, monotonic_ns: int) -> Place:
        self.asked.append((pid, monotonic_ns))
        return Place(f"s{len(self.asked)}", "host", "", "")


def test_a_window_is_of_the_service_that_its_process_was_when_it_opened() -> None:
    device = Renamed()
    for number in (1, 2):
        put(device, Block.EXECUTIONS, executions(np.arange(3)), window=number)
        put(device, Block.WINDOW, window(opened=NOW + number, executions=3), window=number, at=NOW + 3 * SECOND)
    table, windows = device.rows()
    assert table is not None
    assert table["service"].to_pylist() == ["s1"] * 3 + ["s2"] * 3
    assert [row["service"] for row in windows] == ["s1", "s2"]
    assert device.asked == [(PID, NOW + 1), (PID, NOW + 2)]
    assert device.asked == [(PID, int(row["from_ns"]) - int(row["clock_offset_ns"])) for row in windows]


def test_without_any_window_record_there_is_no_row() -> None:
    device = Device()
    put(device, Block.EXECUTIONS, executions(np.arange(3)))
    assert device.rows() == (None, [])
    assert device.summary.lost == 3


def test_what_is_missing_of_a_window_is_lost_as_far_as_the_ring_has_lost_it() -> None:
    device = Device()
    for number, claimed in ((1, 10), (2, 2**63), (3, 5)):
        put(device, Block.EXECUTIONS, executions(np.arange(3)), window=number)
        put(device, Block.WINDOW, window(executions=claimed), window=number, at=NOW + SECOND)
    device.lost(11)
    _, windows = device.rows()
    assert [row["lost"] for row in windows] == [7, 4, 0]
    assert device.summary.lost == 11


def test_what_the_ring_lost_of_one_process_is_no_loss_of_another() -> None:
    device = Device()
    for number in (1, 2):
        put(device, Block.EXECUTIONS, executions(np.arange(3)), window=number)
        put(device, Block.WINDOW, window(executions=10), window=number, at=NOW + SECOND)
    device.lost(100, PID + 1)
    device.lost(5, PID)
    device.lost(3)  # of any
    _, windows = device.rows()
    assert [row["lost"] for row in windows] == [7, 1]
    device.ended(PID + 1)  # without a window that would say so: it may have been anybody's
    put(device, Block.WINDOW, window(executions=10), window=3, at=NOW + SECOND)
    assert [row["lost"] for row in device.rows()[1]] == [10]
    assert device.summary.lost == 108


def test_why_there_is_none_is_said_once_a_state() -> None:
    device = Device()
    for state, text in (
        (State.BUSY, b"another\x1buser"),
        (State.BUSY, b"again"),
        (State.WORKING, b""),
        (State.OFF, b"no"),
    ):
        put(device, Block.STATE, np.array([(state, 5, text)], STATE), window=0)
    device.rows()
    assert device.said == [f"device time of process {PID}: another?user", f"device time of process {PID}: no"]
    assert device.summary.skipped == 5


def test_names() -> None:
    assert kernel_of(Name(1, b"_Z2k2Pf", True)) == Kernel("_Z2k2Pf", "k2(float*)", "device")
    assert kernel_of(None).name == "unresolved:unknown"
    assert kernel_of(Name(1, b"not a name", True)).name == "unresolved:unknown"
    cut, other = kernel_of(Name(1, b"_Z" + b"a" * 900, False)), kernel_of(Name(1, b"_Z" + b"b" * 900, False))
    assert cut.name.startswith("unresolved:cut-name+")
    assert cut != other
    assert not cut.resolved


# The clock


def test_a_time_has_one_unix_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = UnixClock()
    now = time.monotonic_ns()
    times = np.arange(now - 20 * SECOND, now, 123_456_789)
    first = clock.unix(times)
    assert np.abs(first - times - unix_offset_ns()).max() < 100_000
    monkeypatch.setattr("kdiff.agent.clock.unix_offset_ns", lambda: 7)  # the wall clock is set
    assert (clock.unix(times) == first).all()
    assert [clock.unix(times[i : i + 1])[0] for i in range(0, len(times), 9)] == first[::9].tolist()
    assert clock.span(int(times[3]), int(times[4])) == (first[3], first[4])
    far = np.array([0, 2**62], np.int64)
    assert (clock.unix(far) - far).tolist() == [7, 7]
    assert len(clock.unix(times[:0])) == 0


# The option


@pytest.mark.parametrize(
    ("text", "listen", "load", "setting"),
    [
        ("", True, False, ""),
        ("off", False, False, ""),
        ("on", True, True, ""),
        ("always", True, True, "always"),
        ("1s/10s", True, True, "1000/10000"),
        ("200ms/2s", True, True, "200/2000"),
        ("1s/1s", True, True, "1000/1000"),
    ],
)
def test_what_device_time_may_be(text: str, listen: bool, load: bool, setting: str) -> None:
    assert DeviceOption.parse(text) == DeviceOption(listen, load, setting)


@pytest.mark.parametrize("text", ["yes", "1/10", "2s/1s", "0s/1s", "1s/100000s", "1s/10s ", "-1s/1s", "1.5s/10s"])
def test_what_device_time_may_not_be(text: str) -> None:
    with pytest.raises(ValueError, match="is not off, on, always or WINDOW/PERIOD like 1s/10s"):
        DeviceOption.parse(text)


def test_the_environment_of_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = tmp_path / "libkdiff-device.so"
    mine.touch()
    monkeypatch.setenv("KDIFF_DEVICE_LIBRARY", str(mine))
    said: list[str] = []
    on, dense = DeviceOption.parse("on"), DeviceOption.parse("200ms/2s")
    assert DeviceOption.parse("").environment({"A": "b"}, said.append) == {"A": "b"}
    assert on.environment({}, said.append) == {"CUDA_INJECTION64_PATH": str(mine)}
    assert on.environment({"KDIFF_DEVICE_TIME": "off"}, said.append) == {"CUDA_INJECTION64_PATH": str(mine)}
    kept = {"KDIFF_DEVICE_TIME": "500/5000", "CUDA_INJECTION64_PATH": "/opt/libkdiff-device.so"}
    assert on.environment(kept, said.append) == kept
    asked = {**kept, "KDIFF_DEVICE_TIME": "200/2000", "KDIFF_DEVICE_BUDGET": "none"}
    assert dense.environment(kept, said.append) == asked
    bounded = {**kept, "KDIFF_DEVICE_BUDGET": "2%"}
    assert dense.environment(bounded, said.append) == {**asked, "KDIFF_DEVICE_BUDGET": "2%"}
    assert said == []
    other = {"CUDA_INJECTION64_PATH": "/opt/nsys/libToolsInjection64.so"}
    assert dense.environment(other, said.append) == other
    assert len(said) == 1
    monkeypatch.setenv("KDIFF_DEVICE_LIBRARY", str(tmp_path / "none"))
    with pytest.raises(AgentError, match="is no file"):
        on.environment({}, said.append)


# The file


def test_where_a_function_and_a_variable_are(tmp_path: Path) -> None:
    source, built = tmp_path / "l.c", tmp_path / "l.so"
    source.write_text(
        'unsigned short kept __attribute__((section(".data"))) = 0x1234, zero;\n'
        "int called(void) { return 42; }\nint absent(void);\nint user(void) { return absent(); }\n"
    )
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", built, source], check=True)
    data = built.read_bytes()
    with open_elf(str(built)) as elf:
        found = elf.function_and_data("called", "kept")
        assert elf.function_and_data("absent", "kept") is None
        assert elf.function_and_data("called", "zero") is None, "it is in no file"
        assert elf.function_and_data("kept", "called") is None
    assert found is not None
    assert data[found[1] : found[1] + 2] == b"\x34\x12"
    assert b"\x2a\0\0\0" in data[found[0] : found[0] + 16]
    assert os.path.getsize(built) > max(found)


def test_a_copy_of_the_library_for_an_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = tmp_path / "built.so"
    built.write_bytes(b"\x7fELF")
    monkeypatch.setenv("KDIFF_DEVICE_LIBRARY", str(built))
    image = tmp_path / "image"
    image.mkdir()
    assert provide_library() == built
    assert provide_library(image) == image / "libkdiff-device.so"
    assert provide_library(image / "my-kdiff-device.so").read_bytes() == built.read_bytes()
    assert sorted(path.name for path in image.iterdir()) == ["libkdiff-device.so", "my-kdiff-device.so"]
    with pytest.raises(AgentError, match="keep kdiff-device in the file's name"):
        provide_library(image / "other.so")
    with pytest.raises(AgentError, match=r"cannot be written .*: name another file with -o"):
        provide_library(tmp_path / "none" / "libkdiff-device.so")
    monkeypatch.setenv("KDIFF_DEVICE_LIBRARY", str(tmp_path / "gone"))
    with pytest.raises(AgentError, match="name a built"):
        provide_library()
