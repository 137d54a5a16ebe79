"""The schema of a server: applied once, whoever else applies it, and refused where it is another's."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import clickhouse_connect
import numpy as np
import pyarrow as pa
import pytest

import captures
from kdiff.queries import migrations
from kdiff.queries.errors import StoreError
from kdiff.queries.store import engine_type, load_sql
from kdiff.queries.tables import ROLLUPS, TABLES

EVERY = [migration.version for migration in migrations.migrations()]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("engine") / "data")


@pytest.fixture(scope="module")
def engine(path: str) -> Iterator[Any]:
    client = clickhouse_connect.get_client(interface="chdb", path=path)
    yield client
    client.close()


@pytest.fixture
def database(engine: Any, request: pytest.FixtureRequest) -> Iterator[str]:
    name = f"of `{request.node.name}` \\'"
    yield name
    engine.command(f"DROP DATABASE IF EXISTS {migrations._quoted(name)}")


def columns(engine: Any, database: str, table: str) -> dict[str, str]:
    rows = engine.query(
        "SELECT name, type FROM system.columns WHERE database = {d:String} AND table = {t:String} ORDER BY position",
        parameters={"d": database, "t": table},
    ).result_rows
    return dict(rows)


def test_tables_have_the_columns_of_captures(engine: Any, database: str) -> None:
    assert migrations.migrate(engine, database) == EVERY
    assert migrations.migrate(engine, database) == []
    assert migrations.applied_versions(engine, database) == EVERY
    for table, schema in TABLES.items():
        assert columns(engine, database, table) == {field.name: engine_type(field) for field in schema}


def test_many_at_once(engine: Any, database: str, path: str) -> None:
    done: list[object] = []

    def one() -> None:
        with clickhouse_connect.get_client(interface="chdb", path=path) as client:
            done.append(migrations.migrate(client, database))

    threads = [threading.Thread(target=one) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(done) == 4
    assert migrations.applied_versions(engine, database) == EVERY


def test_one_that_was_cut_short_goes_on(engine: Any, database: str) -> None:
    for statement in migrations.plan(database)[:7]:
        engine.database = database if statement.in_database else None
        engine.command(statement.sql)
    engine.database = None
    assert migrations.migrate(engine, database) == EVERY


def test_one_that_was_cut_short_keeps_rows_for_as_long_as_is_said_then(engine: Any, database: str) -> None:
    for statement in migrations.plan(database)[:4]:
        engine.database = database if statement.in_database else None
        engine.command(statement.sql)
    engine.database = None
    migrations.migrate(engine, database, raw_days=30)
    kept = engine.query(
        "SELECT extract(create_table_query, 'toIntervalDay[(](\\\\d+)[)]') FROM system.tables "
        "WHERE database = {d:String} AND name = 'cuda_events'",
        parameters={"d": database},
    ).first_row[0]
    assert kept == "30"


def test_roll_ups_are_kept_for_as_long_as_rows(engine: Any, database: str) -> None:
    with pytest.raises(StoreError, match="keep roll-ups for as long as rows"):
        migrations.migrate(engine, database, raw_days=400)
    migrations.migrate(engine, database, raw_days=400, rollup_days=400)
    with pytest.raises(StoreError, match="keep roll-ups for as long as rows"):
        migrations.migrate(engine, database, raw_days=400, rollup_days=399)


def test_a_table_of_that_name_that_is_anothers_is_refused(engine: Any, database: str) -> None:
    there = migrations._quoted(database)
    engine.command(f"CREATE DATABASE {there}")
    engine.command(f"CREATE TABLE {there}.agent_health (from_ns Int64) ENGINE = MergeTree ORDER BY from_ns")
    with pytest.raises(StoreError, match=r"a table agent_health that is not kdiff's \(no column to_ns\)"):
        migrations.migrate(engine, database)


def test_a_schema_of_another_version_is_refused(engine: Any, database: str) -> None:
    engine.command(f"CREATE DATABASE {migrations._quoted(database)}")
    try:
        engine.database = database
        with pytest.raises(StoreError, match=rf"is not there, this kdiff needs {EVERY[-1]}: run `kdiff migrate`"):
            migrations.check(engine)
        migrations.migrate(engine, database)
        migrations.check(engine)
        engine.command("INSERT INTO schema_versions (version, name, checksum) VALUES (99, 'later', 'x')")
        with pytest.raises(StoreError, match=rf"of version 99, this kdiff knows {EVERY[-1]}: install a newer kdiff"):
            migrations.check(engine)
        engine.command("DELETE FROM schema_versions WHERE version > 2")
        with pytest.raises(StoreError, match=rf"is of version 2, this kdiff needs {EVERY[-1]}: run"):
            migrations.check(engine)
        engine.command("INSERT INTO schema_versions (version, name, checksum) VALUES (2, 'shipped_segments', 'x')")
        with pytest.raises(StoreError, match=r"the migration 2 \(shipped_segments\) that the server has is not this"):
            migrations.migrate(engine, database)
    finally:
        engine.database = None


def test_tables_that_are_there_get_the_columns_of_later_versions(
    engine: Any, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = migrations.migrations()
    with monkeypatch.context() as patch:
        patch.setattr(migrations, "migrations", lambda: every[:7])
        migrations.migrate(engine, database)
    before = columns(engine, database, "cuda_events")
    now = time.time_ns()
    engine.database = database
    try:
        engine.insert("cuda_events", [[now, "launch", "k"]], ["timestamp_ns", "kind", "kernel_name"])
        engine.database = None
        assert migrations.migrate(engine, database) == EVERY[7:]
        engine.database = database
        kept = engine.query("SELECT timestamp_ns, boot_id, clock_offset_ns FROM cuda_events").result_rows
        assert kept == [(now, "", 0)]
        engine.insert_arrow("cuda_events", captures.launches("k", np.array([now + 1])))
        assert engine.query("SELECT sum(launches) FROM kernel_minutes").first_row == (2,)
    finally:
        engine.database = None
    assert {"boot_id", "clock_offset_ns"} <= columns(engine, database, "cuda_events").keys() - before.keys()
    for table, schema in TABLES.items():
        assert columns(engine, database, table) == {field.name: engine_type(field) for field in schema}


def test_a_column_for_a_cluster_is_added_on_each_shard_and_in_the_table_over_them() -> None:
    added = [sql.sql for sql in migrations.plan("kdiff", "c", applied=EVERY[:7]) if "ADD COLUMN" in sql.sql]
    of_events = [sql for sql in added if "cuda_events" in sql and "boot_id" in sql]
    assert [sql.split("\n")[0] for sql in of_events] == [
        "ALTER TABLE cuda_events_local ON CLUSTER `c`",
        "ALTER TABLE cuda_events ON CLUSTER `c`",
    ]


def test_how_long_rows_are_kept_can_be_set_and_changed(engine: Any, database: str) -> None:
    def kept() -> dict[str, str]:
        rows = engine.query(
            "SELECT name, engine_full FROM system.tables WHERE database = {d:String}", parameters={"d": database}
        ).result_rows
        found = {name: re.search(r"toIntervalDay\((\d+)\)", engine) for name, engine in rows}
        return {name: days[1] for name, days in found.items() if days}

    migrations.migrate(engine, database, raw_days=3)
    raw = {"cuda_events": "3", "kernel_executions": "3", "gpu_samples": "3"}
    rest = dict.fromkeys(("device_windows", "kernels", "agent_health", "shipped_segments", "verdicts", *ROLLUPS), "396")
    assert kept() == raw | rest
    migrations.migrate(engine, database, rollup_days=30)
    assert kept() == raw | dict.fromkeys(rest, "30")
    with pytest.raises(StoreError, match=r"cannot be kept for 0 days"):
        migrations.migrate(engine, database, raw_days=0)


def test_tables_of_an_upgrade_keep_rows_for_as_long_as_those_that_are_there(
    engine: Any, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hours that go before the minutes, or stay when these had to go, are of other windows than was asked for."""
    every = migrations.migrations()
    with monkeypatch.context() as patch:
        patch.setattr(migrations, "migrations", lambda: every[:5])
        migrations.migrate(engine, database)
    engine.database = database
    try:
        engine.command("ALTER TABLE cuda_events MODIFY TTL toDate(timestamp_ns) + INTERVAL 3 DAY")
        engine.command("ALTER TABLE agent_health MODIFY TTL toDate(from_ns) + INTERVAL 1000 DAY")
        assert migrations.retention(engine, database) == (3, 1000)
        assert migrations.migrate(engine, database) == EVERY[5:]
        tables = "SELECT name, engine_full FROM system.tables WHERE database = currentDatabase()"
        found = {name: re.search(r"toIntervalDay\((\d+)\)", full) for name, full in engine.query(tables).result_rows}
        kept = {name: days[1] for name, days in found.items() if days}
    finally:
        engine.database = None
    assert kept["gpu_samples"] == "3"
    assert {kept[table] for table, column in ROLLUPS.items() if column == "hour"} == {"1000"}
    assert kept["kernel_minutes"] == "396"  # what is there is left


