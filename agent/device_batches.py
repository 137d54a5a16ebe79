"""What the device library hands over, taken apart. Any program can call its function: nothing of a batch is believed.

A batch that is not as `kdiff.probes.device_wire` says is foreign, whole: no part of it is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kdiff.probes.device_wire import (
    BATCH,
    DEVICE,
    EXECUTION,
    HANDED,
    NAME_HEADER,
    STATE,
    VERSION,
    WINDOW,
    Block,
    State,
)

_FIXED: Final = {Block.STATE: STATE, Block.DEVICES: DEVICE, Block.WINDOW: WINDOW, Block.EXECUTIONS: EXECUTION}


@dataclass(frozen=True)
class Name:
    """A kernel's mangled name, and its number in the process. Not `whole`: it was longer."""

    number: int
    mangled: bytes
    whole: bool


@dataclass(frozen=True)
class Batch:
    """One call of the handover function. `records`: of the dtype of the block; NAMES have `names` in their place."""

    pid: int
    handed_ns: int  # monotonic
    sequence: int
    window: int
    block: Block
    records: NDArray[np.void]
    names: tuple[Name, ...] = ()


def decode(handed: NDArray[np.void]) -> Iterator[Batch | int]:
    """Takes HANDED records and gives each as a Batch, or as the pid whose batch is foreign."""
    for record in handed.reshape(-1).view(HANDED):
        batch = _batch(record)
        yield int(record["pid"]) if batch is None else batch


def _batch(record: NDArray[np.void] | np.void) -> Batch | None:
    size = int(record["bytes"])
    data = record["batch"]
    if not BATCH.itemsize <= size <= len(data):
        return None
    header = data[: BATCH.itemsize].view(BATCH)[0]
    block, count = int(header["block"]), int(header["count"])
    if int(header["version"]) != VERSION or int(header["bytes"]) != size or block not in set(Block):
        return None
    body = data[BATCH.itemsize : size]
    names: tuple[Name, ...] = ()
    if block == Block.NAMES:
        found = _names(body.tobytes(), count)
        if found is None:
            return None
        records, names = np.zeros(0, NAME_HEADER), found
    else:
        record_type = _FIXED[Block(block)]
        if count * record_type.itemsize != len(body):
            return None
        records = body.view(record_type)
        if block == Block.STATE and not np.isin(records["state"], [int(state) for state in State]).all():
            return None
    return Batch(
        int(record["pid"]),
        int(record["timestamp_ns"]),
        int(header["sequence"]),
        int(header["window"]),
        Block(block),
        records,
        names,
    )


def _names(body: bytes, count: int) -> tuple[Name, ...] | None:
    names = []
    at = 0
    for _ in range(count):
        if at + NAME_HEADER.itemsize > len(body):
            return None
        header = np.frombuffer(body, NAME_HEADER, 1, at)[0]
        at += NAME_HEADER.itemsize
        length = int(header["length"])
        if at + length > len(body):
            return None
        names.append(Name(int(header["number"]), body[at : at + length], bool(header["whole"])))
        at += length + -length % 8
    return tuple(names)
