"""What is no ordinary traffic, by rules on hand-made rows; and which segments are copies."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import captures
from captures import MINUTE, SECOND, T0
from kdiff.analysis import arguments
from kdiff.analysis.cleaning_bursts import Burst, bursts
from kdiff.analysis.cleaning_rules import clock_steps, inside, lossy, recorded_by, started, twice
from kdiff.analysis.output_cleaning import cleaning_line
from kdiff.analysis.report import CleaningStep, WindowReport
from kdiff.analysis.scope import Cut
from kdiff.analysis.timespec import SpecError
from kdiff.analysis.window import Window
from kdiff.queries.segments_read import Segment, scan
from kdiff.queries.segments_twice import copies, warnings, without

WINDOW = Window(T0, T0 + 15 * MINUTE)
WARM = 60 * SECOND


def life(first: float, last: float, pid: int = 7, host: str = "host-1") -> dict[str, Any]:
    """A process by the seconds of the window in which it launched first and last."""
    return {
        "host": host,
        "pid": pid,
        "launches": 1,
        "first_ns": T0 + int(first * SECOND),
        "last_ns": T0 + int(last * SECOND),
    }


def always(_host: str, _from_ns: int, _to_ns: int) -> bool:
    return True


def cut(first: float, last: float, pid: int = 7, host: str = "host-1", why: str = "warm-up") -> Cut:
    return Cut(host, pid, T0 + int(first * SECOND), T0 + int(last * SECOND), why)


@pytest.mark.parametrize(
    ("row", "earlier", "expected"),
    [
        (life(300, 899), None, [cut(300, 360)]),
        (life(0, 899), -30, [cut(-30, 30)]),
        (life(0, 899), -60, []),  # just over
        (life(300, 899), -200, []),  # it paused
        (life(300, 419), None, []),  # it ends with its warm-up, or soon after
        (life(300, 420), None, [cut(300, 360)]),
        (life(870, 899), None, [cut(870, 930)]),  # it may live on
        (life(300, 300), None, []),  # one launch
        (life(899.9, 899.9), None, [cut(899.9, 959.9)]),
        (life(300, 899, pid=0), None, []),  # nobody's: a cut of it would be one of the host
    ],
)
def test_which_processes_started(row: dict[str, Any], earlier: float | None, expected: list[Cut]) -> None:
    before = {} if earlier is None else {("host-1", row["pid"]): T0 + int(earlier * SECOND)}
    assert started(WINDOW, [row], before, always, WARM) == expected


def test_a_pid_that_is_anothers_now_is_taken_for_the_one_that_went() -> None:
    """What launched under it before the window says that the process is not new: it is judged as it is."""
    assert started(WINDOW, [life(300, 899)], {("host-1", 7): T0 - 600 * SECOND}, always, WARM) == []
    assert started(WINDOW, [life(300, 899)], {("host-2", 7): T0 - 600 * SECOND}, always, WARM) == [cut(300, 360)]


def test_a_start_is_seen_where_the_host_was_recorded_before() -> None:
    accounts = captures.health(T0, T0 + 15 * MINUTE)
    for first, expected in ((4.9, []), (5, [cut(5, 65)]), (300, [cut(300, 360)])):
        assert started(WINDOW, [life(first, 899)], {}, recorded_by(accounts), WARM) == expected
    assert started(WINDOW, [life(300, 899, host="host-2")], {}, recorded_by(accounts), WARM) == []
    assert started(WINDOW, [life(300, 899)], {}, recorded_by(), WARM) == []


def test_what_was_recorded_is_the_union_of_accounts() -> None:
    parts = [captures.health(T0 + a * SECOND, T0 + b * SECOND) for a, b in ((30, 50), (0, 20), (20, 29), (49, 60))]
    recorded = recorded_by(*parts, captures.health(T0, T0 + SECOND)[:0])
    assert recorded("host-1", T0, T0 + 29 * SECOND)
    assert recorded("host-1", T0 + 30 * SECOND, T0 + 60 * SECOND)
    assert not recorded("host-1", T0 + 28 * SECOND, T0 + 31 * SECOND)
    assert not recorded("host-1", T0 - SECOND, T0 + SECOND)
    assert not recorded("host-1", T0 + 59 * SECOND, T0 + 61 * SECOND)


def test_thousands_of_processes_take_no_time() -> None:
    rows = [life(i * 0.008, 899, pid=i + 1, host=f"host-{i % 50}") for i in range(100_000)]
    accounts = [captures.health(T0 - MINUTE, T0 + 15 * MINUTE, host=f"host-{i}") for i in range(50)]
    begin = time.process_time()
    found = started(WINDOW, rows, {}, recorded_by(*accounts), WARM)
    assert len(found) == 100_000
    assert time.process_time() - begin < 5.0


def test_stretches_that_lost_more_than_may_be() -> None:
    events, lost = np.array([1000, 1000, 1000, 0]), np.array([0, 10, 11, 1])
    accounts = captures.health(T0, T0 + 40 * SECOND, events, lost_launches=lost)  # type: ignore[arg-type]
    assert lossy(accounts, 0.01) == [cut(20, 30, 0, why="lossy"), cut(30, 40, 0, why="lossy")]
    assert lossy(accounts[:2], 0.01) == []
    assert lossy(accounts[:0], 0.01) == []
    # Two services of one stretch count together.
    other = captures.health(T0, T0 + 40 * SECOND, np.array([500, 0, 2000, 99]), service="other")  # type: ignore[arg-type]
    both = captures.table("agent_health", {
        name: accounts[name].to_pylist() + other[name].to_pylist() for name in accounts.column_names
    })  # fmt: skip
    assert lossy(both, 0.01) == []
    assert lossy(both, 0.009) == [cut(10, 20, 0, why="lossy"), cut(30, 40, 0, why="lossy")]


def test_stretches_in_which_the_clock_moved() -> None:
    accounts = captures.health(
        T0, T0 + 40 * SECOND, clock_set_ns=[0, -3 * SECOND, 0, 0], slept_ns=[0, 0, 0, 70 * SECOND]
    )
    assert clock_steps(accounts) == [cut(10, 20, 0, why="clock"), cut(30, 40, 0, why="clock")]
    assert clock_steps(accounts[2:3]) == clock_steps(accounts[:0]) == []


def test_accounts_that_are_there_twice() -> None:
    rows = captures.health(T0, T0 + 40 * SECOND).to_pylist()
    columns = {name: [row[name] for row in [*rows, rows[1], rows[1]]] for name in rows[0]}
    assert twice(captures.table("agent_health", columns)) == [cut(10, 20, 0, why="twice")]
    # Another service of the stretch, another count, or an account of nothing is no copy.
    for change in ({"service": "other"}, {"events": 7}, {"host": "host-2"}):
        more = [*rows, rows[1] | change]
        assert twice(captures.table("agent_health", {n: [row[n] for row in more] for n in rows[0]})) == []
    empty = captures.health(T0, T0 + 10 * SECOND, events=0).to_pylist() * 2
    assert twice(captures.table("agent_health", {n: [row[n] for row in empty] for n in empty[0]})) == []


def test_cuts_are_joined_cut_to_the_window_and_widened_to_minutes() -> None:
    given = [cut(-30, 30), cut(20, 70), cut(890, 960), cut(100, 110, pid=8), cut(-90, -30)]
    assert inside(given, WINDOW) == [cut(0, 70), cut(890, 900), cut(100, 110, pid=8)]
    assert inside(given, WINDOW, whole_minutes=True) == [cut(0, 120), cut(840, 900), cut(60, 120, pid=8)]


def run(start: float, variant: int, count: int = 20, step: float = 0.01) -> list[tuple[int, int]]:
    return [(T0 + int((start + i * step) * SECOND), variant) for i in range(count)]


def found(rows: list[tuple[int, int]], codes: dict[int, int] | None = None) -> list[Burst]:
    rng = np.random.default_rng(1)
    shuffled = [rows[i] for i in rng.permutation(len(rows))]
    times = np.array([at for at, _ in shuffled], np.int64)
    variants = np.array([variant for _, variant in shuffled], np.uint64)
    of = np.array([(codes or {}).get(variant, variant) for _, variant in shuffled], np.uint64)
    return bursts("host-1", 7, 99, times, variants, of)


def test_a_burst_is_configurations_one_after_the_other() -> None:
    (one,) = found([*run(0, 1), *run(1, 2), *run(5, 3, 21)])
    assert one == Burst("host-1", 7, 99, T0, T0 + int(5.2 * SECOND) + 1, 3, 61)
    assert one.cut == Cut("host-1", 7, T0 - SECOND // 10, T0 + int(5.3 * SECOND) + 1, "autotuning")


@pytest.mark.parametrize(
    "rows",
    [
        [],
        run(0, 1),
        [*run(0, 1), *run(1, 2)],
        [*run(0, 1), *run(1, 2), *run(2, 1), *run(3, 2)],  # they come again
        [*run(0, 1), *run(1, 2), *run(2, 3, 4)],  # too few of one
        [*run(0, 1), *run(1, 2), *run(40, 3)],  # too far apart
        [row for i in range(20) for row in run(i * 0.1, i % 3, 1)],  # by turns
        [*run(0, 1, 20, 4.0), *run(100, 2), *run(101, 3)],  # one of them takes too long
    ],
)
def test_what_is_no_burst(rows: list[tuple[int, int]]) -> None:
    assert found(rows) == []


def test_configurations_that_only_the_input_tells_apart_are_no_burst() -> None:
    rows = [*run(0, 1), *run(1, 2), *run(2, 3)]
    assert found(rows, {1: 5, 2: 5, 3: 5}) == []
    assert len(found(rows, {1: 5, 2: 5, 3: 6})) == 1


def test_another_input_is_tuned_for_by_itself() -> None:
    """The same configurations again, with few launches of others in between."""
    rows = [*run(0, 1), *run(1, 2), *run(2, 3), *run(5, 1), *run(6, 2), *run(7, 3)]
    assert [(one.from_ns - T0, one.launches) for one in found(rows)] == [(0, 60), (5 * SECOND, 60)]


def test_copies_are_found_by_what_is_in_them(tmp_path: Path) -> None:
    first = captures.write(tmp_path, "cuda_events", captures.launches("gelu", [T0, T0 + 1]), "a-1")
    captures.write(tmp_path, "cuda_events", captures.launches("gelu", [T0, T0 + 1], pid=9), "a-2")
    captures.write(tmp_path, "cuda_events", captures.launches("gelu", [T0, T0 + 2]), "a-3")
    (tmp_path / "cuda_events" / "b.parquet").write_bytes(first.read_bytes())
    (tmp_path / "cuda_events" / "c.parquet").symlink_to(first)
    os.link(first, tmp_path / "cuda_events" / "d.parquet")
    for name in ("1", "2"):
        captures.write(tmp_path, "kernels", captures.table("kernels", {"kernel_id": [1]}), name)
        captures.write(tmp_path, "gpu_samples", captures.table("gpu_samples", {"timestamp_ns": []}), name)
    files = scan(tmp_path).files
    found = copies(files)
    assert {one.path.name: other.path.name for one, other in found["cuda_events"].items()} == dict.fromkeys(
        ("b.parquet", "c.parquet", "d.parquet"), "a-1.parquet"
    )
    assert found["gpu_samples"] == {}
    assert {table: len(its) for table, its in without(files, found).items()} == {
        "cuda_events": 3, "kernels": 2, "gpu_samples": 2,
    }  # fmt: skip
    (warning,) = warnings(found)
    assert warning == (
        "skipped 3 segments that are copies of another in cuda_events (6 rows, which are read once): "
        f"{tmp_path}/cuda_events/b.parquet is a-1.parquet"
    )


def test_no_file_is_read_whole_unless_another_looks_like_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(20):
        captures.write(tmp_path, "cuda_events", captures.launches("gelu", [T0 + number]), f"{number:06d}")
    files = scan(tmp_path).files

    def refuse(_one: Segment) -> bytes:
        raise AssertionError("read")

    monkeypatch.setattr("kdiff.queries.segments_twice._digest", refuse)
    assert copies(files) == {"cuda_events": {}}


def test_a_copy_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    one = captures.write(tmp_path, "cuda_events", captures.launches("gelu", [T0]), "1")
    (tmp_path / "cuda_events" / "2.parquet").write_bytes(one.read_bytes())
    files = scan(tmp_path).files
    one.unlink()
    assert copies(files) == {"cuda_events": {}}


def report(*steps: CleaningStep, captured: int = 0, failed: int = 0) -> WindowReport:
    counts = (100, 0, failed, captured, 0, 0, 0.0, 1.0, 120, SECOND)
    return WindowReport(WINDOW, "store", *counts, cleaning=steps)


def test_what_was_left_out_in_a_line() -> None:
    assert cleaning_line(report()) == ""
    assert cleaning_line(report(captured=30, failed=1)) == "left out: 30 captured, 1 failed"
    assert cleaning_line(
        report(
            CleaningStep("copies", 1, 10, 5, 0),
            CleaningStep("lossy", 3, 700, 0, 1),
            CleaningStep("warm_up", 2, 1204, 0, 1),
            CleaningStep("autotune", 1, 0, 311, 1, "that would be 37% of the after window (at most 20%)"),
            captured=2,
        )
    ) == (
        "left out: 15 rows read twice (1 segment that is a copy), 700 launches of stretches that lost events "
        "(3 stretches), 1,204 launches of warm-up (2 processes started), 2 captured; not left out: 311 timed of "
        "autotuning (1 burst): that would be 37% of the after window (at most 20%)"
    )


def test_how_long_a_warm_up_is() -> None:
    assert [arguments.warm_up(text) for text in ("0", "off", "0s", "60s", " 2m ", "1h")] == [
        0, 0, 0, 60 * SECOND, 120 * SECOND, 3600 * SECOND,
    ]  # fmt: skip
    for text, said in (("61m", "over an hour"), ("x", "not a length of time"), ("", "not a length of time")):
        with pytest.raises(SpecError, match=f"--warm-up.*{said}"):
            arguments.warm_up(text)
