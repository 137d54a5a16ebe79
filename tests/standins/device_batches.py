"""Runs the workload with the device library in it, and reads what the library hands over, without an agent."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from kdiff.probes.device_library import library
from kdiff.probes.device_wire import BATCH, DEVICE, EXECUTION, NAME_HEADER, STATE, VERSION, WINDOW, Block, State
from standins.standins import Call, Records, Truth, Workload, build, cupti_ns, load_calls, load_truth, workload

T = TypeVar("T")


@dataclass(frozen=True)
class Batches:
    """All that one process handed over, in order; each array has the `window` and `sequence` of its batch beside it."""

    sequences: list[int]
    claimed: int  # executions, as the calls said
    executions: Records
    execution_windows: Records
    windows: Records  # as they ended
    window_numbers: Records
    opened: list[int]  # numbers of the windows that opened
    names: dict[int, str]
    devices: dict[int, bytes]
    states: list[tuple[State, str]]


def load_batches(sink: Path) -> Batches:
    """Read a listener's file; raises ValueError where a batch is not as device_wire has it."""
    raw = sink.read_bytes() if sink.exists() else b""
    sequences, claimed, opened = [], 0, []
    executions, execution_windows, windows, numbers = [], [], [], []
    names: dict[int, str] = {}
    devices: dict[int, bytes] = {}
    states: list[tuple[State, str]] = []
    at = 0
    while at < len(raw):
        length, said = np.frombuffer(raw, "<u4", 2, at)
        body = raw[at + 8 : at + 8 + int(length)]
        at += 8 + int(length)
        head = np.frombuffer(body, BATCH, 1)[0]
        if head["version"] != VERSION or head["bytes"] != length or len(body) != length:
            raise ValueError(f"a batch of {length} bytes that says: {head}")
        sequences.append(int(head["sequence"]))
        claimed += int(said)
        count, after = int(head["count"]), BATCH.itemsize
        block = Block(int(head["block"]))
        if block != Block.NAMES:
            kind = {
                Block.EXECUTIONS: EXECUTION,
                Block.WINDOW: WINDOW,
                Block.DEVICES: DEVICE,
                Block.STATE: STATE,
            }[block]
            if after + count * kind.itemsize != length:
                raise ValueError(f"{count} records of {block.name} in {length} bytes")
            records = np.frombuffer(body, kind, count, after)
        if block == Block.EXECUTIONS:
            if said != count:
                raise ValueError(f"the call said {said} executions, its batch {count}")
            executions.append(records)
            execution_windows.append(np.full(count, head["window"]))
        elif block == Block.WINDOW:
            for window in records:
                if window["closed_ns"] == 0:
                    opened.append(int(head["window"]))
                else:
                    windows.append(window)
                    numbers.append(int(head["window"]))
        elif block == Block.DEVICES:
            devices.update({int(r["number"]): r["uuid"].tobytes() for r in records})
        elif block == Block.STATE:
            states += [(State(int(r["state"])), r["text"].decode()) for r in records]
        else:
            for _ in range(count):
                name = np.frombuffer(body, NAME_HEADER, 1, after)[0]
                after += NAME_HEADER.itemsize
                names[int(name["number"])] = body[after : after + int(name["length"])].decode()
                after += -(-int(name["length"]) // 8) * 8
    return Batches(
        sequences=sequences,
        claimed=claimed,
        executions=np.concatenate(executions) if executions else np.zeros(0, EXECUTION),
        execution_windows=np.concatenate(execution_windows) if execution_windows else np.zeros(0, "u8"),
        windows=np.array(windows, WINDOW),
        window_numbers=np.array(numbers, "u8"),
        opened=opened,
        names=names,
        devices=devices,
        states=states,
    )


@dataclass(frozen=True)
class Run:
    """A run of the workload with the device library in it."""

    status: int
    stdout: str
    stderr: str
    directory: Path

    @cached_property
    def rate(self) -> dict[str, Any]:
        """What the workload counted."""
        rate: dict[str, Any] = json.loads(self.stdout)
        return rate

    @cached_property
    def truth(self) -> Truth:
        """What happened in the driver."""
        return load_truth(self.directory / "truth")

    @cached_property
    def batches(self) -> Batches:
        """What the library handed over."""
        return load_batches(self.directory / "sink")

    @cached_property
    def calls(self) -> list[Call]:
        """The calls of CUPTI."""
        return load_calls(self.directory / "calls")


def traced(directory: Path, *args: str | float | Path, env: Mapping[str, str] | None = None) -> Workload:
    """Describe a run with a listener in it; `env` has the settings of the library and of the stand-ins."""
    standins = build()
    settings = {
        "LD_LIBRARY_PATH": str(standins.build),
        "CUDA_INJECTION64_PATH": str(standins.listener),
        "KDIFF_STANDIN_LISTEN_LIBRARY": str(library()),
        "KDIFF_STANDIN_LISTEN_SINK": str(directory / "sink"),
        "KDIFF_STANDIN_CUPTI_LOG": str(directory / "calls"),
        "KDIFF_STANDIN_CUPTI_STRICT": "1",
        "KDIFF_DEVICE_SETTLE": "0",
        "KDIFF_STANDIN_TRUTH_RECORDS": str(1 << 20),
        **(env or {}),
    }
    directory.mkdir(parents=True, exist_ok=True)
    return workload(*args, truth=directory / "truth", env=settings)


def run_traced(
    directory: Path,
    *args: str | float | Path,
    env: Mapping[str, str] | None = None,
    timeout: float = 30,
    in_window: bool = False,
) -> Run:
    """Run it to its end. `in_window`: launch nothing before the first window has opened."""
    if in_window:
        args = (*args, "--go-file", directory / "go")
        env = {**(env or {}), "KDIFF_STANDIN_LISTEN_GO": str(directory / "go")}
    described = traced(directory, *args, env=env)
    done = subprocess.run(
        described.command, env=described.env, capture_output=True, text=True, timeout=timeout, check=False
    )
    return Run(done.returncode, done.stdout, done.stderr, directory)


# ---- what tests share ----

DENSE = {"KDIFF_DEVICE_TIME": "40/100", "KDIFF_DEVICE_BUDGET": "none"}
ALWAYS = {"KDIFF_DEVICE_TIME": "always"}


def by_call(records: Records, field: str = "correlation") -> Records:
    """Records in the order of their launch calls, then of their starts."""
    start = "start_ns" if field == "correlation" and "start_ns" in (records.dtype.names or ()) else "start"
    ordered: Records = records[np.lexsort((records[start], records[field]))]
    return ordered


def check_executions(run: Run, observed: Records) -> None:
    """Every observed execution was handed over once, each field as it was."""
    found, true = by_call(run.batches.executions), by_call(observed)
    assert len(found) == len(true)
    np.testing.assert_array_equal(found["correlation"], true["correlation"])
    assert [run.batches.names[n] for n in found["name"]] == [run.truth.names[k] for k in true["kernel"]]
    for clock, field in (("start_ns", "start"), ("end_ns", "end")):
        assert [cupti_ns(int(t)) for t in true[clock]] == found[field].tolist()
    np.testing.assert_array_equal(found["grid"], true["grid"])
    np.testing.assert_array_equal(found["block"], true["block"])
    np.testing.assert_array_equal(found["dynamic_shared"], true["shared_bytes"])
    np.testing.assert_array_equal(found["static_shared"], 256 * (true["kernel"] % 7))
    np.testing.assert_array_equal(found["local_bytes"], 8 * (true["kernel"] % 5))
    np.testing.assert_array_equal(found["registers"], 16 + 2 * (true["kernel"] % 100))
    np.testing.assert_array_equal(found["stream"], true["queue"] + 7)
    np.testing.assert_array_equal(found["graph_id"], true["graph"])
    node_ids = np.where(true["graph"] > 0, true["graph"].astype(np.uint64) << 32 | (true["node"] + 1), 0)
    np.testing.assert_array_equal(found["graph_node_id"], node_ids)
    assert set(found["device"]) <= {0}
    assert set(found["context"]) <= {1}


def together(run: Callable[[Path, Any], T], directory: Path, cases: Sequence[Any]) -> list[T]:
    """Runs of which each leaves the machine mostly idle, all at once."""
    directories = [directory / str(i) for i in range(len(cases))]
    with ThreadPoolExecutor(len(cases)) as pool:
        return list(pool.map(run, directories, cases))


def observed(run: Run) -> Records:
    """What ran while CUPTI was collecting."""
    records: Records = run.truth.executions[run.truth.executions["correlation"] > 0]
    return records
