"""Rows that a spool gives up and the servers that it is shipped to: each is in the store or counted as lost, once."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import shipped
from disks import mounted
from fake_store import OTHER_URL, URL, FakeStore, stores

import captures
from kdiff.agent import accounts, redo
from kdiff.agent.cli import main
from kdiff.agent.keeper import Keeper
from kdiff.agent.redo import Entry, RedoLog
from kdiff.agent.segment_files import Listing, SegmentFile
from kdiff.queries import segments_write
from kdiff.queries.segments_read import UnreadableError

SIZES = [1009, 2003, 3001, 4001]
EXECUTIONS = [997, 499]
MADE = (sum(SIZES), sum(EXECUTIONS))
OPEN = 1 << 40


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A spool with segments of SIZES and of EXECUTIONS."""
    root = tmp_path / "spool"
    shipped.write(root, SIZES)
    for number, rows in enumerate(EXECUTIONS):
        times = time.time_ns() - 10**12 + np.arange(rows) * 1000
        name = f"host-1-01234567-{number + 1}-00000000"
        captures.write(root, "kernel_executions", captures.executions("k", times, 5, pid=7), name)
    return root


@pytest.fixture
def store() -> Iterator[FakeStore]:
    with stores("one") as [only]:
        yield only


def ship(monkeypatch: pytest.MonkeyPatch, root: Path, *options: str, url: str = URL) -> int:
    """As a user does it; the status."""
    monkeypatch.setattr("sys.argv", ["kdiff-agent", "ship", str(root), "--store", url, *options])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def keep(root: Path, store: str = "", max_bytes: int = OPEN) -> None:
    """A second of `run`: it bounds the spool, and ships it."""
    keeper = Keeper(root, store, max_bytes)
    keeper._policy.apply()
    if store:
        keeper._follower.round()
    keeper._journal.close()


def shed(root: Path, share: float) -> None:
    """`run` without a server, while the spool may have that share of its bytes."""
    keep(root, max_bytes=max(1, int(sum(path.stat().st_size for path in root.glob("*/*.parquet")) * share)))


def files(root: Path, table: str = "cuda_events") -> list[SegmentFile]:
    return [file for file in Listing(root, print).read() if file.table == table]


# ---- routes ----


