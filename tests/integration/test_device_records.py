"""The agent's probe on the device library's function: a program that says anything, through real probes to rows."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from recording import Recording, agent_command

from kdiff.agent.recorder import Recorder
from kdiff.probes.device_wire import (
    BATCH,
    BATCH_BYTES,
    EXECUTION,
    NAME_HEADER,
    STATE,
    VERSION,
    WINDOW,
    Block,
    Ended,
    State,
)

pytestmark = pytest.mark.ebpf

LIBRARY = r"""
#include <stdint.h>
__attribute__((section(".data"))) volatile uint16_t kdiff_device_listeners = 0;
__attribute__((noinline)) void kdiff_device_batch(const void *batch, uint32_t bytes, uint32_t executions)
{
    __asm__ volatile("" : : "r"(batch), "r"(bytes), "r"(executions) : "memory");
}
"""
# Each line of its input is a file of calls to make, or a number of forks, or nothing; it answers with the count.
PROGRAM = r"""
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>
struct call { uint64_t null; uint32_t bytes, executions, stored, padding; };
static void (*hand_over)(const void *, uint32_t, uint32_t);
static void *make_calls(void *path)
{
    FILE *file = fopen(path, "rb");
    struct call call;
    while (file && fread(&call, sizeof call, 1, file) == 1) {
        char *data = malloc(call.stored + 65536);
        if (fread(data, 1, call.stored, file) != call.stored)
            exit(3);
        hand_over(call.null ? 0 : data, call.bytes, call.executions);
        free(data);
    }
    if (file)
        fclose(file);
    return NULL;
}
int main(int count, char **arguments)
{
    void *library = dlopen(arguments[1], RTLD_NOW);
    volatile uint16_t *listeners = dlsym(library, "kdiff_device_listeners");
    hand_over = (void (*)(const void *, uint32_t, uint32_t))dlsym(library, "kdiff_device_batch");
    char line[4096];
    printf("%d\n", *listeners);
    fflush(stdout);
    while (count == 2 && fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        pthread_t thread; /* the library's own is not the program's first either */
        pthread_create(&thread, NULL, make_calls, line);
        pthread_join(thread, NULL);
        if (strcmp(line, "fork") == 0 && fork() == 0) {
            sleep(1);
            _exit(*listeners);
        } else if (strcmp(line, "fork") == 0) {
            int status;
            wait(&status);
            printf("%d\n", WEXITSTATUS(status));
        } else
            printf("%d\n", *listeners);
        fflush(stdout);
    }
    return 0;
}
"""


# Linux before 6.6 has no link that attaches to many places.
OLD_KERNEL = """
from functools import partial
from kdiff.agent import recorder
from kdiff.agent.cli import main
recorder.Program = partial(recorder.Program, multi=False)
main()
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The program and the library."""
    directory = tmp_path_factory.mktemp("double")
    made = []
    for name, source, flags in (
        ("program", PROGRAM, ["-pthread"]),
        ("libkdiff-device-double.so", LIBRARY, ["-shared", "-fPIC"]),
    ):
        (directory / f"{name}.c").write_text(source)
        made.append(directory / name)
        command = ["gcc", "-O1", "-D_GNU_SOURCE", *flags, "-o", directory / name, directory / f"{name}.c", "-ldl"]
        subprocess.run(command, check=True)
    return made[0], made[1]


class Program:
    """A process that maps the library and makes calls when told."""

    def __init__(self, built: tuple[Path, Path]) -> None:
        self.process = subprocess.Popen(built, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._answer() == 0
        self.pid = self.process.pid

    def _answer(self) -> int:
        assert self.process.stdout
        return int(self.process.stdout.readline())

    def tell(self, what: str | Path = "") -> int:
        """How many probes are on the function then."""
        assert self.process.stdin
        self.process.stdin.write(f"{what}\n")
        self.process.stdin.flush()
        return self._answer()

    def heard(self, count: int = 1) -> None:
        """Waits until so many listen."""
        until = time.monotonic() + 20
        while self.tell() != count:
            assert time.monotonic() < until
            time.sleep(0.02)

    def end(self) -> None:
        """Lets it end by itself."""
        assert self.process.stdin
        self.process.stdin.close()
        assert self.process.wait(20) == 0


@pytest.fixture
def programs(built: tuple[Path, Path]) -> Iterator[list[Program]]:
    """Three of them."""
    started = [Program(built) for _ in range(3)]
    yield started
    for program in started:
        program.process.kill()
        program.process.wait()
        assert program.process.stdin
        assert program.process.stdout
        program.process.stdin.close()
        program.process.stdout.close()


class Calls:
    """A file of calls."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("wb")
        self.sequence = 0
        self.now = time.monotonic_ns()

    def call(self, data: bytes, bytes_said: int | None = None, executions: int = 0, *, null: bool = False) -> None:
        said = len(data) if bytes_said is None else bytes_said
        self._file.write(struct.pack("=QIIII", null, said, executions, len(data), 0) + data)

    def batch(self, block: Block, records: NDArray[np.void] | bytes, window: int = 0) -> None:
        data = records if isinstance(records, bytes) else records.tobytes()
        count = 1 if isinstance(records, bytes) else len(records)
        self.sequence += 1
        head = np.array([(self.sequence, window, VERSION, block, count, BATCH.itemsize + len(data))], BATCH)
        self.call(head.tobytes() + data, executions=count if block is Block.EXECUTIONS else 0)

    def name(self, number: int, mangled: bytes) -> None:
        head = np.array([(number, len(mangled), 1, 0)], NAME_HEADER)
        self.batch(Block.NAMES, head.tobytes() + mangled + b"\0" * (-len(mangled) % 8))

    def executions(self, count: int, window: int, name: int = 1) -> None:
        most = (BATCH_BYTES - BATCH.itemsize) // EXECUTION.itemsize
        for first in range(0, count, most):
            rows = np.zeros(min(most, count - first), EXECUTION)
            rows["start"] = 10**18 + np.arange(first, first + len(rows))
            rows["end"] = rows["start"] + 5
            rows["correlation"] = np.arange(first, first + len(rows))
            rows["name"] = name
            self.batch(Block.EXECUTIONS, rows, window)

    def window(self, window: int, handed: int | None = None, **fields: int) -> None:
        record = np.zeros(1, WINDOW)
        record["opened_ns"] = record["host_open_ns"] = self.now
        record["device_open_ns"] = 10**18
        if handed is not None:
            record["closed_ns"] = record["host_close_ns"] = self.now + 1000
            record["device_close_ns"] = 10**18 + 1000
            record["executions"], record["ended"] = handed, Ended.DURATION
        for name, value in fields.items():
            record[name] = value
        self.batch(Block.WINDOW, record, window)

    def done(self) -> Path:
        self._file.close()
        return self.path


