"""Traces of the PyTorch profiler (Kineto), and what else writes kernels in Chrome's format alike.

Kernels are events of the category `kernel`, launches those of `cuda_runtime` and `cuda_driver` with a correlation.
Times are us, since 1970 or, from PyTorch 2.4 on, since `baseTimeNanoseconds`:
github.com/pytorch/kineto, libkineto/src/output_json.cpp and CuptiActivity.cpp.
"""

from __future__ import annotations

import re
from decimal import Decimal, DecimalException
from functools import partial
from typing import Any, Final

from kdiff.analysis.import_json import Events
from kdiff.analysis.import_source import TraceError, opened, reading, shown
from kdiff.analysis.import_trace import BATCH, U16, U32, U64, UNIX_NS, Collector, signed, storable, unsigned
from kdiff.analysis.terminal import Advance

_KERNELS: Final = frozenset({"kernel", "Kernel"})
_CALLS: Final = frozenset({"cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver", "Runtime"})
_HEADER: Final = frozenset({"baseTimeNanoseconds", "distributedInfo"})
_NUMBERS: Final = re.compile(r"\d+")
# As torch.profiler.tensorboard_trace_handler names files: host_pid.time.pt.trace.json
_FILE: Final = re.compile(r"(?P<host>.+)_(?P<pid>\d{1,9})\.\d+\.pt\.trace\.json(?:\.gz)?")
_MOST_DIGITS: Final = 25
_ENOUGH: Final = 20  # kernels, among which some would not last whole microseconds
Row = tuple[int, ...]


def read(collector: Collector, number: int, advance: Advance) -> None:
    """Reads a trace of one process; `number` stands for its pid where it does not say. Raises TraceError, OSError."""
    reader = _Reader(collector)
    trace = collector.trace
    path = trace.path
    with opened(path, advance) as file:

        def chunk(count: int) -> bytes:
            # Apart from what is written meanwhile: a full disk is not the trace's fault.
            with reading(path):
                return file.read(count)

        events = Events(path, chunk, _HEADER)
        for event in events:
            if type(event) is dict:
                reader.take(event)
    reader.flush()
    collector.finish()
    if len(reader.callers) > 1:
        one, other = reader.callers
        raise TraceError(
            f"{shown(path)} holds calls of several processes, {one} and {other}, whose kernels cannot be told apart: "
            "import the trace of each"
        )
    base = events.header.get("baseTimeNanoseconds")
    trace.unix, shift = reader.unix, 0
    if not reader.unix and type(base) is int and UNIX_NS <= base < 2**62:
        trace.unix, shift = True, base
    named = _FILE.fullmatch(path.name)
    pid = next(iter(reader.callers), reader.pid)
    if pid is None:
        pid = int(named["pid"]) if named else number
    rank = _rank(events.header.get("distributedInfo"))
    host = storable(named["host"]) if named else ""
    trace.host = " ".join(part for part in (host, f"rank {rank}" if rank is not None else "") if part)
    collector.settle(unsigned(pid), shift)
    if not trace.count and not trace.uncollected:
        raise TraceError(
            f"{shown(path)} holds no kernels among {events.events:,} events: was it recorded with "
            "ProfilerActivity.CUDA, on a GPU?"
        )
    if trace.count >= _ENOUGH and reader.whole_us:
        trace.notes.append(
            f"{shown(path)} has times in whole microseconds, as older versions of PyTorch wrote them: a change of a "
            "kernel is seen in steps of 1 us only"
        )


