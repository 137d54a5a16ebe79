"""Exact p99 per kernel in both windows of store_load.py, by a peer: `store_peers.py PEER DIRECTORY|ADDRESS MEASURE`.

Prints how many (kernel, window) it found. A process of its own, so that its memory is its own.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Final

from store_load import AFTER, BEFORE

FILES: Final = {
    "completion": ("cuda_events", "completion_ns", "kind = 'launch' AND completion_ns > 0"),
    "device": ("kernel_executions", "duration_ns", "duration_ns >= 0"),
}
INSIDE: Final = " OR ".join(f"(timestamp_ns >= {w.from_ns} AND timestamp_ns < {w.to_ns})" for w in (BEFORE, AFTER))


def clickhouse(where: str, measure: str) -> int:
    """On a server, or the embedded engine on the segments."""
    table, value, only = FILES[measure]
    if where.startswith("clickhouse://"):
        from kdiff.queries.address import Address
        from kdiff.queries.connection import connect

        client: Any = connect(Address.parse(where, os.environ))
    else:
        import clickhouse_connect

        client = clickhouse_connect.get_client(interface="chdb")
        table = f"file('{where}/{table}/*.parquet', 'Parquet')"
    sql = f"""SELECT kernel_name, timestamp_ns >= {AFTER.from_ns} AS later, quantileExact(0.99)({value})
        FROM {table} WHERE {only} AND ({INSIDE}) GROUP BY kernel_name, later"""
    return int(client.query_arrow(sql).num_rows)


def duckdb(where: str, measure: str) -> int:
    """DuckDB with its defaults."""
    import duckdb

    table, value, only = FILES[measure]
    sql = f"""SELECT kernel_name, timestamp_ns >= {AFTER.from_ns} AS later, quantile_disc({value}, 0.99)
        FROM read_parquet('{where}/{table}/*.parquet') WHERE {only} AND ({INSIDE}) GROUP BY ALL"""
    return len(duckdb.sql(sql).fetchall())


def polars(where: str, measure: str) -> int:
    """Polars, its streaming engine."""
    import polars as pl

    table, value, only = FILES[measure]
    rows = pl.scan_parquet(f"{where}/{table}/*.parquet").filter(pl.sql_expr(only))
    rows = rows.filter(pl.sql_expr(INSIDE))
    later = (pl.col("timestamp_ns") >= AFTER.from_ns).alias("later")
    found = rows.group_by("kernel_name", later).agg(pl.col(value).quantile(0.99, "nearest"))
    return int(found.collect(engine="streaming").height)


if __name__ == "__main__":
    try:
        print(globals()[sys.argv[1]](sys.argv[2], sys.argv[3]))
    except ImportError:
        print("not installed")
