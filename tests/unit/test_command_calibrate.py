"""`kdiff calibrate` over either store, and what comparisons make of what it keeps."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import loaded
import numpy as np
import pytest
from command_line import Result, Run, kdiff, named

import captures
from captures import MINUTE, SECOND, T0
from kdiff.analysis import history_output, history_windows, widening
from kdiff.analysis.counts import Counts
from kdiff.analysis.evidence import Evidence
from kdiff.analysis.measure import Plan
from kdiff.analysis.pairing import Pair
from kdiff.analysis.window import Window, utc
from kdiff.queries.address import Address
from kdiff.queries.calibrations import FILE, CaptureCalibrations, Found, KeptCalibration, Wanted
from kdiff.queries.store import CaptureStore

LENGTH = 2 * MINUTE
WINDOWS = 26
RAN = 3_001
SWAP = 16
"""The window in which layer_norm got 50% slower."""
HISTORY = Window(T0, T0 + WINDOWS * LENGTH)
SPEC = str(HISTORY)
LAST = Window(HISTORY.to_ns - LENGTH, HISTORY.to_ns)
BEFORE_LAST = Window(LAST.from_ns - LENGTH, LAST.from_ns)
PAIR = ["--before", str(BEFORE_LAST), "--after", str(LAST)]
pytestmark = pytest.mark.usefixtures("engine")


def record(root: Path, windows: int = WINDOWS, drift: float = 0.06, skip_health: tuple[int, ...] = ()) -> Path:
    """gelu, whose level moves from window to window, layer_norm, which was swapped, and rare, which is."""
    rng = np.random.default_rng(3)
    levels = np.exp(rng.normal(0.0, drift, windows))
    for place in range(windows):
        window = Window(T0 + place * LENGTH, T0 + (place + 1) * LENGTH)
        for name, scale in (("gelu", levels[place]), ("layer_norm", 1.5 if place >= SWAP else 1.0)):
            times = captures.spread(window.from_ns, window.to_ns, RAN)
            values = (80_000 * scale * rng.lognormal(0.0, 0.05, RAN)).astype(np.int64)
            rows = captures.launches(name, times, completion_ns=values)
            captures.write(root, "cuda_events", rows, f"{place:06d}-{name}")
        rare = captures.launches("rare", captures.spread(window.from_ns, window.to_ns, 97), completion_ns=9_000)
        captures.write(root, "cuda_events", rare, f"{place:06d}-rare")
        if place not in skip_health:
            captures.write(root, "agent_health", captures.health(window.from_ns, window.to_ns), f"{place:06d}")
    return root


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("calibrate"))


def fresh(recorded: Path, root: Path) -> Path:
    """The same recording under another name, without calibrations."""
    root.mkdir()
    for table in recorded.iterdir():
        if table.is_dir():
            (root / table.name).symlink_to(table)
    return root


@pytest.fixture
def store(recorded: Path, tmp_path: Path) -> Path:
    return fresh(recorded, tmp_path / "capture")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    for name in ("KDIFF_STORE", "KDIFF_KEEP", "KDIFF_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "100")

    def call(place: Path | Address, *arguments: str) -> Result:
        monkeypatch.setenv("KDIFF_STORE", named(monkeypatch, place))
        return kdiff(monkeypatch, capsys, *arguments)

    return call


@pytest.fixture(scope="module")
def measured(recorded: Path, tmp_path_factory: pytest.TempPathFactory) -> KeptCalibration:
    """What `kdiff calibrate` keeps of the recording."""
    options = history_windows.Options()
    with CaptureStore(recorded) as capture:
        windows = history_windows.cut(HISTORY, LENGTH)
        seen = history_windows.read(capture, windows, (), "", False, options, lambda _: None)
    return history_output.calibration(seen, windows, "", options, time.time_ns())


@pytest.fixture
def calibrated(store: Path, measured: KeptCalibration) -> Path:
    CaptureCalibrations(store).keep(measured)
    return store


def calibrate(run: Run, place: Path | Address, *arguments: str) -> dict[str, Any]:
    told = run(place, "calibrate", SPEC, "--window", "2m", "--format", "json", *arguments)
    assert (told.code, told.err) == (0, "")
    found: dict[str, Any] = json.loads(told.out)
    return found


# ---- measuring ----


def test_a_history_is_measured_and_kept(run: Run, store: Path) -> None:
    found = calibrate(run, store)
    assert (found["schema"], found["store"], found["kept"]) == ("kdiff-calibrate/1", str(store), True)
    assert (found["windows"], found["left_out"], found["pairs"], found["shifts"]) == (26, [], 25, 1)
    assert (found["from_ns"], found["to_ns"], found["window_ns"]) == (HISTORY.from_ns, HISTORY.to_ns, LENGTH)
    gelu, layer_norm = found["kernels"]
    assert (gelu["kernel"], gelu["metric"], gelu["pairs"]) == ("gelu", "completion", 25)
    assert (layer_norm["kernel"], layer_norm["pairs"]) == ("layer_norm", 24)
    assert gelu["factor"] > 2.5
    assert layer_norm["factor"] < 1.3
    assert layer_norm["factor"] < found["factor"] < gelu["factor"]
    plain, wide = found["plain"], found["widened"]
    assert plain["comparisons"] == wide["comparisons"] == 49
    assert plain["regressed"] == plain["runs_regressed"] > 0
    assert wide["regressed"] == wide["runs_regressed"] == 0
    assert wide["regressed_limit"] == pytest.approx(0.0593, rel=0.01)
    kept = CaptureCalibrations(store).newest(Wanted("", "auto", 0.99, LENGTH, LENGTH)).calibration
    assert kept is not None
    assert (kept.pooled, kept.pairs, [one._asdict() for one in kept.kernels]) == (
        found["factor"],
        25,
        found["kernels"],
    )


def test_the_table(run: Run, store: Path) -> None:
    told = run(store, "calibrate", SPEC, "--window", "2m")
    assert (told.code, told.err) == (0, "")
    lines = told.out.splitlines()
    assert lines[0] == str(store)
    assert lines[1] == "2025-11-27T10:00:00Z .. 2025-11-27T10:52:00Z (52m)"
    assert lines[2] == "p99, metric auto: 25 pairs of adjacent windows of 2m"
    assert re.fullmatch(r"kernel +metric +pairs +widened by", lines[4])
    assert re.fullmatch(r"gelu +completion +25 +x\d\.\d\d", lines[5])
    assert re.fullmatch(r"\(all together\) +49 +x\d\.\d\d", lines[7])
    assert re.fullmatch(r"REGRESSED +8.2% \(<= 18%\) +0% \(<= 5.9%\)", lines[10])
    assert lines[-3:-1] == [
        "Left out of all this: 1 pair of windows of a kernel whose level changed for good between them, as by",
        "  a swap. If it was none, it is an error that this does not know.",
    ]
    assert lines[-1] == "Kept: comparisons of windows of half to twice this length use it."


def test_without_a_spec_it_is_all_that_was_recorded_and_a_dry_run_keeps_nothing(run: Run, store: Path) -> None:
    told = run(store, "calibrate", "--window", "2m", "--format", "json", "--dry-run")
    found = json.loads(told.out)
    assert (told.code, found["windows"], found["kept"]) == (0, 25, False)  # the last ends with the last launch
    assert HISTORY.to_ns - SECOND < found["to_ns"] < HISTORY.to_ns
    assert not (store / FILE).exists()


def test_what_is_excluded_is_in_no_pair(run: Run, store: Path) -> None:
    swap = Window(T0 + SWAP * LENGTH - SECOND, T0 + SWAP * LENGTH + SECOND)
    found = calibrate(run, store, "--exclude", str(swap), "--kernel", "layer_norm")
    assert found["left_out"] == [{"why": "excluded", "windows": 2}]
    assert (found["windows"], found["pairs"], found["shifts"]) == (24, 22, 0)
    assert [one["kernel"] for one in found["kernels"]] == ["layer_norm"]


def test_windows_that_were_not_recorded_or_lost_are_left_out_and_counted(run: Run, tmp_path: Path) -> None:
    root = record(tmp_path / "holes", 28, skip_health=(3, 4))
    lost = captures.health(T0 + 9 * LENGTH, T0 + 10 * LENGTH, lost_launches=99)
    captures.write(root, "agent_health", lost, "lost")
    told = run(root, "calibrate", str(Window(T0, T0 + 28 * LENGTH)), "--window", "2m", "--format", "json")
    found = json.loads(told.out)
    assert found["left_out"] == [{"why": "not recorded", "windows": 2}, {"why": "lossy", "windows": 1}]
    assert (found["windows"], found["pairs"]) == (25, 22)
    assert told.code == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--window", "5m"], "52m long and holds 10 windows of 5m; a calibration needs 21, 1h45m: give 53m more of"),
        (["--window", "2m", "--kernel", "rare"], "0 adjacent pairs can be judged: a kernel needs 2,000 launches in"),
        (["--window", "2m", "--kernel", "none"], "0 adjacent pairs can be judged: a kernel needs 2,000 launches in"),
        (["--window", "2m", "--exclude", f"{utc(T0)}/20m"], "of 2m in 2025-11-27T10:00:00Z..2025-11-27T10:52:00Z 15 "),
        (
            ["--window", "2m", "--service", "none"],
            "holds no launches of the service none (services: svc)",
        ),
        (["--window", "2m", "--exclude", "sometime"], "--exclude 'sometime' is neither a time nor a capture"),
        (["--window", "0s"], "the length '0s' is empty"),
    ],
)
def test_too_little_history_says_how_much_more(run: Run, store: Path, arguments: list[str], words: str) -> None:
    told = run(store, "calibrate", SPEC, *arguments)
    assert (told.code, told.out) == (2, "")
    assert words in told.err
    assert told.err.count("\n") == 1
    assert not (store / FILE).exists()


@pytest.mark.parametrize(("first", "last", "windows"), [(0, 26, 26), (-9_000, 9_000, 26), (-3, 21, 21), (5, 9_000, 21)])
def test_of_a_long_history_the_part_that_was_recorded_is_read(first: int, last: int, windows: int) -> None:
    history = Window(T0 + first * LENGTH, T0 + last * LENGTH)
    found = history_windows.cut(history, LENGTH, Window(HISTORY.from_ns, HISTORY.to_ns - 1))
    assert len(found) == windows
    assert (found[0].from_ns, found[-1].to_ns) == (T0 + max(0, first) * LENGTH, T0 + min(26, last) * LENGTH)


@pytest.mark.parametrize("place", [-9_000, 9_000])
def test_of_a_history_without_anything_as_little_as_possible_is_read(place: int) -> None:
    elsewhere = Window(T0 + place * LENGTH, T0 + (place + 1_000) * LENGTH)
    found = history_windows.cut(elsewhere, LENGTH, HISTORY)
    assert len(found) == 21
    assert found[-1].to_ns <= elsewhere.to_ns
    assert found[0].from_ns >= elsewhere.from_ns


def test_an_empty_store_and_a_history_of_the_future(run: Run, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    told = run(tmp_path / "empty", "calibrate")
    assert told.code == 2
    ahead = time.time_ns() + 86_400 * SECOND
    times = captures.spread(ahead, ahead + 10 * MINUTE, 101)
    captures.write(tmp_path / "ahead", "cuda_events", captures.launches("k", times, completion_ns=9))
    told = run(tmp_path / "ahead", "calibrate")
    assert told.code == 2
    assert "begins in the future" in told.err
    told = run(tmp_path / "ahead", "calibrate", "2096-01-01/1d")
    assert told.code == 2
    assert "in the future" in told.err


def test_what_cannot_be_kept_is_shown_and_2(run: Run, store: Path) -> None:
    (store / FILE).mkdir()
    told = run(store, "calibrate", SPEC, "--window", "2m")
    assert told.code == 2
    assert "widened" in told.out
    assert "Kept" not in told.out
    assert told.err == (
        f"kdiff: the calibration was not kept: {store / FILE} cannot be written (Is a directory): free space, or run "
        "as a user who may write there\n"
    )


# ---- using it ----


def judged(run: Run, place: Path | Address, *arguments: str) -> dict[str, Any]:
    told = run(place, *PAIR, *arguments, "--format", "json")
    assert told.code in (0, 1, 3), told.err
    found: dict[str, Any] = json.loads(told.out)
    found["rows"] = {row["kernel"]: row for row in found["kernels"]}
    return found


def test_comparisons_widen_by_it_and_say_so(run: Run, calibrated: Path, measured: KeptCalibration) -> None:
    bare, wide = judged(run, calibrated, "--no-calibration"), judged(run, calibrated)
    assert bare["history"] is None
    assert {row["widened"] for row in bare["kernels"]} == {1.0}
    assert [note for note in bare["notes"] if note.startswith("Calibrated")] == []
    factors = {one.kernel: one.factor for one in measured.kernels}
    for name in ("gelu", "layer_norm"):
        assert wide["rows"][name]["widened"] == factors[name]
        assert wide["rows"][name]["ratio"] == bare["rows"][name]["ratio"]
    low, high = wide["rows"]["gelu"]["ci"]
    assert low < bare["rows"]["gelu"]["ci"][0]
    assert high is None or high > bare["rows"]["gelu"]["ci"][1]
    told = wide["history"]
    assert (told["pairs"], told["window_ns"], told["unknown"], told["comparisons"]) == (25, LENGTH, 0, 49)
    assert (told["factor_low"], told["factor_high"]) == (factors["layer_norm"], factors["gelu"])
    [note] = [note for note in wide["notes"] if note.startswith("Calibrated")]
    assert note == (
        f"Calibrated on 52m of history (25 pairs of 2m): intervals widened x{factors['layer_norm']:.2f} to "
        f"x{factors['gelu']:.2f}; on that history 0% of comparisons were REGRESSED (at most 5.9%)."
    )
    assert note in " ".join(run(calibrated, *PAIR).out.split())
    strict = judged(run, calibrated, "--tolerance", "3%")
    assert any("(at most 5.9%, at a tolerance of 5%)" in note for note in strict["notes"])


def test_nothing_is_said_where_there_is_none(run: Run, store: Path) -> None:
    found = judged(run, store)
    assert found["history"] is None
    assert found["warnings"] == []
    assert [note for note in found["notes"] if "history" in note] == []


def test_only_one_that_fits_is_used(calibrated: Path) -> None:
    with CaptureStore(calibrated) as capture:

        def fits(before_ns: int, after_ns: int, service: str = "", metric: Any = "auto", q: float = 0.99) -> bool:
            windows = Window(T0, T0 + before_ns), Window(T0 + before_ns, T0 + before_ns + after_ns)
            before, after = (Evidence(capture, window, service, False, q) for window in windows)
            return widening.seek(before, after, metric)().calibration is not None

        assert fits(LENGTH, LENGTH)
        assert fits(LENGTH // 2, LENGTH // 2)
        assert fits(2 * LENGTH, LENGTH)
        assert not fits(2 * LENGTH + 1, LENGTH)
        assert not fits(LENGTH // 2 - 1, LENGTH // 2)
        assert fits(LENGTH // 2, 2 * LENGTH)
        assert not fits(LENGTH // 2, 2 * LENGTH + 2)
        assert not fits(LENGTH, LENGTH, service="svc")
        assert not fits(LENGTH, LENGTH, metric="completion")
        assert not fits(LENGTH, LENGTH, q=0.95)


def test_kernels_that_it_does_not_know_have_the_factor_of_all(run: Run, store: Path, measured: KeptCalibration) -> None:
    known = tuple(one for one in measured.kernels if one.kernel == "gelu")
    CaptureCalibrations(store).keep(replace(measured, kernels=known))
    wide = judged(run, store)
    assert wide["rows"]["layer_norm"]["widened"] == measured.pooled
    assert wide["history"]["unknown"] == 1
    [note] = [note for note in wide["notes"] if note.startswith("Calibrated")]
    assert f"(1 kernel without pairs enough by the x{measured.pooled:.2f} of all together)" in note


def test_a_kernel_that_was_judged_by_another_measure_is_not_known(measured: KeptCalibration) -> None:
    ran = Counts((1,), launches=9, executions=9, isolated=9, completions=9)
    plans = [Plan(Pair("gelu", ran, ran), metric, metric == "completion") for metric in ("completion", "device")]
    plans.append(Plan(Pair("gone", ran, Counts()), "device"))
    found = widening.widen(Found(measured), plans, 0.05, measured.made_at_ns)
    factors = {one.kernel: one.factor for one in measured.kernels}
    assert found.inflation == {0: factors["gelu"], 1: measured.pooled}
    assert found.report is not None
    assert found.report.unknown == 1


def test_a_verdict_that_the_history_does_not_bear_out_is_none(
    run: Run, calibrated: Path, measured: KeptCalibration
) -> None:
    """gelu moves by 6% from window to window: some pairs are REGRESSED, as many as the calibration says, without it."""
    assert measured.regressed > 0 == measured.regressed_widened
    for place in range(WINDOWS - 1):
        start = T0 + place * LENGTH
        spec = ["--before", f"{utc(start)}/2m", "--after", f"{utc(start + LENGTH)}/2m", "--kernel", "gelu"]
        found = run(calibrated, *spec, "--no-calibration")
        if found.code == 1:
            assert run(calibrated, *spec).code == 3
            return
    pytest.fail("no pair is REGRESSED")


def test_an_old_one_is_used_with_a_warning(run: Run, store: Path, measured: KeptCalibration) -> None:
    day = 86_400 * SECOND
    CaptureCalibrations(store).keep(replace(measured, made_at_ns=measured.made_at_ns - 31 * day))
    found = judged(run, store)
    assert found["history"] is not None
    assert found["warnings"] == ["the calibration by the history is 31d old: run `kdiff calibrate`"]
    CaptureCalibrations(store).keep(replace(measured, made_at_ns=measured.made_at_ns + day))
    found = judged(run, store)
    assert found["history"] is None
    [warning] = found["warnings"]
    assert "lies in the future and is not used: set the clocks right and run `kdiff calibrate` again" in warning


def test_a_broken_file_is_a_warning(run: Run, store: Path) -> None:
    bare = judged(run, store)
    (store / FILE).write_text("no calibration\n")
    found = judged(run, store)
    assert found["kernels"] == bare["kernels"]
    assert found["warnings"] == [
        f"skipped 1 calibration of {store / FILE}: torn, or not what kdiff writes; run `kdiff calibrate` again"
    ]


def test_of_two_captures_the_newer_calibration_counts(
    recorded: Path, tmp_path: Path, measured: KeptCalibration
) -> None:
    one, two = (fresh(recorded, tmp_path / name) for name in ("one", "two"))
    with CaptureStore(one) as first, CaptureStore(two) as second:
        sides = Evidence(first, BEFORE_LAST), Evidence(second, LAST)
        assert widening.seek(*sides, "auto")().calibration is None
        CaptureCalibrations(one).keep(measured)
        assert widening.seek(*sides, "auto")().calibration == measured
        newer = replace(measured, made_at_ns=measured.made_at_ns + 1)
        CaptureCalibrations(two).keep(newer)
        assert widening.seek(*sides, "auto")().calibration == newer
        assert widening.seek(*sides, "auto", wanted=False)().calibration is None


# ---- a server ----


@pytest.fixture
def served(recorded: Path, own_database: Address) -> Address:
    loaded.load(own_database, recorded)
    return own_database


def test_a_server_keeps_and_uses_the_same(run: Run, store: Path, served: Address) -> None:
    writer, reader = replace(served, user="writer"), replace(served, user="reader")
    here, there = (calibrate(run, place) for place in (store, writer))
    for one in (here, there):
        del one["store"], one["made_at"]
    assert here == there
    on_capture, on_server = judged(run, store), judged(run, reader)
    assert on_server["rows"]["gelu"]["widened"] == on_capture["rows"]["gelu"]["widened"] > 2.5
    assert on_server["rows"]["gelu"]["ci"] == on_capture["rows"]["gelu"]["ci"]
    del on_server["history"]["made_at"], on_capture["history"]["made_at"]
    assert on_server["history"] == on_capture["history"]
    told = run(reader, "calibrate", SPEC, "--window", "2m")
    assert told.code == 2
    assert "the calibration was not kept: the user reader lacks a right" in told.err
    assert told.err.count("\n") == 1


def test_windows_of_hours_are_read_from_roll_ups(run: Run, tmp_path: Path, own_database: Address) -> None:
    root, rng, windows = tmp_path / "hours", np.random.default_rng(5), 22
    levels = np.exp(rng.normal(0.0, 0.04, windows))
    length = 120 * MINUTE
    for place in range(windows):
        times = captures.spread(T0 + place * length, T0 + (place + 1) * length, RAN)
        values = (80_000 * levels[place] * rng.lognormal(0.0, 0.05, RAN)).astype(np.int64)
        captures.write(root, "cuda_events", captures.launches("gelu", times, completion_ns=values), f"{place:06d}")
    end = T0 + windows * length
    captures.write(root, "agent_health", captures.health(T0, end, events=RAN // 720, step=10 * SECOND))
    loaded.load(own_database, root)
    found = {}
    for name, where, more in (("rows", root, ["--exact"]), ("server", replace(own_database, user="reader"), [])):
        told = run(
            where, "calibrate", f"{utc(T0)}..{utc(end)}", "--window", "2h", "--dry-run", "--format", "json", *more
        )
        assert (told.code, told.err) == (0, "")
        found[name] = json.loads(told.out)
    assert {one["pairs"] for one in found.values()} == {21}
    assert found["rows"]["factor"] > 2.0
    assert found["server"]["factor"] == pytest.approx(found["rows"]["factor"], rel=0.1)


def test_a_server_without_the_table_is_a_sentence(run: Run, store: Path, own_database: Address) -> None:
    told = run(own_database, "calibrate", SPEC)
    assert told.code == 2
    assert "run `kdiff migrate`" in told.err
