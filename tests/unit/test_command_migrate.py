"""kdiff migrate, and what is said of a server whose schema is not this kdiff's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import loaded
import pytest
from command_line import Result, Run, kdiff, named

from kdiff.queries.address import Address
from kdiff.queries.connection import connect
from kdiff.queries.migrations import migrations
from kdiff.queries.tables import TABLES

LAST = max(migration.version for migration in migrations())


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    def call(store: Address | str, *arguments: str) -> Result:
        return kdiff(monkeypatch, capsys, *arguments, "--store", named(monkeypatch, store))

    return call


def tables(address: Address) -> set[str]:
    with connect(address, database="") as client:
        rows = client.query(
            "SELECT name FROM system.tables WHERE database = {d:String}", parameters={"d": address.database}
        ).result_rows
        return {name for (name,) in rows}


def test_it_makes_a_database_that_kdiff_reads(run: Run, database: Address) -> None:
    with connect(database, database="") as client:
        client.command(f"DROP DATABASE {database.database}")
    assert "there is no database" in run(database, "kernels").err
    planned = run(database, "migrate", "--dry-run")
    assert (planned.code, planned.err) == (0, "")
    assert planned.out.startswith(f"CREATE DATABASE IF NOT EXISTS `{database.database}`;\n")
    assert tables(database) == set()
    assert run(database, "migrate") == Result(0, f"brought {database} to schema version {LAST}\n", "")
    assert tables(database) >= {*TABLES, "kernel_minutes", "shipped_segments", "schema_versions"}
    for again in (run(database, "migrate"), run(database, "migrate", "--dry-run")):
        assert again == Result(0, f"the schema of {database} is up to date\n", "")
    assert "is empty: wait for the agent's next flush" in run(database, "kernels").err


def test_how_long_rows_are_kept(run: Run, database: Address) -> None:
    assert run(database, "migrate", "--raw-days", "3").code == 0
    assert run(database, "migrate", "--rollup-days", "40").out.endswith("is up to date, what is kept has changed\n")
    with connect(database) as client:
        for table, days in (("cuda_events", 3), ("kernel_executions", 3), ("kernel_minutes", 40)):
            told = client.command(f"SHOW CREATE TABLE {table}")
            assert f"toIntervalDay({days})" in told
    assert "give 1 to 36500" in run(database, "migrate", "--raw-days", "0").err


def test_on_a_cluster_each_statement_names_it(run: Run, database: Address) -> None:
    option = run(database, "migrate", "--dry-run", "--cluster", "it`s").out
    address = run(f"{database}?cluster=it%60s", "migrate", "--dry-run").out
    assert "ON CLUSTER `it\\`s`" in option
    assert "ReplicatedMergeTree" in option
    assert option == address


def test_an_older_or_newer_schema_is_one_sentence(run: Run, database: Address) -> None:
    assert f"is not there, this kdiff needs {LAST}: run `kdiff migrate`" in run(database, "kernels").err
    loaded.load(database)
    with connect(database) as client:
        client.insert("schema_versions", [[LAST + 7, "later", "x"]], column_names=["version", "name", "checksum"])
    for command in (["kernels"], ["migrate"], ["delete", "--before", "now", "--all-services", "--yes"]):
        result = run(database, *command)
        assert (result.code, result.out) == (2, "")
        assert f"is of version {LAST + 7}, this kdiff knows {LAST}: install a newer kdiff" in result.err
        assert len(result.err.splitlines()) == 1


def test_what_is_refused(run: Run, own_database: Address, tmp_path: Path) -> None:
    for user in ("reader", "readonly", "writer"):
        result = run(replace(own_database, user=user), "migrate")
        assert (result.code, result.out) == (2, "")
        assert f"the user {user} lacks a right on" in result.err
    assert "is a directory, and only a server has a schema" in run(str(tmp_path), "migrate").err
    assert "no server is named" in run("", "migrate").err
