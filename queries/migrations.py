"""The schema of a server: queries/schema/NNN_name.sql in order, each applied once and remembered in schema_versions.

Every statement may run twice and at the same time as itself (IF NOT EXISTS), so that a migration that was cut short,
or that two run at once, ends as one that ran alone. A file that was released is never changed: its checksum is kept.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Final

from kdiff.queries.errors import StoreError
from kdiff.queries.printable import printable
from kdiff.queries.store import load_sql
from kdiff.queries.tables import ROLLUPS, TABLES

RAW_DAYS: Final = 7
ROLLUP_DAYS: Final = 396  # 13 months
_FILE: Final = re.compile(r"(\d{3})_(\w+)\.sql")
# Of the inserts of all agents: those of a day, where 100 of them insert every 10 s. A token costs a line in a file.
_REMEMBERED: Final = 1_000_000
# On a cluster each token is a node of Keeper's: an hour of them.
_REPLICATED: Final = 50_000
_REMEMBERED_S: Final = 7 * 86_400
_RAW: Final = ("cuda_events", "kernel_executions", "gpu_samples")
_KEPT: Final = ("device_windows", "kernels", "agent_health", "shipped_segments", "verdicts", *ROLLUPS)
# What a Distributed table spreads rows by: the rows of a GPU lie on one shard, where its roll-ups are made.
_SHARDED_BY: Final = {
    "cuda_events": "cityHash64(host, gpu_uuid)",
    "kernel_executions": "cityHash64(host, gpu_uuid)",
    "device_windows": "cityHash64(host)",
    "kernels": "cityHash64(kernel_id)",
    "agent_health": "cityHash64(host)",
    "gpu_samples": "cityHash64(host, gpu_uuid)",
    "shipped_segments": "cityHash64(segment)",
    "kernel_minutes": "cityHash64(host, gpu_uuid)",
    "kernel_totals": "cityHash64(kernel_name)",
    "process_minutes": "cityHash64(host)",
    "kernel_hours": "cityHash64(kernel_name)",
    "process_hours": "cityHash64(host)",
    "health_hours": "cityHash64(host)",
    "device_hours": "cityHash64(host)",
    "hours_since": "toUnixTimestamp(since)",
    "verdicts": "cityHash64(kernel_name)",
    "calibrations": "cityHash64(service)",
    "schema_versions": "version",
}
_VERSIONS: Final = """CREATE TABLE IF NOT EXISTS schema_versions{suffix}{on_cluster}
(
    version UInt32,
    name String,
    checksum String,
    applied_at DateTime64(3) DEFAULT now64(3)
)
ENGINE = {replicated}ReplacingMergeTree(applied_at)
ORDER BY version
SETTINGS {remember}"""
_EXISTS: Final = (15, 57, 82, 517)  # another is making or changing the same table or database at this moment


@dataclass(frozen=True, slots=True)
class Migration:
    """One file of the schema. `checksum` is of its statements as they are for a single server."""

    version: int
    name: str
    template: str

    @property
    def checksum(self) -> str:
        """SHA-256, hexadecimal."""
        return hashlib.sha256("\n".join(_statements(self.template, "", RAW_DAYS, ROLLUP_DAYS)).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement, and whether it needs a database of its own name to be there already."""

    sql: str
    in_database: bool = True


@cache
def migrations() -> tuple[Migration, ...]:
    """All there are, in order."""
    folder = resources.files("kdiff.queries").joinpath("schema")
    found = []
    for file in folder.iterdir():
        named = _FILE.fullmatch(file.name)
        if named:
            found.append(Migration(int(named[1]), named[2], file.read_text(encoding="utf-8")))
    return tuple(sorted(found, key=lambda migration: migration.version))


