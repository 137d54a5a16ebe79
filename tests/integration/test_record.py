"""The agent on real processes with real probes, against what the stand-in says really happened."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from recording import AGENT, Recording, agent_command, by_thread, host_environment, record, truth_frame

from standins.standins import (
    KIND_GRAPH_LAUNCH,
    KIND_LAUNCH,
    KIND_SYNC,
    Standins,
    Truth,
    Workload,
    build,
    load_truth,
    workload,
)

pytestmark = pytest.mark.ebpf

KERNELS = ["--kernel", "k1:5", "--kernel", "_Z2k2Pf:8@4x2x3/32x4x2", "--kernel", "_ZN2at4gemmIfLi8EEEvPT_:3@7/96"]
SHAPE = [f"{what}_{axis}" for what in ("grid", "block") for axis in "xyz"]
DEMANGLED = {"k1": "k1", "_Z2k2Pf": "k2(float*)", "_ZN2at4gemmIfLi8EEEvPT_": "void at::gemm<float, 8>(float*)"}


def same_launches(recording: Recording, truth: Truth, *, names: bool = True) -> None:
    """Every launch the driver saw is one row with the same place and shape, in each thread's order."""
    rows = by_thread(recording.launches)
    true = truth_frame(truth.of_kind(KIND_LAUNCH), truth.names)
    assert len(rows) == len(true)
    for column in ("pid", "tid", "stream", "shared_bytes", "status", *SHAPE):
        assert (rows[column].to_numpy() == true[column].to_numpy()).all(), column
    if names:
        wanted = true.kernel.map(lambda name: DEMANGLED.get(name, name))
        assert (rows.kernel_name.to_numpy() == wanted.to_numpy()).all()
    assert recording.lost == 0


@pytest.mark.parametrize("layer", ["both", "runtime", "driver"])
def test_every_launch_and_sync_is_one_row(tmp_path: Path, layer: str) -> None:
    run = workload(*KERNELS, "--launches", 10007, "--syncs", 101, "--shared", 48, truth=tmp_path / "truth")
    recording = record(tmp_path / "capture", run, "--layer", layer)
    assert recording.status == 0, recording.stderr
    events = recording.events
    assert events.kind.value_counts().to_dict() == {"launch": 10007, "sync": 101}
    assert (
        set(events.api)
        == {
            "both": {"cudaLaunchKernel", "cudaStreamSynchronize"},
            "runtime": {"cudaLaunchKernel", "cudaStreamSynchronize"},
            "driver": {"cuLaunchKernel", "cuStreamSynchronize"},
        }[layer]
    )
    truth = load_truth(tmp_path / "truth")
    same_launches(recording, truth, names=layer != "runtime")
    syncs = events[events.kind == "sync"]
    assert set(syncs.stream) == set(truth.of_kind(KIND_SYNC)["stream"].tolist())
    assert (syncs.duration_ns > 0).all()
    health = recording.table("agent_health")
    assert health.events.sum() == 10108
    assert health.layer.unique().tolist() == [layer]
    assert (events.comm == "workload").all()
    assert (events.service == "workload").all()


def test_no_return_takes_one_trap_and_keeps_completions(tmp_path: Path) -> None:
    run = workload(*KERNELS, "--launches", 10007, "--syncs", 101, truth=tmp_path / "truth")
    recording = record(tmp_path / "capture", run, "--no-return")
    same_launches(recording, load_truth(tmp_path / "truth"))
    launches = recording.launches
    assert (launches.duration_ns == 0).all()
    assert (launches["flags"] == 4).all()
    assert (launches.completion_ns > 0).all()
    assert set(launches.api) == {"cudaLaunchKernel"}


