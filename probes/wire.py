"""The records that travel from BPF to the agent: one definition for C and for numpy.

Each record is a list of (C type, field name, count). `c_header` renders it as a C struct, `EVENT`, `NAME` and `WAIT`
are the numpy dtypes of the same bytes. Fields are ordered by falling alignment, so that neither side pads.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag
from typing import Final

import numpy as np

NAME_BYTES: Final = 1024
DEFAULT_NAME_OFFSET: Final = 8  # where every CUDA driver seen so far keeps the pointer to a kernel's name


class Kind(IntEnum):
    """What an event record is about, and the slot of the loss counters it is counted in."""

    LAUNCH = 0
    GRAPH_LAUNCH = 1
    SYNC = 2
    CAPTURE_BEGIN = 3
    CAPTURE_END = 4
    INIT = 5  # a process has called cuInit: look at what it maps
    NAME = 6  # loss counter of name records; no event has it
    EXECUTION = 7  # loss counter of what the device library handed over; no event has it
    EVENT_RECORD = 8
    STREAM_WAIT = 9  # a stream is made to wait for an event
    GRAPH_MADE = 10  # a graph gets what another holds: handle and, as stream, the other's; 0: it is empty


class Sync(IntEnum):
    """What a sync waits for."""

    NONE = 0
    STREAM = 1
    DEVICE = 2
    EVENT = 3


class NameSource(IntEnum):
    """Where the name in a NAME record was read."""

    HANDLE = 0  # through the handle, at the driver's name offset, when it was first launched
    LOAD = 1  # the argument of the call that returned the handle
    ALIAS = 2  # no name: `caller` is the CUkernel whose CUfunction `handle` is
    RUNTIME = 3  # `handle` is what the runtime was given: a host function or a cudaKernel_t


class Decision(IntEnum):
    """Whether a process is traced. A process that is not in the map is recorded until the agent decides."""

    UNDECIDED = 0
    TRACE = 1
    IGNORE = 2


class WireFlags(IntFlag):
    """Bits of EVENT.flags."""

    NO_RETURN = 1  # emitted at entry: no duration, no status
    RUNTIME_HANDLE = 2  # handle is the runtime's argument: the driver was not reached or is not probed
    PER_THREAD = 4  # a _ptsz function: stream 0 means the calling thread's own default stream
    STORED = 8  # handle is what the call stored where its argument points to
    WAITS_KNOWN = 16  # what the thread waited in the call is: 0, unless WAITED
    WAITS_BEFORE_KNOWN = 32  # the same of the time since the thread's call before
    WAITED = 64  # the ring of waits has a record of this thread and timestamp


Field = tuple[str, str, int]

_EVENT_FIELDS: Final[list[Field]] = [
    ("u64", "timestamp_ns", 1),  # CLOCK_MONOTONIC at entry
    ("u64", "duration_ns", 1),
    ("u64", "handle", 1),  # function, graph, graph exec or event handle
    ("u64", "stream", 1),
    ("u32", "pid", 1),
    ("u32", "tid", 1),
    ("u32", "grid", 3),
    ("u32", "block", 3),
    ("u32", "shared_bytes", 1),
    ("u32", "generation", 1),  # of the process's handles: changes when a module is unloaded
    ("s32", "status", 1),
    ("u8", "kind", 1),
    ("u8", "api", 1),
    ("u8", "flags", 1),
    ("u8", "sync", 1),
]

_NAME_FIELDS: Final[list[Field]] = [
    ("u64", "timestamp_ns", 1),
    ("u64", "handle", 1),
    ("u64", "caller", 1),  # return address of the outermost probed call; for ALIAS the CUkernel
    ("u32", "pid", 1),
    ("u32", "generation", 1),
    ("s32", "length", 1),  # with the NUL; NAME_BYTES: cut off; negative: not readable
    ("u32", "source", 1),
    ("u32", "name_offset", 1),  # HANDLE, RUNTIME: where in the handle the pointer to the name was read
    ("u32", "padding", 1),
    ("char", "name", NAME_BYTES),
]

_WAIT_FIELDS: Final[list[Field]] = [
    ("u64", "timestamp_ns", 1),  # of the event that it belongs to
    ("u64", "runnable_ns", 1),  # in the call: ready to run, without a processor
    ("u64", "blocked_ns", 1),  # in the call: not ready
    ("u64", "runnable_before_ns", 1),  # the same between the thread's call before and this one
    ("u64", "blocked_before_ns", 1),
    ("u32", "pid", 1),
    ("u32", "tid", 1),
]

_NUMPY: Final = {"u64": "<u8", "u32": "<u4", "s32": "<i4", "u8": "u1"}


def dtype(fields: list[Field]) -> np.dtype[np.void]:
    """The numpy dtype of a record."""
    columns: list[tuple[str, str] | tuple[str, str, int]] = []
    for ctype, name, count in fields:
        if ctype == "char":
            columns.append((name, f"S{count}"))
        elif count == 1:
            columns.append((name, _NUMPY[ctype]))
        else:
            columns.append((name, _NUMPY[ctype], count))
    return np.dtype(columns)


EVENT: Final = dtype(_EVENT_FIELDS)
NAME: Final = dtype(_NAME_FIELDS)
WAIT: Final = dtype(_WAIT_FIELDS)


def struct(tag: str, fields: list[Field]) -> str:
    """The C struct of a record, its size asserted."""
    body = "".join(f"    {t} {n}{f'[{c}]' if c > 1 else ''};\n" for t, n, c in fields)
    size = dtype(fields).itemsize
    return f'struct {tag} {{\n{body}}};\n_Static_assert(sizeof(struct {tag}) == {size}, "wire");\n'


def define(prefix: str, enum: type[IntEnum] | type[IntFlag]) -> list[str]:
    """A C constant for each member."""
    return [f"#define {prefix}_{member.name} {int(member)}" for member in enum]


def c_header() -> str:
    """The C declarations of the records and of every constant above, with their sizes asserted."""
    lines = [
        *define("KIND", Kind),
        *define("SYNC", Sync),
        *define("SOURCE", NameSource),
        *define("DECISION", Decision),
        *define("FLAG", WireFlags),
        f"#define KINDS {len(Kind)}",
        f"#define NAME_BYTES {NAME_BYTES}",
        f"#define DEFAULT_NAME_OFFSET {DEFAULT_NAME_OFFSET}",
    ]
    records = {"event_record": _EVENT_FIELDS, "name_record": _NAME_FIELDS, "wait_record": _WAIT_FIELDS}
    return "\n".join(lines) + "\n" + "".join(struct(tag, fields) for tag, fields in records.items())
