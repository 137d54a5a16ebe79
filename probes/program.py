"""The BPF program as text, put together for one way of tracing."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from enum import IntFlag, StrEnum
from importlib.resources import files
from pathlib import Path
from typing import Final

from kdiff.probes.device_wire import BATCH, BATCH_BYTES, EXECUTION, handed_header
from kdiff.probes.points import POINTS, Layer, Point, Shape, Step
from kdiff.probes.wire import Kind, WireFlags, c_header, define


class Layers(StrEnum):
    """Which layers are probed: see `--layer`."""

    BOTH = "both"
    RUNTIME = "runtime"
    DRIVER = "driver"


@dataclass(frozen=True)
class Tracing:
    """How to trace: which layers, and which returns are probed.

    Without `launch_returns` a launch costs one trap a layer and has no duration and no status; without `any_returns`
    nothing has, and completions are unknown.
    """

    layers: Layers = Layers.BOTH
    launch_returns: bool = True
    any_returns: bool = True
    event_pages: int = 4096  # of 4 KiB, a power of two: 16 MiB hold 190,000 events, 0.5 s of the fastest launching
    name_pages: int = 1024  # 4 MiB hold 3,900 names between two reads
    device_pages: int = 4096  # 16 MiB hold 1,000 batches, or 189,000 executions on the device
    loss_entries: int = 4096  # processes, for each kind of event, whose losses are told apart
    scheduling: bool = False  # also for how long launching threads are off the processor
    threads: int = 16384  # that launch, at once: of more it is unknown
    wait_pages: int = 512  # 2 MiB hold 37,000 events whose thread has waited

    def probes(self, point: Point) -> bool:
        """Whether this point is probed."""
        if point.kind not in (Kind.LAUNCH, Kind.GRAPH_LAUNCH, Kind.SYNC):
            return True
        return self.layers is Layers.BOTH or self.layers.value == point.layer.value

    def returns(self, point: Point) -> bool:
        """Whether this point's return is probed."""
        if point.kind is Kind.STREAM_WAIT:  # of use within a capture only, where it is not late
            return False
        if point.kind in (Kind.LAUNCH, Kind.GRAPH_LAUNCH):
            return self.any_returns and self.launch_returns
        return self.any_returns


def include_dir() -> Path:
    """The header tree BCC compiles against in place of the host's kernel headers."""
    return Path(str(files("kdiff.probes") / "include")).parent


def machine() -> str:
    """The instruction set, by the name the kernel gives it (x86_64, aarch64)."""
    return platform.machine()


class Role(IntFlag):
    """The part of a probe in one way of tracing."""

    RUNTIME = 1  # a runtime function
    LAST = 2  # no deeper layer is probed that could add to the call
    RETURNS = 4  # the return is probed too


def cookie(tracing: Tracing, point: Point) -> int:
    """What BPF is told of the function at a probe (COOKIE_* in the C file take it apart)."""
    role = Role(0)
    if point.layer is Layer.RUNTIME:
        role |= Role.RUNTIME
    if point.layer is Layer.DRIVER or tracing.layers is Layers.RUNTIME:
        role |= Role.LAST
    if tracing.returns(point):
        role |= Role.RETURNS
    flags = (WireFlags.PER_THREAD if point.per_thread else 0) | (WireFlags.STORED if point.stores else 0)
    fields = (POINTS.index(point), point.kind, point.shape, point.sync, flags, role)
    return sum(int(value) << 8 * position for position, value in enumerate(fields))


PROGRAMS: Final = ("call_entry", "call_return", "lifecycle_entry", "lifecycle_return", "device_entry")
TRACEPOINTS: Final = {  # of raw tracepoints of the kernel, the one that forgets threads first
    "sched_exited": "sched_process_exit",
    "sched_woken": "sched_wakeup",
    "sched_switched": "sched_switch",
}
ONE_PROCESS: Final = frozenset({"device_entry"})  # attached to one process at a time
_MOST_EXECUTIONS: Final = (BATCH_BYTES - BATCH.itemsize) // EXECUTION.itemsize  # in a batch


def source(tracing: Tracing, *, arch: str | None = None) -> str:
    """The whole C text, for this machine's or another's register layout (x86_64, aarch64)."""
    bpf = files("kdiff.probes") / "bpf"
    return "\n".join(
        [
            "#define KDIFF_ARM64 1" if (arch or machine()) == "aarch64" else "",
            f"#define KDIFF_EVENT_PAGES {tracing.event_pages}",
            f"#define KDIFF_NAME_PAGES {tracing.name_pages}",
            f"#define KDIFF_DEVICE_PAGES {tracing.device_pages}",
            f"#define KDIFF_LOSS_ENTRIES {tracing.loss_entries}",
            f"#define MOST_EXECUTIONS {_MOST_EXECUTIONS}",
            *_scheduling(tracing),
            "#include <uapi/linux/ptrace.h>",
            "#include <linux/types.h>",
            *define("SHAPE", Shape),
            *define("STEP", Step),
            *define("ROLE", Role),
            c_header(),
            handed_header(),
            (bpf / "abi.h").read_text(),
            (bpf / "scheduling.h").read_text(),
            (bpf / "kdiff.bpf.c").read_text(),
        ]
    )


def _scheduling(tracing: Tracing) -> list[str]:
    if not tracing.scheduling:
        return []
    return [
        "#define KDIFF_SCHEDULING 1",
        f"#define KDIFF_THREADS {tracing.threads}",
        f"#define KDIFF_WAIT_PAGES {tracing.wait_pages}",
    ]
