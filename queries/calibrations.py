"""Kept calibrations by history: on a server the table `calibrations`, in a capture the file FILE.

The file holds a line of JSON a calibration, one for each key. A writer reads it under a lock and puts another in its
place, whole and synced: a reader sees what was there before or after, whatever is killed. Lines of a newer kdiff stay.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from kdiff.queries.errors import StoreError
from kdiff.queries.kept_values import value_of, write_all
from kdiff.queries.locks import held, open_regular
from kdiff.queries.printable import printable
from kdiff.queries.segments_write import sync_directory
from kdiff.queries.store import CaptureStore, Store

if TYPE_CHECKING:
    from kdiff.queries.server import ServerStore

FILE: Final = "calibrations.jsonl"
MOST_BYTES: Final = 64 << 20
MOST_FACTOR: Final = 1e6
"""A standard error that is wrong by more is no kdiff's."""
_SCHEMA: Final = "kdiff-calibration/1"
_FAMILY: Final = "kdiff-calibration/"
_TABLE: Final = "calibrations"
_QUANTILE_UNIT: Final = 1_000_000_000


class Factor(NamedTuple):
    """By how much the standard errors of one kernel are too small, from its own `pairs` of windows."""

    kernel: str
    metric: str
    factor: float
    pairs: int


@dataclass(frozen=True, slots=True)
class KeptCalibration:
    """What the history of a service says of kdiff's intervals and verdicts on it. Times in ns.

    Attributes:
        made_at_ns: when, Unix ns.
        calibration_id: its own.
        service: '' is all of them together.
        metric: what was asked to be judged: auto or a metric.
        quantile, tolerance: what was judged and how strictly, fractions.
        window_ns: the length of the windows.
        from_ns, to_ns: the history.
        windows, left_out: windows that were used, and those of the history that could not be.
        pairs: pairs of adjacent windows in which a kernel was judged.
        shifts: pairs of windows of a kernel that were left out because its level changed for good between them.
        pooled: the factor for kernels that are not among `kernels`.
        kernels: those with pairs enough of their own, by name and metric.
        comparisons: pairs of windows of a kernel that were judged.
        regressed, not_passed: of them, without the factors; `*_widened`: with them.
        runs, runs_regressed: pairs of windows, and those in which any kernel was REGRESSED.
    """

    made_at_ns: int
    calibration_id: str
    service: str
    metric: str
    quantile: float
    tolerance: float
    window_ns: int
    from_ns: int
    to_ns: int
    windows: int
    left_out: int
    pairs: int
    shifts: int
    pooled: float
    kernels: tuple[Factor, ...]
    comparisons: int
    regressed: int
    regressed_widened: int
    not_passed: int
    not_passed_widened: int
    runs: int
    runs_regressed: int
    runs_regressed_widened: int

    @property
    def key(self) -> tuple[str, str, int, int]:
        """What a newer calibration of the same replaces."""
        return self.service, self.metric, round(self.quantile * _QUANTILE_UNIT), self.window_ns


_FIELDS: Final = {str(field.name): str(field.type) for field in fields(KeptCalibration) if field.name != "kernels"}
_LISTS: Final = ("kernel_names", "kernel_metrics", "kernel_factors", "kernel_pairs")
_BEHIND: Final = tuple(_FIELDS).index("pooled") + 1
COLUMNS: Final = (*tuple(_FIELDS)[:_BEHIND], *_LISTS, *tuple(_FIELDS)[_BEHIND:])
"""Of the table, in their order."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which calibration: of a service, metric and quantile, by windows between two lengths in ns.

    One made after `until_ns`, by a clock that was fast, is found only where there is no other: it must not hide those
    that come after it.
    """

    service: str
    metric: str
    quantile: float
    shortest_ns: int
    longest_ns: int
    until_ns: int = 2**63 - 1

    def fits(self, calibration: KeptCalibration) -> bool:
        """Whether it is one of those."""
        service, metric, quantile, window_ns = calibration.key
        same = (service, metric, quantile) == (self.service, self.metric, round(self.quantile * _QUANTILE_UNIT))
        return same and self.shortest_ns <= window_ns <= self.longest_ns

    def better(self, one: KeptCalibration, other: KeptCalibration | None) -> bool:
        """Whether `one` is to be used rather than another that fits."""
        return other is None or self._order(one) > self._order(other)

    def _order(self, one: KeptCalibration) -> tuple[bool, int]:
        return one.made_at_ns <= self.until_ns, one.made_at_ns