def test_the_statements_for_a_cluster_are_sql(engine: Any) -> None:
    """They need a cluster to run, but the engine reads them."""
    statements = [statement.sql for statement in migrations.plan("kdiff", "main's", raw_days=3)]
    for sql in statements:
        engine.query("SELECT formatQuery({sql:String})", parameters={"sql": sql})
    local = [sql for sql in statements if "_local ON CLUSTER `main's`" in sql and sql.startswith("CREATE TABLE")]
    over_all = [sql for sql in statements if "ENGINE = Distributed('main\\'s', 'kdiff'," in sql]
    assert len(local) == len(over_all) == len(TABLES) + 12
    assert all("ENGINE = Replicated" in sql and "non_replicated" not in sql for sql in local)
    views = [sql for sql in statements if "MATERIALIZED VIEW" in sql]
    assert all(re.search(r"FROM (\w+)_local\b", sql) for sql in views)
    assert len(views) == 9
    assert not [sql for sql in migrations.plan("kdiff") if "CLUSTER" in sql.sql or "Replicated" in sql.sql]
    changed = [sql.sql for sql in migrations.plan("kdiff", "c", applied=EVERY, raw_days=3) if "ALTER" in sql.sql]
    assert [sql.split()[2] for sql in changed] == ["cuda_events_local", "kernel_executions_local", "gpu_samples_local"]


