"""Kept verdicts on either store: whole or not at all, once, readable whatever lies beside them."""

from __future__ import annotations

import dataclasses
import errno
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import loaded
import pytest

from kdiff.queries import verdicts
from kdiff.queries.address import Address
from kdiff.queries.errors import StoreError
from kdiff.queries.verdicts import FILE, OLDER, CaptureLog, KeptVerdict, Log, ServerLog, Wanted, open_log

HOSTILE = 'it\'s "q" `b` \\n \n\x1b[31m Größe 日本語 {x:String} %s'
ONE = KeptVerdict(
    judged_at_ns=1_764_237_600_000_000_001,
    run_id="run-1",
    kernel_name="gelu",
    service="chat",
    label="v1",
    verdict="REGRESSED",
    metric="device",
    quantile=0.99,
    tolerance=0.05,
    before_from_ns=1,
    before_to_ns=2,
    after_from_ns=3,
    after_to_ns=4,
    n_before=5,
    n_after=6,
    value_before=7,
    value_after=8,
    ratio=1.25,
    ci_low=1.125,
    ci_high=None,
    reasons=("One.", HOSTILE),
    run_verdict="REGRESSED",
    run_cause="",
)
BARE = replace(
    ONE,
    run_id="bare",
    kernel_name="",
    value_before=None,
    value_after=None,
    ratio=None,
    ci_low=None,
    reasons=(),
    run_cause=HOSTILE,
)


def every(log: Log, most: int = 1_000) -> list[KeptVerdict]:
    found = log.read(Wanted(lambda _: True, None, 0, most))
    assert found.warnings == []
    return found.verdicts


