from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow.parquet as pq
import pytest
import shipped
from shipped import count, ship

from kdiff.agent import shipping
from kdiff.agent.cli import main
from kdiff.agent.segment_files import Listing
from kdiff.agent.shipping import Hooks, Shipper
from kdiff.queries.address import Address
from kdiff.queries.errors import StoreError
from kdiff.queries.migrations import migrate
from server import PASSWORD, StandIn

EVENTS = "INSERT INTO cuda_events"
LIST = "INSERT INTO `shipped_segments`"


@pytest.fixture(scope="module")
def database(standin: StandIn) -> Iterator[Address]:
    """A migrated database."""
    with shipped.migrated(standin.address(), f"test_faults_{os.getpid()}") as address:
        yield address


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipping, "_FIRST_DELAY_S", 0.01)


@pytest.fixture
def environment(database: Address, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address, as a user would write it."""
    monkeypatch.setenv("KDIFF_CLICKHOUSE_PASSWORD", database.password)
    return str(database)


def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str]:
    monkeypatch.setattr("sys.argv", ["kdiff-agent", *argv])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0), capsys.readouterr().err


def test_a_segment_larger_than_a_block_is_cut_the_same_way_every_time(
    database: Address, store: Any, faults: StandIn, tmp_path: Path
) -> None:
    shipped.write(tmp_path, [10_007])
    # Row groups and blocks end in different places.
    [path] = (tmp_path / "cuda_events").iterdir()
    pq.write_table(pq.read_table(path), path, row_group_size=999)
    faults.fault("error", match=EVENTS, code=497, skip=2)
    with pytest.raises(StoreError):
        ship(database, tmp_path, block_rows=3001)
    assert count(store) == 6002
    assert ship(database, tmp_path, block_rows=3001).rows == 3001 + 1004 + 1
    assert shipped.checksum_of_server(store) == shipped.checksum_of_files(store, [tmp_path])
    names = store.query("SELECT segment, rows FROM shipped_segments WHERE segment LIKE '%#%' ORDER BY 2 DESC, 1")
    assert [rows for _, rows in names.result_rows] == [3001, 3001, 3001, 1004]
    assert names.result_rows[-1][0].endswith(".parquet#9003-10007")


@pytest.mark.parametrize("kind", ["lose", "cut"])
def test_a_lost_answer_or_a_cut_request_changes_nothing(
    database: Address, store: Any, faults: StandIn, tmp_path: Path, kind: str
) -> None:
    shipped.write(tmp_path, [1009, 503])
    for match in (EVENTS, LIST, "SELECT segment"):
        faults.fault(kind, match=match, times=3, after=1000)
    tally = ship(database, tmp_path)
    assert [fault["met"] for fault in faults.told()["faults"]] == [3, 3, 3]
    assert tally.retries >= 3
    assert count(store) == 1512
    assert store.query(shipped.ROLLED_UP).result_rows == store.query(shipped.FROM_ROWS).result_rows


def test_what_may_pass_is_tried_again(database: Address, store: Any, faults: StandIn, tmp_path: Path) -> None:
    shipped.write(tmp_path, [101])
    for code in (202, 242, 252, 241, 319):
        faults.fault("error", match=EVENTS, code=code)
    assert ship(database, tmp_path).retries == 5
    assert count(store) == 101


def test_a_user_who_may_only_insert_and_read_is_enough(database: Address, store: Any, tmp_path: Path) -> None:
    shipped.write(tmp_path, [101])
    assert ship(replace(database, user="writer", password=PASSWORD), tmp_path).rows == 101 + 3 + 1
    assert count(store) == 101


def test_the_next_server_takes_over(store: Any, database: Address, faults: StandIn, tmp_path: Path) -> None:
    shipped.write(tmp_path, [101])
    two = replace(database, hosts=(("127.0.0.1", 1), *database.hosts))
    assert ship(two, tmp_path).rows == 101 + 3 + 1
    assert count(store) == 101


def test_a_server_without_the_database_does_not_keep_the_other_from_being_asked(
    store: Any, database: Address, tmp_path: Path
) -> None:
    """One host is away for a moment, the other was never set up; then the first is back."""
    shipped.write(tmp_path, [101])
    files = Listing(tmp_path, print).read()
    here = database.hosts[0]
    shipper = Shipper(lambda: replace(database, hosts=(here, ("localhost", here[1]))), Hooks(), retry_for_s=5)
    real = shipping.connect

    def connect(address: Address, **more: Any) -> Any:
        if address.hosts[0][0] == "localhost":
            address = replace(address, database="nowhere")
        return real(address, **more)

    with mock.patch.object(shipping, "connect", connect):
        shipper._host = 1  # where the loss of a connection leaves it
        with pytest.raises(StoreError, match="no database"):
            shipper.ship(files)
        shipper.ship(files)
    shipper.close()
    assert count(store) == 101


def test_a_replica_that_may_not_write_gives_way_to_the_next(
    tmp_path: Path, database: Address, store: Any, faults: StandIn
) -> None:
    shipped.write(tmp_path, [101])
    other = replace(database, hosts=(("localhost", database.hosts[0][1]), *database.hosts))
    faults.fault("error", match=EVENTS, code=242)
    tried: list[str] = []
    original = shipping.connect

    def noting(address: Address, **more: Any) -> Any:
        tried.append(address.hosts[0][0])
        return original(address, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shipping, "connect", noting)
        assert ship(other, tmp_path).retries == 1
    assert tried == ["localhost", "127.0.0.1"]


def test_without_the_confirmation_nothing_is_deleted(
    environment: str, faults: StandIn, store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    shipped.write(tmp_path, [101])
    faults.fault("error", match=LIST, code=497, times=9)
    code, err = run(monkeypatch, capsys, "ship", str(tmp_path), "--delete", "--store", environment)
    assert code == 2
    assert "lacks a right" in err
    assert "left: 3 segments" in err
    assert len(list(tmp_path.rglob("*.parquet"))) == 3


def test_a_page_of_html_and_an_old_schema_are_one_sentence(
    environment: str, database: Address, store: Any, faults: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    shipped.write(tmp_path, [101])
    faults.fault("html", times=9)
    assert "answers with a web page" in run(monkeypatch, capsys, "ship", str(tmp_path), "--store", environment)[1]
    faults.clear_faults()
    store.command("TRUNCATE TABLE schema_versions")
    code, err = run(monkeypatch, capsys, "ship", str(tmp_path), "--store", environment)
    migrate(store, database.database)
    assert code == 2
    assert "run `kdiff migrate`" in err.splitlines()[-1]
