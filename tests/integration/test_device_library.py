"""The device library in a program: what it hands over is what ran, and the program is none the worse.

A listener stands in for the agent (standins/listener.c), so that no probe is attached here.
"""

from __future__ import annotations

import random
import re
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from kdiff.probes.device_wire import Ended, State
from standins.device_batches import ALWAYS, DENSE, Run, check_executions, observed, run_traced, together, traced
from standins.standins import GPU_UUID, build, cupti_ns, load_truth

MS = 1_000_000


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
    assert len(lines) == 1, run.stderr
    assert f"kdiff: device time is off in process {run.truth.pid}: " in lines[0]
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
        in_window=True,
    )
    assert run.status == 0
    assert run.stderr == ""
    assert len(observed(run)) == 20011
    check_executions(run, observed(run))
    check_windows(run)
    windows = run.batches.windows
    # Without a gap, until the program ended.
    np.testing.assert_array_equal(windows["closed_ns"][:-1], windows["opened_ns"][1:])
    assert set(windows["cupti_version"]) == {130001 if library == "cupti" else 24}
    assert run.batches.devices == {0: GPU_UUID}


def test_nodes_of_graphs(tmp_path: Path) -> None:
    run = run_traced(
        tmp_path,
        *("--kernel", "a:3@2/64", "--kernel", "b:5@7/32", "--graph", 13, "--threads", 2),
        *("--launches", 1009, "--rate", 1500),
        env=ALWAYS,
        in_window=True,
    )
    nodes = observed(run)
    assert len(nodes) == 13 * 1009
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
    run = run_traced(tmp_path, "--launches", 7001, "--rate", 9000, "--threads", 2, env=env, in_window=True)
    ran = np.arange(1, 7001 + 1)
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
        tmp_path,
        *kernels,
        "--name-length",
        3001,
        "--launches",
        4001,
        "--rate",
        6000,
        "--api",
        "driver",
        env=ALWAYS,
        in_window=True,
    )
    check_executions(run, run.truth.executions)
    assert len(run.batches.names) == 199


def test_names_whose_memory_is_gone(tmp_path: Path) -> None:
    env = {**ALWAYS, "KDIFF_STANDIN_CUPTI_GONE_EVERY": "5"}
    run = run_traced(tmp_path, "--launches", 4001, "--rate", 6000, "--threads", 2, env=env, in_window=True)
    found = run.batches.executions["name"]
    names = {number: name for number, name in run.batches.names.items() if name == "edge_kernel"}
    assert (run.status, run.stderr, len(found), len(names)) == (0, "", 4001, 1)
    assert np.sum(found == 0) == 4001 // 5
    assert np.sum(found == next(iter(names))) == 4002 // 5


# ---- what goes wrong ----


FAULTS = [
    ({"LAYOUT": "unknown"}, "version 140000"),
    ({"LAYOUT": "stride"}, "130001"),
    ({"FAIL": "cuptiActivityEnable=14"}, "CUPTI_ERROR_NOT_COMPATIBLE (14)"),
    ({"FAIL": "cuptiActivityEnable=7@3"}, "cuptiActivityEnable"),
    ({"FAIL": "cuptiSubscribe=14"}, "CUPTI_ERROR_NOT_COMPATIBLE (14)"),
    ({"FAIL": "cuptiActivityRegisterCallbacks=1"}, "cuptiActivityRegisterCallbacks"),
]


def test_a_cupti_that_cannot_be_used_turns_it_off(tmp_path: Path) -> None:
    def one(directory: Path, fault: dict[str, str]) -> Run:
        env = {**DENSE, **{f"KDIFF_STANDIN_CUPTI_{name}": value for name, value in fault.items()}}
        return run_traced(directory, "--duration", 0.8, "--rate", 4000, "--threads", 2, env=env)

    for run, (fault, why) in zip(together(one, tmp_path, [fault for fault, _ in FAULTS]), FAULTS, strict=True):
        said_once(run, why)
        assert len(run.truth.launches) == run.rate["launches"]
        # Nothing stays on, nothing stays taken.
        on = {"cuptiSubscribe": 1, "cuptiUnsubscribe": -1}
        assert sum(on.get(call.function, 0) for call in run.calls if call.result == 0) == 0
        after = run.calls[-1].at_ns
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
    for wrong in ("soon", "-1", "3600001", "5s"):
        run = run_traced(tmp_path, "--launches", 11, env={"KDIFF_DEVICE_SETTLE": wrong})
        assert (run.status, run.calls) == (0, [])
        expected = f"kdiff: KDIFF_DEVICE_SETTLE={wrong} is no time in ms up to an hour: device time is off\n"
        assert run.stderr == expected