@pytest.fixture(params=["capture", "server"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Log:
    if request.param == "capture":
        return open_log(str(tmp_path))
    address: Address = request.getfixturevalue("database")
    loaded.load(address)
    return ServerLog(address)


def test_what_is_kept_comes_back_the_newest_first(log: Log) -> None:
    assert every(log) == []
    log.keep([])
    runs = [
        [
            replace(ONE, run_id=f"run-{i}", judged_at_ns=ONE.judged_at_ns + i, kernel_name=name)
            for name in ("a", HOSTILE)
        ]
        for i in (2, 0, 1)
    ]
    for run in runs:
        log.keep(run)
    log.keep([BARE])
    expected = sorted(
        [*(row for run in runs for row in run), BARE], key=lambda v: (-v.judged_at_ns, v.run_id, v.kernel_name)
    )
    assert every(log) == expected
    assert every(log, 3) == expected[:3]


def test_what_is_wanted_is_what_is_read(log: Log) -> None:
    rows = [
        replace(ONE, run_id=str(i), judged_at_ns=10 + i, kernel_name=kernel, service=service)
        for i, (kernel, service) in enumerate((("gelu", "chat"), ("relu", "chat"), ("gelu", ""), ("gelu", HOSTILE)))
    ]
    for row in rows:
        log.keep([row])

    def ids(kernel: str, service: str | None, since: int = 0) -> list[str]:
        return [v.run_id for v in log.read(Wanted(lambda name: name == kernel, service, since, 9)).verdicts]

    assert ids("gelu", None) == ["3", "2", "0"]
    assert ids("gelu", "chat") == ["0"]
    assert ids("gelu", "") == ["2"]
    assert ids("gelu", HOSTILE) == ["3"]
    assert ids("gelu", None, 12) == ["3", "2"]
    assert ids("none", None) == []


# ---- a capture directory ----


def test_many_at_once_lose_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdicts, "MOST_BYTES", 100_000)  # reached once: the file is put aside under the others' hands

    def keep(place: int) -> None:
        for i in range(13):
            name = f"{place}-{i}"
            CaptureLog(tmp_path).keep([replace(ONE, run_id=name, kernel_name=k, label="x" * 700) for k in "ab"])

    with ThreadPoolExecutor(7) as pool:
        list(pool.map(keep, range(7)))
    found = every(CaptureLog(tmp_path))
    assert {(v.run_id, v.kernel_name) for v in found} == {
        (f"{p}-{i}", k) for p in range(7) for i in range(13) for k in "ab"
    }
    assert len(found) == 182
    assert (tmp_path / OLDER).exists()


def test_processes_at_once_lose_nothing(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from kdiff.queries.verdicts import CaptureLog, KeptVerdict\n"
        "for i in range(11):\n"
        "    CaptureLog(Path(sys.argv[1])).keep([KeptVerdict(i, f'{sys.argv[2]}-{i}', 'k', '', '', 'PASS', 'device',"
        " .99, .05, 1, 2, 3, 4, 5, 6, 7, 8, 1.0, 1.0, 1.0, ('r',) * 99, 'PASS', '')])"
    )
    started = [subprocess.Popen([sys.executable, "-c", program, str(tmp_path), str(i)]) for i in range(3)]
    assert [one.wait(60) for one in started] == [0, 0, 0]
    assert len({v.run_id for v in every(CaptureLog(tmp_path))}) == 33


def test_killed_anywhere_in_a_line_the_run_is_not_there_and_the_next_is(tmp_path: Path) -> None:
    whole = CaptureLog(tmp_path)
    whole.keep([ONE, replace(ONE, kernel_name="relu")])
    line = (tmp_path / FILE).read_bytes()
    for cut in (1, 2, len(line) // 3, len(line) - 2, len(line) - 1):
        root = tmp_path / str(cut)
        root.mkdir()
        (root / FILE).write_bytes(line + line[:cut])
        CaptureLog(root).keep([replace(ONE, run_id="next")])
        found = CaptureLog(root).read(Wanted(lambda _: True, None, 0, 9))
        there = {"run-1", "next"}
        assert {v.run_id for v in found.verdicts} == there
        if cut == len(line) - 1:  # all but its end: it is whole once that is added
            assert (len(found.verdicts), found.warnings) == (5, [])
        else:
            assert len(found.verdicts) == 3
            assert found.warnings == [f"skipped 1 line of {root / FILE}: torn, or not what kdiff writes"]


def test_a_full_disk_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = CaptureLog(tmp_path)
    log.keep([ONE])
    before = (tmp_path / FILE).read_bytes()
    write, left = os.write, [100]

    def full(fd: int, data: bytes) -> int:
        if not left[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken, left[0] = left[0], 0
        return write(fd, data[:taken])

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(StoreError, match=r"verdicts.jsonl cannot be written \(No space left on device\): free space"):
        log.keep([replace(ONE, run_id="2")])
    monkeypatch.undo()
    assert (tmp_path / FILE).read_bytes() == before


def test_what_is_no_line_of_kdiffs_is_passed_over(tmp_path: Path) -> None:
    log = CaptureLog(tmp_path)
    log.keep([ONE])
    good = (tmp_path / FILE).read_bytes()
    bad = [
        b"[]",
        b"{}",
        b"null",
        b"\xff\xfe",
        b"[" * 100_000,
        good.strip().replace(b'"n_before":5', b'"n_before":"5"'),
        good.strip().replace(b'"n_before":5', b'"n_before":true'),
        good.strip().replace(b'"reasons":["One."', b'"reasons":[1'),
        good.strip().replace(b'"ratio":1.25', b'"ratio":NaN'),
        good.strip().replace(b'"label":"v1"', b'"label":null'),
        good.strip().replace(b'"n_before":5', b'"n_before":1' + b"0" * 400),
        good.strip().replace(b'"n_before":5', b'"n_before":-5'),
        good.strip().replace(b'"ratio":1.25', b'"ratio":1' + b"0" * 400),
        good.strip().replace(b'"after_to_ns":4', b'"after_to_ns":9223372036854775808'),
        good.strip().replace(b'"after_to_ns":4', b'"after_to_ns":3'),
        good.strip().replace(b'"before_from_ns":1', b'"before_from_ns":2'),
    ]
    (tmp_path / FILE).write_bytes(good + b"\n".join(bad) + b"\n\n" + good.replace(b"run-1", b"run-2"))
    found = log.read(Wanted(lambda _: True, None, 0, 9))
    assert [v.run_id for v in found.verdicts] == ["run-1", "run-2"]
    assert found.warnings == [f"skipped {len(bad)} lines of {tmp_path / FILE}: torn, or not what kdiff writes"]
    newer = good.replace(b'"label":"v1"', b'"label":"v1","novel":1')
    (tmp_path / FILE).write_bytes(newer)
    assert every(log) == [ONE]


def test_no_link_and_no_pipe_is_written_or_read(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("precious\n")
    root = tmp_path / "capture"
    root.mkdir()
    (root / FILE).symlink_to(target)
    with pytest.raises(StoreError, match=r"cannot be written \(Too many levels of symbolic links\)"):
        CaptureLog(root).keep([ONE])
    assert CaptureLog(root).read(Wanted(lambda _: True, None, 0, 9)).warnings != []
    assert target.read_text() == "precious\n"
    (root / FILE).unlink()
    os.mkfifo(root / FILE)
    with pytest.raises(StoreError, match=r"cannot be written \(not a regular file\)"):
        CaptureLog(root).keep([ONE])
    assert CaptureLog(root).read(Wanted(lambda _: True, None, 0, 9)).verdicts == []


def test_no_capture_is_a_sentence(tmp_path: Path) -> None:
    nowhere = CaptureLog(tmp_path / "none")
    with pytest.raises(StoreError, match="there is no capture at"):
        nowhere.read(Wanted(lambda _: True, None, 0, 9))
    with pytest.raises(StoreError, match=r"cannot be written \(No such file or directory\)"):
        nowhere.keep([ONE])


# ---- a server ----


def test_a_run_that_is_sent_again_is_there_once(database: Address) -> None:
    loaded.load(database)
    log = ServerLog(database)
    for _ in range(3):
        log.keep([ONE, BARE])
    assert len(every(log)) == 2


def test_who_may_only_read_is_told_the_right_that_is_missing(own_database: Address) -> None:
    loaded.load(own_database)
    ServerLog(replace(own_database, user="writer")).keep([ONE])
    reader = ServerLog(replace(own_database, user="reader"))
    with pytest.raises(StoreError, match=r"the user reader lacks a right .*: ask its administrator for GRANT INSERT"):
        reader.keep([replace(ONE, run_id="2")])
    assert every(reader) == [ONE]


def test_the_columns_are_those_of_the_table() -> None:
    sql = (Path(verdicts.__file__).resolve().parent / "schema" / "010_verdicts.sql").read_text()
    named = [line.split()[0] for line in sql.splitlines() if line.startswith("    ")]
    assert tuple(named) == verdicts.COLUMNS == tuple(field.name for field in dataclasses.fields(KeptVerdict))
