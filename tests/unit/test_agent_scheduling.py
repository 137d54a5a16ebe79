"""kdiff.agent.scheduling: what threads waited comes to the rows of their calls, and what is unknown is null."""

from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest

from kdiff.agent.names import Kernel
from kdiff.agent.pairing import PAIRED
from kdiff.agent.recorder import Recorder
from kdiff.agent.ring import Gathered
from kdiff.agent.rows import Owner, RowMaker
from kdiff.agent.scheduling import UNKNOWN, Waits, wait_columns
from kdiff.probes.wire import EVENT, WAIT, Kind, WireFlags
from kdiff.queries.tables import WAITS

BOTH = WireFlags.WAITS_KNOWN | WireFlags.WAITS_BEFORE_KNOWN
WAITED = BOTH | WireFlags.WAITED
SECOND = 1_000_000_000
NOW = 77_777 * SECOND


def events(*rows: tuple[int, int, int]) -> np.ndarray:
    """EVENT records of (thread, ns after NOW, flags)."""
    made = np.zeros(len(rows), EVENT)
    made["tid"], made["flags"] = [row[0] for row in rows], [row[2] for row in rows]
    made["timestamp_ns"] = [NOW + row[1] for row in rows]
    return made


def records(*rows: tuple[int, int, tuple[int, int, int, int]]) -> np.ndarray:
    """WAIT records of (thread, ns after NOW, values)."""
    made = np.zeros(len(rows), WAIT)
    made["tid"], made["timestamp_ns"] = [row[0] for row in rows], [NOW + row[1] for row in rows]
    for place, name in enumerate(WAITS.names):
        made[name] = [row[2][place] for row in rows]
    return made


def matched(waits: Waits, *rows: tuple[int, int, int], at: int = 0) -> list[list[int]]:
    waits.match(events(*rows), NOW + at)
    found = waits.take()
    assert found is not None
    return found.tolist()


def test_without_a_record_what_is_known_is_nothing() -> None:
    flags = (0, WireFlags.WAITS_KNOWN, WireFlags.WAITS_BEFORE_KNOWN, BOTH, WireFlags.NO_RETURN)
    assert matched(Waits(), *((7, at, flag) for at, flag in enumerate(flags))) == [
        [UNKNOWN] * 4,
        [0, 0, UNKNOWN, UNKNOWN],
        [UNKNOWN, UNKNOWN, 0, 0],
        [0, 0, 0, 0],
        [UNKNOWN] * 4,
    ]


def test_records_find_their_events_by_thread_and_time() -> None:
    waits = Waits()
    largest = (1 << 22) - 1
    waits.feed(records((7, 5, (1, 2, 3, 4)), (8, 5, (5, 6, 7, 8)), (largest, 6, (9, 0, 0, 2**40))))
    rows = [(largest, 6, WAITED), (7, 6, BOTH), (8, 5, WAITED), (7, 5, WAITED)]
    assert matched(waits, *rows) == [[9, 0, 0, 2**40], [0] * 4, [5, 6, 7, 8], [1, 2, 3, 4]]
    assert waits.take() is None


def test_a_record_tells_nothing_of_what_is_unknown() -> None:
    waits = Waits()
    waits.feed(records((7, 1, (1, 2, 0, 0)), (7, 2, (0, 0, 3, 4))))
    first, bare = WireFlags.WAITS_KNOWN | WireFlags.WAITED, WireFlags.WAITS_BEFORE_KNOWN | WireFlags.WAITED
    assert matched(waits, (7, 1, first), (7, 2, bare)) == [[1, 2, UNKNOWN, UNKNOWN], [UNKNOWN, UNKNOWN, 3, 4]]


def test_what_waits_for_a_sync_finds_its_record_later_and_each_only_once() -> None:
    waits = Waits()
    waits.feed(records((7, 1, (1, 1, 1, 1)), (7, 2, (2, 2, 2, 2))))
    assert matched(waits, (7, 2, WAITED)) == [[2] * 4]
    waits.feed(records((7, 3, (3, 3, 3, 3))))
    assert matched(waits, (7, 1, WAITED), (7, 3, WAITED), at=12 * SECOND) == [[1] * 4, [3] * 4]
    assert matched(waits, (7, 1, WAITED), at=12 * SECOND) == [[UNKNOWN] * 4]


def test_records_of_rows_that_never_come_are_forgotten() -> None:
    waits = Waits()
    waits.feed(records((7, 1, (1, 1, 1, 1)), (7, 20 * SECOND, (2, 2, 2, 2))))
    matched(waits, (8, 0, 0), at=31 * SECOND)
    assert matched(waits, (7, 1, WAITED), (7, 20 * SECOND, WAITED), at=31 * SECOND) == [[UNKNOWN] * 4, [2] * 4]


def test_records_are_forgotten_where_all_calls_are_of_processes_that_are_not_recorded() -> None:
    recorder = MagicMock()
    recorder._waits = waits = Waits()
    waits.feed(records((7, 1 - NOW, (1, 1, 1, 1))))  # 1 ns after boot
    recorder._raw, recorder._ready = Gathered(EVENT), Gathered(PAIRED)
    recorder._pairing.feed.return_value = np.zeros(0, PAIRED)
    Recorder._pair(recorder)
    assert waits.take().shape == (0, 4)
    assert matched(waits, (7, 1 - NOW, WAITED), at=-NOW) == [[UNKNOWN] * 4]


def test_what_is_taken_is_of_all_that_was_matched_in_order() -> None:
    waits = Waits()
    waits.match(events((7, 1, BOTH)), NOW)
    waits.match(events((7, 2, 0), (7, 3, BOTH)), NOW)
    found = waits.take()
    assert found is not None
    assert found[:, 0].tolist() == [0, UNKNOWN, 0]


@pytest.mark.parametrize("known", [True, False])
def test_rows_have_them_and_null_where_it_is_unknown(known: bool) -> None:
    paired = np.zeros(3, PAIRED)
    paired["event"]["kind"] = [Kind.EVENT_RECORD, Kind.LAUNCH, Kind.SYNC]
    waits = np.array([[9, 9, 9, 9], [1, 2, UNKNOWN, UNKNOWN], [3, 0, 5, 6]], np.int64)
    owner = Owner("comm", "", "")
    maker = RowMaker(lambda pid: [(0, "svc")], "host-1", lambda *_: Kernel("one", "one", "load"), lambda *_: owner)
    table, _ = maker.make(paired, waits if known else None)
    found: list[dict[str, Any]] = table.select(WAITS.names).to_pylist()
    values = [[1, 2, None, None], [3, 0, 5, 6]] if known else [[None] * 4] * 2
    assert found == [dict(zip(WAITS.names, row, strict=True)) for row in values]


def test_columns_of_no_rows() -> None:
    for waits in (None, np.zeros((0, 4), np.int64)):
        assert {name: len(column) for name, column in wait_columns(waits, 0).items()} == dict.fromkeys(WAITS.names, 0)