def test_no_window_opens_soon_after_a_library_was_loaded(tmp_path: Path) -> None:
    def waits_ms(directory: Path, settle: str) -> list[int]:
        """From the first launch to the first window, and from the profiler's end to the next."""
        env = {**DENSE, "KDIFF_DEVICE_TIME": "10/20", "KDIFF_DEVICE_SETTLE": settle}
        options = ("--profiler", build().profiler, "--profile", "1.5:0.03:11", "--manners", "give")
        run = run_traced(directory, "--duration", 2.8, "--rate", 2000, *options, env=env)
        assert (run.status, run.stderr) == (0, "")
        opened = run.batches.windows["opened_ns"].astype(int)
        since = (int(run.truth.launches["call_ns"].min()), int(run.rate["profiles"][0]["off_ns"]))
        return [(min(opened[opened > at]) - at) // 1_000_000 for at in since]

    soon, late = together(waits_ms, tmp_path, ("0", "600"))
    assert soon[0] < 500 <= late[0]  # the libraries were there before the first launch
    assert soon[1] < 590 <= late[1]


def test_no_window_opens_while_a_context_is_made_nor_soon_after(tmp_path: Path) -> None:
    def wait_ms(directory: Path, hidden: int) -> int:
        """From the first launch, which comes right after the context, to the first window."""
        env = {**DENSE, "KDIFF_DEVICE_TIME": "10/20", "KDIFF_DEVICE_SETTLE": "200", "KDIFF_STANDIN_CONTEXT_MS": "900"}
        env["KDIFF_STANDIN_CONTEXT_HIDDEN"] = str(hidden)
        run = run_traced(directory, "--duration", 6.5, "--rate", 500, env=env)
        assert (run.status, run.stderr) == (0, "")
        return (int(run.batches.windows["opened_ns"].min()) - int(run.truth.launches["call_ns"].min())) // MS

    seen, hidden = together(wait_ms, tmp_path, (0, 1))
    assert 190 <= seen < 900
    assert 4900 <= hidden < 6000  # 30 times what it takes to settle, after cuInit


def test_a_window_that_cost_more_than_its_share_puts_off_the_next(tmp_path: Path) -> None:
    # 0.5% of 60 ms are 300 us: 120 launches, of which a window of 30 ms has 600.
    env = {**DENSE, "KDIFF_DEVICE_TIME": "30/60", "KDIFF_DEVICE_BUDGET": "0.5%"}
    run = run_traced(tmp_path, "--duration", 3, "--rate", 20000, env=env)
    windows = run.batches.windows
    assert len(windows) >= 5
    spent_ns = 2500 * windows["executions"][:-1].sum()
    assert 0.002 < spent_ns / int(windows["opened_ns"][-1] - windows["opened_ns"][0]) < 0.006
    check_windows(run)


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


ENDS = {"exit": 0, "_exit": 0, "term": -signal.SIGTERM, "kill": -signal.SIGKILL, "abort": -signal.SIGABRT}


@pytest.mark.parametrize("flush_ms", ["0", "300"])
def test_any_end_in_the_middle_of_a_window(tmp_path: Path, flush_ms: str) -> None:
    def one(directory: Path, how: str) -> Run:
        load = ("--duration", 9, "--rate", 4000, "--threads", 2)
        env = {**ALWAYS, "KDIFF_STANDIN_CUPTI_FLUSH_MS": flush_ms}
        return run_traced(directory, *load, "--end-at", f"0.3:{how}", env=env, in_window=True)

    began = time.monotonic()
    runs = dict(zip(ENDS, together(one, tmp_path, list(ENDS)), strict=True))
    assert time.monotonic() - began < 5
    assert {how: run.status for how, run in runs.items()} == ENDS
    assert {run.stderr for run in runs.values()} == {""}
    run = runs["exit"]
    assert run.batches.windows["ended"].tolist() == [Ended.EXIT]
    assert len(run.batches.executions) + run.batches.windows["uncollected"].sum() == len(observed(run)) > 700
    check_windows(run)


def test_the_end_of_main_in_the_middle_of_a_window(tmp_path: Path) -> None:
    run = run_traced(tmp_path, "--launches", 5003, "--rate", 9000, "--threads", 2, env=ALWAYS, in_window=True)
    assert (run.status, run.stderr) == (0, "")
    check_executions(run, run.truth.executions)
    assert run.batches.windows["ended"].tolist() == [Ended.EXIT]


def test_the_end_while_a_window_opens(tmp_path: Path) -> None:
    """The exit waits for the opening: the driver and CUPTI are not taken down under it."""

    def one(directory: Path, at: float) -> Run:
        env = {"KDIFF_DEVICE_TIME": "20/9000", "KDIFF_STANDIN_CUPTI_ENABLE_MS": "800"}
        return run_traced(directory, "--duration", 9, "--rate", 1000, "--end-at", f"{at}:exit", env=env)

    for run in together(one, tmp_path, [0.5, 0.7]):
        assert (run.status, run.stderr) == (0, "")
        names = [call.function for call in run.calls]
        assert names.count("cuptiSubscribe") == names.count("cuptiUnsubscribe") == 1
        assert run.batches.windows["ended"].tolist() == [Ended.EXIT]


def test_its_thread_takes_no_signal_of_the_program_and_hides_no_fault(tmp_path: Path) -> None:
    described = traced(tmp_path, "--duration", 9, "--rate", 100, env=ALWAYS)
    with subprocess.Popen(described.command, env=described.env, stdout=subprocess.DEVNULL) as process:
        try:
            masks = {0}
            while len(masks) < 2:
                masks = {blocked(task) for task in Path(f"/proc/{process.pid}/task").iterdir()}
                time.sleep(0.02)
        finally:
            process.kill()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGUSR1, signal.SIGALRM):
        assert any(mask >> (number - 1) & 1 for mask in masks)
    for number in (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT):
        assert not any(mask >> (number - 1) & 1 for mask in masks)