class _Reader:
    """Rows of events, handed over in batches."""

    def __init__(self, collector: Collector) -> None:
        self.pid: int | None = None
        self.unix = False
        self.callers: list[int] = []
        """The processes that called CUDA, two at most."""
        self.whole_us = True
        self._collector = collector
        self._labels = collector.labels
        self._kernels: list[Row] = []
        self._launches: list[Row] = []
        self._names: dict[str, int] = {}
        self._gpus: dict[int, int] = {}

    def take(self, event: dict[str, Any]) -> None:
        """One event of a trace. Raises OSError."""
        category = event.get("cat")
        if type(category) is not str or event.get("ph", "X") != "X":
            return
        if category in _KERNELS:
            self._kernel(event)
        elif category in _CALLS:
            self._call(event)
        elif self.pid is None and category in ("cpu_op", "user_annotation") and type(event.get("pid")) is int:
            self.pid = event["pid"]

    def flush(self) -> None:
        """Hands over what is left. Raises OSError."""
        self._collector.kernels(self._kernels)
        self._collector.launches(self._launches)
        self._kernels, self._launches = [], []

    def _kernel(self, event: dict[str, Any]) -> None:
        args = event.get("args")
        name = event.get("name")
        name = name if type(name) is str else ""
        place = self._names.get(name)
        if place is None:
            place = self._names[name] = self._labels.kernel(name)
        start, duration = nanoseconds(event.get("ts")), nanoseconds(event.get("dur"))
        if self.whole_us and duration is not None and duration % 1000:
            self.whole_us = False
        if start is not None and start >= UNIX_NS:
            self.unix = True
        get = args.get if type(args) is dict else {}.get
        device = unsigned(get("device", event.get("pid")))
        gpu = self._gpus.get(device)
        if gpu is None:
            gpu = self._gpus[device] = self._labels.gpu(f"device {device}")
        grid, block = _three(get("grid")), _three(get("block"))
        node = unsigned(get("graph node id", 0), U64)
        self._kernels.append(
            (
                signed(start),
                signed(duration or 0),
                place,
                gpu,
                0,
                unsigned(get("correlation", 0)),
                unsigned(get("context", 0)),
                unsigned(get("stream", event.get("tid"))),
                *grid,
                *block,
                unsigned(get("registers per thread", 0), U16),
                0,
                unsigned(get("shared memory", 0)),  # Kineto adds the two kinds
                0,
                unsigned(get("graph id", 0)) or (node >> 32),
                node,
            )
        )
        if len(self._kernels) >= BATCH:
            self.flush()

    def _call(self, event: dict[str, Any]) -> None:
        pid = event.get("pid")
        if type(pid) is int and pid not in self.callers and len(self.callers) < 2:
            self.callers.append(pid)
        name = event.get("name")
        args = event.get("args")
        correlation = args.get("correlation") if type(args) is dict else None
        if type(name) is not str or "aunch" not in name or type(correlation) is not int:
            return
        start, duration = nanoseconds(event.get("ts")), nanoseconds(event.get("dur"))
        tid = unsigned(event.get("tid"))
        self._launches.append(
            (0, unsigned(correlation), signed(start), signed(duration or 0), tid, self._labels.api(name))
        )
        if len(self._launches) >= BATCH:
            self.flush()


def nanoseconds(us: Any) -> int | None:
    """ns of a time in us as JSON has it, an integer or the text of one with a fraction; None where it is no time."""
    if type(us) is int:
        return us * 1000
    if type(us) is not str or len(us) > _MOST_DIGITS:
        return None
    whole, _, fraction = us.partition(".")
    if len(fraction) <= 3 and fraction.isdigit() and whole.isdigit():
        return int(whole) * 1000 + int(fraction.ljust(3, "0"))
    try:
        value = Decimal(us)
        return round(value * 1000) if value.is_finite() and abs(value) < U32**2 else None
    except DecimalException:
        return None


def _three(value: Any) -> tuple[int, int, int]:
    """Grid or block, a list or, in older traces, its text."""
    if type(value) is str:
        value = [int(digits[:10]) for digits in _NUMBERS.findall(value[:64])]
    if type(value) is not list:
        return 0, 0, 0
    x, y, z, *_ = *map(partial(unsigned, most=U32), value[:3]), 0, 0, 0
    return x, y, z


def _rank(info: Any) -> int | None:
    rank = info.get("rank") if type(info) is dict else None
    return unsigned(rank) if type(rank) is int or (type(rank) is str and rank.isdigit()) else None