REFUSED_THEN_DEEPER = """
#include <stddef.h>
#include <unistd.h>
typedef struct { unsigned x, y, z; } dim3;
int cudaLaunchKernel(const void *, dim3, dim3, void **, size_t, void *);
typedef unsigned u;
int cuLaunchKernel(void *, u, u, u, u, u, u, u, void *, void **, void **);
int cuInit(unsigned), cuDevicePrimaryCtxRetain(void **, int), cuCtxSetCurrent(void *), cuCtxSynchronize(void);
int cuModuleLoadData(void **, const void *), cuModuleGetFunction(void **, void *, const char *);
static void *function;
__attribute__((noinline)) static int deeper(volatile int n)
{
    volatile char pad[256] = {n};
    return n ? deeper(n - 1) + pad[1] : cuLaunchKernel(function, 5, 1, 1, 32, 1, 1, 0, 0, 0, 0) + pad[1];
}
int main(void)
{
    void *context, *module;
    dim3 empty = {0, 1, 1}, block = {32, 1, 1};
    cuInit(0);
    cuDevicePrimaryCtxRetain(&context, 0);
    cuCtxSetCurrent(context);
    cuModuleLoadData(&module, "kernel k1 5000\\n");
    cuModuleGetFunction(&function, module, "k1");
    int refused = cudaLaunchKernel(main, empty, block, 0, 0, 0);
    usleep(100000);
    return refused == 0 || deeper(3) || cuCtxSynchronize();
}
"""


@pytest.mark.parametrize("options", [[], ["--no-return"]])
def test_a_refused_runtime_call_is_not_taken_for_the_next_drivers(tmp_path: Path, options: list[str]) -> None:
    source, program = tmp_path / "deep.c", tmp_path / "deep"
    source.write_text(REFUSED_THEN_DEEPER)
    libraries = [build().driver, build().runtime]
    link = [*map(str, libraries), f"-Wl,-rpath,{build().driver.parent}"]
    subprocess.run(["gcc", "-O1", "-o", str(program), str(source), *link], check=True)
    run = Workload([str(program)], dict(os.environ), None)
    recording = record(tmp_path / "capture", run, *options)
    assert recording.status == 0
    launched = recording.launches.query("grid_x == 5")
    assert launched.api.tolist() == ["cuLaunchKernel"]
    assert launched.kernel_name.tolist() == ["k1"]
    assert launched.completion_ns.max() < 50_000_000
    # Without its return a call that never reaches the driver is not seen at all.
    assert len(recording.launches) == (1 if options else 2)


@pytest.mark.parametrize("api", ["runtime", "driver", "runtime-ex", "driver-ex", "mixed"])
def test_every_api_from_many_threads(tmp_path: Path, api: str) -> None:
    run = workload(
        *KERNELS, "--api", api, "--threads", 4, "--streams", 5, "--launches", 4001, "--sync-every", 7,
        truth=tmp_path / "truth",
    )  # fmt: skip
    recording = record(tmp_path / "capture", run)
    same_launches(recording, load_truth(tmp_path / "truth"))
    expected = {
        "runtime": {"cudaLaunchKernel"},
        "driver": {"cuLaunchKernel"},
        "runtime-ex": {"cudaLaunchKernelExC"},
        "driver-ex": {"cuLaunchKernelEx"},
        "mixed": {"cudaLaunchKernel", "cuLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernelEx"},
    }
    assert set(recording.launches.api) == expected[api]


def test_per_thread_default_streams(tmp_path: Path) -> None:
    run = workload(*KERNELS, "--ptsz", "--threads", 3, "--launches", 2003, "--isolated", truth=tmp_path / "truth")
    recording = record(tmp_path / "capture", run)
    launches = recording.launches
    assert len(launches) == 2003
    assert launches.tid.nunique() == 3
    isolated = launches[launches.batch_launches == 1]
    assert len(isolated) == 2003, "a thread's own stream is not another's"