def blocked(task: Path) -> int:
    """The signals that a thread blocks, as bits."""
    return int(re.search(r"SigBlk:\s*(\w+)", (task / "status").read_text())[1], 16)  # type: ignore[index]


@pytest.mark.parametrize("setting", ["always", "40/100"])
def test_forks_in_the_middle_of_windows(tmp_path: Path, setting: str) -> None:
    moments = sorted(random.Random(setting).uniform(0.1, 1.4) for _ in range(11))
    forks = [part for at in moments for part in ("--fork-at", at)]
    env = {**DENSE, "KDIFF_DEVICE_TIME": setting}
    run = run_traced(tmp_path, "--duration", 1.6, "--rate", 20000, "--threads", 3, *forks, env=env, in_window=True)
    assert (run.status, run.stderr) == (0, "")
    assert run.rate["children"] == [7] * 11
    assert {call.pid for call in run.calls} == {run.truth.pid}
    assert run.batches.windows["closed_ns"].max() > run.truth.launches["call_ns"].max() - 250 * MS
    check_executions(run, observed(run))
    check_windows(run)


def test_a_call_of_cupti_that_does_not_come_back(tmp_path: Path) -> None:
    def one(directory: Path, event: Sequence[object]) -> Run:
        load = ("--duration", 1.6, "--rate", 4000)
        env = {"KDIFF_DEVICE_TIME": "200/9000", "KDIFF_STANDIN_CUPTI_FLUSH_MS": "9000"}
        return run_traced(directory, *load, *map(str, event), env=env, in_window=True)

    began = time.monotonic()
    runs = together(one, tmp_path, [("--fork-at", 0.7), ("--end-at", "0.7:exit")])
    assert time.monotonic() - began < 6
    assert [(run.status, run.stderr) for run in runs] == [(0, ""), (0, "")]
    assert runs[0].rate["children"] == [7]


def test_another_user_does_not_wait_for_ever(tmp_path: Path) -> None:
    """CUPTI hangs as a window closes: a profiler that begins then gives up waiting, and is refused by CUPTI itself."""
    env = {"KDIFF_DEVICE_TIME": "200/9000", "KDIFF_STANDIN_CUPTI_FLUSH_MS": "12000", "KDIFF_STANDIN_CUPTI_STRICT": "0"}
    session = ("--profiler", build().build / "libprofiler.so", "--profile", "0.6:0.1:101")
    began = time.monotonic()
    run = run_traced(tmp_path, "--duration", 1, "--rate", 4000, *session, env=env, in_window=True)
    assert 5 < time.monotonic() - began < 22  # the profiler flushes once more by itself
    assert (run.status, run.stderr) == (0, "")


def test_a_program_that_closes_the_library(tmp_path: Path) -> None:
    run = run_traced(tmp_path, "--duration", 1, "--rate", 9000, "--dlclose-at", 0.3, env=ALWAYS, in_window=True)
    assert (run.status, run.stderr) == (0, "")
    check_executions(run, run.truth.executions)


def test_a_truth_of_a_killed_process_is_whole(tmp_path: Path) -> None:
    described = traced(tmp_path, "--duration", 9, "--rate", 9000, env=DENSE)
    process = described.start()
    time.sleep(0.7)
    process.kill()
    process.communicate()
    assert len(load_truth(tmp_path / "truth").launches) > 1000
