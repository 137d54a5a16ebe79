"""The ClickHouse stand-in does what tests rely on, with clickhouse-connect unchanged."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from clickhouse_connect.driver.exceptions import DatabaseError, OperationalError

from kdiff.queries.address import Address
from kdiff.queries.connection import connect
from server import StandIn

ROWS = 100_003  # prime


def table(rows: int = ROWS) -> pa.Table:
    return pa.table({"a": pa.array(range(rows), pa.uint64()), "s": ["it's\t\\", ""] * (rows // 2) + ["x"] * (rows % 2)})


def create(client: object, name: str = "t") -> None:
    client.command(  # type: ignore[attr-defined]
        f"CREATE TABLE {name} (a UInt64, s LowCardinality(String)) ENGINE = MergeTree ORDER BY a "
        "SETTINGS non_replicated_deduplication_window = 100"
    )


@pytest.mark.parametrize("compress", [False, "lz4", "zstd", "gzip"])
def test_rows_come_back_as_they_went(database: Address, compress: bool | str) -> None:
    client = connect(database, compress=compress)
    create(client)
    data = table()
    client.insert_arrow("t", data)
    client.insert("t", [[ROWS, "one\n'quoted'"]], column_names=["a", "s"])
    assert client.command("SELECT count(), sum(a), uniqExact(s) FROM t") == [
        str(ROWS + 1),
        str(ROWS * (ROWS + 1) // 2),
        "4",
    ]
    back = client.query_arrow("SELECT a, s FROM t WHERE a < {n:UInt64} ORDER BY a", parameters={"n": ROWS})
    assert back.column("a").to_pylist() == data.column("a").to_pylist()
    assert back.column("s").cast(pa.string()).to_pylist() == data.column("s").to_pylist()
    hostile = "tab\there 'quote' \\ \n \" ` {x:String} é"
    assert client.query("SELECT {s:String}", parameters={"s": hostile}).result_rows == [(hostile,)]
    assert client.query("SELECT a FROM t WHERE a IN {k:Array(UInt64)}", parameters={"k": [3, 7]}).result_rows == [
        (3,),
        (7,),
    ]
    assert client.query("SELECT a FROM t LIMIT 0").column_names == ("a",)
    client.close()


def test_settings_end_with_their_query(database: Address) -> None:
    client = connect(database)
    value = "SELECT getSetting('max_threads')"
    before = client.command(value)
    assert client.command(value, settings={"max_threads": 17}) == 17
    assert client.command(value) == before
    with pytest.raises(DatabaseError) as caught:
        client.command(value, settings={"no_such_setting": 1})
    assert caught.value.code == 115
    client.close()


def test_tokens_keep_an_insert_from_counting_twice(database: Address) -> None:
    client = connect(database)
    create(client)
    for token in ("one", "one", "two", "one"):
        client.insert_arrow("t", table(), settings={"insert_deduplication_token": token})
    assert client.command("SELECT count() FROM t") == 2 * ROWS
    client.close()


@pytest.mark.parametrize(
    ("user", "statement", "code"),
    [
        ("reader", "CREATE TABLE x (a Int8) ENGINE = Memory", 497),
        ("readonly", "SELECT 1 SETTINGS max_threads = 3", 164),
        ("writer", "DROP TABLE t", 497),
        ("nothing", "SELECT a FROM t", 497),
        ("default", "SELECT * FROM missing", 60),
        ("default", "SELECT FROM WHERE", 62),
    ],
)
def test_errors_carry_the_code_of_clickhouse(standin: StandIn, user: str, statement: str, code: int) -> None:
    with connect(standin.address(user=user), database="") as client:
        with pytest.raises(DatabaseError) as caught:
            client.command(statement)
        assert caught.value.code == code


def test_faults_strike_as_ordered_and_data_outlives_kill(tmp_path: Path) -> None:
    with StandIn(tmp_path / "data") as server:
        client = connect(server.address(), database="")
        create(client)

        def insert(token: str) -> None:
            client.insert_arrow("t", table(), settings={"insert_deduplication_token": token})

        def count() -> int:
            rows: int = client.command("SELECT count() FROM t")
            return rows

        server.fault("cut", match="INSERT INTO", times=2, after=1000)
        with pytest.raises(OperationalError):
            insert("a")
        server.clear_faults()
        assert count() == 0
        server.fault("lose", match="INSERT INTO", times=2)
        with pytest.raises(OperationalError):
            insert("a")
        server.clear_faults()
        assert count() == ROWS
        server.fault("error", match="INSERT INTO", code=252)
        with pytest.raises(DatabaseError) as caught:
            insert("b")
        assert caught.value.code == 252
        server.fault("html", match="INSERT INTO", status=502)
        with pytest.raises(DatabaseError, match="502"):
            insert("b")
        server.fault("die", match="INSERT INTO")
        with pytest.raises(OperationalError):
            insert("b")
        server.wait()
        server.start()
        assert count() == ROWS
        server.fault("die_after", match="INSERT INTO")
        with pytest.raises(OperationalError):
            insert("b")
        server.wait()
        server.start()
        insert("b")  # again, as one does who got no answer
        assert count() == 2 * ROWS
        assert server.told()["counts"]["INSERT"] == 1
        client.close()