def plan(
    database: str,
    cluster: str = "",
    applied: Sequence[int] = (),
    raw_days: int | None = None,
    rollup_days: int | None = None,
    there: tuple[int | None, int | None] = (None, None),
) -> list[Statement]:
    """The statements that bring `database` up to date where the versions in `applied` are there.

    `raw_days`, `rollup_days`: how long rows are kept; None leaves what is set, and keeps new tables for as long as
    those that are `there`, else for 7 days and 13 months. Raises StoreError.
    """
    for days in (raw_days, rollup_days):
        if days is not None and not 1 <= days <= 36_500:
            raise StoreError(f"rows cannot be kept for {days} days: give 1 to 36500")
    kept = there if applied else (None, None)  # what a first run that was cut short left tells of no choice
    keep = (raw_days or kept[0] or RAW_DAYS, rollup_days or kept[1] or ROLLUP_DAYS)
    if keep[0] > keep[1] and (not applied or None not in (raw_days, rollup_days)):
        # Long windows are judged by roll-ups: of rows that have none they would say nothing.
        raise StoreError(f"roll-ups for {keep[1]} days and rows for {keep[0]}: keep roll-ups for as long as rows")
    on_cluster = f" ON CLUSTER {_quoted(cluster)}" if cluster else ""
    statements = [
        Statement(f"CREATE DATABASE IF NOT EXISTS {_quoted(database)}{on_cluster}", in_database=False),
        *map(Statement, _on_cluster("schema_versions", _statements(_VERSIONS, cluster, *keep), database, cluster)),
    ]
    for migration in migrations():
        if migration.version in applied:
            continue
        for sql in _statements(migration.template, cluster, *keep):
            table = re.match(r"(?:CREATE TABLE IF NOT EXISTS|ALTER TABLE) (\w+?)(?:_local)?\b", sql)
            statements += map(Statement, _on_cluster(table[1] if table else "", [sql], database, cluster))
        statements.append(Statement(_remember(migration)))
    # In a new database too: a migration that was cut short may have left tables that keep rows for other times.
    statements += map(Statement, _retention(cluster, on_cluster, raw_days, rollup_days))
    return statements


def migrate(
    client: Any,
    database: str,
    cluster: str = "",
    raw_days: int | None = None,
    rollup_days: int | None = None,
) -> list[int]:
    """Brings `database` up to date and returns the versions that were applied.

    `client` is one of clickhouse-connect whose user may create databases and tables; its own database need not exist.
    Raises StoreError where the schema is newer or was changed by hand, and what the client raises.
    """
    applied = _applied(client, database)
    _verify(applied)
    _require_own(client, database, applied)
    there = retention(client, database)
    before = client.database
    try:
        for statement in plan(database, cluster, tuple(applied), raw_days, rollup_days, there):
            client.database = database if statement.in_database else None
            _run(client, statement.sql)
    finally:
        client.database = before
    return [migration.version for migration in migrations() if migration.version not in applied]


def applied_versions(client: Any, database: str) -> list[int]:
    """The versions that `database` has; none where it does not exist. Raises StoreError as `migrate` does."""
    found = _applied(client, database)
    _verify(found)
    return sorted(found)


def retention(client: Any, database: str) -> tuple[int | None, int | None]:
    """For how many days events and agents' accounts are kept; None where there is no such table, or no such time."""
    rows = client.query(
        "SELECT name, toUInt32OrZero(extract(engine_full, 'toIntervalDay[(]([0-9]+)[)]')) FROM system.tables "
        "WHERE database = {database:String}",
        parameters={"database": database},
    ).result_rows
    days = {name.removesuffix("_local"): int(found) for name, found in rows if found}
    return days.get("cuda_events"), days.get("agent_health")


def check(client: Any) -> None:
    """Raises StoreError unless the schema of the client's database is this version's."""
    applied = _applied(client, client.database)
    _verify(applied)
    missing = [migration for migration in migrations() if migration.version not in applied]
    if missing:
        have = f"is of version {max(applied)}" if applied else "is not there"
        raise StoreError(
            f"the schema of the database {printable(client.database)} {have}, this kdiff needs {missing[-1].version}: "
            "run `kdiff migrate`"
        )


def _applied(client: Any, database: str) -> dict[int, str]:
    there = client.query(
        "SELECT count() FROM system.tables WHERE database = {database:String} AND name = 'schema_versions'",
        parameters={"database": database},
    ).first_row[0]
    if not there:
        return {}
    rows = client.query(
        f"SELECT version, argMax(checksum, applied_at) FROM {_quoted(database)}.schema_versions GROUP BY version"
    ).result_rows
    return {int(version): str(checksum) for version, checksum in rows}


def _require_own(client: Any, database: str, applied: Collection[int]) -> None:
    """Raises StoreError where a table of a known name lacks columns: it is not kdiff's, and CREATE would pass it by.

    Those that a migration is going to add may be missing.
    """
    due = {column for column, version in _added().items() if version not in applied}
    there: dict[str, set[str]] = {}
    for table, column in client.query(
        "SELECT table, name FROM system.columns WHERE database = {database:String}", parameters={"database": database}
    ).result_rows:
        there.setdefault(table, set()).add(column)
    for table, schema in TABLES.items():
        columns = there.get(table, schema.names)
        missing = [name for name in schema.names if name not in columns and (table, name) not in due]
        if missing:
            raise StoreError(
                f"the database {printable(database)} has a table {table} that is not kdiff's (no column {missing[0]}): "
                "name another database, or rename the table"
            )


