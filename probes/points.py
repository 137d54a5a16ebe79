"""Which CUDA functions are probed, in which library, and what kind of call each is.

The position of a point in `POINTS` is the `api` number in the records.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Final

from kdiff.probes.wire import Kind, Sync


class Layer(StrEnum):
    """Which library a function belongs to."""

    RUNTIME = "runtime"
    DRIVER = "driver"


class Shape(IntEnum):
    """How a function takes its arguments."""

    NOTHING = 0
    DRIVER_LAUNCH = 1  # f, grid x y z, block x y z, shared, stream, ...
    RUNTIME_LAUNCH = 2  # f, dim3 grid, dim3 block, args, shared, stream
    LAUNCH_CONFIG = 3  # CUlaunchConfig * or cudaLaunchConfig_t *, f, ...
    GRAPH = 4  # exec, stream
    STREAM = 5  # stream, ...
    HANDLE = 6  # an event
    HANDLE_STREAM = 7  # event, stream; or a graph or where one is stored, and the other one; ...
    STREAM_HANDLE = 8  # stream, event or where a graph is stored, ...


@dataclass(frozen=True)
class Point:
    """One function to probe."""

    symbol: str
    layer: Layer
    kind: Kind
    shape: Shape
    sync: Sync = Sync.NONE
    stores: bool = False  # the handle is not given but stored there

    @property
    def per_thread(self) -> bool:
        """Whether stream 0 means the calling thread's default stream here."""
        return self.symbol.endswith("_ptsz")

    @property
    def api(self) -> str:
        """The function's name as people write it, without the variant's suffix."""
        return self.symbol.removesuffix("_ptsz")


class Step(IntEnum):
    """What a lifecycle function does to handles: the cookie of its probe."""

    INIT = 0  # cuInit: the process starts to use CUDA
    NAMED = 1  # out-pointer first, name third: a handle gets a name
    ALIAS = 2  # out-pointer first, CUkernel second: a CUfunction of a CUkernel
    UNLOAD = 3  # handles may be reused from here on


def _both(
    symbol: str, layer: Layer, kind: Kind, shape: Shape, sync: Sync = Sync.NONE, stores: bool = False
) -> list[Point]:
    return [Point(symbol + suffix, layer, kind, shape, sync, stores) for suffix in ("", "_ptsz")]


