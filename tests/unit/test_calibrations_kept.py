"""Kept calibrations on either store: one a key, whole, readable whatever lies beside them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import loaded
import pytest

from kdiff.queries import calibrations
from kdiff.queries.address import Address
from kdiff.queries.calibrations import (
    FILE,
    Calibrations,
    CaptureCalibrations,
    Factor,
    Found,
    KeptCalibration,
    ServerCalibrations,
    Wanted,
)
from kdiff.queries.errors import StoreError
from kdiff.queries.server import ServerStore

HOSTILE = 'it\'s "q" `b` \\n \n\x1b[31m Größe 日本語 {x:String} %s'
MINUTE = 60_000_000_000
ONE = KeptCalibration(
    made_at_ns=1_764_237_600_000_000_001,
    calibration_id="a",
    service="chat",
    metric="auto",
    quantile=0.99,
    tolerance=0.05,
    window_ns=15 * MINUTE,
    from_ns=1,
    to_ns=2,
    windows=41,
    left_out=3,
    pairs=37,
    shifts=1,
    pooled=1.25,
    kernels=(Factor("gelu", "device", 1.5, 37), Factor(HOSTILE, "completion", 1.0, 20)),
    comparisons=57,
    regressed=2,
    regressed_widened=1,
    not_passed=9,
    not_passed_widened=11,
    runs=37,
    runs_regressed=2,
    runs_regressed_widened=1,
)
CHAT = Wanted("chat", "auto", 0.99, 8 * MINUTE, 30 * MINUTE)


@pytest.fixture(params=["capture", "server"])
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Calibrations]:
    if request.param == "capture":
        yield CaptureCalibrations(tmp_path)
        return
    address: Address = request.getfixturevalue("database")
    loaded.load(address)
    with ServerStore(address) as store:
        yield ServerCalibrations(store)


def test_the_newest_that_fits_is_found_whole(kept: Calibrations) -> None:
    assert kept.newest(CHAT) == Found(None)
    for place, window_ns in enumerate((15, 20, 31, 5)):
        kept.keep(replace(ONE, calibration_id=str(place), made_at_ns=place + 1, window_ns=window_ns * MINUTE))
    kept.keep(replace(ONE, calibration_id="other", service="", made_at_ns=9))
    kept.keep(replace(ONE, calibration_id="median", quantile=0.5, made_at_ns=10, kernels=()))
    kept.keep(replace(ONE, calibration_id="host", metric="completion", service=HOSTILE, made_at_ns=11))
    found = kept.newest(CHAT)
    assert found == Found(replace(ONE, calibration_id="1", made_at_ns=2, window_ns=20 * MINUTE))

    def name(wanted: Wanted) -> str | None:
        one = kept.newest(wanted).calibration
        return one.calibration_id if one else None

    assert name(replace(CHAT, longest_ns=15 * MINUTE)) == "0"
    assert name(replace(CHAT, longest_ns=15 * MINUTE - 1)) is None
    assert name(replace(CHAT, service="")) == "other"
    assert name(replace(CHAT, quantile=0.5)) == "median"
    assert name(replace(CHAT, service=HOSTILE, metric="completion")) == "host"
    assert name(replace(CHAT, service=HOSTILE)) is None
    assert name(replace(CHAT, quantile=0.999)) is None


def test_a_newer_one_of_the_same_key_takes_its_place(kept: Calibrations) -> None:
    for place in (1, 3, 2):
        kept.keep(replace(ONE, calibration_id=str(place), made_at_ns=ONE.made_at_ns + place, pooled=float(place)))
    found = kept.newest(CHAT).calibration
    assert found is not None
    if isinstance(kept, CaptureCalibrations):  # the last that was kept, whatever its clock said
        assert found.calibration_id == "2"
        assert len((kept.root / FILE).read_text().splitlines()) == 1
    else:
        assert found.calibration_id == "3"


def test_one_that_a_fast_clock_made_hides_none_that_comes_after_it(kept: Calibrations) -> None:
    now = replace(CHAT, until_ns=ONE.made_at_ns + 9)
    ahead = replace(ONE, calibration_id="ahead", made_at_ns=ONE.made_at_ns + 10, window_ns=16 * MINUTE)
    kept.keep(ahead)
    assert kept.newest(now) == Found(ahead)
    kept.keep(replace(ahead, calibration_id="right", made_at_ns=ONE.made_at_ns + 1))
    if isinstance(kept, ServerCalibrations):
        kept.store._client.command("OPTIMIZE TABLE calibrations FINAL")
    else:
        kept.keep(replace(ahead, window_ns=15 * MINUTE))
    found = kept.newest(now).calibration
    assert found is not None
    assert found.calibration_id == "right"


# ---- a capture directory ----


def test_many_at_once_lose_nothing(tmp_path: Path) -> None:
    def keep(place: int) -> None:
        for i in range(13):
            CaptureCalibrations(tmp_path).keep(replace(ONE, service=f"{place}-{i}"))

    with ThreadPoolExecutor(7) as pool:
        list(pool.map(keep, range(7)))
    lines = [json.loads(line) for line in (tmp_path / FILE).read_text().splitlines()]
    assert sorted(line["service"] for line in lines) == sorted(f"{p}-{i}" for p in range(7) for i in range(13))
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


def test_processes_at_once_lose_nothing(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from kdiff.queries.calibrations import *\n"
        "for i in range(11):\n"
        "    CaptureCalibrations(Path(sys.argv[1])).keep(KeptCalibration(1, 'a', f'{sys.argv[2]}-{i}', 'auto', .99,"
        " .05, 9, 1, 2, 3, 0, 2, 0, 1.0, (), 2, 0, 0, 0, 0, 2, 0, 0))"
    )
    started = [subprocess.Popen([sys.executable, "-c", program, str(tmp_path), str(i)]) for i in range(3)]
    assert [one.wait(60) for one in started] == [0, 0, 0]
    assert len((tmp_path / FILE).read_text().splitlines()) == 33


def test_torn_foreign_and_hostile_lines_are_passed_over_and_told(tmp_path: Path) -> None:
    kept = CaptureCalibrations(tmp_path)
    kept.keep(ONE)
    good = (tmp_path / FILE).read_bytes()
    bad = [
        b"[]",
        b"{}",
        b"null",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"schema": 1}',
        good.strip().replace(b'"pooled":1.25', b'"pooled":0.99'),
        good.strip().replace(b'"pooled":1.25', b'"pooled":NaN'),
        good.strip().replace(b'"pooled":1.25', b'"pooled":1' + b"0" * 400),
        good.strip().replace(b'"pooled":1.25', b'"pooled":"1.25"'),
        good.strip().replace(b'"tolerance":0.05', b'"tolerance":1e308'),
        good.strip().replace(b'"quantile":0.99', b'"quantile":1.0'),
        good.strip().replace(b'"kernel_factors":[1.5,1.0]', b'"kernel_factors":[1.5]'),
        good.strip().replace(b'"kernel_factors":[1.5,1.0]', b'"kernel_factors":[1.5,0]'),
        good.strip().replace(b'"kernel_names":["gelu",', b'"kernel_names":[7,'),
        good.strip().replace(b'"kernel_names":[', b'"kernel_name":['),
        good.strip().replace(b'"regressed":2', b'"regressed":58'),
        good.strip().replace(b'"regressed":2', b'"regressed":-1'),
        good.strip().replace(b'"to_ns":2', b'"to_ns":1'),
        good.strip().replace(b'"window_ns":900000000000', b'"window_ns":0'),
        good.strip().replace(b'"service":"chat"', b'"service":null'),
    ]
    assert all(line != good.strip() for line in bad)
    (tmp_path / FILE).write_bytes(b"\n".join(bad) + b"\n\n" + good + good[:-9])
    found = kept.newest(CHAT)
    assert found.calibration == ONE
    assert found.warnings == (
        f"skipped {len(bad) + 1} calibrations of {tmp_path / FILE}: torn, or not what kdiff writes; run "
        "`kdiff calibrate` again",
    )
    kept.keep(replace(ONE, service="other"))
    assert kept.newest(CHAT) == Found(ONE)  # a writer leaves none of that
    assert len((tmp_path / FILE).read_bytes().splitlines()) == 2


def test_what_a_newer_kdiff_kept_stays_and_is_told(tmp_path: Path) -> None:
    kept = CaptureCalibrations(tmp_path)
    newer = b'{"schema":"kdiff-calibration/2","novel":[1]}\n'
    (tmp_path / FILE).write_bytes(newer)
    kept.keep(ONE)
    found = kept.newest(CHAT)
    assert found.calibration == ONE
    assert found.warnings == (
        f"skipped 1 calibration of {tmp_path / FILE}: of a newer kdiff; install that, or run `kdiff calibrate` again",
    )
    assert newer in (tmp_path / FILE).read_bytes()


def test_a_full_disk_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = CaptureCalibrations(tmp_path)
    kept.keep(ONE)
    before = (tmp_path / FILE).read_bytes()
    write, left = os.write, [100]

    def full(fd: int, data: bytes) -> int:
        if not left[0]:
            raise OSError(28, os.strerror(28))
        taken, left[0] = left[0], 0
        return write(fd, data[:taken])

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(StoreError, match=r"calibrations.jsonl cannot be written \(No space left on device\): free"):
        kept.keep(replace(ONE, pooled=2.0))
    monkeypatch.undo()
    assert (tmp_path / FILE).read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


def test_what_a_killed_writer_left_is_in_nobodys_way(tmp_path: Path) -> None:
    (tmp_path / f".{FILE}.partial").write_bytes(b"half of a li")
    kept = CaptureCalibrations(tmp_path)
    kept.keep(ONE)
    assert kept.newest(CHAT) == Found(ONE)
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


def test_links_and_pipes_are_not_followed(tmp_path: Path) -> None:
    root, target = tmp_path / "root", tmp_path / "precious"
    root.mkdir()
    target.write_text("precious\n")
    for name in (FILE, f".{FILE}.partial"):
        (root / name).symlink_to(target)
        with pytest.raises(StoreError, match=r"cannot be written \(Too many levels of symbolic links\)"):
            CaptureCalibrations(root).keep(ONE)
        if name == FILE:
            assert len(CaptureCalibrations(root).newest(CHAT).warnings) == 1
        (root / name).unlink()
        assert target.read_text() == "precious\n"
    (root / FILE).unlink(missing_ok=True)
    os.mkfifo(root / FILE)
    with pytest.raises(StoreError, match=r"cannot be written \(not a regular file\)"):
        CaptureCalibrations(root).keep(ONE)
    assert CaptureCalibrations(root).newest(CHAT).warnings == (f"skipped {root / FILE}: not a regular file",)


def test_a_file_of_any_size_costs_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrations, "MOST_BYTES", 1 << 20)
    with (tmp_path / FILE).open("wb") as file:
        file.truncate((1 << 20) + 1)
    kept = CaptureCalibrations(tmp_path)
    assert kept.newest(CHAT) == Found(None, (f"skipped {tmp_path / FILE}: it is over 1 MiB",))
    with pytest.raises(StoreError, match=r"calibrations.jsonl is over 1 MiB: remove it"):
        kept.keep(ONE)


# ---- a server ----


def test_what_is_sent_again_is_there_once(database: Address) -> None:
    loaded.load(database)
    with ServerStore(database) as store:
        for _ in range(3):
            ServerCalibrations(store).keep(ONE)
        assert store._client.query("SELECT count() FROM calibrations").first_row == (1,)


def test_who_may_only_read_is_told_the_right_that_is_missing(own_database: Address) -> None:
    loaded.load(own_database)
    with ServerStore(replace(own_database, user="writer")) as store:
        ServerCalibrations(store).keep(ONE)
    with ServerStore(replace(own_database, user="reader")) as store:
        with pytest.raises(
            StoreError, match=r"the user reader lacks a right .*: ask its administrator for GRANT INSERT"
        ):
            ServerCalibrations(store).keep(ONE)
        assert ServerCalibrations(store).newest(CHAT) == Found(ONE)


def test_the_columns_are_those_of_the_table() -> None:
    sql = (Path(calibrations.__file__).resolve().parent / "schema" / "012_calibrations.sql").read_text()
    named = [line.split()[0] for line in sql.splitlines() if line.startswith("    ")]
    assert tuple(named) == calibrations.COLUMNS