@dataclass(frozen=True, slots=True)
class Found:
    """The newest that is wanted, None where there is none; and what could not be read, one sentence each."""

    calibration: KeptCalibration | None
    warnings: tuple[str, ...] = ()


class Calibrations(Protocol):
    """Where calibrations are kept."""

    def keep(self, calibration: KeptCalibration) -> None:
        """Keep it in the place of those with its key. Raises StoreError."""

    def newest(self, wanted: Wanted) -> Found:
        """The newest that is wanted. Raises StoreError."""


@dataclass(frozen=True, slots=True)
class CaptureCalibrations:
    """The file in a capture directory."""

    root: Path

    def keep(self, calibration: KeptCalibration) -> None:
        """As Calibrations.keep. A disk that is full leaves the file as it was."""
        path = self.root / FILE
        try:
            with held(path) as fd:
                if os.fstat(fd).st_size > MOST_BYTES:
                    raise StoreError(f"{printable(str(path))} is over {MOST_BYTES >> 20} MiB: remove it")
                kept = [line for line in _lines(os.dup(fd)) if _stays(line, calibration)]
                _replace(path, b"".join([*kept, _line(calibration)]))
        except OSError as error:
            raise StoreError(
                f"{printable(str(path))} cannot be written ({error.strerror or 'no reason given'}): "
                "free space, or run as a user who may write there"
            ) from error

    def newest(self, wanted: Wanted) -> Found:
        """As Calibrations.newest, but what cannot be read is told in warnings."""
        path = self.root / FILE
        shown = printable(str(path))
        try:
            fd = open_regular(path, os.O_RDONLY)
        except FileNotFoundError:
            return Found(None)
        except OSError as error:
            return Found(None, (f"skipped {shown}: {error.strerror or 'it cannot be read'}",))
        if os.fstat(fd).st_size > MOST_BYTES:
            os.close(fd)
            return Found(None, (f"skipped {shown}: it is over {MOST_BYTES >> 20} MiB",))
        best: KeptCalibration | None = None
        skipped = newer = 0
        for line in _lines(fd):
            one = _read(line)
            if isinstance(one, KeptCalibration):
                if wanted.fits(one) and wanted.better(one, best):
                    best = one
            elif one is _NEWER:
                newer += 1
            else:
                skipped += bool(line.strip())
        return Found(best, tuple(_told(shown, skipped, newer)))


@dataclass(frozen=True, slots=True)
class ServerCalibrations:
    """The table on a server that is open. Reading needs SELECT, keeping INSERT."""

    store: ServerStore

    def keep(self, calibration: KeptCalibration) -> None:
        """As Calibrations.keep: one block with one row."""
        from kdiff.queries.connection import known_settings
        from kdiff.queries.server import explained, open_client
        from kdiff.queries.verdicts import ONE_BLOCK

        values = _columns(calibration)
        address = self.store.address
        with open_client(address) as client, explained(address):
            wanted = {**ONE_BLOCK, "insert_deduplication_token": calibration.calibration_id}
            settings = known_settings(client, wanted)
            client.insert(_TABLE, [[values[name] for name in COLUMNS]], list(COLUMNS), settings=settings)

    def newest(self, wanted: Wanted) -> Found:
        """As Calibrations.newest."""
        rows = self.store.query(
            "calibrations_kept",
            {
                "service": wanted.service,
                "metric": wanted.metric,
                "quantile_e9": round(wanted.quantile * _QUANTILE_UNIT),
                "shortest_ns": wanted.shortest_ns,
                "longest_ns": wanted.longest_ns,
                "until_ns": wanted.until_ns,
            },
        ).to_pylist()
        for row in rows:
            with contextlib.suppress(ValueError, TypeError, KeyError):
                return Found(_calibration(row))
        return Found(None, tuple(_told(self.store.name, len(rows), 0)))


