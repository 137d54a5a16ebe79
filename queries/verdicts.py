"""Kept verdicts: what `kdiff` said of each kernel, on a server the table `verdicts`, in a capture the file FILE.

The file holds a line of JSON a run, so that a run is there whole or not at all. Lines are appended under a lock and
synced; what a writer that was killed left of a line is passed over by readers, and ended by the next writer.
"""

from __future__ import annotations

import contextlib
import heapq
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final, Protocol

from kdiff.queries.address import Address, is_address
from kdiff.queries.connection import known_settings
from kdiff.queries.errors import StoreError
from kdiff.queries.kept_values import value_of, write_all
from kdiff.queries.locks import held, open_regular
from kdiff.queries.printable import printable
from kdiff.queries.server import ServerStore, explained, open_client
from kdiff.queries.store import CaptureStore, Params, Store, capture_path

FILE: Final = "verdicts.jsonl"
OLDER: Final = "verdicts.1.jsonl"
"""FILE as it was when it reached MOST_BYTES; what was OLDER then is gone."""
MOST_BYTES: Final = 64 << 20
_TABLE: Final = "verdicts"
# A run is one block: it is there whole or not at all, and once however often the insert is sent.
ONE_BLOCK: Final = {
    "async_insert": 0,
    "insert_deduplicate": 1,
    "distributed_foreground_insert": 1,
    "wait_end_of_query": 1,
}


@dataclass(frozen=True, slots=True)
class KeptVerdict:
    """What one run said of one kernel; the fields are the columns of `verdicts` in their order.

    Attributes:
        judged_at_ns: when, Unix ns.
        run_id: the same for all kernels of a run.
        kernel_name: '' in the one row of a run that had no kernel to judge.
        service: the service that was asked about; '' is all of them.
        label: what the user called the run.
        quantile, tolerance: what was judged and how strictly, fractions.
        n_before, n_after: values judged.
        value_before, value_after: the judged quantile, ns; None where there is none.
        ratio, ci_low, ci_high: after / before and its 90% interval; None where not known or infinite.
        run_verdict, run_cause: of the run as a whole, as in report.Report.
    """

    judged_at_ns: int
    run_id: str
    kernel_name: str
    service: str
    label: str
    verdict: str
    metric: str
    quantile: float
    tolerance: float
    before_from_ns: int
    before_to_ns: int
    after_from_ns: int
    after_to_ns: int
    n_before: int
    n_after: int
    value_before: int | None
    value_after: int | None
    ratio: float | None
    ci_low: float | None
    ci_high: float | None
    reasons: tuple[str, ...]
    run_verdict: str
    run_cause: str


COLUMNS: Final = tuple(field.name for field in fields(KeptVerdict))
_OF_A_KERNEL: Final = (
    *("kernel_name", "verdict", "metric", "n_before", "n_after", "value_before", "value_after"),
    *("ratio", "ci_low", "ci_high", "reasons"),
)
_OF_A_RUN: Final = tuple(name for name in COLUMNS if name not in _OF_A_KERNEL)
_TYPES: Final = {str(field.name): str(field.type) for field in fields(KeptVerdict)}


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which verdicts: of kernels for which `kernel` holds, at `since_ns` or later, at most `most`.

    `service`: None is any; '' is those of runs that asked about all services.
    """

    kernel: Callable[[str], bool]
    service: str | None
    since_ns: int
    most: int


@dataclass(frozen=True, slots=True)
class Found:
    """The newest first; and what could not be read, one sentence each."""

    verdicts: list[KeptVerdict]
    warnings: list[str]


class Log(Protocol):
    """Where verdicts are kept."""

    @property
    def name(self) -> str:
        """The store's name, fit to print."""

    def keep(self, run: list[KeptVerdict]) -> None:
        """Keep the verdicts of one run, all or none. Raises StoreError."""

    def read(self, wanted: Wanted) -> Found:
        """What was kept. Raises StoreError."""


@dataclass(frozen=True, slots=True)
class CaptureLog:
    """The file in a capture directory."""

    root: Path

    @property
    def name(self) -> str:
        """The directory's path as the user gave it, fit to print."""
        return printable(str(self.root))

    def keep(self, run: list[KeptVerdict]) -> None:
        """Append a line and sync it. A disk that is full leaves the file as it was. Raises StoreError."""
        if not run:
            return
        line = _line(run)
        try:
            with _locked(self.root) as fd:
                size = os.fstat(fd).st_size
                torn = size > 0 and os.pread(fd, 1, size - 1) != b"\n"
                try:
                    write_all(fd, b"\n" + line if torn else line)
                    os.fsync(fd)
                except OSError:
                    os.ftruncate(fd, size)
                    raise
        except OSError as error:
            raise StoreError(
                f"{printable(str(self.root / FILE))} cannot be written ({error.strerror or 'no reason given'}): "
                "free space, or run as a user who may write there"
            ) from error

    def read(self, wanted: Wanted) -> Found:
        """As Log.read. Memory is bounded by `wanted.most` and the longest line."""
        if not self.root.is_dir():
            raise StoreError(f"there is no capture at {self.name}: name another with --store")
        warnings: list[str] = []
        chosen = (
            verdict for path in (self.root / OLDER, self.root / FILE) for verdict in _read(path, wanted, warnings)
        )
        newest = heapq.nsmallest(wanted.most, chosen, key=lambda v: (-v.judged_at_ns, v.run_id, v.kernel_name))
        return Found(newest, warnings)


