"""The device library in a program: what it hands over is what ran, and it harms neither program nor profilers.

A listener stands in for the agent (standins/listener.c), so that no probe is attached here.
"""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from kdiff.probes.device_wire import Ended, State
from standins.device_batches import Run, run_traced, traced
from standins.standins import GPU_UUID, Records, build, cupti_ns, load_truth

MS = 1_000_000
DENSE = {"KDIFF_DEVICE_TIME": "40/100", "KDIFF_DEVICE_BUDGET": "none"}
ALWAYS = {"KDIFF_DEVICE_TIME": "always"}
PROFILERS = ("libprofiler.so", "libprofiler-now.so", "libprofiler-dlsym.so")


def by_call(records: Records, field: str = "correlation") -> Records:
    """Records in the order of their launch calls, then of their starts."""
    start = "start_ns" if field == "correlation" and "start_ns" in (records.dtype.names or ()) else "start"
    ordered: Records = records[np.lexsort((records[start], records[field]))]
    return ordered


def check_executions(run: Run, observed: Records) -> None:
    """Every observed execution was handed over once, each field as it was."""
    found, true = by_call(run.batches.executions), by_call(observed)
    assert len(found) == len(true)
    np.testing.assert_array_equal(found["correlation"], true["correlation"])
    assert [run.batches.names[n] for n in found["name"]] == [run.truth.names[k] for k in true["kernel"]]
    for clock, field in (("start_ns", "start"), ("end_ns", "end")):
        assert [cupti_ns(int(t)) for t in true[clock]] == found[field].tolist()
    np.testing.assert_array_equal(found["grid"], true["grid"])
    np.testing.assert_array_equal(found["block"], true["block"])
    np.testing.assert_array_equal(found["dynamic_shared"], true["shared_bytes"])
    np.testing.assert_array_equal(found["static_shared"], 256 * (true["kernel"] % 7))
    np.testing.assert_array_equal(found["local_bytes"], 8 * (true["kernel"] % 5))
    np.testing.assert_array_equal(found["registers"], 16 + 2 * (true["kernel"] % 100))
    np.testing.assert_array_equal(found["stream"], true["queue"] + 7)
    np.testing.assert_array_equal(found["graph_id"], true["graph"])
    node_ids = np.where(true["graph"] > 0, true["graph"].astype(np.uint64) << 32 | (true["node"] + 1), 0)
    np.testing.assert_array_equal(found["graph_node_id"], node_ids)
    assert set(found["device"]) <= {0}
    assert set(found["context"]) <= {1}


def observed(run: Run) -> Records:
    """What ran while CUPTI was collecting."""
    records: Records = run.truth.executions[run.truth.executions["correlation"] > 0]
    return records


def check_windows(run: Run) -> None:
    """Windows do not overlap, hold what was launched in them, and say how much that was."""
    batches, windows = run.batches, run.batches.windows
    assert batches.sequences == list(range(1, len(batches.sequences) + 1))
    assert batches.claimed == len(batches.executions) == windows["executions"].sum()
    assert np.all(windows["opened_ns"] < windows["closed_ns"])
    assert np.all(windows["closed_ns"][:-1] <= windows["opened_ns"][1:])
    assert np.all(np.diff(batches.window_numbers.astype(np.int64)) == 1)
    ran = run.truth.executions
    for window in windows:
        for host, device in (("host_open_ns", "device_open_ns"), ("host_close_ns", "device_close_ns")):
            assert abs(int(window[device]) - cupti_ns(int(window[host]))) <= window["error_ns"] < MS
        inside = (ran["call_ns"] >= window["opened_ns"]) & (ran["return_ns"] <= window["closed_ns"])
        assert np.all(ran["correlation"][inside & (ran["return_ns"] > 0)] > 0)
    times = np.sort(observed(run)["call_ns"])
    of_window = np.searchsorted(windows["opened_ns"], times, side="right") - 1
    # A call that is under way as a window opens or closes may be in it.
    early = times < windows["opened_ns"][np.clip(of_window, 0, None)]
    late = times > windows["closed_ns"][np.clip(of_window, 0, None)]
    assert early.sum() + late.sum() <= 8 * len(windows)


