"""`kdiff migrate`: create kdiff's tables on a server, or bring them up to date."""

from __future__ import annotations

import os
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Final

import typer

from kdiff.analysis.options import StoreOption
from kdiff.analysis.terminal import interruptible, show
from kdiff.queries.errors import KdiffError
from kdiff.queries.printable import printable

if TYPE_CHECKING:
    from kdiff.queries.migrations import Statement

_EXAMPLE: Final = "kdiff migrate --store clickhouse://user@host:8123/kdiff"


def migrate_command(
    store: StoreOption = "",
    cluster: Annotated[
        str, typer.Option("--cluster", metavar="NAME", help="Make replicated, sharded tables on this cluster.")
    ] = "",
    raw_days: Annotated[
        int | None, typer.Option("--raw-days", metavar="N", help="Keep events and executions for N days (7).")
    ] = None,
    rollup_days: Annotated[
        int | None, typer.Option("--rollup-days", metavar="N", help="Keep roll-ups and accounts for N days (396).")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the statements and run none.")] = False,
) -> None:
    """Create the tables on a ClickHouse server, or bring them up to date. Safe to repeat."""
    from kdiff.queries import migrations
    from kdiff.queries.address import Address, is_address
    from kdiff.queries.connection import connect
    from kdiff.queries.server import explained

    if not is_address(store):
        named = f"{printable(store)} is a directory" if store else "no server is named"
        raise KdiffError(f"{named}, and only a server has a schema: try `{_EXAMPLE}`")
    address = Address.parse(store, os.environ)
    keep = (cluster or address.cluster, raw_days, rollup_days)
    text, versions = "", []
    with interruptible(), closing(connect(address, database="")) as client, explained(address):
        applied = migrations.applied_versions(client, address.database)
        if dry_run:
            there = migrations.retention(client, address.database)
            text = _planned(migrations.plan(address.database, keep[0], applied, *keep[1:], there))
        else:
            versions = migrations.migrate(client, address.database, *keep)
    changed = bool(applied) and (raw_days, rollup_days) != (None, None)
    current = {migration.version for migration in migrations.migrations()} <= set(applied)
    if dry_run and (changed or not current):
        show(text, 0)
    kept = ", what is kept has changed" if changed else ""
    if versions:
        show(f"brought {address} to schema version {max(versions)}{kept}\n", 0)
    show(f"the schema of {address} is up to date{kept}\n", 0)


def _planned(statements: list[Statement]) -> str:
    return "".join(f"{statement.sql};\n\n" for statement in statements)
