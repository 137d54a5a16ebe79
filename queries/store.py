"""The store: the tables of one capture directory behind SQL, run by the embedded ClickHouse engine.

The engine never sees the capture's own path. Good segments are linked into a private temporary directory:
the set of files cannot grow between two queries, and quotes, globs or braces in a path have no meaning. A query for a
window sees only the segments that may hold rows of it: the engine would skip the others by itself, but open each.
The engine is one for the process and lives in memory; each store has databases of its own in it, so several can be
open at once.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import uuid
import weakref
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol, Self

import pyarrow as pa

from kdiff.queries import segments_twice
from kdiff.queries.address import Address, is_address
from kdiff.queries.errors import StoreError
from kdiff.queries.narrowing import Narrowing, Values
from kdiff.queries.printable import printable
from kdiff.queries.segments_read import SUFFIX, Segment, scan
from kdiff.queries.tables import NULLABLE, TABLES

Params = Mapping[str, int | str | list[int]]
Bound = Mapping[str, Values]
"""Params, and those of a narrowing."""

_ATTEMPTS: Final = 5
_MOST_DATABASES: Final = 32
"""For so many windows tables are kept: who reads a history window by window needs those of the last few."""
_SAFE_PATH: Final = re.compile(r"[A-Za-z0-9_./+-]+")  # no globs, quotes, braces or archive separators
_ENGINE_TYPES: Final = {
    pa.int32(): "Int32",
    pa.int64(): "Int64",
    pa.uint16(): "UInt16",
    pa.uint32(): "UInt32",
    pa.uint64(): "UInt64",
    pa.string(): "String",
}


class Store(Protocol):
    """What the analysis needs of an engine; the same SQL files run on every one."""

    @property
    def name(self) -> str:
        """How the user named it, fit to print."""

    @property
    def warnings(self) -> list[str]:
        """What was skipped so far and why, one line each."""

    @property
    def concurrent(self) -> bool:
        """Whether several threads may ask at once."""

    @property
    def expires(self) -> bool:
        """Whether rows may be gone whose roll-ups are still there."""

    @property
    def copies(self) -> Mapping[str, Sequence[Segment]]:
        """The segments of each table that are left out since another has the same bytes."""

    def query(self, name: str, params: Params | None = None, narrowing: Narrowing | None = None) -> pa.Table:
        """Run queries/sql/`name`.sql, of what `narrowing` leaves. Raises StoreError."""

    def close(self) -> None:
        """Release what the store holds. Safe to repeat."""


@cache
def load_sql(name: str) -> str:
    """The text of queries/sql/`name`.sql."""
    if not name.isidentifier():
        raise ValueError(f"not a query name: {name!r}")
    return resources.files("kdiff.queries").joinpath("sql", f"{name}.sql").read_text(encoding="utf-8")


def narrowed(name: str, params: Params | None, narrowing: Narrowing | None) -> tuple[str, str, Bound]:
    """`name`, the text of that query and its parameters, of what `narrowing` leaves. Raises NotNarrowedError."""
    asked = params or {}
    if narrowing is None:
        return name, load_sql(name), asked
    sql, more = narrowing.narrow(name, load_sql(name))
    return name, sql, {**asked, **more}


class CaptureStore:
    """A capture directory, read-only, as it was when opened; an agent may go on writing to it.

    Not fork-safe (the engine has threads): open it after any fork. Use as a context manager.
    """

    def __init__(self, root: Path) -> None:
        """Open the capture at `root`. Raises StoreError with one sentence that names the mend."""
        snapshot = scan(root)
        self.root = root
        self._copies = segments_twice.copies(snapshot.files)
        self._files = segments_twice.without(snapshot.files, self._copies)
        self._warnings = [*snapshot.warnings, *segments_twice.warnings(self._copies)]
        self._links = Path(tempfile.mkdtemp(prefix="kdiff-", dir=_safe_temporary_root()))
        self._remove_links = weakref.finalize(self, shutil.rmtree, str(self._links), ignore_errors=True)
        self._client: Any = None
        self._databases: dict[tuple[int, int] | None, str] = {}
        try:
            self._client = _connect()
        except BaseException:
            self.close()
            raise

    @property
    def name(self) -> str:
        """The capture's path as the user gave it, fit to print."""
        return printable(str(self.root))

    @property
    def warnings(self) -> list[str]:
        """What was skipped so far and why, one line each."""
        return self._warnings

    @property
    def copies(self) -> Mapping[str, Sequence[Segment]]:
        """The segments of each table that are left out since another has the same bytes."""
        return {table: list(its) for table, its in self._copies.items()}

    @property
    def concurrent(self) -> bool:
        """No: the embedded engine does one thing at a time."""
        return False

    @property
    def expires(self) -> bool:
        """Never: the roll-ups of a capture are made from its rows."""
        return False

    def query(self, name: str, params: Params | None = None, narrowing: Narrowing | None = None) -> pa.Table:
        """Run queries/sql/`name`.sql with `params` (bare names, as in {from_ns:Int64}), of what `narrowing` leaves.

        A segment that vanished or turns out torn is left out with a warning and the query runs again, so that
        one answer never mixes two sets of files. Raises StoreError.
        """
        return self._run(*narrowed(name, params, narrowing))

    def close(self) -> None:
        """Drop the tables and the links. Safe to repeat."""
        client, self._client = self._client, None
        if client is not None:
            try:
                for database in self._databases.values():
                    client.command(f"DROP DATABASE IF EXISTS {database}")
            finally:
                client.close()
        self._remove_links()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def _tables_for(self, params: Bound) -> str:
        """The database whose tables hold the segments that a query with `params` may need."""
        window = None
        start, end = params.get("from_ns"), params.get("to_ns")
        if isinstance(start, int) and isinstance(end, int):
            every = (segment for segments in self._files.values() for segment in segments)
            if not all(segment.overlaps(start, end) for segment in every):
                window = (start, end)
        if window not in self._databases:
            while len(self._databases) >= _MOST_DATABASES:
                self._forget(next(iter(self._databases)))
            try:
                self._databases[window] = self._create_tables(window)
            except OSError as error:
                raise StoreError(
                    f"cannot prepare a temporary directory ({error.strerror}): free space, or set TMPDIR"
                ) from error
        return self._databases[window]

    def _create_tables(self, window: tuple[int, int] | None) -> str:
        database = f"kdiff_{uuid.uuid4().hex}"
        self._client.command(f"CREATE DATABASE {database}")
        for table, schema in TABLES.items():
            folder = self._links / database / table
            folder.mkdir(parents=True)
            for number, segment in enumerate(self._files.get(table, [])):
                if window is None or segment.overlaps(*window):
                    (folder / f"{number:08d}{SUFFIX}").symlink_to(segment.path)
            columns = ", ".join(f"{column.name} {engine_type(column)}" for column in schema)
            # A glob that matches nothing is an empty table, because the columns are given.
            source = f"file('{folder / f'*{SUFFIX}'}', 'Parquet', '{columns}')"
            self._client.command(f"CREATE VIEW {database}.{table} AS SELECT * FROM {source}")
        self._client.database = database
        self._client.command(f"CREATE VIEW {database}.kernel_bins AS {load_sql('bins_of_rows')}")
        return database

    def _forget(self, window: tuple[int, int] | None) -> None:
        """Drop the tables of a window; they are made again where they are asked for."""
        database = self._databases.pop(window)
        self._client.database = None
        self._client.command(f"DROP DATABASE IF EXISTS {database}")
        shutil.rmtree(self._links / database, ignore_errors=True)

    def _run(self, name: str, sql: str, params: Bound) -> pa.Table:
        from clickhouse_connect.driver.exceptions import ClickHouseError

        if self._client is None:
            raise StoreError(f"the store {self.name} is closed")
        for _ in range(_ATTEMPTS):
            self._client.database = self._tables_for(params)
            try:
                answer: pa.Table = self._client.query_arrow(sql, parameters=dict(params))
            except (ClickHouseError, pa.ArrowException, OSError) as error:
                self._reconnect()
                if self._drop_vanished() or self._drop_named_in(str(error)):
                    continue
                raise StoreError(f"the query {name} failed on {self.name}: {_reason(str(error))}") from error
            # The engine passes over a link to nothing without a word, so look.
            if not self._drop_vanished():
                return answer
        raise StoreError(
            f"segments of {self.name} vanish or fail faster than they can be read: copy the capture first, "
            "or let retention keep them longer"
        )

    def _reconnect(self) -> None:
        """Take a new connection to the same engine.

        After a query that failed halfway, chDB 26.9 puts what that query had written in front of the next answer on
        the same connection. The new one is opened first: the engine and its tables live while any is open.
        """
        old, self._client = self._client, _connect()
        old.close()

    def _drop_vanished(self) -> bool:
        gone = {os.readlink(link) for link in self._all_links() if not link.exists()}
        self._drop(gone, "removed while it was being read (retention?)")
        return bool(gone)

    def _drop_named_in(self, message: str) -> bool:
        """Drop the segments that the engine's error names: a good footer does not prove good pages."""
        named = {os.readlink(link) for link in self._all_links() if str(link) in message}
        self._drop(named, f"damaged ({_reason(message)})")
        return bool(named)

    def _all_links(self) -> list[Path]:
        return list(self._links.glob(f"*/*/*{SUFFIX}"))

    def _drop(self, paths: set[str], reason: str) -> None:
        """Leave segments out of every table from now on."""
        if not paths:
            return
        self._warnings += [f"skipped {printable(path)}: {reason}" for path in sorted(paths)]
        for table, segments in self._files.items():
            self._files[table] = [segment for segment in segments if str(segment.path) not in paths]
        for link in self._all_links():
            if os.readlink(link) in paths:
                link.unlink()