def test_completion_is_never_below_the_truth_and_close_to_it(tmp_path: Path) -> None:
    run = workload("--kernel", "k1:50:0.3", "--launches", 5003, "--isolated", truth=tmp_path / "truth")
    recording = record(tmp_path / "capture", run)
    rows = by_thread(recording.launches)
    truth = load_truth(tmp_path / "truth")
    true = truth_frame(truth.of_kind(KIND_LAUNCH), truth.names)
    assert len(rows) == 5003
    assert (rows.batch_launches == 1).all()
    over = rows.completion_ns.to_numpy() - true.true_ns.to_numpy()
    assert over.min() >= 0
    # The sync's own latency, by the stand-in's word; the rest is the traps' and the runtime's, before and after.
    syncs = truth.of_kind(KIND_SYNC)
    latency = (syncs["return_ns"] - syncs["end_ns"]).astype("i8")
    assert (over - latency).min() >= 0
    assert sorted(over - latency)[len(over) // 2] < 30_000


def test_batches_share_their_sync(tmp_path: Path) -> None:
    run = workload("--kernel", "k1:5", "--launches", 1400, "--sync-every", 7, truth=tmp_path / "truth")
    recording = record(tmp_path / "capture", run)
    launches = by_thread(recording.launches)
    assert (launches.batch_launches == 7).all()
    syncs = recording.events.query("kind == 'sync'")
    assert (len(syncs), set(syncs.batch_launches), set(syncs.kernel_name)) == (200, {7}, {"k1"})
    ends = (launches.timestamp_ns + launches.completion_ns).to_numpy().reshape(-1, 7)
    assert (abs(ends - ends[:, :1]) < 1000).all(), "seven launches end with one sync"


def test_device_syncs_prove_every_stream(tmp_path: Path) -> None:
    run = workload("--kernel", "k1:5", "--launches", 1001, "--streams", 3, "--sync-every", 7, "--device-sync")
    recording = record(tmp_path / "capture", run)
    launches = recording.launches
    assert (launches.batch_launches == 7).all()
    assert set(recording.events.query("kind == 'sync'").api) == {"cudaDeviceSynchronize"}


@pytest.mark.parametrize("api", ["runtime", "driver"])
@pytest.mark.parametrize("ptsz", [(), ("--ptsz",)])
def test_event_syncs_prove_what_came_before_the_record(tmp_path: Path, api: str, ptsz: tuple[str]) -> None:
    load = ("--kernel", "k1:20:0.3", "--launches", 1103, "--threads", 2, "--isolated", "--event-sync", "--api", api)
    recording = record(tmp_path / "capture", workload(*load, *ptsz, truth=tmp_path / "truth"))
    syncs = recording.events.query("kind == 'sync'")
    assert len(syncs) == 1103
    assert set(syncs.api) == {"cudaEventSynchronize" if api == "runtime" else "cuEventSynchronize"}
    assert set(syncs.stream) == set(recording.launches.stream)
    rows = by_thread(recording.launches)
    truth = load_truth(tmp_path / "truth")
    true = truth_frame(truth.of_kind(KIND_LAUNCH), truth.names)
    assert len(rows) == 1103
    assert (rows.batch_launches == 1).all()
    assert (rows.completion_ns.to_numpy() - true.true_ns.to_numpy()).min() >= 0
    assert recording.lost == 0
    assert "1,103 launches" in recording.stderr or "2,206 events" in recording.stderr


def test_failed_launches_keep_their_status(tmp_path: Path) -> None:
    run = workload(*KERNELS, "--launches", 1009, "--syncs", 11, "--fail-every", 100, truth=tmp_path / "truth")
    recording = record(tmp_path / "capture", run)
    same_launches(recording, load_truth(tmp_path / "truth"))
    failed = recording.launches.query("status != 0")
    assert len(failed) == 10
    assert (failed.completion_ns == 0).all()


def test_a_launch_the_runtime_refuses_is_a_row(tmp_path: Path) -> None:
    run = workload(*KERNELS, "--launches", 1009, "--syncs", 11, "--fail-every", 100, "--fail-zero-grid")
    recording = record(tmp_path / "capture", run)
    assert len(recording.launches) == 1009
    failed = recording.launches.query("status != 0")
    assert len(failed) == 10
    assert (failed.grid_x * failed.grid_y * failed.grid_z == 0).all()
    # It never reached the driver: the next launch of the thread is still its own row with its own name.
    assert set(recording.launches.query("status == 0").kernel_name) == set(DEMANGLED.values())


def test_captured_launches_did_not_execute(tmp_path: Path) -> None:
    run = workload("--kernel", "k1:5", "--capture", 13, "--launches", 101, "--isolated", truth=tmp_path / "truth")
    recording = record(tmp_path / "capture", run)
    launches = recording.launches
    assert len(launches) == 114
    captured = launches[launches["flags"] & 1 == 1]
    assert len(captured) == 13
    assert (captured.completion_ns == 0).all()
    assert (launches[launches["flags"] & 1 == 0].batch_launches == 1).all()


@pytest.mark.parametrize("api", ["runtime", "driver"])
def test_launches_on_a_stream_that_joined_a_capture_did_not_execute(tmp_path: Path, api: str) -> None:
    load = ("--kernel", "k1:5", "--capture", 13, "--fork-capture", "--streams", 2, "--launches", 101, "--isolated")
    recording = record(tmp_path / "capture", workload(*load, "--api", api, truth=tmp_path / "truth"))
    launches = recording.launches
    assert len(launches) == 114
    captured = launches[launches["flags"] & 1 == 1]
    assert sorted(captured.stream.value_counts()) == [6, 7]
    assert (captured.completion_ns == 0).all()
    assert (launches[launches["flags"] & 1 == 0].batch_launches == 1).all()


@pytest.mark.parametrize("api", ["runtime", "driver"])
def test_graph_launches_are_named_by_what_was_captured(tmp_path: Path, api: str) -> None:
    kernels = ("--kernel", "k1:5@3/64", "--kernel", "k2:7@5/32")
    run = workload(*kernels, "--graph", 12, "--launches", 211, "--threads", 2, "--api", api, truth=tmp_path / "truth")
    recording = record(tmp_path / "capture", run)
    graphs = recording.events.query("kind == 'graph_launch'")
    assert len(graphs) == 211
    ((name, ident),) = set(zip(graphs.kernel_name, graphs.kernel_id, strict=True))
    assert ident != 0
    assert re.fullmatch(r"\(graph [0-9a-f]{8}: 6 x k1, 6 x k2\)", name)
    assert set(graphs.grid_x) == {12}
    assert graphs.grid_y.nunique() == 1
    (known,) = recording.table("kernels").query("kernel_id == @ident").to_dict("records")
    assert (known["kernel_name"], known["name_source"]) == (name, "capture")
    assert known["mangled_name"].startswith("graph:")


@pytest.mark.parametrize("layer", ["both", "driver"])
def test_graph_launches_without_returns(tmp_path: Path, layer: str) -> None:
    run = workload("--kernel", "k1:5", "--graph", 12, "--launches", 211, "--api", "runtime", truth=tmp_path / "truth")
    recording = record(tmp_path / "capture", run, "--no-return", "--layer", layer)
    graphs = recording.events.query("kind == 'graph_launch'")
    assert (len(graphs), recording.lost) == (211, 0)
    assert set(graphs.api) == {"cudaGraphLaunch" if layer == "both" else "cuGraphLaunch"}
    assert set(graphs.grid_x) == {12}


def test_graphs_have_no_name_where_only_the_runtime_is_seen(tmp_path: Path) -> None:
    load = ("--kernel", "k1:5", "--graph", 12, "--launches", 211, "--api", "mixed")
    recording = record(tmp_path / "capture", workload(*load, truth=tmp_path / "truth"), "--layer", "runtime")
    assert set(recording.events.query("kind == 'graph_launch'").kernel_name) == {""}


def test_graph_launches_have_completions_of_their_own(tmp_path: Path) -> None:
    run = workload("--kernel", "k1:5", "--graph", 12, "--launches", 211, "--isolated", truth=tmp_path / "truth")
    recording = record(tmp_path / "capture", run)
    graphs = recording.events.query("kind == 'graph_launch'")
    truth = load_truth(tmp_path / "truth")
    assert len(graphs) == len(truth.of_kind(KIND_GRAPH_LAUNCH)) == 211
    assert (graphs.batch_launches == 1).all()
    assert (graphs.completion_ns > 12 * 3_000).all()
    assert (recording.launches["flags"] & 1 == 1).all()
    assert len(recording.launches) == 12


@pytest.mark.parametrize("program", ["workload_static", "workload_static_stripped"])
def test_static_runtime(tmp_path: Path, program: str) -> None:
    run = workload(
        *KERNELS, "--launches", 3001, "--syncs", 31, truth=tmp_path / "truth", program=getattr(build(), program),
        init_ms=150,
    )  # fmt: skip
    recording = record(tmp_path / "capture", run)
    same_launches(recording, load_truth(tmp_path / "truth"))
    # A stripped program has no cudaLaunchKernel to probe; the driver still sees every launch.
    assert set(recording.launches.api) == {"cuLaunchKernel" if "stripped" in program else "cudaLaunchKernel"}


def test_libraries_opened_late_and_a_second_copy_of_the_runtime(tmp_path: Path) -> None:
    run = workload(
        *KERNELS, "--runtime", build().other_runtime, "--dlopen-after", 0.5, "--launches", 3001, "--syncs", 31,
        truth=tmp_path / "truth", program=build().workload_dlopen, init_ms=150,
    )  # fmt: skip
    recording = record(tmp_path / "capture", run)
    same_launches(recording, load_truth(tmp_path / "truth"))
    assert set(recording.launches.api) == {"cudaLaunchKernel"}


def test_children_of_a_shell_that_outlive_it_are_recorded(tmp_path: Path) -> None:
    one = workload(*KERNELS, "--launches", 503, "--syncs", 5, "--wait-before", 0.1, init_ms=150)
    line = shlex.join(one.command)
    script = f"({line} >/dev/null &) ; {line} --fork >/dev/null; sleep 1"
    recording = record(tmp_path / "capture", Workload(["sh", "-c", script], one.env, None))
    assert len(recording.launches) == 2 * 503
    assert recording.launches.pid.nunique() == 2
    assert recording.lost == 0


def test_other_processes_are_not_recorded(tmp_path: Path) -> None:
    other = workload("--kernel", "other:5", "--duration", 4, "--rate", 2000).start()
    try:
        recording = record(tmp_path / "capture", workload("--kernel", "mine:5", "--launches", 1009, "--syncs", 7))
    finally:
        other.kill()
        other.communicate()
    assert set(recording.launches.kernel_name) == {"mine"}
    assert len(recording.launches) == 1009


def late_attach(tmp_path: Path, directory: Path, *options: str | Path, env: dict[str, str] | None = None) -> Recording:
    """Records a process whose libraries, modules and handles all exist before the agent starts."""
    ready, go = tmp_path / "ready", tmp_path / "go"
    for file in (ready, go):
        file.unlink(missing_ok=True)
    run = workload(
        *KERNELS, "--launches", 5003, "--sync-every", 1, "--ready-file", ready, "--go-file", go, "--wait-after", 0.2,
        env=env,
    )  # fmt: skip
    process = run.start()
    wait_for(ready)
    agent = attach(process.pid, directory, *options)
    go.touch()
    process.communicate(timeout=60)
    _, stderr = agent.communicate(timeout=60)
    return Recording(directory, agent.returncode, stderr)


def wait_for(file: Path) -> None:
    deadline = time.monotonic() + 20
    while not file.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def attach(pid: int, directory: Path, *options: str | Path) -> subprocess.Popen[str]:
    """An agent that has attached to a running process."""
    command = agent_command(directory, "--pid", str(pid), *options)
    agent = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert agent.stderr is not None
    assert "probes attached" in (first := agent.stderr.readline()), first
    return agent


def own_standins(tmp_path: Path) -> Standins:
    """Copies that no other agent on this machine probes."""
    return Standins(shutil.copytree(build().driver.parent, tmp_path / "standins"))


def first_byte(pid: int, library: Path, symbol: str) -> int:
    from kdiff.agent.elf import open_elf
    from kdiff.agent.procfs import file_mappings, read_memory

    with open_elf(str(library)) as elf:
        offset = elf.sites(frozenset({symbol}))[symbol].offset
    mapping = next(m for m in file_mappings(pid) if m.path == str(library) and m.executable)
    return read_memory(pid, mapping.start + offset - mapping.offset, 1)[0]


def test_late_attach_names_nothing_until_the_driver_is_known(tmp_path: Path) -> None:
    directory = tmp_path / "capture"
    first = late_attach(tmp_path, directory)
    assert first.status == 0, first.stderr
    assert len(first.launches) == 5003
    assert (first.launches["flags"] & 2 == 2).all()
    assert first.launches.kernel_name.str.match(r"unresolved:[0-9a-f]{40}\+0x[0-9a-f]+$").all()
    assert "nothing has confirmed" in first.stderr
    assert "unresolved: 5,003 launches (100.00%)" in first.stderr
    # The first launch on a stream may have had unseen company; from then on each stands alone.
    assert (first.launches.sort_values("timestamp_ns").batch_launches == 1).sum() == 5002
    # A program recorded from its start confirms the driver on this host: from then on late attach has names.
    record(directory, workload(*KERNELS, "--launches", 101))
    second = late_attach(tmp_path, directory)
    named = second.launches[second.launches["flags"] & 2 == 0]
    assert len(named) == 101 + 5003
    assert set(named.kernel_name) == set(DEMANGLED.values())
    assert len(second.launches) == 5003 + 101 + 5003


def test_the_name_offset_of_an_unknown_driver_is_learned(tmp_path: Path) -> None:
    env = {"KDIFF_STANDIN_NAME_OFFSET": "24"}
    directory = tmp_path / "capture"
    run = workload(*KERNELS, "--launches", 2003, "--syncs", 3, "--wait-after", 0.3, env=env, truth=tmp_path / "truth")
    same_launches(record(directory, run), load_truth(tmp_path / "truth"))
    late = late_attach(tmp_path, directory, env=env)
    assert (late.launches["flags"] & 2 == 0).all()
    assert set(late.launches.kernel_name) == set(DEMANGLED.values())


def test_handles_that_are_reused_change_their_name(tmp_path: Path) -> None:
    run = workload(
        "--kernel", "k1:3", "--kernel", "k2:3", "--launches", 2003, "--sync-every", 1, "--reload-every", 97,
        "--api", "driver", truth=tmp_path / "truth",
    )  # fmt: skip
    recording = record(tmp_path / "capture", run)
    truth = load_truth(tmp_path / "truth")
    same_launches(recording, truth)
    assert len(set(recording.launches.kernel_name)) > 4


def test_names_longer_than_a_record(tmp_path: Path) -> None:
    run = workload(
        *["--kernel", "a:5", "--kernel", "b:5", "--name-length", "2000", "--launches", "503", "--wait-after", "0.2"],
        truth=tmp_path / "truth",
    )
    recording = record(tmp_path / "capture", run)
    truth = load_truth(tmp_path / "truth")
    assert recording.launches.kernel_name.str.len().eq(2000).all()
    same_launches(recording, truth)


@pytest.mark.parametrize("options", [[], ["--no-return"]])
def test_two_agents_at_once_see_the_same(tmp_path: Path, options: list[str]) -> None:
    run = workload(*KERNELS, "--launches", 5003, "--syncs", 51, "--wait-before", 1.5, init_ms=150)
    inner = agent_command(tmp_path / "inner", *options, command=run.command)
    outer = agent_command(tmp_path / "outer", command=inner)
    done = subprocess.run(outer, env=host_environment(run), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    for directory in ("inner", "outer"):
        recording = Recording(tmp_path / directory, 0, "")
        assert len(recording.launches) == 5003
        assert len(recording.events) == 5054
        assert recording.lost == 0


def test_a_further_recording_adds_to_the_capture(tmp_path: Path) -> None:
    for _ in range(2):
        recording = record(tmp_path / "capture", workload(*KERNELS, "--launches", 503, "--syncs", 3))
    assert len(recording.launches) == 1006
    assert len(recording.table("kernels")) == 6


# How it ends


def test_the_commands_exit_status_is_passed_on(tmp_path: Path) -> None:
    for script, status in (("exit 7", 7), ("kill -TERM $$", 128 + signal.SIGTERM)):
        assert record(tmp_path / "capture", Workload(["sh", "-c", script], dict(os.environ), None)).status == status


def test_sigterm_ends_the_command_and_writes_everything(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    options = ("--duration", 30, "--sync-every", 5, "--ready-file", ready)
    run = workload(*KERNELS, *options, truth=tmp_path / "truth")
    agent = subprocess.Popen(
        agent_command(tmp_path / "capture", command=run.command),
        env=host_environment(run),
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for(ready)
    time.sleep(1)
    agent.send_signal(signal.SIGTERM)
    _, stderr = agent.communicate(timeout=30)
    recording = Recording(tmp_path / "capture", agent.returncode, stderr)
    assert recording.status == 0, "the workload ends itself at SIGTERM"
    assert recording.lost == 0
    same_launches(recording, load_truth(tmp_path / "truth"))


def test_duration_ends_the_recording_not_the_command(tmp_path: Path) -> None:
    run = workload(*KERNELS, "--duration", 4, "--rate", 1000)
    began = time.monotonic()
    recording = record(tmp_path / "capture", run, "--duration", "1.5")
    assert recording.status == 0
    assert time.monotonic() - began > 4
    span = recording.launches.timestamp_ns.max() - recording.launches.timestamp_ns.min()
    assert span < 2.5e9
    assert "waiting for the command" in recording.stderr


def test_kill_9_harms_nothing_and_leaves_no_probe(tmp_path: Path) -> None:
    ready, own = tmp_path / "ready", own_standins(tmp_path)
    run = workload(
        *KERNELS, "--duration", 6, "--rate", 5000, "--ready-file", ready, truth=tmp_path / "truth", program=own.workload
    )
    process = run.start()
    wait_for(ready)
    agent = attach(process.pid, tmp_path / "capture")
    assert first_byte(process.pid, own.driver, "cuLaunchKernel") == 0xCC
    agent.kill()
    agent.communicate()
    deadline = time.monotonic() + 4
    while first_byte(process.pid, own.driver, "cuLaunchKernel") != 0x55:
        assert time.monotonic() < deadline, "the probe stayed"
    assert process.wait(timeout=30) == 0
    process.communicate()
    assert len(load_truth(tmp_path / "truth").of_kind(KIND_LAUNCH)) > 1000


def test_no_probe_stays_after_a_clean_end(tmp_path: Path) -> None:
    ready, own = tmp_path / "ready", own_standins(tmp_path)
    process = workload("--duration", 20, "--rate", 100, "--ready-file", ready, program=own.workload).start()
    wait_for(ready)
    agent = attach(process.pid, tmp_path / "capture", "--duration", "0.5")
    assert first_byte(process.pid, own.driver, "cuLaunchKernel") == 0xCC
    assert agent.wait(timeout=20) == 0
    agent.communicate()
    assert first_byte(process.pid, own.driver, "cuLaunchKernel") == 0x55
    process.kill()
    process.communicate()


def fill(filler: Path, leave: int = 0) -> None:
    """Takes all the space there is, but for `leave` bytes."""
    with contextlib.suppress(OSError), open(filler, "wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)
    os.truncate(filler, filler.stat().st_size - leave)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own with 256 KiB."""
    mount = tmp_path / "small"
    mount.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(mount)], check=True)
    yield mount
    subprocess.run(["umount", "--lazy", str(mount)], check=True)  # a process that a failed test left may still use it


def test_a_full_disk_loses_nothing_that_fits_again(tmp_path: Path, small_disk: Path) -> None:
    filler, directory = small_disk / "filler", small_disk / "capture"
    run = workload(*KERNELS, "--duration", 13, "--rate", 300, truth=tmp_path / "truth")
    command = agent_command(directory, command=run.command)
    with subprocess.Popen(command, env=host_environment(run), stderr=subprocess.PIPE, text=True) as agent:
        while not directory.exists():
            time.sleep(0.05)
        fill(filler)
        assert agent.stderr is not None
        assert "cannot be written (No space left on device)" in agent.stderr.readline()
        filler.unlink()
        _, stderr = agent.communicate(timeout=30)
    assert agent.returncode == 0, stderr
    same_launches(Recording(directory, agent.returncode, stderr), load_truth(tmp_path / "truth"))
    fill(filler, leave=20_000)
    full = record(directory, workload(*KERNELS, "--launches", 100_003, "--syncs", 7))
    assert full.status == 2
    assert "100010 events could not be written" in full.stderr
    assert not list(directory.glob("*/.*")), "no half segment stays"


def test_the_command_inherits_what_it_would_from_a_shell(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("inherited")
    with open(tmp_path / "file") as file:
        script = f"cat /dev/fd/{file.fileno()}; echo; ls /proc/self/fd | wc -l; env"
        command = agent_command(tmp_path / "capture", command=["sh", "-c", script])
        done = subprocess.run(command, capture_output=True, text=True, pass_fds=[file.fileno()], check=False)
    content, descriptors, *_ = done.stdout.split()
    assert content == "inherited", done.stderr
    assert int(descriptors) <= 5, "none of the agent's own"
    assert "BCC_KERNEL_SOURCE" not in done.stdout


def test_the_state_never_replaces_a_device(tmp_path: Path) -> None:
    device = tmp_path / "null"
    subprocess.run(["mknod", str(device), "c", "1", "3"], check=True)
    run = workload(*KERNELS, "--launches", 101)
    assert record(tmp_path / "capture", run, "--state", device).status == 0
    assert device.is_char_device()


def test_nobody_reads_stderr(tmp_path: Path) -> None:
    run = workload(*KERNELS, "--launches", 503, "--syncs", 3)
    for number, redirect in enumerate(("2>/dev/full", "2>&-")):
        command = agent_command(tmp_path / f"capture{number}", command=run.command)
        done = subprocess.run(
            ["sh", "-c", f'"$0" "$@" {redirect}', *command],
            env=host_environment(run),
            stdout=subprocess.DEVNULL,
            check=False,
        )
        assert done.returncode == 0
        assert len(Recording(tmp_path / f"capture{number}", 0, "").launches) == 503


def test_sighup_ends_a_recording_like_sigterm(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    process = workload(*KERNELS, "--duration", 20, "--rate", 1000, "--ready-file", ready).start()
    wait_for(ready)
    agent = attach(process.pid, tmp_path / "capture")
    time.sleep(1)
    agent.send_signal(signal.SIGHUP)
    agent.communicate(timeout=20)
    assert agent.returncode == 0
    assert len(Recording(tmp_path / "capture", 0, "").launches) > 500
    process.kill()
    process.communicate()


def test_orphans_are_waited_for(tmp_path: Path) -> None:
    script = "for i in 1 2 3 4 5; do (sleep 0.1 &) ; done; sleep 1; ps -o stat= --ppid $PPID"
    command = agent_command(tmp_path / "capture", command=["sh", "-c", script])
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "Z" not in done.stdout


# What it refuses


def refused(*arguments: str | Path, prefix: tuple[str, ...] = ()) -> str:
    done = subprocess.run(
        [*prefix, AGENT, "record", *map(str, arguments)], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


def test_bad_input_is_one_sentence(tmp_path: Path) -> None:
    out = tmp_path / "capture"
    assert "there is no process 4194304" in refused("-o", out, "--pid", "4194304")
    assert "no-such-program cannot be started: No such file" in refused("-o", out, "--", "no-such-program")
    (tmp_path / "file").touch()
    assert "cannot be written (Not a directory)" in refused("-o", tmp_path / "file" / "x", "--", "true")
    assert "not both" in refused("-o", out, "--pid", "1", "--", "true")
    assert "KDIFF_DEBUG" not in refused("-o", out, "--duration", "-1", "--", "true")


def test_two_recordings_never_share_a_directory(tmp_path: Path) -> None:
    begun, over = tmp_path / "begun", tmp_path / "over"
    waits = ["sh", "-c", f"touch {begun}; until [ -e {over} ]; do sleep 0.05; done"]
    agent = subprocess.Popen(agent_command(tmp_path / "capture", command=waits), stderr=subprocess.PIPE)
    while not begun.exists():
        assert agent.poll() is None
        time.sleep(0.05)
    said = refused("-o", tmp_path / "capture", "--", "true")
    assert "another kdiff-agent records to" in said
    over.touch()
    agent.communicate(timeout=30)
    assert agent.returncode == 0


def test_without_privileges_it_says_what_is_missing(tmp_path: Path) -> None:
    prefix = ("setpriv", "--bounding-set=-all", "--inh-caps=-all")
    assert "run kdiff-agent as root" in refused("-o", tmp_path / "c", "--", "true", prefix=prefix)


def test_without_bcc_it_says_how_to_get_it(tmp_path: Path) -> None:
    prefix = (
        "unshare",
        "--mount",
        "sh",
        "-c",
        'mount -t tmpfs none /usr/lib/python3/dist-packages/bcc; exec "$0" "$@"',
    )
    assert "apt-get install python3-bpfcc" in refused("-o", tmp_path / "c", "--", "true", prefix=prefix)


def test_a_library_that_is_cut_off_is_named_and_the_rest_recorded(tmp_path: Path) -> None:
    torn = tmp_path / "lib" / "libcudart.so.12"
    torn.parent.mkdir()
    torn.write_bytes(build().runtime.read_bytes()[:5000])
    run = workload(*KERNELS, "--launches", 503, "--syncs", 3, env={"LD_LIBRARY_PATH": str(torn.parent)})
    recording = record(tmp_path / "capture", run)
    assert recording.status == 0
    assert f"{torn} is cut off or no ELF file" in recording.stderr
    assert len(recording.launches) == 503


def test_tracefs_is_not_needed(tmp_path: Path) -> None:
    prefix = ["unshare", "--mount", "sh", "-c", 'umount -q /sys/kernel/tracing /sys/kernel/debug; exec "$0" "$@"']
    run = workload(*KERNELS, "--launches", 503, "--syncs", 3)
    done = subprocess.run(
        [*prefix, *agent_command(tmp_path / "capture", command=run.command)],
        env=host_environment(run), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(Recording(tmp_path / "capture", 0, "").launches) == 503