class Agent:
    """A recording of running processes."""

    def __init__(self, directory: Path, *options: str | Path, old_kernel: bool = False) -> None:
        self.directory = directory
        command = agent_command(directory, *options)
        if old_kernel:
            command = [sys.executable, "-c", OLD_KERNEL, *command[1:]]
        self.process = subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, env={**os.environ, "KDIFF_DEBUG": "1"}
        )

    def end(self) -> Recording:
        self.process.send_signal(signal.SIGINT)
        return self.wait()

    def wait(self) -> Recording:
        _, stderr = self.process.communicate(timeout=60)
        return Recording(self.directory, self.process.returncode, stderr)


def pids(*programs: Program) -> list[str]:
    return [word for program in programs for word in ("--pid", str(program.pid))]


@pytest.mark.parametrize("old_kernel", [False, True])
def test_of_two_processes_every_execution_is_a_row_and_a_third_is_not_heard(
    tmp_path: Path, programs: list[Program], old_kernel: bool
) -> None:
    one, two, other = programs
    agent = Agent(tmp_path / "capture", *pids(one, two), old_kernel=old_kernel)
    one.heard()
    two.heard()
    time.sleep(0.3)  # an older kernel counts the probe before its program is there
    assert other.tell() == 0
    for program, count, mangled in ((one, 10_007, b"_Z2k2Pf"), (two, 5_003, b"k1"), (other, 101, b"other")):
        calls = Calls(tmp_path / str(program.pid))
        calls.name(1, mangled)
        calls.window(1)
        calls.executions(count, 1)
        calls.window(1, count, skipped=3)
        program.tell(calls.done())
    assert other.tell() == 0
    recording = agent.end()
    assert recording.status == 0, recording.stderr
    rows = recording.table("kernel_executions")
    counts = rows.groupby(["pid", "kernel_name"]).size().to_dict()
    assert counts == {(one.pid, "k2(float*)"): 10_007, (two.pid, "k1"): 5_003}
    for program, count in ((one, 10_007), (two, 5_003)):
        own = rows[rows.pid == program.pid].sort_values("timestamp_ns")
        assert (np.diff(own.timestamp_ns) == 1).all()
        assert len(own) == count
    windows = recording.table("device_windows").set_index("pid")
    assert windows.executions.to_dict() == {one.pid: 10_007, two.pid: 5_003}
    assert windows.lost.tolist() == windows.uncollected.tolist() == [0, 0]
    assert windows.ended.tolist() == ["duration"] * 2
    assert "15,010 executions in 2 windows · 6 skipped · 0 lost" in recording.stderr
    assert set(recording.table("kernels").name_source) == {"device"}
    for program in programs:
        program.heard(0)