def said_once(run: Run, why: str) -> None:
    """The library is off, has said so in one line, and the program did not notice."""
    assert run.status == 0
    lines = run.stderr.splitlines()
    assert len(lines) == 1 and f"kdiff: device time is off in process {run.truth.pid}: " in lines[0], run.stderr
    assert why in lines[0]
    state, text = run.batches.states[-1]
    assert state == State.OFF
    assert why in text


# ---- what is handed over ----


def test_without_a_listener_cupti_is_never_touched(tmp_path: Path) -> None:
    run = run_traced(tmp_path, "--duration", 0.7, "--rate", 5000, env={**ALWAYS, "KDIFF_STANDIN_LISTEN": "9000-9001"})
    assert run.status == 0
    assert run.stderr == ""
    assert run.calls == []
    assert run.batches.sequences == []
    assert len(observed(run)) == 0
    assert len(run.truth.launches) == run.rate["launches"]


def test_off_means_off(tmp_path: Path) -> None:
    run = run_traced(tmp_path, "--duration", 0.3, "--rate", 5000, env={"KDIFF_DEVICE_TIME": "off"})
    assert (run.status, run.stderr, run.calls, run.batches.sequences) == (0, "", [], [])


@pytest.mark.parametrize("library", ["cupti", "cupti12"])
def test_every_execution_of_an_always_open_window(tmp_path: Path, library: str) -> None:
    cupti = getattr(build(), library)
    run = run_traced(
        tmp_path,
        *("--kernel", "gemm:11@3x5x7/32x2*3", "--kernel", "norm:2@1/96*1", "--shared", 4099),
        *("--launches", 20011, "--rate", 17000, "--threads", 3, "--streams", 5, "--api", "mixed"),
        env={**ALWAYS, "KDIFF_DEVICE_CUPTI": str(cupti)},
    )
    assert run.status == 0
    assert run.stderr == ""
    assert len(observed(run)) > 10007
    check_executions(run, observed(run))
    check_windows(run)
    windows = run.batches.windows
    # Without a gap, until the program ended.
    np.testing.assert_array_equal(windows["closed_ns"][:-1], windows["opened_ns"][1:])
    before = run.truth.executions["call_ns"] >= windows["opened_ns"][0]
    assert np.all(run.truth.executions["correlation"][before] > 0)
    assert set(windows["cupti_version"]) == {130001 if library == "cupti" else 24}
    assert run.batches.devices == {0: GPU_UUID}


def test_nodes_of_graphs(tmp_path: Path) -> None:
    run = run_traced(
        tmp_path,
        *("--kernel", "a:3@2/64", "--kernel", "b:5@7/32", "--graph", 13, "--threads", 2),
        *("--launches", 1009, "--rate", 1500),
        env=ALWAYS,
    )
    nodes = observed(run)
    assert len(nodes) > 13 * 300
    assert len(nodes) % 13 == 0
    assert len(np.unique(run.batches.executions["graph_node_id"])) == 26
    check_executions(run, nodes)


def test_windows_hold_what_was_launched_in_them(tmp_path: Path) -> None:
    run = run_traced(tmp_path, "--duration", 2, "--rate", 20000, "--threads", 3, env=DENSE)
    windows = run.batches.windows
    assert 10 <= len(windows) <= 35
    check_executions(run, observed(run))
    check_windows(run)
    lengths = (windows["closed_ns"] - windows["opened_ns"])[:-1] / MS
    assert np.all((lengths > 39) & (lengths < 100))
    assert np.median(lengths) < 60
    assert set(windows["ended"][:-1]) == {Ended.DURATION}
    assert run.batches.opened == run.batches.window_numbers.tolist()
    # Drawn, so that windows cannot keep step with what the program does.
    assert len({round(gap / MS / 4) for gap in np.diff(windows["opened_ns"])}) > 5


def test_kernels_that_run_as_a_window_closes_get_their_times(tmp_path: Path) -> None:
    run = run_traced(
        tmp_path, "--kernel", "slow:30000", "--launches", 23, "--sync-every", 1, "--rate", 31, env=DENSE, timeout=60
    )
    assert len(observed(run)) >= 3
    check_executions(run, observed(run))


