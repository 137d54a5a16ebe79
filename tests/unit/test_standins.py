"""The stand-ins tell the truth: other tests compare a recording with what these libraries say happened."""

from __future__ import annotations

import ctypes
import signal
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from elftools.elf.elffile import ELFFile

from standins.in_process import Driver
from standins.standins import (
    APIS,
    FLAG_CAPTURED,
    KIND_GRAPH_NODE,
    KIND_MODULE_LOAD,
    KIND_MODULE_UNLOAD,
    Records,
    Standins,
    build,
    load_calls,
    load_truth,
    run_workload,
    workload,
)

DRIVER_PROBES = """
    cuLaunchKernel cuLaunchKernel_ptsz cuLaunchKernelEx cuLaunchKernelEx_ptsz cuLaunchCooperativeKernel
    cuGraphLaunch cuGraphLaunch_ptsz cuStreamSynchronize cuStreamSynchronize_ptsz cuCtxSynchronize cuEventSynchronize
    cuModuleLoadData cuModuleLoadDataEx cuModuleLoadFatBinary cuModuleLoad cuModuleGetFunction cuModuleUnload
    cuLibraryLoadData cuLibraryGetKernel cuKernelGetFunction cuLibraryUnload cuInit cuGetProcAddress_v2
    cuEventRecord cuEventRecord_ptsz cuStreamBeginCapture_v2 cuStreamBeginCapture_v2_ptsz cuStreamEndCapture
    cuStreamEndCapture_ptsz cuStreamCreate cuStreamCreateWithPriority cuStreamDestroy_v2 cuGraphInstantiateWithFlags
"""
RUNTIME_PROBES = """
    cudaLaunchKernel cudaLaunchKernel_ptsz cudaLaunchKernelExC cudaLaunchKernelExC_ptsz cudaGraphLaunch
    cudaGraphLaunch_ptsz cudaStreamSynchronize cudaStreamSynchronize_ptsz cudaDeviceSynchronize cudaEventSynchronize
    __cudaRegisterFatBinary __cudaRegisterFunction
"""
OTHER_DRIVER_EXPORTS = """
    cuDriverGetVersion cuDeviceGet cuDeviceGetCount cuCtxCreate_v2 cuDevicePrimaryCtxRetain cuCtxSetCurrent
    cuCtxGetCurrent cuEventCreate cuEventDestroy_v2 cuStreamIsCapturing cuGraphExecDestroy cuGraphDestroy
    cuDeviceGetUuid cuDeviceGetUuid_v2 cuMemGetInfo_v2
"""

INVALID_VALUE, INVALID_HANDLE, CAPTURE_UNSUPPORTED, CAPTURE_INVALIDATED = 1, 400, 900, 901
MS = 1_000_000
LATENCY_NS = 4000


@pytest.fixture(scope="module")
def standins() -> Standins:
    return build()


@pytest.fixture
def open_driver(standins: Standins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Driver]:
    def open_driver(**env: str) -> Driver:
        truth = tmp_path / "truth"
        settings = {"INIT_MS": "0", "TRUTH": str(truth), "TRUTH_RECORDS": "65536", **env}
        for name, value in settings.items():
            monkeypatch.setenv(f"KDIFF_STANDIN_{name}", value)
        return Driver(standins.driver, tmp_path, truth)

    return open_driver


def in_stream_order(records: Records) -> bool:
    """Whether no kernel on a stream began before the one before it ended."""
    for queue in np.unique(records["queue"]):
        on_stream = records[records["queue"] == queue]
        if np.any(on_stream["start_ns"][1:] < on_stream["end_ns"][:-1]):
            return False
    return True


# ---- the files ----


def first_byte(elf: ELFFile, symbol: Any) -> bytes:
    address = symbol["st_value"]
    for segment in elf.iter_segments("PT_LOAD"):
        if segment["p_vaddr"] <= address < segment["p_vaddr"] + segment["p_filesz"]:
            elf.stream.seek(address - segment["p_vaddr"] + segment["p_offset"])
            return bytes(elf.stream.read(1))
    raise AssertionError(symbol.name)


