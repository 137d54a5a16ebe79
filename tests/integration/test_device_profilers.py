"""The device library beside other users of CUPTI: they see what they would see without it, and it gives way.

KDIFF_STANDIN_CUPTI_STRICT is on in each of these: callbacks registered in another's session end the process, as they
did with the real library.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from kdiff.probes.device_wire import Ended, State
from standins.device_batches import ALWAYS, DENSE, Run, observed, run_traced, together
from standins.standins import build

MS = 1_000_000
PROFILERS = ("libprofiler.so", "libprofiler-now.so", "libprofiler-dlsym.so")


def sessions(seed: object, count: int, first: float, length: float, launches: int) -> list[str]:
    """Options for sessions at random moments."""
    draw = random.Random(str(seed))
    options, at = [], first
    for _ in range(count):
        at += draw.uniform(0.01, 0.2)
        options += ["--profile", f"{at:.4f}:{length}:{launches}"]
        at += length
    return options


def check_profiler(run: Run, count: int, launches: int) -> None:
    """The profiler saw each launch that it made, and nothing was said."""
    assert (run.status, run.stderr) == (0, "")
    reports = run.rate["profiles"]
    assert len(reports) == count
    wrong = [
        report
        for report in reports
        if (report["launches"], report["own"]) != (launches, launches)
        or report["subscribed"] or report["enabled"] or report["untimed"] or report["shared"]
        or report["unknown_buffers"] or report["lost_buffers"]
    ]  # fmt: skip
    assert wrong == []


def beside_each(
    directory: Path,
    count: int,
    profiles: Callable[[str], Sequence[str]],
    *options: object,
    env: Mapping[str, str],
    in_window: bool = False,
) -> list[Run]:
    """The load beside each profiler, which begins `count` times, as `profiles` of its name says, and saw it all."""

    def one(its: Path, profiler: str) -> Run:
        options_of = ("--profiler", build().build / profiler, *profiles(profiler))
        return run_traced(its, *map(str, (*options, *options_of)), env=env, in_window=in_window)

    runs = together(one, directory, PROFILERS)
    for run in runs:
        check_profiler(run, count, 101)
    return runs


@pytest.mark.parametrize("manners", ["give", "finalize", "bare"])
def test_a_profiler_at_random_moments(tmp_path: Path, manners: str) -> None:
    runs = beside_each(
        tmp_path,
        9,
        lambda profiler: sessions((profiler, manners), 9, 0.1, 0.03, 101),
        *("--duration", 2.2, "--rate", 5000, "--threads", 2, "--manners", manners, "--profiler-first"),
        env={**DENSE, "KDIFF_DEVICE_TIME": "40/60", "KDIFF_DEVICE_SETTLE": "30"},
    )
    for run in runs:
        windows, reports = run.batches.windows, run.rate["profiles"]
        assert Ended.YIELDED in set(windows["ended"])
        assert np.any(windows["opened_ns"] > reports[-1]["off_ns"])
        for report in reports:
            assert not np.any((windows["opened_ns"] < report["off_ns"]) & (windows["closed_ns"] > report["on_ns"]))
        # It misses nothing but what the profiler saw, and what ran as it yielded.
        mine = observed(run)
        for report in reports:
            mine = mine[(mine["call_ns"] < report["on_ns"] - MS) | (mine["call_ns"] > report["off_ns"] + MS)]
        missing = set(mine["correlation"]) - set(run.batches.executions["correlation"])
        assert len(missing) <= windows["uncollected"].sum() <= 9 * 16


def test_a_profiler_that_keeps_the_subscription(tmp_path: Path) -> None:
    runs = beside_each(
        tmp_path,
        4,
        lambda profiler: sessions(profiler, 4, 0.3, 0.03, 101),
        *("--duration", 1.5, "--rate", 5000, "--profiler-first"),
        env={**DENSE, "KDIFF_DEVICE_TIME": "40/60"},
    )
    for run in runs:
        windows = run.batches.windows
        assert len(windows) > 0
        assert np.all(windows["closed_ns"] < run.rate["profiles"][0]["on_ns"])
        states = [state for state, _ in run.batches.states]
        assert states[-1] == State.BUSY
        assert 8 <= states.count(State.BUSY) <= 40


def test_a_profiler_that_is_loaded_inside_a_window(tmp_path: Path) -> None:
    runs = beside_each(
        tmp_path,
        3,
        lambda profiler: sessions(profiler, 3, 0.3, 0.03, 101),
        *("--duration", 1, "--rate", 5000, "--manners", "give"),
        env=ALWAYS,
        in_window=True,
    )
    for run in runs:
        ended = run.batches.windows["ended"]
        assert 1 <= (ended == Ended.YIELDED).sum() <= 3, ended


def test_a_profiler_that_looked_cupti_up_before_an_agent_came(tmp_path: Path) -> None:
    runs = beside_each(
        tmp_path,
        3,
        lambda _: ("--profile", "0.1:0.03:101", "--profile", "2:0.03:101", "--profile", "2.3:0.03:101"),
        *("--duration", 2.6, "--rate", 3000, "--manners", "give", "--profiler-first"),
        env={**ALWAYS, "KDIFF_STANDIN_LISTEN": "500-9000"},
    )
    for run in runs:
        assert Ended.YIELDED in set(run.batches.windows["ended"])


def test_a_profiler_of_another_copy_of_cupti(tmp_path: Path) -> None:
    run = run_traced(
        tmp_path,
        *("--duration", 1.5, "--rate", 9000, "--manners", "give", "--profiler-first"),
        *("--profiler", build().profiler_dlsym),
        *sessions("copy", 6, 0.1, 0.03, 101),
        env={
            **DENSE,
            "KDIFF_DEVICE_TIME": "40/60",
            "KDIFF_DEVICE_CUPTI": str(build().cupti),
            "KDIFF_STANDIN_PROFILER_CUPTI": str(build().cupti12),
        },
    )
    check_profiler(run, 6, 101)
    assert {call.version for call in run.calls} == {130001, 24}


def test_a_profiler_while_flushing_takes_long(tmp_path: Path) -> None:
    run = run_traced(
        tmp_path,
        *("--duration", 2, "--rate", 9000, "--manners", "give", "--profiler-first"),
        *("--profiler", build().profiler),
        *sessions("slow", 2, 0.2, 0.03, 101),
        env={**ALWAYS, "KDIFF_STANDIN_CUPTI_FLUSH_MS": "100"},
        in_window=True,
    )
    check_profiler(run, 2, 101)


@pytest.mark.parametrize("launching", [True, False])
def test_cupti_is_left_as_it_was_found(tmp_path: Path, launching: bool) -> None:
    # At the end of another thread's launch where there is one: that is when cuptiFinalize is safe.
    # With that seed no launch comes near the profiler's.
    rate = ("--rate", 20_000, "--threads", 2) if launching else ("--rate", 2, "--threads", 1, "--seed", 1)
    run = run_traced(
        tmp_path,
        *("--duration", 1.5, *rate, "--manners", "give", "--profiler-first"),
        *("--profiler", build().profiler, "--profile", "0.6:0.03:101"),
        env={**DENSE, "KDIFF_DEVICE_TIME": "40/60"},
    )
    check_profiler(run, 1, 101)
    began = run.rate["profiles"][0]["on_ns"]
    finalized = [call for call in run.calls if call.function == "cuptiFinalize" and call.at_ns < began]
    assert [(call.argument, call.result) for call in finalized] == [(int(launching), 0)]
    # The library may ask for the version meanwhile.
    after = [call.function for call in run.calls if call.at_ns > finalized[0].at_ns]
    calls = [function for function in after if function != "cuptiGetVersion"]
    assert calls[:3] == ["cuptiSubscribe", "cuptiActivityRegisterCallbacks", "cuptiActivityEnable"]


def test_a_process_with_two_copies_of_cupti_has_no_windows(tmp_path: Path) -> None:
    # Triton's Proton brings its own, and of two the first to be used keeps the other out.
    proton = tmp_path / "libproton.so"
    shutil.copy(build().profiler_dlsym, proton)

    def one(directory: Path, env: dict[str, str]) -> Run:
        options = ("--profiler", proton, "--profiler-first", "--manners", "give", "--profile", "0.4:0.03:101")
        run = run_traced(directory, "--duration", 0.8, "--rate", 5000, *options, env={**DENSE, **env})
        check_profiler(run, 1, 101)
        return run

    left, named = together(one, tmp_path, ({}, {"KDIFF_DEVICE_CUPTI": str(build().cupti)}))
    state, text = left.batches.states[-1]
    assert (len(left.batches.windows), state) == (0, State.BUSY)
    assert "name the one to use in KDIFF_DEVICE_CUPTI" in text
    assert left.batches.states.count((state, text)) == 1
    assert len(named.batches.windows) > 3
