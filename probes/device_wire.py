"""What the device library in a traced program hands to the agent: one definition for C and for numpy.

The library calls its exported function `HANDOVER` with a batch: a `BATCH` header and `count` records of one kind
after it. BPF copies the batch, as it is, behind a `HANDED` header into a ring of its own. Nothing in a batch may be
trusted: any program can map the library and call the function.

Times are CLOCK_MONOTONIC ns, but for those of the device (`device_*`, `start`, `end`), which are on CUPTI's clock;
a WINDOW record has two readings of both clocks to map them by.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from kdiff.probes.wire import Field, define, dtype, struct

HANDOVER: Final = "kdiff_device_batch"  # void (const void *batch, uint32_t bytes, uint32_t executions)
LISTENERS: Final = (
    "kdiff_device_listeners"  # uint16_t, kept by the kernel: not 0 while a probe is on HANDOVER in this process
)
VERSION: Final = 1
BATCH_BYTES: Final = 16384  # of a batch at most, its header included


class Block(IntEnum):
    """What the records of a batch are."""

    STATE = 1
    DEVICES = 2
    NAMES = 3  # each: NAME_HEADER, then `length` bytes, padded to a multiple of 8
    WINDOW = 4  # as a window opens (closed_ns 0) and as it ends
    EXECUTIONS = 5


class State(IntEnum):
    """What the library is doing, in STATE records: one as it changes, one for each skipped window, and from WAITING on
    again when an agent comes."""

    WAITING = 0  # for its first window
    WORKING = 1  # windows open when they are due
    BUSY = 2  # another user of CUPTI has it: windows are skipped
    OFF = 3  # for good: `text` says why
    NO_CUPTI = 4  # the program has none mapped yet and none was found: it looks again


class Ended(IntEnum):
    """Why a window ended."""

    OPEN = 0  # it has not
    DURATION = 1
    BUDGET = 2  # it had cost what it may
    YIELDED = 3  # another user of CUPTI appeared
    UNHEARD = 4  # the agent left
    EXIT = 5  # the program ended
    FAILED = 6  # CUPTI reported an error


BATCH_FIELDS: Final[list[Field]] = [
    ("u64", "sequence", 1),  # from 1, of this process
    ("u64", "window", 1),  # number of the window these belong to, from 1; 0: none
    ("u32", "version", 1),
    ("u32", "block", 1),
    ("u32", "count", 1),
    ("u32", "bytes", 1),  # header included
]

EXECUTION_FIELDS: Final[list[Field]] = [
    ("u64", "start", 1),
    ("u64", "end", 1),
    ("u64", "graph_node_id", 1),
    ("u32", "name", 1),  # number of a NAMES record of this process
    ("u32", "device", 1),  # number of a DEVICES record of this process
    ("u32", "context", 1),
    ("u32", "stream", 1),  # CUPTI's number, unique in the context
    ("u32", "correlation", 1),  # rises with the order of the launch calls
    ("u32", "graph_id", 1),
    ("u32", "grid", 3),
    ("u32", "block", 3),
    ("u32", "static_shared", 1),
    ("u32", "dynamic_shared", 1),
    ("u32", "local_bytes", 1),  # per thread
    ("u32", "registers", 1),
]

WINDOW_FIELDS: Final[list[Field]] = [
    ("u64", "opened_ns", 1),
    ("u64", "closed_ns", 1),  # launches after it are not collected
    ("u64", "host_open_ns", 1),
    ("u64", "device_open_ns", 1),  # CUPTI's clock at host_open_ns
    ("u64", "host_close_ns", 1),
    ("u64", "device_close_ns", 1),
    ("u64", "error_ns", 1),  # half of the wider bracket of the two readings
    ("u64", "executions", 1),  # handed over
    ("u64", "uncollected", 1),  # records with a zero time, or that end before they start
    ("u64", "dropped", 1),  # CUPTI had no room
    ("u64", "inside_ns", 1),  # time in the calls that open and close the window
    ("u32", "ended", 1),
    ("u32", "skipped", 1),  # windows since the last one that another user of CUPTI forbade
    ("u32", "cupti_version", 1),
    ("u32", "padding", 1),
]

NAME_HEADER_FIELDS: Final[list[Field]] = [
    ("u32", "number", 1),
    ("u32", "length", 1),  # of the mangled name, without NUL
    ("u32", "whole", 1),  # 0: it was longer and is cut
    ("u32", "padding", 1),
]

DEVICE_FIELDS: Final[list[Field]] = [
    ("u32", "number", 1),  # ordinal in the process
    ("u32", "padding", 1),
    ("u8", "uuid", 16),
]

STATE_FIELDS: Final[list[Field]] = [
    ("u32", "state", 1),
    ("u32", "skipped", 1),  # as in WINDOW
    ("char", "text", 184),  # why, for a person
]

HANDED_FIELDS: Final[list[Field]] = [
    ("u64", "timestamp_ns", 1),
    ("u32", "pid", 1),
    ("u32", "tid", 1),
    ("u32", "bytes", 1),  # of the batch; 0: it could not be read
    ("u32", "executions", 1),  # as the program said
    ("u8", "batch", BATCH_BYTES),
]

BATCH: Final = dtype(BATCH_FIELDS)
EXECUTION: Final = dtype(EXECUTION_FIELDS)
WINDOW: Final = dtype(WINDOW_FIELDS)
NAME_HEADER: Final = dtype(NAME_HEADER_FIELDS)
DEVICE: Final = dtype(DEVICE_FIELDS)
STATE: Final = dtype(STATE_FIELDS)
HANDED: Final = dtype(HANDED_FIELDS)


def handed_header() -> str:
    """The C declarations that BPF needs."""
    return f"#define BATCH_BYTES {BATCH_BYTES}\n" + struct("handed_record", HANDED_FIELDS)


def library_header() -> str:
    """The C declarations that the device library is built with."""
    records = {
        "batch": BATCH_FIELDS,
        "execution": EXECUTION_FIELDS,
        "window": WINDOW_FIELDS,
        "name_header": NAME_HEADER_FIELDS,
        "device": DEVICE_FIELDS,
        "state": STATE_FIELDS,
    }
    lines = [
        "#pragma once",
        "#include <stdint.h>",
        "typedef uint64_t u64;",
        "typedef uint32_t u32;",
        "typedef uint8_t u8;",
        f"#define VERSION {VERSION}",
        f"#define BATCH_BYTES {BATCH_BYTES}",
        f"#define HANDOVER {HANDOVER}",
        f"#define LISTENERS {LISTENERS}",
        *define("BLOCK", Block),
        *define("STATE", State),
        *define("ENDED", Ended),
    ]
    return "\n".join(lines) + "\n" + "".join(struct(f"{tag}_record", fields) for tag, fields in records.items())