@pytest.mark.parametrize(
    ("file", "table", "probes", "others"),
    [
        ("driver", ".dynsym", DRIVER_PROBES, OTHER_DRIVER_EXPORTS),
        ("runtime", ".dynsym", RUNTIME_PROBES, ""),
        ("other_runtime", ".dynsym", RUNTIME_PROBES, ""),
        ("workload_static", ".symtab", RUNTIME_PROBES, ""),
    ],
)
def test_probed_functions_are_distinct_and_begin_with_push_rbp(
    standins: Standins, file: str, table: str, probes: str, others: str
) -> None:
    with getattr(standins, file).open("rb") as stream:
        elf = ELFFile(stream)
        symbols = {symbol.name: symbol for symbol in elf.get_section_by_name(table).iter_symbols()}
        assert not [name for name in others.split() if name not in symbols]
        assert {name for name in probes.split() if first_byte(elf, symbols[name]) != b"\x55"} == set()
        assert len({symbols[name]["st_value"] for name in probes.split()}) == len(probes.split())


@pytest.mark.parametrize(
    ("file", "soname"),
    [
        ("driver", "libcuda.so.1"),
        ("runtime", "libcudart.so.13"),
        ("other_runtime", "libcudart.so.12"),
        ("workload", ""),
    ],
)
def test_files_have_a_build_id_and_soname(standins: Standins, file: str, soname: str) -> None:
    with getattr(standins, file).open("rb") as stream:
        elf = ELFFile(stream)
        (note,) = elf.get_section_by_name(".note.gnu.build-id").iter_notes()
        assert len(note["n_desc"]) == 40
        assert soname in ["", *(tag.soname for tag in elf.get_section_by_name(".dynamic").iter_tags("DT_SONAME"))]


def test_the_static_runtime_is_local_and_stripping_removes_it(standins: Standins) -> None:
    with standins.workload_static.open("rb") as stream:
        (symbol,) = ELFFile(stream).get_section_by_name(".symtab").get_symbol_by_name("cudaLaunchKernel")
        assert symbol["st_info"]["bind"] == "STB_LOCAL"
    with standins.workload_static_stripped.open("rb") as stream:
        assert ELFFile(stream).get_section_by_name(".symtab") is None


def test_building_at_once_is_safe_and_a_second_build_does_nothing(tmp_path: Path) -> None:
    into = tmp_path / "build"
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: build(into=into), range(2))
    made = [path.stat().st_mtime_ns for path in first.outputs()]
    build(into=into)
    assert first == second
    assert [path.stat().st_mtime_ns for path in first.outputs()] == made
    assert sorted(path.name for path in into.iterdir() if path.name.startswith(".")) == [".lock"]


# ---- counts ----


@pytest.mark.parametrize("program", ["workload", "workload_static", "workload_static_stripped"])
def test_counts_are_exact_through_every_api(standins: Standins, program: str, tmp_path: Path) -> None:
    options = ("--launches", 10_007, "--syncs", 101, "--threads", 3, "--api", "mixed", "--kernel", "a:1@3x5x7/32x2")
    rate, truth = run_workload(*options, program=getattr(standins, program), truth=tmp_path / "truth")
    calls = np.bincount(truth.launches["api"], minlength=len(APIS))
    by_api = rate["by_api"]
    assert (rate["launches"], rate["syncs"], rate["failed"]) == (10_007, 101, 0)
    assert (len(truth.launches), len(truth.syncs), len(truth.executions)) == (10_007, 101, 10_007)
    assert calls[APIS.index("cuLaunchKernel")] == by_api["runtime"] + by_api["driver"]
    assert calls[APIS.index("cuLaunchKernelEx")] == by_api["runtime-ex"] + by_api["driver-ex"]
    assert max(by_api.values()) - min(by_api.values()) <= 3
    assert np.all(truth.launches["grid"] == (3, 5, 7))
    assert np.all(truth.launches["block"] == (32, 2, 1))
    assert len(np.unique(truth.launches["tid"])) == 3
    assert set(truth.records["pid"]) == {rate["pid"]}
    assert truth.lost == 0