def test_what_the_ring_has_no_room_for_is_counted_to_the_last(tmp_path: Path, programs: list[Program]) -> None:
    program, total = programs[0], 400_009
    agent = Agent(tmp_path / "capture", *pids(program))
    program.heard()
    calls, closing = Calls(tmp_path / "calls"), Calls(tmp_path / "closing")
    calls.name(1, b"k1")
    calls.window(1)
    calls.executions(total, 1)
    closing.now, closing.sequence = calls.now, calls.sequence
    closing.window(1, total)
    agent.process.send_signal(signal.SIGSTOP)
    program.tell(calls.done())
    agent.process.send_signal(signal.SIGCONT)
    time.sleep(0.5)
    program.tell(closing.done())
    recording = agent.end()
    (window,) = recording.table("device_windows").to_dict("records")
    rows = len(recording.table("kernel_executions"))
    assert 150_000 < rows < 200_000
    assert window["executions"] == rows
    assert window["lost"] == total - rows
    assert recording.lost == 0, "the host lost nothing"
    assert f"{total - rows:,} lost" in recording.stderr


def test_hostile_calls_change_nothing(tmp_path: Path, programs: list[Program]) -> None:
    program, other = programs[:2]
    agent = Agent(tmp_path / "capture", *pids(program, other))
    program.heard()
    other.heard()
    random = np.random.default_rng(11)
    calls = Calls(tmp_path / "calls")
    calls.call(b"", 2**32 - 1, 2**32 - 1, null=True)
    calls.call(b"", 16_384, 7, null=True)
    calls.call(b"", 0, 2**32 - 1)
    calls.call(random.bytes(40_000), 40_000, 3)
    for size in (1, 31, 32, 33, 500, BATCH_BYTES - 1, BATCH_BYTES, BATCH_BYTES + 1):
        for _ in range(50):
            calls.call(random.bytes(size), executions=int(random.integers(0, 2**32)))
    calls.window(2**63, 2**64 - 1, opened_ns=2**64 - 1)
    calls.window(
        1, 0, executions=2**64 - 1, uncollected=2**64 - 1, dropped=2**64 - 1, inside_ns=2**64 - 1, error_ns=2**64 - 1
    )
    calls.executions(13, 1)
    program.tell(calls.done())
    honest = Calls(tmp_path / "honest")
    honest.name(1, b"k1")
    honest.executions(1_009, 1)
    honest.window(1, 1_009)
    other.tell(honest.done())
    recording = agent.end()
    assert recording.status == 0, recording.stderr
    rows = recording.table("kernel_executions")
    assert (rows.pid == other.pid).sum() == 1_009
    assert (rows.pid == program.pid).sum() == 13
    assert set(rows[rows.pid == program.pid].kernel_name) == {"unresolved:unknown"}
    said = [line for line in recording.stderr.splitlines() if "that kdiff does not know" in line]
    assert len(said) == 1
    assert f"process {program.pid}" in said[0]