def test_a_manual_ship_beside_a_run_without_a_server_is_known_to_it(
    root: Path, store: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ship(monkeypatch, root) == 0
    assert store.counts == {"rows": MADE[0], "executions": MADE[1], "lost": 0, "lost_executions": 0}
    shed(root, 0.1)
    assert files(root) == []
    assert ship(monkeypatch, root) == 0
    keep(root, URL)
    assert store.counts == {"rows": MADE[0], "executions": MADE[1], "lost": 0, "lost_executions": 0}


@pytest.mark.parametrize("notes", ["kept", "lost"])
def test_what_one_server_has_and_another_has_not_is_lost_for_the_other_only(
    root: Path, monkeypatch: pytest.MonkeyPatch, notes: str
) -> None:
    with stores("one", "other") as [one, other]:
        for file in files(root)[2:]:
            file.path.rename(file.path.with_suffix(".later"))
        assert ship(monkeypatch, root) == 0
        for path in root.glob("*/*.later"):
            path.rename(path.with_suffix(".parquet"))
        if notes == "lost":  # or `ship` had no right to write them
            (root / ".shipped").unlink()
        # `run` ships to the other one, which is away.
        keeper = Keeper(root, OTHER_URL, 1)
        keeper._policy.apply()
        keeper._journal.close()
        assert files(root) == []
        assert ship(monkeypatch, root) == 0
        keep(root, OTHER_URL)
        assert one.made == other.made == MADE
        assert one.counts["rows"] == sum(SIZES[:2])
        assert other.counts["rows"] == 0


def test_an_account_is_sent_once_and_a_copy_of_what_it_counts_never(
    root: Path, tmp_path: Path, store: FakeStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(root, tmp_path / "copy")
    shed(root, 0.5)
    shutil.copytree(root, tmp_path / "shed copy")
    assert ship(monkeypatch, root) == 0
    assert store.made == MADE
    assert ship(monkeypatch, tmp_path / "shed copy") == 0
    capsys.readouterr()
    assert ship(monkeypatch, tmp_path / "copy") == 2
    assert "the store counts its rows as lost" in capsys.readouterr().err
    assert store.made == MADE


def test_accounts_that_are_too_much_themselves_still_say_whom_they_count(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One server has what another has not; then all that is left of it in the spool is an account of accounts."""
    with stores("one", "other") as [one, other]:
        shutil.copytree(root, tmp_path / "copy")
        assert ship(monkeypatch, tmp_path / "copy") == 0
        for share in (0.6, 0.6, 0.1, 0.01, 0.01, 0.01):
            shed(root, share)
        assert {path.parent.name for path in root.glob("*/*.parquet")} == {"agent_health", "device_windows"}
        assert len(list(root.glob("*/*.parquet"))) == 2
        assert ship(monkeypatch, root) == 0
        assert ship(monkeypatch, root, url=OTHER_URL) == 0
        assert one.counts == {"rows": MADE[0], "executions": MADE[1], "lost": 0, "lost_executions": 0}
        assert other.counts == {"rows": 0, "executions": 0, "lost": MADE[0], "lost_executions": MADE[1]}


def test_the_same_victims_in_other_batches_are_counted_once(
    root: Path, tmp_path: Path, store: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two copies of a spool are bounded apart."""
    copy = tmp_path / "copy"
    shutil.copytree(root, copy)
    shed(root, 0.8)
    shed(copy, 0.5)
    for one in (root, copy, root):
        ship(monkeypatch, one)
    assert store.made == MADE


def test_a_segment_of_foreign_name_is_told_by_its_content(
    root: Path, tmp_path: Path, store: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(root)
    captures.write(root, "cuda_events", captures.launches("k", np.arange(101) + 1))
    shutil.copytree(root, tmp_path / "copy")
    shed(root, 0.1)
    assert ship(monkeypatch, root) == 0
    assert ship(monkeypatch, tmp_path / "copy") == 2
    assert store.made == (101, 0)
    captures.write(tmp_path / "copy", "cuda_events", captures.launches("k", np.arange(103) + 1))
    assert ship(monkeypatch, tmp_path / "copy") == 0
    assert store.made == (204, 0)


@pytest.mark.parametrize("route", ["ship", "run"])
def test_what_a_killed_shipper_may_have_sent_is_not_called_lost(
    root: Path, store: FakeStore, monkeypatch: pytest.MonkeyPatch, route: str
) -> None:
    """The insert took effect, its entry in the list did not."""

    def killed(*_: Any, **__: Any) -> None:
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(FakeStore, "insert", killed)
        with pytest.raises(KilledError):
            ship(monkeypatch, root) if route == "ship" else keep(root, URL)
    assert store.counts["rows"] == sum(SIZES)
    for _ in range(3):
        shed(root, 0.1)
    assert len(files(root)) == len(SIZES)
    assert ship(monkeypatch, root) == 0
    shed(root, 0.1)
    assert files(root) == []
    assert ship(monkeypatch, root) == 0
    assert store.made == MADE


@pytest.mark.parametrize("route", ["ship", "run"])
def test_what_a_server_refuses_is_not_kept_for_ever(
    root: Path, store: FakeStore, monkeypatch: pytest.MonkeyPatch, route: str
) -> None:
    store.refuses = True
    for _ in range(2):
        ship(monkeypatch, root) if route == "ship" else keep(root, URL)
    assert store.counts["rows"] == 0
    shed(root, 0.1)
    assert files(root) == []
    store.refuses = False
    assert ship(monkeypatch, root) == 0
    assert store.made == MADE


def test_what_was_in_doubt_before_it_was_refused_still_is(
    root: Path, store: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(FakeStore, "insert", lambda *_, **__: os.kill(os.getpid(), 9))
        child = os.fork()
        if child == 0:
            ship(monkeypatch, root)
        os.waitpid(child, 0)
    store.refuses = True
    assert ship(monkeypatch, root) == 2
    shed(root, 0.1)
    assert len(files(root)) == len(SIZES)


class KilledError(BaseException):
    """Stands for a kill -9."""


# ---- kills ----

_STEPS = {redo.__file__, segments_write.__file__}


def killed_at(step: int, action: Callable[[], None]) -> bool:
    """Whether a process that does it was killed before that line of what changes the spool; it may have ended first."""
    child = os.fork()
    if child == 0:
        left = step

        def trace(frame: FrameType, event: str, _: Any) -> Any:
            nonlocal left
            if frame.f_code.co_filename not in _STEPS:
                return None
            if event == "line":
                left -= 1
                if left < 0:
                    os._exit(9)
            return trace

        with contextlib.suppress(BaseException):
            sys.settrace(trace)
            action()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


ROUTES: dict[str, Callable[[pytest.MonkeyPatch, Path], None]] = {
    "ship": lambda patch, root: None,
    "run with a server": lambda _, root: keep(root, URL),
    "run without one, which gives up more": lambda _, root: shed(root, 0.3),
    "ship --delete": lambda patch, root: [ship(patch, root, "--delete"), None][1],
    "ship, then run without a server": lambda patch, root: [ship(patch, root), shed(root, 0.3)][1],
}


@pytest.mark.parametrize("route", ROUTES)
def test_killed_at_any_step_of_giving_up_nothing_is_counted_twice_or_less(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, route: str
) -> None:
    step = list(ROUTES).index(route)  # each route meets other steps
    lost = set()
    while True:
        spool = tmp_path / f"{step}"
        shutil.copytree(root, spool)
        killed = killed_at(step, lambda spool=spool: shed(spool, 0.6))  # type: ignore[misc]
        with stores("one") as [store]:
            ROUTES[route](monkeypatch, spool)
            if list(spool.glob("*/*.parquet")):
                assert ship(monkeypatch, spool) == 0, step
            assert store.made == MADE, step
            assert RedoLog(spool).entries() == []
            lost.add(store.counts["lost"])
        shutil.rmtree(spool)
        if not killed:
            break
        step += 2 * len(ROUTES)
    assert step > 100
    assert {0} < lost or route.startswith("run without")


def test_killed_while_it_finishes_what_was_left(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(RedoLog, "finish", lambda _: None)
        shed(root, 0.6)
    assert RedoLog(root).victims()
    step = 0
    while True:
        spool = tmp_path / f"{step}"
        shutil.copytree(root, spool)
        killed = killed_at(step, RedoLog(spool).finish_for_another)
        with stores("one") as [store]:
            assert ship(monkeypatch, spool) == 0, step
            assert store.made == MADE, step
        shutil.rmtree(spool)
        if not killed:
            break
        step += 7
    assert step > 50


def test_what_cannot_be_finished_is_at_least_not_shipped(
    root: Path, store: FakeStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in a directory that may only be read."""
    with monkeypatch.context() as patch:
        patch.setattr(RedoLog, "finish", lambda _: None)
        shed(root, 0.6)
        victims = len(RedoLog(root).victims())
        assert ship(monkeypatch, root) == 2
    assert f"left: {victims} segments" in capsys.readouterr().err
    assert ship(monkeypatch, root) == 0
    assert store.made == MADE


def test_two_policies_at_once_count_a_victim_once(
    root: Path, store: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keeper of a recorder that was killed lives on for a moment, while the next one begins."""
    finish, held = RedoLog.finish, RedoLog.held
    second_waits, first_is_done = threading.Event(), threading.Event()
    second = threading.Thread(target=lambda: shed(root, 0.6))

    def finishing(log: RedoLog) -> None:
        if threading.current_thread() is not second and not second.is_alive():
            second.start()
            assert second_waits.wait(20)
        finish(log)

    @contextlib.contextmanager
    def holding(log: RedoLog) -> Iterator[bool]:
        if threading.current_thread() is second:
            second_waits.set()
            assert first_is_done.wait(20)
        with held(log) as got:
            yield got

    with monkeypatch.context() as patch:
        patch.setattr(RedoLog, "finish", finishing)
        patch.setattr(RedoLog, "held", holding)
        patch.setattr(RedoLog, "finish_for_another", lambda _: None)
        patch.setattr(RedoLog, "victims", lambda log: frozenset() if not first_is_done.is_set() else victims(log))
        shed(root, 0.6)
        first_is_done.set()
        second.join(20)
    # In the spool, which kdiff reads on the host, as in the store.
    health = pq.read_table(root / "agent_health").to_pandas()
    rows = sum(pq.read_metadata(file.path).num_rows for file in files(root))
    assert rows + int(health[["lost_launches", "lost_syncs"]].sum().sum()) == MADE[0]
    assert ship(monkeypatch, root) == 0
    assert store.made == MADE
    assert store.counts["lost"] > 0


def victims(log: RedoLog) -> frozenset[str]:
    return frozenset(key for entry in log.entries() for key in entry.victims)


# ---- a full disk ----


def test_the_log_takes_several_entries_and_forgets_what_was_finished(root: Path) -> None:
    log = RedoLog(root)
    log.prepare()
    first, second = Entry((files(root)[0].key,)), Entry((files(root)[1].key,), (("agent_health/a.parquet", b"x" * 99),))
    for entry in (first, second):
        log.append(entry)
    assert log.entries() == [first, second]
    log.finish()
    assert (root / "agent_health" / "a.parquet").read_bytes() == b"x" * 99
    assert len(files(root)) == len(SIZES) - 2
    # What lies behind a shorter entry is of an earlier generation.
    log.append(first)
    assert log.entries() == [first]
    assert (root / ".shedding").stat().st_size == redo.LOG_BYTES


@pytest.mark.parametrize("cut", [1, 40, 57, 100])
def test_an_entry_that_was_not_written_whole_is_none(root: Path, cut: int) -> None:
    log = RedoLog(root)
    log.append(Entry((files(root)[0].key,)))
    data = (root / ".shedding").read_bytes()
    (root / ".shedding").write_bytes(data[:cut] + bytes(len(data) - cut))
    assert log.entries() == []
    log.append(Entry((files(root)[1].key,)))
    assert log.victims() == {files(root)[1].key}


def test_a_hostile_log_is_none(root: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious.parquet"
    precious.touch()
    for path in ("../precious.parquet", f"cuda_events/../../{precious.name}", "cuda_events/..", str(precious)):
        log = RedoLog(root)
        log.append(Entry((path,)))
        log.finish_for_another()
        assert precious.exists()
        (root / ".shedding").unlink()
    (root / ".shedding").symlink_to(precious)
    shed(root, 0.6)
    assert precious.read_bytes() == b""
    (root / ".shedding").unlink()
    os.mkfifo(root / ".shedding")
    assert RedoLog(root).entries() == []
    shed(root, 0.9)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Of 3 MB."""
    with mounted(tmp_path / "disk", "3m") as disk:
        yield disk


@pytest.mark.parametrize("step", [20, 50, 70, 90, 110, 130, 150, 10_000])
def test_on_a_full_disk_what_is_given_up_is_counted_whatever_is_killed(
    small_disk: Path, store: FakeStore, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    spool = small_disk / "spool"
    shipped.write(spool, SIZES)
    keep(spool)
    with contextlib.suppress(OSError), open(small_disk / "filler", "wb", buffering=0) as filler:
        while True:
            filler.write(bytes(1 << 12))
    killed = killed_at(step, lambda: shed(spool, 0.01))
    assert killed or step == 10_000
    # Whoever is next, on a disk that is as full.
    shed(spool, 0.01)
    assert files(spool) == []
    os.truncate(small_disk / "filler", 0)
    assert ship(monkeypatch, spool) == 0
    assert store.counts == {"rows": 0, "executions": 0, "lost": sum(SIZES), "lost_executions": 0}


def test_accounts_that_a_full_disk_has_no_room_for_wait_on_it(
    root: Path, store: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others take what the victims leave, at once and for long; then the host dies."""

    @contextlib.contextmanager
    def full(path: Path, exclusive: bool = False) -> Iterator[Any]:
        raise OSError(28, "No space left on device")
        yield

    with monkeypatch.context() as patch:
        patch.setattr(redo, "replacing", full)
        for share in (0.8, 0.8, 0.5):
            with pytest.raises(OSError, match="No space left"):
                shed(root, share)
        assert len(RedoLog(root).entries()) == 3
    assert len(files(root)) + len(files(root, "kernel_executions")) < 4
    assert ship(monkeypatch, root) == 0
    assert store.made == MADE
    assert store.counts["lost"] > 0


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_what_this_process_cannot_read_now_is_not_given_up_uncounted(
    root: Path, store: FakeStore, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """The other thread of the keeper, or of the host another process, has the last descriptor for a moment."""
    really = accounts.read_footer
    failures = [code] * 3

    def read_footer(*of: Any) -> Any:
        if failures:
            raise UnreadableError("torn or not a Parquet file") from OSError(failures.pop(), "cannot be read")
        return really(*of)

    monkeypatch.setattr(accounts, "read_footer", read_footer)
    for _ in range(3):
        with pytest.raises(OSError, match="to read what is to be given up"):
            keep(root, max_bytes=1)
    keep(root, max_bytes=1)
    assert not files(root)
    keep(root, URL)
    assert store.made == MADE