def test_what_has_no_times_is_counted(tmp_path: Path) -> None:
    faults = {"ZERO_EVERY": "7", "REVERSED_EVERY": "11", "DROP_EVERY": "13"}
    env = {**ALWAYS, **{f"KDIFF_STANDIN_CUPTI_{name}": value for name, value in faults.items()}}
    run = run_traced(tmp_path, "--launches", 7001, "--rate", 9000, "--threads", 2, env=env)
    ran = np.arange(1, len(observed(run)) + 1)
    dropped = ran % 13 == 0
    timeless = ~dropped & ((ran % 7 == 0) | (ran % 11 == 0))
    windows = run.batches.windows
    assert windows["dropped"].sum() == dropped.sum()
    assert windows["uncollected"].sum() == timeless.sum()
    assert len(run.batches.executions) == len(ran) - dropped.sum() - timeless.sum() == windows["executions"].sum()


def test_the_limit_on_device_memory_is_given_back(tmp_path: Path) -> None:
    run = run_traced(tmp_path, "--duration", 0.5, "--rate", 3000, env=DENSE)
    limits = [call.argument for call in run.calls if call.function == "cuptiActivitySetAttribute"]
    assert len(limits) == 2 * len(run.batches.windows)
    assert limits[1::2] == [250] * (len(limits) // 2)
    assert set(limits[::2]) < set(range(1, 250))


def test_a_long_name_and_many_names(tmp_path: Path) -> None:
    kernels = [part for i in range(199) for part in ("--kernel", f"_Z{i}k:2")]
    run = run_traced(
        tmp_path, *kernels, "--name-length", 3001, "--launches", 4001, "--rate", 6000, "--api", "driver", env=ALWAYS
    )
    check_executions(run, observed(run))
    assert len(run.batches.names) == 199


# ---- what goes wrong ----


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ({"LAYOUT": "unknown"}, "version 140000"),
        ({"LAYOUT": "stride"}, "130001"),
        ({"FAIL": "cuptiActivityEnable=14"}, "CUPTI_ERROR_NOT_COMPATIBLE (14)"),
        ({"FAIL": "cuptiActivityEnable=7@3"}, "cuptiActivityEnable"),
        ({"FAIL": "cuptiSubscribe=14"}, "CUPTI_ERROR_NOT_COMPATIBLE (14)"),
        ({"FAIL": "cuptiActivityRegisterCallbacks=1"}, "cuptiActivityRegisterCallbacks"),
    ],
)
def test_a_cupti_that_cannot_be_used_turns_it_off(tmp_path: Path, fault: dict[str, str], why: str) -> None:
    env = {**DENSE, **{f"KDIFF_STANDIN_CUPTI_{name}": value for name, value in fault.items()}}
    run = run_traced(tmp_path, "--duration", 0.8, "--rate", 9000, "--threads", 2, env=env)
    said_once(run, why)
    assert len(run.truth.launches) == run.rate["launches"]
    # Nothing stays on, nothing stays taken.
    on = {"cuptiSubscribe": 1, "cuptiUnsubscribe": -1}
    assert sum(on.get(call.function, 0) for call in run.calls if call.result == 0) == 0
    after = [call.at_ns for call in run.calls][-1]
    assert run.truth.launches["call_ns"].max() > after
    assert not np.any(observed(run)["call_ns"] > after)
    if "LAYOUT" in fault:
        assert len(run.batches.executions) <= 1


def test_no_cupti_is_looked_for_again(tmp_path: Path) -> None:
    run = run_traced(tmp_path, "--duration", 0.5, "--rate", 3000, env={**DENSE, "KDIFF_DEVICE_CUPTI": "/nowhere.so"})
    assert (run.status, run.stderr, run.calls) == (0, "", [])
    assert [state for state, _ in run.batches.states] == [State.WAITING, State.NO_CUPTI]


