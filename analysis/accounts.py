"""What agents say of how well a window was recorded: their losses, and what of it they cover."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kdiff.analysis.columns import as_column, column
from kdiff.analysis.counts import Recording
from kdiff.analysis.coverage import covered_ns, hosts_of
from kdiff.analysis.holdings import services
from kdiff.analysis.reading import Reading
from kdiff.analysis.scope import inside, without
from kdiff.queries.tables import KIND_LAUNCH, KIND_SYNC

_LOST: Final = ("launches", "syncs", "other")

Processes = Sequence[Mapping[str, Any]]
"""Rows of queries/sql/processes.sql."""


def read_health(reading: Reading) -> pa.Table:
    """The accounts that overlap a window, rows of queries/sql/health.sql, without those in a cut of their host.

    Raises StoreError.
    """
    health = reading.query("health")
    if reading.service and not health.num_rows and reading.service in services(reading.store):
        # It is quiet: what tells that agents recorded are their accounts of no service.
        every = reading.query("health", {"service": ""})
        health = every.filter(pc.equal(every["service"].cast(pa.string()), ""))
    if not reading.cutting or not health.num_rows:
        return health
    names, host = hosts_of(health)
    start, end = (column(health, name, np.int64) for name in ("from_ns", "to_ns"))
    kept = np.ones(start.shape, np.bool_)
    for place, name in enumerate(names):
        its = host == place
        kept[its] = ~inside(start[its], end[its], reading.cutting.of(name))
    return health.filter(as_column(kept.astype(np.uint8)).cast(pa.bool_()))


def read_recording(reading: Reading, health: pa.Table, processes: Processes) -> Recording:
    """Losses and coverage of a window whose scope cuts no single process.

    Stretches that overlap the window count whole, on both sides of the ratio: an agent does not know where in a stretch
    a loss fell. What is cut of a host is not covered. `health` as read_health has it. Raises StoreError.
    """
    if not health.num_rows:
        return Recording()
    names, host = hosts_of(health)
    start, end = (column(health, name, np.int64) for name in ("from_ns", "to_ns"))
    lost = {name: int(column(health, f"lost_{name}", np.uint64).sum()) for name in _LOST}
    events = int(column(health, "events", np.uint64).sum())
    received = _received(reading, events, int(start.min()), int(end.max()), processes)
    start, end, host = _uncut(reading, names, start, end, host)
    length = reading.window.length_ns
    return _recording(
        lost,
        received,
        covered_ns(reading.window, start, end) / length,
        {name: covered_ns(reading.window, start[host == i], end[host == i]) / length for i, name in enumerate(names)},
    )


def read_recording_of_hours(reading: Reading, processes: Processes) -> Recording | None:
    """The same from the roll-ups of hours; None where these hold no account. Raises StoreError."""
    health = reading.query("hours_health").to_pylist()
    if not health:
        return None
    covered = reading.query("hours_covered").to_pylist()[0]["covered_ns"]
    lost = {name: sum(row[f"lost_{name}"] for row in health) for name in _LOST}
    window = reading.window
    return _recording(
        lost,
        _received(reading, sum(row["events"] for row in health), window.from_ns, window.to_ns, processes),
        covered / window.length_ns,
        {row["host"]: row["covered_ns"] / window.length_ns for row in health},
    )


def _received(reading: Reading, events: int, from_ns: int, to_ns: int, processes: Processes) -> dict[str, int]:
    """Events of each kind in the stretches that the agents account for, in which they counted `events`."""
    if reading.rolled:  # syncs are not rolled up, but the agents count all events
        launches = sum(row["launches"] for row in processes)
        return {KIND_LAUNCH: launches, KIND_SYNC: max(0, events - launches)}
    rows = reading.query("event_counts", {"from_ns": from_ns, "to_ns": to_ns}).to_pylist()
    return {row["kind"]: row["events"] for row in rows}


def _uncut(
    reading: Reading, names: Sequence[str], start: NDArray[np.int64], end: NDArray[np.int64], host: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """The stretches, and the host of each, without what is cut of their hosts; shapes (n,) to (m,)."""
    if not reading.cutting:
        return start, end, host
    pieces, whose = [], []
    for place, name in enumerate(names):
        its = host == place
        found = without(np.stack([start[its], end[its]], axis=1), reading.cutting.of(name))
        pieces.append(found)
        whose.append(np.full(len(found), place, np.int64))
    every = np.concatenate(pieces)
    return every[:, 0], every[:, 1], np.concatenate(whose)


def _recording(
    lost: Mapping[str, int], kept: Mapping[str, int], coverage: float, hosts: Mapping[str, float]
) -> Recording:
    received = sum(count for kind, count in kept.items() if kind != KIND_SYNC)
    return Recording(
        lost=sum(lost.values()),
        lost_launches=_share(lost["launches"], received),
        lost_syncs=_share(lost["syncs"], kept.get(KIND_SYNC, 0)),
        coverage=coverage,
        hosts=hosts,
    )


def _share(lost: int, received: int) -> float:
    return lost / (lost + received) if lost else 0.0