def test_what_is_to_be_kept_for_a_century_is_kept(engine: Any, database: str) -> None:
    """A DateTime ends in 2106 and begins anew in 1970: what goes a hundred years from now would go at once."""
    migrations.migrate(engine, database, raw_days=36_500, rollup_days=36_500)
    try:
        engine.database = database
        engine.insert("shipped_segments", [["a", "kernels", 7]], ["segment", "table", "rows"])
        engine.command("OPTIMIZE TABLE shipped_segments FINAL")
        assert engine.query("SELECT count() FROM shipped_segments").first_row == (1,)
        tables = "SELECT name, engine_full FROM system.tables WHERE database = currentDatabase() AND engine_full != ''"
        ages = {name: found[1] for name, sql in engine.query(tables).result_rows
                if (found := re.search(r" TTL (.+?) \+ toIntervalDay", sql))}  # fmt: skip
        assert len(ages) == len(TABLES) + 2 + len(ROLLUPS)
        for table, age in ages.items():
            assert engine.query(f"DESCRIBE (SELECT {age} FROM {table})").first_row[1] == "Date", table
    finally:
        engine.database = None


def test_every_query_of_roll_ups_runs_on_empty_tables(engine: Any, database: str) -> None:
    migrations.migrate(engine, database)
    params: dict[str, int | str | list[int]] = {"from_ns": 0, "to_ns": captures.MINUTE, "service": "", "keys": [1]}
    params |= {"kind": "launch", "measure": "device", "isolated": 1, "floors": [1], "bucket_ns": captures.MINUTE}
    params["minutes"] = [0, 60]
    folder = Path(__file__).parents[2] / "queries" / "sql"
    names = sorted(path.stem for which in ("minutes", "hours", "scoped") for path in folder.glob(f"{which}_*.sql"))
    assert len(names) == 28
    try:
        engine.database = database
        assert {name: engine.query_arrow(load_sql(name), parameters=params).num_rows for name in names} == (
            dict.fromkeys(names, 0)
            | dict.fromkeys(("minutes_extent", "minutes_seen", "hours_covered", "hours_seen", "hours_since"), 1)
        )
    finally:
        engine.database = None


def test_a_batch_that_is_sent_again_counts_once_in_rows_and_roll_ups(engine: Any, database: str) -> None:
    migrations.migrate(engine, database, raw_days=36_500, rollup_days=36_500)
    rng = np.random.default_rng(7)
    times = np.sort(rng.integers(captures.T0, captures.T0 + 5 * captures.MINUTE, 10_007))
    rows: pa.Table = captures.launches("gelu", times, completion_ns=rng.integers(1, 10**9, 10_007))
    settings = {"insert_deduplication_token": "x", "deduplicate_blocks_in_dependent_materialized_views": 1}
    try:
        engine.database = database
        for _ in range(3):
            engine.insert_arrow("cuda_events", rows, settings=settings)
        sums = "SELECT sum(launches), sum(arraySum(mapValues(isolated_bins))), uniqExact(minute) FROM kernel_minutes"
        in_bins = "SELECT sum(arraySum(met)) FROM kernel_bins WHERE measure = 'completion' AND alone"
        assert engine.query("SELECT count() FROM cuda_events").first_row == (10_007,)
        assert engine.query(sums).first_row == (10_007, 10_007, 5)
        assert engine.query(in_bins).first_row == (10_007,)
    finally:
        engine.database = None