def test_a_bad_setting_turns_it_off_in_one_sentence(tmp_path: Path) -> None:
    run = run_traced(tmp_path, "--launches", 11, env={"KDIFF_DEVICE_TIME": "ten percent"})
    assert run.status == 0
    assert run.calls == []
    assert run.stderr == "kdiff: KDIFF_DEVICE_TIME=ten percent is no WINDOW_MS/PERIOD_MS: device time is off\n"


def test_a_budget_ends_windows_early(tmp_path: Path) -> None:
    # 0.1% of 200 ms are 200 us: a few hundred records.
    env = {"KDIFF_DEVICE_TIME": "100/200", "KDIFF_DEVICE_BUDGET": "0.1%"}
    run = run_traced(tmp_path, "--duration", 1.5, "--rate", 60000, "--sync-every", 64, env=env)
    windows = run.batches.windows
    assert Ended.BUDGET in set(windows["ended"])
    assert np.all(windows["executions"] < 60000 * 0.08)
    check_windows(run)


def test_an_agent_that_leaves_and_comes_back(tmp_path: Path) -> None:
    env = {**DENSE, "KDIFF_STANDIN_LISTEN": "100-700,1200-9000"}
    run = run_traced(tmp_path, "--duration", 2, "--rate", 5000, env=env)
    began = run.truth.launches["call_ns"].min()
    ms = (run.batches.windows["opened_ns"].astype(np.int64) - int(began)) / MS
    assert np.any(ms < 700)
    assert np.any(ms > 1150)
    assert not np.any((ms > 750) & (ms < 1150))
    assert [state for state, _ in run.batches.states].count(State.WAITING) == 2
    check_executions(run, observed(run))


# ---- what programs do ----


@pytest.mark.parametrize("how", ["exit", "_exit", "term", "kill", "abort"])
@pytest.mark.parametrize("slow", [False, True])
def test_any_end_in_the_middle_of_a_window(tmp_path: Path, how: str, slow: bool) -> None:
    env = {**ALWAYS, **({"KDIFF_STANDIN_CUPTI_FLUSH_MS": "300"} if slow else {})}
    began = time.monotonic()
    run = run_traced(tmp_path, "--duration", 9, "--rate", 9000, "--threads", 2, "--end-at", f"0.4:{how}", env=env)
    assert time.monotonic() - began < 3
    signals = {"term": -signal.SIGTERM, "kill": -signal.SIGKILL, "abort": -signal.SIGABRT}
    assert run.status == signals.get(how, 0)
    assert run.stderr == ""
    if how == "exit":
        assert run.batches.windows["ended"].tolist() == [Ended.EXIT]
        assert len(run.batches.executions) > 1500
        check_windows(run)


def test_the_end_of_main_in_the_middle_of_a_window(tmp_path: Path) -> None:
    run = run_traced(tmp_path, "--launches", 5003, "--rate", 9000, "--threads", 2, env=ALWAYS)
    assert (run.status, run.stderr) == (0, "")
    check_executions(run, observed(run))
    assert run.batches.windows["ended"].tolist() == [Ended.EXIT]


@pytest.mark.parametrize("setting", ["always", "40/100"])
def test_forks_in_the_middle_of_windows(tmp_path: Path, setting: str) -> None:
    moments = sorted(random.Random(setting).uniform(0.1, 1.4) for _ in range(11))
    forks = [part for at in moments for part in ("--fork-at", at)]
    env = {**DENSE, "KDIFF_DEVICE_TIME": setting}
    run = run_traced(tmp_path, "--duration", 1.6, "--rate", 20000, "--threads", 3, *forks, env=env)
    assert (run.status, run.stderr) == (0, "")
    assert run.rate["children"] == [7] * 11
    assert {call.pid for call in run.calls} == {run.truth.pid}
    assert run.batches.windows["closed_ns"].max() > run.truth.launches["call_ns"].max() - 250 * MS
    check_executions(run, observed(run))
    check_windows(run)


def test_a_program_that_closes_the_library(tmp_path: Path) -> None:
    run = run_traced(tmp_path, "--duration", 1, "--rate", 9000, "--dlclose-at", 0.3, env=ALWAYS)
    assert (run.status, run.stderr) == (0, "")
    check_executions(run, observed(run))


