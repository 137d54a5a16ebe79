"""Stand-ins for CUDA's libraries and for a program that uses them, and how tests build and run them.

The C sources beside this file are built with gcc alone into `build/`:

- `libcuda.so.1`, a driver with the real ABI whose device is a discrete-event simulation in real time;
- `libcudart.so.13`, `other/libcudart.so.12` and `libcudart_static.a`, a runtime on top of it;
- `workload` (linked with the runtime), `workload-static`, `workload-static-stripped` (with the static one) and
  `workload-dlopen` (with none; opens one by path);
- `libcupti.so.13` and `libcupti.so.12`, profiling libraries of two versions, whose records are of the driver's kernels;
- `libprofiler.so`, `libprofiler-now.so`, `libprofiler-dlsym.so`, users of CUPTI that the workload opens;
- `listener.so`, which stands in for the agent where the device library is tested (device_batches.py);
- `nvml/libnvidia-ml.so.1`, a management library (nvml_host.py).

The driver writes what really happened to a truth file, which `load_truth` reads.

The driver's environment variables, all `KDIFF_STANDIN_...`, take effect at `cuInit`:

- `INIT_MS` (150): how long `cuInit` takes; `workload()` sets 0 unless told otherwise;
- `NAME_OFFSET` (8): where in a handle the pointer to the name is, to imitate another driver build;
- `LATENCY_NS` (4000): from the launch call to the start on an idle device;
- `QUEUE` (1024): launches that a stream holds before the next call blocks; 0 is no limit;
- `TRUTH`: the truth file; `TRUTH_RECORDS` (16 Mi): its room.

Those of CUPTI, all `KDIFF_STANDIN_CUPTI_...`, take effect as it is loaded:

- `OFFSET_NS`, `DRIFT_PPB` (20000): its clock is CLOCK_MONOTONIC * (1 + drift) + offset, as `cupti_ns` computes;
- `LAYOUT`: `unknown` is a version of the future with records of its own, `stride` has records 8 bytes longer than
  those of the version that it says it is;
- `FAIL`: `cuptiActivityEnable=14` makes that function fail with that error, `...=14@3` from its third call on;
- `ZERO_EVERY`, `REVERSED_EVERY`, `DROP_EVERY`: each n-th record has no times, has them reversed, is dropped;
- `GONE_EVERY`: each n-th record has a name whose memory is gone, the one before it a name that ends with its page;
- `ENABLE_MS`, `FLUSH_MS`, `LAUNCH_NS`: added to enabling, to flushing, to each launch while enabled;
- `STRICT`: registering callbacks while others' are in use ends the process, and records for one user after another
  one's sessions share a correlation id until cuptiFinalize;
- `LOG`: a file that each call is written to, which `load_calls` reads.

NVML's GPUs are in the file that `KDIFF_STANDIN_NVML` names, which each call reads anew; N is a GPU, N.M an instance:

- `gpus`: how many there are; `version`: the driver's; `driver=0`: it is not loaded; `load`: another number is a driver
  that was loaded anew, on which everything fails until NVML is shut down and initialised;
- `N.uuid`, `name`, `sm_clock`, `mem_clock` (MHz), `reasons`, `power` (mW), `temperature`, `gpu_utilization`,
  `memory_utilization`, `used`, `reserved`, `total` (bytes), `ecc_corrected`, `ecc_uncorrected`, `pids` (PID:BYTES or
  PID:- each), `mig=1`: what is missing is not supported;
- `error.FUNCTION=15`, `N.error=15`, `N.error.FUNCTION=15`: NVML's errors, `=15@4` from the function's fourth call on;
- `hang.FUNCTION`, `N.hang`, `N.hang.FUNCTION`: no answer while it says so.

`KDIFF_STANDIN_NVML_LOG` is a file for the calls: function, GPU, thread, result.

A truth file costs 150 ns a launch in /dev/shm and 400 ns on a disk: leave it out when timing.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from standins.building import Standins as Standins
from standins.building import build as build

GPU_UUID = b"kdiff stand-in 0"

# ---- running ----


@dataclass(frozen=True)
class Workload:
    """A command line and environment that run the workload."""

    command: list[str]
    env: dict[str, str]
    truth: Path | None

    def run(self, timeout: float = 60) -> dict[str, Any]:
        """Run to the end; the counts that `--print-rate` prints."""
        done = subprocess.run(self.command, env=self.env, capture_output=True, text=True, timeout=timeout, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"the workload ended with {done.returncode}: {done.stderr.strip()}")
        rate: dict[str, Any] = json.loads(done.stdout)
        return rate

    def start(self) -> subprocess.Popen[str]:
        """Start and return at once; stdout will hold what `--print-rate` prints."""
        return subprocess.Popen(self.command, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def workload(
    *args: str | float | Path,
    truth: Path | None = None,
    program: Path | None = None,
    env: Mapping[str, str] | None = None,
    init_ms: int = 0,
) -> Workload:
    """Describe a run of the workload with these options; `workload --help` lists them."""
    command = [str(program or build().workload), *map(str, args), "--print-rate"]
    if truth is not None:
        command += ["--truth", str(truth)]
    full = {**os.environ, "KDIFF_STANDIN_INIT_MS": str(init_ms), **(env or {})}
    return Workload(command, full, truth)


def run_workload(
    *args: str | float | Path,
    truth: Path,
    program: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 60,
) -> tuple[dict[str, Any], Truth]:
    """Run the workload to the end; its printed counts and the truth."""
    rate = workload(*args, truth=truth, program=program, env=env).run(timeout)
    return rate, load_truth(truth)


# ---- the truth ----

KIND_LAUNCH, KIND_GRAPH_LAUNCH, KIND_SYNC, KIND_GRAPH_NODE, KIND_MODULE_LOAD, KIND_MODULE_UNLOAD = range(1, 7)
FLAG_CAPTURED = 1

# Index is the `api` field; enum truth_api in truth.h.
APIS = (
    "",
    "cuLaunchKernel",
    "cuLaunchKernel_ptsz",
    "cuLaunchKernelEx",
    "cuLaunchKernelEx_ptsz",
    "cuLaunchCooperativeKernel",
    "cuGraphLaunch",
    "cuGraphLaunch_ptsz",
    "cuStreamSynchronize",
    "cuStreamSynchronize_ptsz",
    "cuCtxSynchronize",
    "cuEventSynchronize",
    "cuModuleLoadData",
    "cuModuleLoadDataEx",
    "cuModuleLoadFatBinary",
    "cuModuleLoad",
    "cuModuleUnload",
    "cuLibraryLoadData",
    "cuLibraryUnload",
)

HEADER_DTYPE = np.dtype(
    [
        ("magic", "S8"),
        ("header_bytes", "u4"),
        ("record_bytes", "u4"),
        ("count", "u8"),
        ("lost", "u8"),
        ("realtime_minus_monotonic_ns", "i8"),
        ("pid", "u4"),
        ("reserved", "u4", 5),
    ]
)

RECORD_DTYPE = np.dtype(
    [
        ("call_ns", "u8"),
        ("return_ns", "u8"),
        ("start_ns", "u8"),
        ("end_ns", "u8"),
        ("stream", "u8"),
        ("handle", "u8"),
        ("kernel", "i4"),
        ("pid", "u4"),
        ("tid", "u4"),
        ("grid", "u4", 3),
        ("block", "u4", 3),
        ("shared_bytes", "u4"),
        ("status", "i4"),
        ("graph", "u4"),
        ("node", "u4"),
        ("module", "u4"),
        ("queue", "u4"),
        ("factor", "f4"),
        ("kind", "u1"),
        ("api", "u1"),
        ("flags", "u2"),
        ("correlation", "u4"),
    ]
)

Records = npt.NDArray[Any]


@dataclass(frozen=True)
class Truth:
    """What happened inside the driver; truth.h says what each field means."""

    records: Records
    names: list[str]
    pid: int
    lost: int
    realtime_minus_monotonic_ns: int

    def of_kind(self, kind: int) -> Records:
        """The records of one kind."""
        records: Records = self.records[self.records["kind"] == kind]
        return records

    @property
    def launches(self) -> Records:
        """The launch calls, executed, failed and captured."""
        return self.of_kind(KIND_LAUNCH)

    @property
    def syncs(self) -> Records:
        """The calls that waited."""
        return self.of_kind(KIND_SYNC)

    @property
    def graph_launches(self) -> Records:
        """The graph launch calls."""
        return self.of_kind(KIND_GRAPH_LAUNCH)

    @property
    def executions(self) -> Records:
        """The kernels that ran on the device, launched one by one or by a graph."""
        kind = self.records["kind"]
        ran = self.records["end_ns"] > 0
        records: Records = self.records[((kind == KIND_LAUNCH) | (kind == KIND_GRAPH_NODE)) & ran]
        return records

    def named(self, records: Records, name: str) -> Records:
        """Those of the records that are of the kernel with this mangled name."""
        named: Records = records[records["kernel"] == self.names.index(name)]
        return named


def load_truth(path: Path) -> Truth:
    """Read a truth file, also one whose process was killed."""
    header = np.fromfile(path, HEADER_DTYPE, 1)
    if len(header) != 1 or header["magic"][0] != b"KDIFFTR1":
        raise ValueError(f"not a truth file: {path}")
    if header["header_bytes"][0] != HEADER_DTYPE.itemsize or header["record_bytes"][0] != RECORD_DTYPE.itemsize:
        raise ValueError(f"a truth file of another layout: {path}")
    records = np.fromfile(path, RECORD_DTYPE, int(header["count"][0]), offset=HEADER_DTYPE.itemsize)
    return Truth(
        records=records,
        names=Path(f"{path}.names").read_text().splitlines(),
        pid=int(header["pid"][0]),
        lost=int(header["lost"][0]),
        realtime_minus_monotonic_ns=int(header["realtime_minus_monotonic_ns"][0]),
    )


# ---- CUPTI's clock and calls ----


def cupti_ns(monotonic_ns: int, offset_ns: int = 1_700_000_000_000_000_007, drift_ppb: int = 20_000) -> int:
    """What the clock of the stand-in CUPTI shows at a time of CLOCK_MONOTONIC."""
    return offset_ns + monotonic_ns + monotonic_ns * drift_ppb // 10**9


@dataclass(frozen=True)
class Call:
    """A call of a function of CUPTI: when it ended, its first number (an attribute's value), its result."""

    at_ns: int
    pid: int
    tid: int
    version: int
    function: str
    argument: int
    result: int


def load_calls(path: Path) -> list[Call]:
    """Read the log of calls; none if the library was never called."""
    if not path.exists():
        return []
    rows = [line.split() for line in path.read_text().splitlines()]
    return [Call(int(r[0]), int(r[1]), int(r[2]), int(r[3]), r[4], int(r[5]), int(r[6])) for r in rows]