def test_a_program_that_is_killed_in_a_window(tmp_path: Path, programs: list[Program]) -> None:
    program, other = programs[:2]
    agent = Agent(tmp_path / "capture", *pids(program, other))
    program.heard()
    calls = Calls(tmp_path / "calls")
    calls.name(1, b"k1")
    calls.window(4)
    calls.executions(907, 4)
    program.tell(calls.done())
    program.process.kill()
    program.process.wait()
    time.sleep(5)
    recording = agent.end()
    assert recording.status == 0, recording.stderr
    assert len(recording.table("kernel_executions")) == 907
    (window,) = recording.table("device_windows").to_dict("records")
    assert (window["executions"], window["ended"], window["lost"]) == (907, "exit", 0)
    assert window["to_ns"] > window["from_ns"]


def test_an_agent_that_is_killed_listens_no_more(tmp_path: Path, programs: list[Program]) -> None:
    program = programs[0]
    agent = Agent(tmp_path / "capture", *pids(program))
    program.heard()
    assert program.tell("fork") == 1, "a child has a copy of the count"
    agent.process.kill()
    agent.process.communicate()
    program.heard(0)
    program.end()


def test_of_two_agents_one_that_leaves_does_not_silence_the_other(tmp_path: Path, programs: list[Program]) -> None:
    program = programs[0]
    first, second = (Agent(tmp_path / name, *pids(program)) for name in ("first", "second"))
    for agent in (first, second):
        assert agent.process.stderr
        assert "recording" in agent.process.stderr.readline()
    assert program.tell() == 1
    first.process.kill()
    first.process.communicate()
    calls = Calls(tmp_path / "calls")
    calls.window(1)
    calls.executions(503, 1)
    calls.window(1, 503)
    assert program.tell(calls.done()) == 1
    assert len(second.end().table("kernel_executions")) == 503
    program.heard(0)


def test_off_listens_to_nobody(tmp_path: Path, programs: list[Program]) -> None:
    agent = Agent(tmp_path / "capture", "--device-time", "off", "--duration", "3", *pids(programs[0]))
    counts = {programs[0].tell()}
    while agent.process.poll() is None:
        counts.add(programs[0].tell())
        time.sleep(0.05)
    assert agent.wait().status == 0
    assert counts == {0}


def test_a_library_that_is_mapped_later(tmp_path: Path, built: tuple[Path, Path]) -> None:
    """A command, which the agent has begun to watch before it maps anything."""
    calls = Calls(tmp_path / "calls")
    calls.name(1, b"k1")
    calls.window(1)
    calls.executions(211, 1)
    calls.window(1, 211)
    calls.done()
    command = agent_command(tmp_path / "capture", command=[str(built[0]), str(built[1])])
    agent = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    time.sleep(3)
    out, err = agent.communicate(f"{calls.path}\n", timeout=60)
    assert out.split() == ["0", "1"]
    assert "211 executions in 1 windows" in err


def test_why_there_is_no_device_time_is_said(tmp_path: Path, programs: list[Program]) -> None:
    program = programs[0]
    agent = Agent(tmp_path / "capture", *pids(program))
    program.heard()
    calls = Calls(tmp_path / "calls")
    for _ in range(2):
        calls.batch(Block.STATE, np.array([(State.BUSY, 17, b"another user of CUPTI has it")], STATE))
    program.tell(calls.done())
    recording = agent.end()
    assert recording.stderr.count(f"device time of process {program.pid}: another user of CUPTI has it") == 1
    assert "0 executions in 0 windows · 17 skipped" in recording.stderr


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of BCC
def test_a_process_is_left_alone_for_a_while_and_heard_again(
    tmp_path: Path, programs: list[Program], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the guard does it."""
    from kdiff.agent.recording import Options

    program = programs[0]
    recorder = Recorder(
        Options(tmp_path / "capture", pids=frozenset({program.pid}), duration_s=9.0), lambda _: None, lambda _: None
    )
    counts: list[tuple[float, int]] = []
    began = time.monotonic()

    def look() -> None:
        silenced = False
        while time.monotonic() < began + 8:
            counts.append((time.monotonic() - began, program.tell()))
            if counts[-1][1] and not silenced:
                recorder._listener.silence(program.pid, time.monotonic() + 2)
                silenced = True
            time.sleep(0.05)

    thread = threading.Thread(target=look)
    thread.start()
    recorder.run()
    thread.join()
    seen = [count for _, count in counts]
    first = seen.index(1)
    silent = seen.index(0, first)
    again = seen.index(1, silent)
    assert counts[silent][0] - counts[first][0] < 1
    assert counts[again][0] - counts[silent][0] > 1.5