POINTS: Final[list[Point]] = [
    *_both("cuLaunchKernel", Layer.DRIVER, Kind.LAUNCH, Shape.DRIVER_LAUNCH),
    *_both("cuLaunchKernelEx", Layer.DRIVER, Kind.LAUNCH, Shape.LAUNCH_CONFIG),
    *_both("cuLaunchCooperativeKernel", Layer.DRIVER, Kind.LAUNCH, Shape.DRIVER_LAUNCH),
    *_both("cuGraphLaunch", Layer.DRIVER, Kind.GRAPH_LAUNCH, Shape.GRAPH),
    *_both("cuStreamSynchronize", Layer.DRIVER, Kind.SYNC, Shape.STREAM, Sync.STREAM),
    Point("cuCtxSynchronize", Layer.DRIVER, Kind.SYNC, Shape.NOTHING, Sync.DEVICE),
    Point("cuCtxSynchronize_v2", Layer.DRIVER, Kind.SYNC, Shape.NOTHING, Sync.DEVICE),
    Point("cuEventSynchronize", Layer.DRIVER, Kind.SYNC, Shape.HANDLE, Sync.EVENT),
    *_both("cuStreamBeginCapture", Layer.DRIVER, Kind.CAPTURE_BEGIN, Shape.STREAM),
    *_both("cuStreamBeginCapture_v2", Layer.DRIVER, Kind.CAPTURE_BEGIN, Shape.STREAM),
    *_both("cuStreamBeginCaptureToGraph", Layer.DRIVER, Kind.CAPTURE_BEGIN, Shape.STREAM),
    *_both("cuStreamEndCapture", Layer.DRIVER, Kind.CAPTURE_END, Shape.STREAM_HANDLE, stores=True),
    Point("cuGraphCreate", Layer.DRIVER, Kind.GRAPH_MADE, Shape.HANDLE, stores=True),
    Point("cuGraphClone", Layer.DRIVER, Kind.GRAPH_MADE, Shape.HANDLE_STREAM, stores=True),
    Point("cuGraphInstantiate", Layer.DRIVER, Kind.GRAPH_MADE, Shape.HANDLE_STREAM, stores=True),
    Point("cuGraphInstantiate_v2", Layer.DRIVER, Kind.GRAPH_MADE, Shape.HANDLE_STREAM, stores=True),
    Point("cuGraphInstantiateWithFlags", Layer.DRIVER, Kind.GRAPH_MADE, Shape.HANDLE_STREAM, stores=True),
    *_both("cuGraphInstantiateWithParams", Layer.DRIVER, Kind.GRAPH_MADE, Shape.HANDLE_STREAM, stores=True),
    Point("cuGraphExecUpdate", Layer.DRIVER, Kind.GRAPH_MADE, Shape.HANDLE_STREAM),
    Point("cuGraphExecUpdate_v2", Layer.DRIVER, Kind.GRAPH_MADE, Shape.HANDLE_STREAM),
    *_both("cuEventRecord", Layer.DRIVER, Kind.EVENT_RECORD, Shape.HANDLE_STREAM),
    *_both("cuEventRecordWithFlags", Layer.DRIVER, Kind.EVENT_RECORD, Shape.HANDLE_STREAM),
    *_both("cuStreamWaitEvent", Layer.DRIVER, Kind.STREAM_WAIT, Shape.STREAM_HANDLE),
    *_both("cudaLaunchKernel", Layer.RUNTIME, Kind.LAUNCH, Shape.RUNTIME_LAUNCH),
    *_both("cudaLaunchKernelExC", Layer.RUNTIME, Kind.LAUNCH, Shape.LAUNCH_CONFIG),
    *_both("cudaLaunchCooperativeKernel", Layer.RUNTIME, Kind.LAUNCH, Shape.RUNTIME_LAUNCH),
    *_both("cudaGraphLaunch", Layer.RUNTIME, Kind.GRAPH_LAUNCH, Shape.GRAPH),
    *_both("cudaStreamSynchronize", Layer.RUNTIME, Kind.SYNC, Shape.STREAM, Sync.STREAM),
    Point("cudaDeviceSynchronize", Layer.RUNTIME, Kind.SYNC, Shape.NOTHING, Sync.DEVICE),
    Point("cudaEventSynchronize", Layer.RUNTIME, Kind.SYNC, Shape.HANDLE, Sync.EVENT),
]

LIFECYCLE: Final[dict[str, Step]] = {
    "cuInit": Step.INIT,
    "cuModuleGetFunction": Step.NAMED,
    "cuLibraryGetKernel": Step.NAMED,
    "cuKernelGetFunction": Step.ALIAS,
    "cuModuleUnload": Step.UNLOAD,
    "cuLibraryUnload": Step.UNLOAD,
    "cuCtxDestroy": Step.UNLOAD,
    "cuCtxDestroy_v2": Step.UNLOAD,
    "cuDevicePrimaryCtxReset": Step.UNLOAD,
    "cuDevicePrimaryCtxReset_v2": Step.UNLOAD,
    "cuDevicePrimaryCtxRelease": Step.UNLOAD,
    "cuDevicePrimaryCtxRelease_v2": Step.UNLOAD,
}

RUNTIME_SYMBOLS: Final = frozenset(p.symbol for p in POINTS if p.layer is Layer.RUNTIME)
DRIVER_SYMBOLS: Final = frozenset(p.symbol for p in POINTS if p.layer is Layer.DRIVER) | LIFECYCLE.keys()