def test_a_late_opened_runtime_and_the_driver_alone_count_the_same(standins: Standins, tmp_path: Path) -> None:
    runtime = ("--runtime", standins.other_runtime, "--ptsz", "--default-stream", "--device-sync")
    for options in (runtime, ("--api", "driver-ex", "--ptsz", "--event-sync")):
        _, truth = run_workload(
            *options,
            "--launches",
            1009,
            "--sync-every",
            100,
            program=standins.workload_dlopen,
            truth=tmp_path / "truth",
        )
        assert len(truth.launches) == 1009
        assert len(truth.syncs) == 11
        assert {APIS[api] for api in truth.launches["api"]} <= {"cuLaunchKernel_ptsz", "cuLaunchKernelEx_ptsz"}
        assert np.all(truth.launches["queue"] > 0)


@pytest.mark.parametrize("program", ["workload", "workload_static"])
def test_a_launch_as_nvcc_13_compiles_it_is_one_launch(standins: Standins, program: str, tmp_path: Path) -> None:
    options = ("--nvcc13", "--launches", 1009, "--reload-every", 100, "--kernel", "a:1@3x5x7/32x2x4", "--shared", 99)
    _, truth = run_workload(*options, program=getattr(standins, program), truth=tmp_path / "truth")
    assert len(truth.launches) == 1009
    assert np.all(truth.launches["grid"] == (3, 5, 7))
    assert np.all(truth.launches["block"] == (32, 2, 4))
    assert np.all(truth.launches["shared_bytes"] == 99)
    assert len(np.unique(truth.launches["stream"])) == 1


def test_failing_launches_do_not_execute_and_an_empty_grid_never_reaches_the_driver(tmp_path: Path) -> None:
    options = ("--launches", 1009, "--fail-every", 10)
    rate, truth = run_workload(*options, truth=tmp_path / "block")
    failed = truth.launches[truth.launches["status"] == INVALID_VALUE]
    assert rate["failed"] == len(failed) == 100
    assert len(truth.launches) == 1009
    assert np.all(failed["end_ns"] == 0)
    assert len(truth.executions) == 909

    rate, truth = run_workload(*options, "--fail-zero-grid", truth=tmp_path / "grid")
    assert rate["failed"] == 100
    assert len(truth.launches) == 909