@dataclass(frozen=True, slots=True)
class ServerLog:
    """The table on a server. Reading needs SELECT, keeping INSERT."""

    address: Address

    @property
    def name(self) -> str:
        """The server's address, fit to print."""
        return str(self.address)

    def keep(self, run: list[KeptVerdict]) -> None:
        """Insert one block. Raises StoreError."""
        if not run:
            return
        rows = [[list(v) if isinstance(v, tuple) else v for v in asdict(verdict).values()] for verdict in run]
        with open_client(self.address) as client, explained(self.address):
            settings = known_settings(client, {**ONE_BLOCK, "insert_deduplication_token": run[0].run_id})
            client.insert(_TABLE, rows, list(COLUMNS), settings=settings)

    def read(self, wanted: Wanted) -> Found:
        """As Log.read."""
        params: Params = {
            "from_ns": wanted.since_ns,
            "service": wanted.service or "",
            "one_service": int(wanted.service is not None),
        }
        with ServerStore(self.address) as store:
            kernels = store.query("verdicts_kernels", params).to_pylist()
            keys = sorted(row["kernel_key"] for row in kernels if wanted.kernel(row["kernel_name"]))
            if not keys:
                return Found([], [])
            rows = store.query("verdicts_kept", {**params, "keys": keys, "most": wanted.most}).to_pylist()
        found = []
        for row in rows:
            with contextlib.suppress(ValueError, TypeError):
                found.append(_verdict(row))
        skipped = len(rows) - len(found)
        return Found(found, [f"skipped {skipped} rows of {self.name}: not what kdiff writes"] if skipped else [])


def open_log(spec: str) -> Log:
    """The log of the store that the user named with --store. Raises StoreError."""
    return ServerLog(Address.parse(spec, os.environ)) if is_address(spec) else CaptureLog(capture_path(spec))


def log_of(store: Store) -> Log:
    """The log of a store that is open. Raises TypeError for one of another kind."""
    if isinstance(store, ServerStore):
        return ServerLog(store.address)
    if isinstance(store, CaptureStore):
        return CaptureLog(store.root)
    raise TypeError(f"{type(store).__name__} keeps no verdicts")


def _line(run: list[KeptVerdict]) -> bytes:
    values = [asdict(verdict) for verdict in run]
    document = {name: values[0][name] for name in _OF_A_RUN}
    document["kernels"] = [{name: value[name] for name in _OF_A_KERNEL} for value in values]
    return json.dumps(document, allow_nan=False, separators=(",", ":")).encode("ascii") + b"\n"


@contextlib.contextmanager
def _locked(root: Path) -> Iterator[int]:
    """FILE, open to append and locked against other writers, put aside first where it has grown too large."""
    while True:
        with held(root / FILE) as fd:
            if os.fstat(fd).st_size < MOST_BYTES:
                yield fd
                return
            os.rename(root / FILE, root / OLDER)


def _read(path: Path, wanted: Wanted, warnings: list[str]) -> Iterator[KeptVerdict]:
    shown = printable(str(path))
    try:
        fd = open_regular(path, os.O_RDONLY)
    except FileNotFoundError:
        return
    except OSError as error:
        warnings.append(f"skipped {shown}: {error.strerror or 'it cannot be read'}")
        return
    skipped = 0
    with open(fd, "rb") as file:
        while line := file.readline(MOST_BYTES):
            try:
                run = _run(line, wanted)
            except (ValueError, TypeError, KeyError, RecursionError):
                skipped += bool(line.strip())
                continue
            yield from run
    if skipped:
        noun = "line" if skipped == 1 else "lines"
        warnings.append(f"skipped {skipped} {noun} of {shown}: torn, or not what kdiff writes")


def _run(line: bytes, wanted: Wanted) -> list[KeptVerdict]:
    """What is wanted of a line. Raises ValueError, TypeError or KeyError where it is not kdiff's."""
    document = json.loads(line)
    of_run = {name: document[name] for name in _OF_A_RUN}
    # Most of a long file is of other kernels: only what is wanted is looked at.
    kernels = [kernel for kernel in document["kernels"] if wanted.kernel(value_of("str", kernel["kernel_name"]))]
    if of_run["judged_at_ns"] < wanted.since_ns or wanted.service not in (None, of_run["service"]):
        return []
    return [_verdict(of_run | {name: kernel[name] for name in _OF_A_KERNEL}) for kernel in kernels]


def _verdict(row: dict[str, Any]) -> KeptVerdict:
    """Raises ValueError, TypeError or KeyError where a value is not of its column."""
    verdict = KeptVerdict(**{name: value_of(_TYPES[name], row[name]) for name in COLUMNS})
    if verdict.before_from_ns >= verdict.before_to_ns or verdict.after_from_ns >= verdict.after_to_ns:
        raise ValueError("a window ends after it starts")
    return verdict
