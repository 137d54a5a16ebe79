"""A host with GPUs as the stand-in NVML shows them, and a sampler in a process of its own on it.

pynvml opens NVML by name, which the loader looks up as LD_LIBRARY_PATH said when the process started.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kdiff.agent.gpu_samples import GpuSampler, GpuSummary, Pace
from kdiff.agent.gpus import Gpus
from standins.standins import build

H200: dict[str, Any] = {
    "uuid": "GPU-11111111-0000-0000-0000-000000000001",
    "name": "NVIDIA H200",
    "sm_clock": 1980,
    "mem_clock": 3201,
    "reasons": 0x44,
    "power": 698_123,
    "temperature": 71,
    "gpu_utilization": 97,
    "memory_utilization": 13,
    "used": 77_309_411_328,
    "reserved": 524_288_000,
    "total": 150_754_820_096,
    "ecc_corrected": 3,
    "ecc_uncorrected": 1,
    "pids": "4243:1048576,4242:77309411328",
}
OTHER: dict[str, Any] = {"uuid": "GPU-22222222-0000-0000-0000-000000000002", "name": "NVIDIA T4", "pids": ""}
# What is sampled of H200.
READINGS = {
    "sm_clock_mhz": 1980,
    "mem_clock_mhz": 3201,
    "throttle_reasons": 0x44,
    "power_mw": 698_123,
    "temperature_c": 71,
    "gpu_utilization": 97,
    "memory_utilization": 13,
    "memory_used_bytes": 77_309_411_328,
    "memory_total_bytes": 150_754_820_096,
    "ecc_corrected": 3,
    "ecc_uncorrected": 1,
}


class Host:
    """Its settings are in a file, which every call of NVML reads anew."""

    def __init__(self, folder: Path, *gpus: Mapping[str, Any], **others: object) -> None:
        self._settings = folder / "nvml"
        self._log = folder / "nvml.log"
        self.set(*gpus, **others)

    def set(self, *gpus: Mapping[str, Any], **others: object) -> None:
        """These GPUs from now on; '__' in a name is a dot: hang__nvmlInitWithFlags=1."""
        said = {f"{index}.{key}": value for index, gpu in enumerate(gpus) for key, value in gpu.items()}
        said |= {"gpus": len(gpus)} | {name.replace("__", "."): value for name, value in others.items()}
        beside = self._settings.with_suffix(".new")
        beside.write_text("".join(f"{key}={value}\n" for key, value in said.items()), errors="surrogateescape")
        beside.replace(self._settings)

    @property
    def environment(self) -> dict[str, str]:
        """Of a process on this host; its driver is found too."""
        folders = f"{build().nvml.parent}:{build().driver.parent}"
        return {
            "LD_LIBRARY_PATH": folders,
            "KDIFF_STANDIN_NVML": str(self._settings),
            "KDIFF_STANDIN_NVML_LOG": str(self._log),
        }

    def calls(self) -> list[tuple[str, int, int]]:
        """Each call that came back: its function, thread, result."""
        said = self._log.read_text() if self._log.exists() else ""
        rows = [line.split() for line in said[: said.rfind("\n") + 1].splitlines()]
        return [(row[0], int(row[2]), int(row[3])) for row in rows]


class Sampling:
    """A sampler that has begun, in a process of its own. Use as a context manager."""

    def __init__(self, host: Host, *, rows: bool = True, **pace: float) -> None:
        pace = {"sample": 0.05, "again": 0.3, "hung": 0.4, "replaced": 60.0} | pace
        self._child = subprocess.Popen(
            [sys.executable, __file__, json.dumps(pace), str(int(rows))],
            env=os.environ | {"PYTHONPATH": str(Path(__file__).parent)} | host.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.rows: list[dict[str, Any]] = []
        self.notes: list[str] = []
        self.summary: dict[str, int] = {}

    def look(self, *pids: int) -> list[list[str]]:
        """Takes rows, notes and figures; the GPUs of these pids."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        print(json.dumps(pids), file=self._child.stdin, flush=True)
        rows, notes, self.summary, gpus = json.loads(self._child.stdout.readline())
        self.rows += rows
        self.notes += notes
        found: list[list[str]] = gpus
        return found

    def until(self, condition: Callable[[], object], timeout_s: float = 20) -> None:
        """Looks until it is so."""
        end = time.monotonic() + timeout_s
        self.look()
        while not condition():
            assert time.monotonic() < end, (self.rows[-3:], self.notes, self.summary)
            time.sleep(0.02)
            self.look()

    def new_rows(self, count: int = 3, **columns: object) -> list[dict[str, Any]]:
        """The next rows that are of these columns, at least so many."""
        self.look()
        begin = len(self.rows)

        def found() -> list[dict[str, Any]]:
            return [row for row in self.rows[begin:] if columns.items() <= row.items()]

        self.until(lambda: len(found()) >= count)
        return found()

    def end(self) -> float:
        """Ends it as a recording does; how long that took, s."""
        assert self._child.stdin is not None
        begin = time.monotonic()
        self._child.stdin.close()
        assert self._child.wait(20) == 0
        return time.monotonic() - begin

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._child.kill()
        self._child.wait()
        for stream in (self._child.stdin, self._child.stdout):
            assert stream is not None
            stream.close()


def main() -> None:
    """The process: answers each line of pids with what the sampler has."""
    gpus = Gpus()
    sampler = GpuSampler(gpus, GpuSummary(), Pace(**json.loads(sys.argv[1])))
    if sys.argv[2] == "1":
        sampler.begin("svc", "host-1")
    for line in sys.stdin:
        begin = time.monotonic()
        rows, notes = sampler.take(), list[str]()
        sampler.watch(time.monotonic(), notes.append)
        of = [sorted(gpus.of(pid)) for pid in json.loads(line)]
        assert time.monotonic() - begin < 5  # a call that hangs does so until it is told otherwise
        found = [] if rows is None else rows.to_pylist()
        print(json.dumps([found, notes, dataclasses.asdict(sampler.summary), of]), flush=True)
    sampler.close()


if __name__ == "__main__":
    main()