def test_the_load_may_run_in_a_child(tmp_path: Path) -> None:
    run = workload("--fork", "--launches", 101, truth=tmp_path / "truth")
    with run.start() as process:
        assert process.communicate(timeout=30)[1] == ""
    truth = load_truth(tmp_path / "truth")
    assert truth.pid != process.pid
    assert len(truth.launches) == 101


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_truth_survives_a_signal(number: signal.Signals, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    run = workload("--duration", 30, "--rate", 10_000, "--ready-file", ready, truth=tmp_path / "truth")
    with run.start() as process:
        while not ready.exists():
            time.sleep(0.01)
        time.sleep(0.2)
        process.send_signal(number)
        process.communicate(timeout=10)
    assert process.returncode == (0 if number == signal.SIGTERM else -signal.SIGKILL)
    assert len(load_truth(tmp_path / "truth").launches) > 100


def test_launching_waits_for_the_go_file(tmp_path: Path) -> None:
    ready, go = tmp_path / "ready", tmp_path / "go"
    run = workload("--launches", 7, "--ready-file", ready, "--go-file", go, truth=tmp_path / "truth")
    with run.start() as process:
        while not ready.exists():
            time.sleep(0.01)
        before = load_truth(tmp_path / "truth")
        gone = time.monotonic_ns()
        go.touch()
        process.communicate(timeout=10)
    after = load_truth(tmp_path / "truth")
    assert len(before.of_kind(KIND_MODULE_LOAD)) == 1
    assert len(before.launches) == 0
    assert after.launches["call_ns"].min() >= gone


def test_a_bad_option_ends_with_status_2(standins: Standins) -> None:
    for args in (["--kernel", "a"], ["--launches", "-1"], ["--what"], ["--change", "a=2"], ["stray"]):
        done = subprocess.run([standins.workload, *args], capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert done.stderr


# ---- the device ----


def test_kernels_on_a_stream_run_in_order_and_streams_run_beside_each_other(tmp_path: Path) -> None:
    _, truth = run_workload("--launches", 1009, "--threads", 3, "--kernel", "a:20:0.5", truth=tmp_path / "truth")
    ran = truth.executions
    assert len(np.unique(ran["queue"])) == 3
    assert in_stream_order(ran)
    assert np.all(ran["start_ns"] >= ran["call_ns"] + LATENCY_NS)
    busy = (ran["end_ns"] - ran["start_ns"]).sum()
    assert busy > 1.5 * (ran["end_ns"].max() - ran["start_ns"].min())


@pytest.mark.parametrize("how", ["--device-sync", "--event-sync", "--isolated"])
def test_a_sync_returns_after_what_it_waits_for_and_soon(how: str, tmp_path: Path) -> None:
    _, truth = run_workload(how, "--isolated", "--launches", 211, "--kernel", "a:200", truth=tmp_path / "truth")
    assert np.array_equal(truth.syncs["end_ns"], truth.executions["end_ns"])
    late = truth.syncs["return_ns"].astype(np.int64) - truth.syncs["end_ns"].astype(np.int64)
    assert late.min() >= 0
    assert np.quantile(late, 0.1) < 100_000


def test_durations_follow_the_distribution_and_the_seed(tmp_path: Path) -> None:
    def durations(seed: int) -> Records:
        _, truth = run_workload(
            "--launches", 50_021, "--syncs", 0, "--seed", seed, "--kernel", "a:20:0.1:0.01:5:32",
            truth=tmp_path / "truth", env={"KDIFF_STANDIN_QUEUE": "0"},
        )  # fmt: skip
        return truth.executions["end_ns"] - truth.executions["start_ns"]

    drawn = durations(1)
    assert np.all(drawn % 32 == 0)
    assert np.median(drawn) == pytest.approx(20_000, rel=0.005)
    assert np.quantile(drawn, 0.16) == pytest.approx(20_000 * np.exp(-0.1), rel=0.01)
    assert np.quantile(drawn, 0.84) == pytest.approx(20_000 * np.exp(0.1), rel=0.01)
    assert np.mean(drawn > 60_000) == pytest.approx(0.01, abs=0.002)
    assert np.median(drawn[drawn > 60_000]) == pytest.approx(100_000, rel=0.02)
    assert np.array_equal(drawn, durations(1))
    assert not np.array_equal(drawn, durations(2))


def test_a_full_queue_blocks_the_launch(tmp_path: Path) -> None:
    run = {"truth": tmp_path / "truth", "env": {"KDIFF_STANDIN_QUEUE": "4"}}
    _, truth = run_workload("--launches", 23, "--kernel", "a:20000", **run)
    assert np.all(truth.launches["return_ns"][4:] >= truth.launches["end_ns"][:-4])
    assert np.all(truth.launches["return_ns"][:4] < truth.launches["end_ns"][0])


def test_arrivals_and_weights_are_as_asked(tmp_path: Path) -> None:
    kernels = ("--kernel", "a:1*3", "--kernel", "b:1")
    _, truth = run_workload("--rate", 5000, "--duration", 0.5, *kernels, truth=tmp_path / "truth")
    assert len(truth.launches) == pytest.approx(2500, abs=250)
    assert len(truth.named(truth.launches, "a")) / len(truth.launches) == pytest.approx(0.75, abs=0.05)


def test_the_legacy_default_stream_orders_blocking_streams(open_driver: Callable[..., Driver]) -> None:
    driver = open_driver()
    long = driver.function(driver.load(f"long {50 * MS}"), "long")
    short = driver.function(driver.load(f"short {MS}"), "short")
    blocking, free = driver.out("cuStreamCreate", 0), driver.out("cuStreamCreate", 1)
    for function, stream in ((long, blocking), (short, 0), (short, blocking), (short, 2), (short, free)):
        assert driver.launch(function, stream) == 0
    assert driver.launch(short, 0, ptsz=True) == 0
    assert driver.call("cuStreamSynchronize", free) == 0
    assert driver.call("cuStreamSynchronize", 0) == 0
    first, default, second, own, beside, own_too = driver.truth.executions
    assert default["start_ns"] >= first["end_ns"]
    assert second["start_ns"] >= default["end_ns"]
    assert own["start_ns"] >= default["end_ns"]
    assert beside["start_ns"] < first["end_ns"]
    assert own_too["queue"] == own["queue"] != default["queue"] == 0
    assert driver.truth.syncs["end_ns"][1] == driver.truth.executions["end_ns"].max()


def test_an_event_waits_for_what_was_queued_before_it(open_driver: Callable[..., Driver]) -> None:
    driver = open_driver()
    function = driver.function(driver.load(f"a {5 * MS}"), "a")
    stream, event = driver.out("cuStreamCreate", 0), driver.out("cuEventCreate", 0)
    driver.launch(function, stream)
    assert driver.call("cuEventRecord", event, stream) == 0
    driver.launch(function, stream)
    assert driver.call("cuEventSynchronize", event) == 0
    assert driver.truth.syncs["end_ns"][0] == driver.truth.executions["end_ns"][0]


# ---- graphs ----


def test_capture_does_not_execute_and_a_replay_executes_each_node(tmp_path: Path) -> None:
    options = ("--graph", 7, "--launches", 103, "--sync-every", 1, "--kernel", "a:3:0.2", "--kernel", "b:5")
    rate, truth = run_workload(*options, truth=tmp_path / "truth")
    assert (rate["captured"], rate["launches"]) == (7, 103)
    assert len(truth.launches) == 7
    assert np.all(truth.launches["flags"] == FLAG_CAPTURED)
    assert np.all(truth.launches["end_ns"] == 0)
    assert len(truth.graph_launches) == 103
    nodes = truth.of_kind(KIND_GRAPH_NODE)
    assert np.array_equal(nodes["node"], np.tile(np.arange(7), 103))
    assert set(nodes["graph"]) == set(truth.graph_launches["graph"]) == set(truth.launches["graph"])
    assert in_stream_order(nodes)
    assert np.array_equal(truth.graph_launches["start_ns"], nodes["start_ns"][0::7])
    assert np.array_equal(truth.graph_launches["end_ns"], nodes["end_ns"][6::7])
    assert np.array_equal(truth.syncs["end_ns"], truth.graph_launches["end_ns"])
    drawn = truth.named(nodes, "a")
    assert len(np.unique(drawn["end_ns"] - drawn["start_ns"])) > 100


def test_waiting_breaks_a_capture(open_driver: Callable[..., Driver]) -> None:
    driver = open_driver()
    stream = driver.out("cuStreamCreate", 0)
    assert driver.lib.cuStreamBeginCapture_v2(None, 0) == CAPTURE_UNSUPPORTED
    assert driver.lib.cuStreamBeginCapture_v2(ctypes.c_void_p(stream), 0) == 0
    assert driver.call("cuStreamSynchronize", stream) == CAPTURE_UNSUPPORTED
    graph = ctypes.c_void_p()
    assert driver.lib.cuStreamEndCapture(ctypes.c_void_p(stream), ctypes.byref(graph)) == CAPTURE_INVALIDATED


# ---- modules and handles ----


@pytest.mark.parametrize("offset", [0x8, 0x18])
def test_a_handle_leads_to_the_name(open_driver: Callable[..., Driver], offset: int) -> None:
    driver = open_driver(NAME_OFFSET=hex(offset))
    for name in ("_Z4gemmPf", "k" * 2000):
        module = driver.load(f"{name} 1000")
        kernel = driver.out("cuLibraryGetKernel", ctypes.c_void_p(module), ctypes.c_char_p(name.encode()))
        function = driver.out("cuKernelGetFunction", ctypes.c_void_p(kernel))
        assert len({kernel, function, driver.function(module, name)}) == 2
        for handle in (kernel, function):
            assert ctypes.c_char_p.from_address(handle + offset).value == name.encode()
            assert offset == 8 or not ctypes.c_void_p.from_address(handle + 8).value
            assert driver.launch(handle) == 0


def test_a_handle_is_reused_after_unload(open_driver: Callable[..., Driver]) -> None:
    driver = open_driver()
    old = driver.load("old 1000", "other 1000")
    handles = [driver.function(old, "old"), driver.function(old, "other")]
    assert driver.launch(handles[0]) == 0
    assert driver.call("cuModuleUnload", old) == 0
    assert driver.launch(handles[0]) == INVALID_HANDLE
    new = driver.load("new 1000", "other 1000")
    assert [driver.function(new, "new"), driver.function(new, "other")] == handles
    assert ctypes.c_char_p.from_address(handles[0] + 8).value == b"new"
    assert driver.launch(handles[0]) == 0
    truth = driver.truth
    assert [truth.names[kernel] for kernel in truth.executions["kernel"]] == ["old", "new"]
    assert list(truth.executions["module"]) == [1, 2]


@pytest.mark.parametrize("api", ["runtime", "driver"])
def test_reloading_keeps_the_handle_and_changes_the_name(api: str, tmp_path: Path) -> None:
    _, truth = run_workload("--launches", 1009, "--reload-every", 100, "--api", api, truth=tmp_path / "truth")
    assert truth.names == ["kernel", *(f"kernel.v{version}" for version in range(1, 11))]
    assert len(np.unique(truth.launches["handle"])) == 1
    assert list(np.bincount(truth.launches["kernel"])) == [100] * 10 + [9]
    assert len(truth.of_kind(KIND_MODULE_LOAD)) == len(truth.of_kind(KIND_MODULE_UNLOAD)) == 11


def test_a_change_and_a_swap_take_effect_at_their_launch(tmp_path: Path) -> None:
    options = ("--launches", 101, "--kernel", "a:10", "--change", "a=3@launch:20", "--swap", "a=2:b@launch:50")
    _, truth = run_workload(*options, truth=tmp_path / "truth")
    ran = truth.executions
    assert list(ran["end_ns"] - ran["start_ns"]) == [10_000] * 20 + [30_000] * 30 + [20_000] * 51
    assert [truth.names[kernel] for kernel in ran["kernel"]] == ["a"] * 50 + ["b"] * 51
    assert list(ran["factor"]) == [1] * 20 + [3] * 30 + [1] * 51


def test_a_change_takes_effect_at_its_second(tmp_path: Path) -> None:
    options = ("--duration", 0.4, "--kernel", "a:10", "--swap", "a=2@0.2", "--threads", 2, "--sync-every", 10)
    _, truth = run_workload(*options, truth=tmp_path / "truth")
    ran = truth.executions
    swapped = truth.of_kind(KIND_MODULE_LOAD)["call_ns"][1]
    assert swapped - ran["call_ns"].min() == pytest.approx(0.2e9, rel=0.25)
    assert ran["call_ns"].max() - ran["call_ns"].min() == pytest.approx(0.4e9, rel=0.25)
    assert set((ran["end_ns"] - ran["start_ns"])[ran["module"] == 1]) == {10_000}
    assert set((ran["end_ns"] - ran["start_ns"])[ran["module"] == 2]) == {20_000}
    assert np.all(ran["call_ns"][ran["module"] == 2] > swapped)


def test_long_names_reach_the_truth(tmp_path: Path) -> None:
    _, truth = run_workload("--name-length", 2000, "--kernel", "_Z1a:1", "--launches", 3, truth=tmp_path / "truth")
    assert [len(name) for name in truth.names] == [2000]


# ---- profiling ----


@pytest.mark.parametrize("profiler", ["profiler", "profiler_now", "profiler_dlsym"])
def test_a_profiler_sees_the_launches_of_its_sessions(standins: Standins, tmp_path: Path, profiler: str) -> None:
    sessions = ("--profile", "0.05:0.1:211", "--profile", "0.2:0.1:307")
    log = tmp_path / "calls"
    rate, truth = run_workload(
        *("--launches", 3001, "--rate", 9000, "--threads", 2, "--profiler", getattr(standins, profiler), *sessions),
        truth=tmp_path / "truth",
        env={"LD_LIBRARY_PATH": str(standins.build), "KDIFF_STANDIN_CUPTI_LOG": str(log)},
    )
    reports = rate["profiles"]
    assert [(report["launches"], report["own"]) for report in reports] == [(211, 211), (307, 307)]
    seen = sum(report["own"] + report["others"] for report in reports)
    assert seen == np.count_nonzero(truth.executions["correlation"])
    assert np.unique(truth.launches["correlation"]).size == seen + 1
    assert sum(report["unknown_buffers"] + report["lost_buffers"] + report["untimed"] for report in reports) == 0
    assert [call.function for call in load_calls(log)].count("cuptiSubscribe") == 1


def test_nothing_is_observed_without_a_profiler(tmp_path: Path) -> None:
    _, truth = run_workload("--launches", 101, truth=tmp_path / "truth")
    assert not truth.records["correlation"].any()


def test_callbacks_of_another_session_end_the_process(standins: Standins, tmp_path: Path) -> None:
    # A copy of the profiler is another user of CUPTI, with callbacks of its own: both are on at once here.
    source = tmp_path / "second.c"
    source.write_text(
        """
        #include <dlfcn.h>
        #include <stdlib.h>
        struct session { char bytes[256]; } session;
        int InitializeInjection(void)
        {
            void *library = dlopen(getenv("SECOND"), RTLD_NOW | RTLD_LOCAL);
            void (*start)(int, struct session *);
            *(void **)&start = dlsym(library, "profiler_start");
            start(3, &session);
            return 1;
        }
        """
    )
    injected = tmp_path / "second.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", injected, source], check=True)
    env = {
        "LD_LIBRARY_PATH": str(standins.build),
        "CUDA_INJECTION64_PATH": str(injected),
        "SECOND": str(standins.profiler),
    }
    sessions = ("--profiler", standins.profiler_dlsym, "--manners", "bare", "--profile", "0:0.01:7")
    run = workload("--launches", 1009, "--rate", 5000, *sessions, env=env).run
    report = run()["profiles"][0]
    assert report["own"] == 7
    with pytest.raises(RuntimeError, match=r"ended with -6: .*another's session"):
        workload("--launches", 1009, *sessions, env={**env, "KDIFF_STANDIN_CUPTI_STRICT": "1"}).run()


def test_an_injected_library_that_is_missing_is_ignored(tmp_path: Path) -> None:
    env = {"CUDA_INJECTION64_PATH": str(tmp_path / "missing.so")}
    assert workload("--launches", 11, env=env).run()["launches"] == 11