def open_store(spec: str) -> Store:
    """Open what the user named with --store: a capture directory or the address of a server. Raises StoreError."""
    if is_address(spec):
        from kdiff.queries.server import ServerStore

        return ServerStore(Address.parse(spec, os.environ))
    return CaptureStore(capture_path(spec))


def capture_path(spec: str) -> Path:
    """The path of the capture directory that the user named. Raises StoreError."""
    if not spec:
        raise StoreError("the name of the store is empty: name a capture directory or a server with --store")
    try:
        return Path(spec).expanduser() if spec.startswith("~") else Path(spec)
    except RuntimeError as error:
        raise StoreError(f"{printable(spec)} names no home directory: write the path in full") from error


def engine_type(column: pa.Field) -> str:
    """The ClickHouse type of a column. Raises KeyError for a type no table uses."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return f"LowCardinality({_ENGINE_TYPES[kind.value_type]})"
    if pa.types.is_list(kind):
        element = _ENGINE_TYPES[kind.value_type]
        return f"Array(Nullable({element}))" if kind.value_field.nullable else f"Array({element})"
    return f"Nullable({_ENGINE_TYPES[kind]})" if column.name in NULLABLE else _ENGINE_TYPES[kind]


def _connect() -> Any:
    try:
        import clickhouse_connect

        return clickhouse_connect.get_client(interface="chdb")
    except ImportError as error:
        raise StoreError(f"the embedded engine is not installed ({error}): pip install chdb") from error
    except Exception as error:
        raise StoreError(
            f"the embedded engine does not start ({_reason(str(error))}): is another open in this process?"
        ) from error


def _safe_temporary_root() -> str:
    for root in (tempfile.gettempdir(), "/tmp", "/var/tmp"):
        if _SAFE_PATH.fullmatch(root) and os.access(root, os.W_OK):
            return root
    raise StoreError("there is no temporary directory with a plain name: set TMPDIR to one")


def _reason(message: str) -> str:
    """The engine's complaint without its code, paths and stack, on one line."""
    first = (message.strip().splitlines() or ["no reason given"])[0]
    first = re.sub(r"^Code: \d+\. DB::Exception: ", "", first)
    first = re.split(r": \(in file/uri|: While executing", first)[0]
    return printable(first)[:300]
