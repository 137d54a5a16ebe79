"""A capture's rows put into a server's tables, plainly: no spool, no tokens."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from kdiff.queries.address import Address
from kdiff.queries.connection import connect
from kdiff.queries.migrations import migrate
from kdiff.queries.tables import NULLABLE, TABLES

KEEP_DAYS = 36_500  # recordings grow old


def load(address: Address, *roots: Path) -> None:
    """Creates the tables and fills them with the rows of captures."""
    client = connect(address)
    migrate(client, address.database, raw_days=KEEP_DAYS, rollup_days=KEEP_DAYS)
    for root in roots:
        for table in TABLES:
            for segment in sorted((root / table).glob("*.parquet")):
                client.insert_arrow(table, whole(table, pq.read_table(segment)))
    client.close()


def whole(table: str, rows: pa.Table) -> pa.Table:
    """`rows` with every column of the schema; those an older agent did not write are null, or 0 or '' where none is."""
    columns = []
    for column in TABLES[table]:
        if column.name in rows.column_names:
            columns.append(rows.column(column.name).cast(column.type))
        elif column.name in NULLABLE:
            columns.append(pa.nulls(len(rows), column.type))
        elif pa.types.is_list(column.type):
            columns.append(pa.array([[]] * len(rows), column.type))
        else:
            text = pa.types.is_dictionary(column.type) or pa.types.is_string(column.type)
            empty = pa.array(["" if text else 0] * len(rows), pa.string() if text else column.type)
            columns.append(empty.cast(column.type))
    return pa.Table.from_arrays(columns, schema=TABLES[table])