def calibrations_of(store: Store) -> Calibrations | None:
    """The calibrations of a store that is open; None for one that keeps none."""
    if isinstance(store, CaptureStore):
        return CaptureCalibrations(store.root)
    from kdiff.queries.server import ServerStore  # comparisons of captures need not wait for it

    return ServerCalibrations(store) if isinstance(store, ServerStore) else None


_NEWER: Final = object()


def _told(shown: str, skipped: int, newer: int) -> Iterator[str]:
    if skipped:
        noun = "calibration" if skipped == 1 else "calibrations"
        yield f"skipped {skipped} {noun} of {shown}: torn, or not what kdiff writes; run `kdiff calibrate` again"
    if newer:
        noun = "calibration" if newer == 1 else "calibrations"
        yield f"skipped {newer} {noun} of {shown}: of a newer kdiff; install that, or run `kdiff calibrate` again"


def _lines(fd: int) -> Iterator[bytes]:
    """The lines of a file from its start; closes it."""
    with open(fd, "rb") as file:
        file.seek(0)
        while line := file.readline(MOST_BYTES):
            yield line


def _stays(line: bytes, newer: KeptCalibration) -> bool:
    """Whether a line is kept beside a newer calibration."""
    one = _read(line)
    return one is _NEWER or (isinstance(one, KeptCalibration) and one.key != newer.key)


def _replace(path: Path, data: bytes) -> None:
    """Put a file with `data` in the place of that at `path`, of which the caller has the lock. Raises OSError."""
    beside = path.parent / f".{path.name}.partial"
    fd = open_regular(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        write_all(fd, data)
        os.fsync(fd)
        os.rename(beside, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(beside)
        raise
    finally:
        os.close(fd)
    sync_directory(path.parent)


def _columns(calibration: KeptCalibration) -> dict[str, Any]:
    values = asdict(calibration)
    kernels = values.pop("kernels")
    columns = zip(*kernels, strict=True) if kernels else ((), (), (), ())
    return values | {name: list(column) for name, column in zip(_LISTS, columns, strict=True)}


def _line(calibration: KeptCalibration) -> bytes:
    document = {"schema": _SCHEMA} | _columns(calibration)
    return json.dumps(document, allow_nan=False, separators=(",", ":")).encode("ascii") + b"\n"


def _read(line: bytes) -> KeptCalibration | object | None:
    """The calibration of a line, _NEWER where a newer kdiff wrote it, None where it is none."""
    try:
        document = json.loads(line)
        schema = document["schema"]
        if schema != _SCHEMA:
            return _NEWER if isinstance(schema, str) and schema.startswith(_FAMILY) and line.endswith(b"\n") else None
        return _calibration(document) if line.endswith(b"\n") else None
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def _calibration(row: dict[str, Any]) -> KeptCalibration:
    """Raises ValueError, TypeError or KeyError where a value is not of its column."""
    values = {name: value_of(kind, row[name]) for name, kind in _FIELDS.items()}
    names, metrics, factors, pairs = (row[name] for name in _LISTS)
    kernels = tuple(
        Factor(value_of("str", name), value_of("str", metric), value_of("float", factor), value_of("int", count))
        for name, metric, factor, count in zip(names, metrics, factors, pairs, strict=True)
    )
    found = KeptCalibration(**values, kernels=kernels)
    sensible = (
        found.from_ns < found.to_ns
        and found.window_ns > 0
        and found.quantile < 1.0
        and found.tolerance <= MOST_FACTOR
        and all(1.0 <= factor <= MOST_FACTOR for factor in (found.pooled, *(one.factor for one in kernels)))
        and max(found.regressed, found.regressed_widened, found.not_passed, found.not_passed_widened)
        <= found.comparisons
        and max(found.runs_regressed, found.runs_regressed_widened) <= found.runs
    )
    if not sensible:
        raise ValueError("no calibration has such values")
    return found
