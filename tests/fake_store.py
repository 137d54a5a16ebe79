"""A server of a few lines that shippers take for one: what it has, exactly, after whatever was shipped to it."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pyarrow.parquet as pq

from kdiff.agent import shipping
from kdiff.queries.address import Address

URL = "clickhouse://agent@one:1/kdiff"
OTHER_URL = "clickhouse://agent@other:1/kdiff"


class RefusingError(Exception):
    """As a server says that it will not take a block."""

    code = 469


class FakeStore:
    """Deduplicates blocks by their token and remembers what was listed. One for each host of an address."""

    def __init__(self) -> None:
        self.listed: dict[tuple[str, str], int] = {}
        self.tokens: set[str] = set()
        self.refuses = False
        self.counts = {"rows": 0, "executions": 0, "lost": 0, "lost_executions": 0}
        self.server_settings = {"insert_deduplication_token": "", "insert_deduplicate": ""}
        self.valid_transport_settings: set[str] = set()

    def query(self, sql: str, parameters: dict[str, Any] | None = None) -> Any:
        if parameters is None:  # how long it keeps rows
            return SimpleNamespace(result_rows=[])
        assert "shipped_segments" in sql
        names = set(parameters["names"])
        rows = [(name, table, count) for (name, table), count in self.listed.items() if name in names]
        return SimpleNamespace(result_rows=rows)

    def raw_insert(self, table: str, columns: list[str], body: Any, settings: dict[str, Any], fmt: str) -> None:
        assert fmt == "Parquet"
        if self.refuses:
            raise RefusingError(f"DB::Exception: {table} takes nothing")
        if settings["insert_deduplication_token"] in self.tokens:
            return
        self.tokens.add(settings["insert_deduplication_token"])
        rows = pq.read_table(io.BytesIO(body.read()))
        if table == "cuda_events":
            self.counts["rows"] += len(rows)
        elif table == "kernel_executions":
            self.counts["executions"] += len(rows)
        elif table == "device_windows":
            self.counts["lost_executions"] += sum(rows["lost"].to_pylist())
        elif table == "agent_health":
            self.counts["lost"] += sum(sum(rows[f"lost_{kind}"].to_pylist()) for kind in ("launches", "syncs", "other"))

    def insert(self, table: str, rows: list[list[Any]], columns: list[str], settings: dict[str, Any]) -> None:
        assert table == "shipped_segments"
        self.listed |= {(str(name), str(of)): int(count) for name, of, count in rows}

    def close(self) -> None:
        pass

    @property
    def made(self) -> tuple[int, int]:
        """Events and executions that are there or counted as lost."""
        return self.counts["rows"] + self.counts["lost"], self.counts["executions"] + self.counts["lost_executions"]


@contextmanager
def stores(*hosts: str) -> Iterator[list[FakeStore]]:
    """A store for each name of a host, for shippers of this process."""
    there = {host: FakeStore() for host in hosts}

    def connect(address: Address, **_: Any) -> FakeStore:
        return there[address.hosts[0][0]]

    with mock.patch.object(shipping, "connect", connect), mock.patch.object(shipping.migrations, "check"):
        yield list(there.values())
