"""The store on a ClickHouse server: the same SQL as on a capture, for a user who needs no right but to read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Lock
from types import TracebackType
from typing import Any, Final, Self

import pyarrow as pa

from kdiff.queries import connection
from kdiff.queries.address import Address
from kdiff.queries.errors import StoreError
from kdiff.queries.migrations import check
from kdiff.queries.narrowing import Narrowing
from kdiff.queries.printable import printable
from kdiff.queries.segments_read import Segment
from kdiff.queries.store import Bound, Params, narrowed

MEMORY_BYTES: Final = 16 << 30
"""What one query may take of the server's memory; above half of it, groups and sorts go to its disk."""


class ServerStore:
    """A database on a server, read only. Use as a context manager."""

    def __init__(self, address: Address) -> None:
        """Connect and look at the schema. Raises StoreError with one sentence that names the mend."""
        self.address = address
        self._reconnecting = Lock()
        self._client: Any = connection.connect(address)
        try:
            with explained(address):
                check(self._client)
            self._bounds = _bounds(self._client, address)
        except BaseException:
            self.close()
            raise

    @property
    def name(self) -> str:
        """The server's address, fit to print."""
        return str(self.address)

    @property
    def warnings(self) -> list[str]:
        """None: a server answers or fails."""
        return []

    @property
    def concurrent(self) -> bool:
        """Several threads may ask at once."""
        return True

    @property
    def expires(self) -> bool:
        """The tables keep roll-ups for longer than rows."""
        return True

    @property
    def copies(self) -> Mapping[str, Sequence[Segment]]:
        """None: a server takes each segment once, by its token."""
        return {}

    def query(self, name: str, params: Params | None = None, narrowing: Narrowing | None = None) -> pa.Table:
        """Run queries/sql/`name`.sql with `params` (bare names, as in {from_ns:Int64}), of what `narrowing` leaves.

        Where the server goes away the query runs once more, on the next of its hosts that answers. Raises StoreError.
        """
        _, sql, asked = narrowed(name, params, narrowing)
        client = self._open()
        try:
            return self._ask(client, sql, asked)
        except Exception as error:
            if not connection.is_lost(error):
                raise connection.explain(error, self.address) from error
        with self._reconnecting:
            # Unless another thread has been here. The old client is not closed: one may be in the middle of using it.
            if self._client is client:
                self._client = connection.connect(self.address)
            client = self._open()
        with explained(self.address):
            return self._ask(client, sql, asked)

    def close(self) -> None:
        """Close the connection. Safe to repeat."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def _ask(self, client: Any, sql: str, params: Bound) -> pa.Table:
        return _strings(client.query_arrow(sql, parameters=dict(params), settings=dict(self._bounds)))

    def _open(self) -> Any:
        if self._client is None:
            raise StoreError(f"the store {self.name} is closed")
        return self._client


@contextmanager
def open_client(address: Address) -> Iterator[Any]:
    """A client for what changes a database whose schema is up to date; closed at the end. Raises StoreError."""
    client = connection.connect(address)
    try:
        with explained(address):
            check(client)
        yield client
    finally:
        client.close()


class explained:  # noqa: N801  # reads as a statement: with explained(address)
    """A context in which errors of the server or of the way to it become a StoreError."""

    def __init__(self, address: Address) -> None:
        self._address = address

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, StoreError):
            raise connection.explain(error, self._address) from error


def _bounds(client: Any, address: Address) -> Mapping[str, object]:
    """The settings that bound a query, those of them that this user may set."""
    wanted = {
        "max_execution_time": address.timeout_s,
        "max_memory_usage": MEMORY_BYTES,
        "max_bytes_before_external_group_by": MEMORY_BYTES // 2,
        "max_bytes_before_external_sort": MEMORY_BYTES // 2,
    }
    known = client.server_settings
    return {name: value for name, value in wanted.items() if name in known and not known[name].readonly}


def _strings(table: pa.Table) -> pa.Table:
    """Text as text: a user who may set nothing gets bytes of servers before 24."""
    for place, column in enumerate(table.schema):
        if pa.types.is_binary(column.type):
            try:
                table = table.set_column(place, column.name, table.column(place).cast(pa.string()))
            except pa.ArrowInvalid as error:
                raise StoreError(f"the column {printable(column.name)} holds text that is not UTF-8") from error
    return table
