"""Deleting from a server: mutations that the server carries out by itself, whatever becomes of the command."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from kdiff.queries.address import Address
from kdiff.queries.deletion import ENDS, HOUR_NS, NAMES, Selection
from kdiff.queries.errors import StoreError
from kdiff.queries.printable import printable
from kdiff.queries.server import explained
from kdiff.queries.tables import ROLLUPS

NS: Final = 1_000_000_000
_POLL_S: Final = 0.2
_DISTRIBUTED: Final = re.compile(r"Distributed\('([^']+)', '([^']+)', '([^']+)'")


@dataclass(frozen=True, slots=True)
class _Target:
    """Where the rows of a table are: itself, or on a cluster the tables behind it."""

    table: str
    condition: str
    database: str
    behind: str
    cluster: str


@dataclass(slots=True)
class ServerDeletion:
    """A deletion from the tables of a server."""

    client: Any
    address: Address
    selection: Selection
    rows: dict[str, int] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    _targets: list[_Target] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Count the rows. Raises ValueError for a time that cuts an hour, and StoreError."""
        if self.selection.before_ns % HOUR_NS:
            raise ValueError("a server rolls up hours: before_ns is a whole one")
        with explained(self.address):
            engines = dict(
                self.client.query(
                    "SELECT name, engine_full FROM system.tables WHERE database = currentDatabase()"
                ).result_rows
            )
            left = 0
            for table, condition in self._conditions().items():
                if table not in engines or (table == NAMES and left):
                    continue
                gone = self._count(table, f"({condition}) AND ({self._ours()})")
                if table != NAMES:
                    left += self._count(table, f"NOT ({condition}) AND ({self._ours()})")
                if gone:
                    self.rows[table] = gone
                    self._targets.append(self._target(table, condition, engines[table]))

    @property
    def steps(self) -> int:
        """Tables that lose rows."""
        return len(self._targets)

    def run(self, advance: Callable[[int], None]) -> None:
        """Delete, and wait until the server has done it. Raises StoreError."""
        with explained(self.address):
            for target in self._targets:
                self._mutate(target)
                advance(1)

    def _conditions(self) -> dict[str, str]:
        before = self.selection.before_ns
        conditions = {
            table: f"{column} <= {before}" if column == "to_ns" else f"{column} < {before}"
            for table, column in ENDS.items()
        }
        rolled = {table: f"toUnixTimestamp({column}) < {before // NS}" for table, column in ROLLUPS.items()}
        return conditions | rolled | {NAMES: "1"}

    def _ours(self) -> str:
        from clickhouse_connect.driver.binding import format_str

        service = self.selection.service
        return "1" if service is None else f"service = {format_str(service)}"

    def _count(self, table: str, condition: str) -> int:
        return int(self.client.query(f"SELECT count() FROM `{table}` WHERE {condition}").result_rows[0][0])

    def _target(self, table: str, condition: str, engine: str) -> _Target:
        condition = f"({condition}) AND ({self._ours()})"
        behind = _DISTRIBUTED.match(engine)
        if behind:
            return _Target(table, condition, database=behind[2], behind=behind[3], cluster=behind[1])
        return _Target(table, condition, self.address.database, table, cluster="")

    def _mutate(self, target: _Target) -> None:
        from clickhouse_connect.driver.binding import quote_identifier

        known = self._mutations(target)
        place = f"{quote_identifier(target.database)}.{quote_identifier(target.behind)}"
        on = f" ON CLUSTER `{target.cluster}`" if target.cluster else ""
        # Not lightweight: the rows are to be gone, not only hidden until some merge.
        self.client.command(f"ALTER TABLE {place}{on} DELETE WHERE {target.condition}")
        while True:
            new = {name: state for name, state in self._mutations(target).items() if name not in known}
            failed = [reason for done, reason in new.values() if reason and not done]
            if failed:
                raise StoreError(
                    f"{self.address} cannot delete from {target.table} ({printable(failed[0])[:200]}): mend that; it "
                    "goes on by itself, or stop it with KILL MUTATION"
                )
            if new and all(done for done, _ in new.values()):
                return
            time.sleep(_POLL_S)

    def _mutations(self, target: _Target) -> dict[tuple[str, str], tuple[bool, str]]:
        """The mutations of a table: (host, name) -> (whether it is done, why it failed last)."""
        source = f"clusterAllReplicas('{target.cluster}', system.mutations)" if target.cluster else "system.mutations"
        rows = self.client.query(
            f"SELECT hostName(), mutation_id, is_done, latest_fail_reason FROM {source} "
            "WHERE database = {database:String} AND table = {table:String}",
            parameters={"database": target.database, "table": target.behind},
        ).result_rows
        return {(host, name): (bool(done), reason) for host, name, done, reason in rows}