def _added() -> dict[tuple[str, str], int]:
    """The columns that migrations add to tables that are there, (table, column), and in which version."""
    return {
        (changed[1], column): migration.version
        for migration in migrations()
        for sql in _statements(migration.template, "", RAW_DAYS, ROLLUP_DAYS)
        if (changed := re.match(r"ALTER TABLE (\w+)", sql))
        for column in re.findall(r"ADD COLUMN IF NOT EXISTS (\w+)", sql)
    }


def _verify(applied: dict[int, str]) -> None:
    known = {migration.version: migration for migration in migrations()}
    newer = [version for version in applied if version not in known]
    if newer:
        raise StoreError(
            f"the server's schema is of version {max(newer)}, this kdiff knows {max(known)}: install a newer kdiff"
        )
    for version, checksum in applied.items():
        if checksum != known[version].checksum:
            raise StoreError(
                f"the migration {version} ({known[version].name}) that the server has is not this kdiff's: "
                "install the version that made it, or ship into a new database"
            )


def _run(client: Any, sql: str) -> None:
    for attempt in range(5):
        try:
            client.command(sql)
        except Exception as error:
            if getattr(error, "code", None) not in _EXISTS or attempt == 4:
                raise
        else:
            return


def _statements(template: str, cluster: str, raw_days: int, rollup_days: int) -> list[str]:
    remember = f"non_replicated_deduplication_window = {_REMEMBERED}"
    if cluster:
        remember = (
            f"replicated_deduplication_window = {_REPLICATED}, "
            f"replicated_deduplication_window_seconds = {_REMEMBERED_S}"
        )
    suffix = "_local" if cluster else ""
    text = template.format(
        suffix=suffix,
        on_cluster=f" ON CLUSTER {_quoted(cluster)}" if cluster else "",
        replicated="Replicated" if cluster else "",
        remember=remember,
        raw_days=raw_days,
        rollup_days=rollup_days,
        rollup_events=_select("rollup_events", "cuda_events", suffix),
        rollup_executions=_select("rollup_executions", "kernel_executions", suffix),
    )
    text = re.sub(r"^--.*\n", "", text, flags=re.MULTILINE)
    return [statement.strip() for statement in text.split(";\n") if statement.strip()]


def _select(name: str, table: str, suffix: str) -> str:
    text = re.sub(r"^--.*\n", "", load_sql(name), flags=re.MULTILINE).strip()
    return text.replace(f"FROM {table}\n", f"FROM {table}{suffix}\n")


def _on_cluster(table: str, statements: list[str], database: str, cluster: str) -> list[str]:
    """The statements, and behind one that makes or changes a table on each shard the same for the table over them."""
    if not cluster or table not in _SHARDED_BY:
        return statements
    if statements[0].startswith("ALTER"):
        return [*statements, *(sql.replace(f"{table}_local", table, 1) for sql in statements)]
    return [
        *statements,
        f"CREATE TABLE IF NOT EXISTS {table} ON CLUSTER {_quoted(cluster)} AS {table}_local\n"
        f"ENGINE = Distributed({_text(cluster)}, {_text(database)}, '{table}_local', {_SHARDED_BY[table]})",
    ]


def _retention(cluster: str, on_cluster: str, raw_days: int | None, rollup_days: int | None) -> list[str]:
    suffix = "_local" if cluster else ""
    changed = []
    for tables, days in ((_RAW, raw_days), (_KEPT, rollup_days)):
        for table in tables if days is not None else ():
            changed.append(
                f"ALTER TABLE {table}{suffix}{on_cluster} MODIFY TTL {_ages(table)} + INTERVAL {days} DAY\n"
                "SETTINGS materialize_ttl_after_modify = 0"
            )
    return changed


@cache
def _ages(table: str) -> str:
    """The expression that a table's TTL counts from, as its migration has it."""
    for migration in migrations():
        for statement in _statements(migration.template, "", RAW_DAYS, ROLLUP_DAYS):
            if statement.startswith(f"CREATE TABLE IF NOT EXISTS {table}\n"):
                found = re.search(r"^TTL (.+) \+ INTERVAL \d+ DAY$", statement, re.MULTILINE)
                if found:
                    return found[1]
    raise KeyError(table)


def _remember(migration: Migration) -> str:
    return (
        "INSERT INTO schema_versions (version, name, checksum) "
        f"VALUES ({migration.version}, {_text(migration.name)}, {_text(migration.checksum)})"
    )


def _quoted(name: str) -> str:
    escaped = name.replace("\\", "\\\\").replace("`", "\\`")
    return f"`{escaped}`"


def _text(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