def test_a_truth_of_a_killed_process_is_whole(tmp_path: Path) -> None:
    described = traced(tmp_path, "--duration", 9, "--rate", 9000, env=DENSE)
    process = described.start()
    time.sleep(0.7)
    process.kill()
    process.communicate()
    assert len(load_truth(tmp_path / "truth").launches) > 1000


# ---- other users of CUPTI ----


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
        or report["subscribed"] or report["enabled"] or report["untimed"]
        or report["unknown_buffers"] or report["lost_buffers"]
    ]  # fmt: skip
    assert wrong == []


@pytest.mark.parametrize("manners", ["give", "finalize", "bare"])
@pytest.mark.parametrize("profiler", PROFILERS)
def test_a_profiler_at_random_moments(tmp_path: Path, profiler: str, manners: str) -> None:
    run = run_traced(
        tmp_path,
        *("--duration", 2.2, "--rate", 9000, "--threads", 2, "--manners", manners),
        *("--profiler", build().build / profiler, "--profiler-first"),
        *sessions((profiler, manners), 9, 0.1, 0.03, 101),
        env={**DENSE, "KDIFF_DEVICE_TIME": "40/60"},
    )
    check_profiler(run, 9, 101)
    windows = run.batches.windows
    assert Ended.YIELDED in set(windows["ended"])
    last = run.rate["profiles"][-1]["off_ns"]
    assert np.any(windows["opened_ns"] > last)
    for report in run.rate["profiles"]:
        assert not np.any((windows["opened_ns"] < report["off_ns"]) & (windows["closed_ns"] > report["on_ns"]))
    # Own records hold nothing of what the profiler saw and miss nothing else.
    on = [(report["on_ns"], report["off_ns"]) for report in run.rate["profiles"]]
    mine = observed(run)
    for begin, end in on:
        mine = mine[(mine["call_ns"] < begin - MS) | (mine["call_ns"] > end + MS)]
    missing = set(mine["correlation"]) - set(run.batches.executions["correlation"])
    uncollected = int(windows["uncollected"].sum())
    assert len(missing) <= uncollected <= 64 * len(on)


@pytest.mark.parametrize("profiler", PROFILERS)
def test_a_profiler_that_keeps_the_subscription(tmp_path: Path, profiler: str) -> None:
    run = run_traced(
        tmp_path,
        *("--duration", 1.5, "--rate", 9000, "--profiler", build().build / profiler, "--profiler-first"),
        *sessions(profiler, 4, 0.3, 0.03, 101),
        env={**DENSE, "KDIFF_DEVICE_TIME": "40/60"},
    )
    check_profiler(run, 4, 101)
    first = run.rate["profiles"][0]["on_ns"]
    assert len(run.batches.windows) > 0
    assert np.all(run.batches.windows["closed_ns"] < first)
    states = [state for state, _ in run.batches.states]
    assert states[-1] == State.BUSY
    assert 8 <= states.count(State.BUSY) <= 40


@pytest.mark.parametrize("profiler", PROFILERS)
def test_a_profiler_that_is_loaded_inside_a_window(tmp_path: Path, profiler: str) -> None:
    run = run_traced(
        tmp_path,
        *("--duration", 1, "--rate", 9000, "--manners", "give", "--profiler", build().build / profiler),
        *sessions(profiler, 3, 0.3, 0.03, 101),
        env=ALWAYS,
    )
    check_profiler(run, 3, 101)


def test_a_profiler_of_another_copy_of_cupti(tmp_path: Path) -> None:
    run = run_traced(
        tmp_path,
        *("--duration", 1.5, "--rate", 9000, "--manners", "give", "--profiler-first"),
        *("--profiler", build().profiler_dlsym, *sessions("copy", 6, 0.1, 0.03, 101)),
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
        *("--profiler", build().profiler, *sessions("slow", 2, 0.2, 0.03, 101)),
        env={**ALWAYS, "KDIFF_STANDIN_CUPTI_FLUSH_MS": "100"},
    )
    check_profiler(run, 2, 101)
