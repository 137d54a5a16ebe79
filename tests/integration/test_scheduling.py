"""`--scheduling`: for how long launching threads were off the processor, against what the kernel itself counted."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import bpf_objects
import pandas as pd
import pytest
from recording import KDIFF, Recording, agent_command, host_environment, record

from kdiff.queries.tables import WAITS
from standins.standins import Standins, Workload, build, workload

pytestmark = pytest.mark.ebpf

ON = ("--scheduling", "on")
CORE = max(os.sched_getaffinity(0))
COLUMNS = WAITS.names
READY, BLOCKED = ["runnable_ns", "runnable_before_ns"], ["blocked_ns", "blocked_before_ns"]
HELD = ("sched_switched", "sched_woken", "sched_exited", "threads", "waits")

# Launches every 2 ms from a thread of its own on one core, and prints what the kernel counted of the thread meanwhile.
SCHEDULED = """
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
typedef unsigned u;
int cuLaunchKernel(void *, u, u, u, u, u, u, u, void *, void **, void **);
int cuInit(unsigned), cuDevicePrimaryCtxRetain(void **, int), cuCtxSetCurrent(void *), cuCtxSynchronize(void);
int cuModuleLoadData(void **, const void *), cuModuleGetFunction(void **, void *, const char *);
static void *function, *context;
static const char *mode;
static double seconds;
static int core;
static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}
static long long delay(void)
{
    long long used = 0, waited = 0;
    FILE *file = fopen("/proc/thread-self/schedstat", "r");
    if (!file || fscanf(file, "%lld %lld", &used, &waited) != 2)
        exit(3);
    fclose(file);
    return waited;
}
static void pin(void)
{
    cpu_set_t set;
    struct sched_param priority = {.sched_priority = 1};
    CPU_ZERO(&set);
    CPU_SET(core, &set);
    if (sched_setaffinity(0, sizeof set, &set) || sched_setscheduler(0, SCHED_RR, &priority))
        exit(4);
}
static void join_the_others(void) /* who share the core by fractions of a millisecond to milliseconds */
{
    struct sched_param priority = {};
    if (sched_setscheduler(0, SCHED_OTHER, &priority))
        exit(4);
}
static void launch(void) { cuLaunchKernel(function, 5, 1, 1, 32, 1, 1, 0, 0, 0, 0); }
static void *load(void *ignored)
{
    cuCtxSetCurrent(context);
    pin();
    if (!strcmp(mode, "share"))
        join_the_others();
    launch(); /* from here on the thread is known */
    long long before = delay();
    double began = now(), at = began;
    int launches = 1;
    int often = !strcmp(mode, "alone") || !strcmp(mode, "share");
    while (at < began + seconds) {
        at += often ? 0.0003 + drand48() * 0.0002 : 0.002; /* not in step with the scheduler's tick */
        if (!strcmp(mode, "sleep"))
            usleep((at - now()) * 1e6);
        else
            while (now() < at) {}
        at = now();
        launch();
        launches++;
        while (often && now() < at + 0.0003) {} /* at work until it waits, so that it is preempted before */
        if (strcmp(mode, "spin") && strcmp(mode, "sleep"))
            cuCtxSynchronize();
    }
    long long waited = delay() - before;
    launch();
    double took = now() - began;
    printf("{\\"launches\\": %d, \\"waited_ns\\": %lld, \\"took_ns\\": %.0f}\\n", launches + 1, waited, took * 1e9);
    return 0;
}
int main(int count, char **words)
{
    void *module;
    pthread_t thread;
    mode = words[1], seconds = atof(words[2]), core = atoi(words[3]);
    if (!strncmp(mode, "burn", 4)) {
        pin();
        if (!strcmp(mode, "burn-share"))
            join_the_others();
        puts("burning");
        fflush(stdout);
        for (double end = now() + seconds; now() < end;) {}
        return 0;
    }
    cuInit(0);
    cuDevicePrimaryCtxRetain(&context, 0);
    cuCtxSetCurrent(context);
    cuModuleLoadData(&module, !strcmp(mode, "wait") ? "kernel k1 5000000\\n" : "kernel k1 50000\\n");
    cuModuleGetFunction(&function, module, "k1");
    if (!strcmp(mode, "threads")) { /* each launches once and ends; then the process waits */
        for (int i = 0; i < 31; i++) {
            pthread_create(&thread, 0, (void *(*)(void *))launch, 0);
            pthread_join(thread, 0);
        }
        launch();
        puts("launched");
        fflush(stdout);
        return getchar() == EOF;
    }
    pthread_create(&thread, 0, load, 0);
    pthread_join(thread, 0);
    return cuCtxSynchronize();
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scheduled")
    source, made = folder / "scheduled.c", folder / "scheduled"
    source.write_text(SCHEDULED)
    link = [str(build().driver), f"-Wl,--enable-new-dtags,-rpath,{build().driver.parent}", "-pthread"]
    subprocess.run(["gcc", "-O1", "-o", str(made), str(source), *link], check=True)
    return made


@contextmanager
def burning(program: Path, mode: str = "burn") -> Iterator[None]:
    """A busy loop on the same core, with which round robin alternates; burn-share: the fair scheduler."""
    other = subprocess.Popen([str(program), mode, "30", str(CORE)], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "burning\n"
        yield
    finally:
        other.kill()
        other.communicate()


def recorded(tmp_path: Path, program: Path, mode: str, seconds: float, *options: str) -> tuple[Recording, dict]:
    """The recording of the program, and what it printed."""
    said = tmp_path / "said"
    words = ["sh", "-c", f'exec "$0" "$@" > {said}', str(program), mode, str(seconds), str(CORE)]
    recording = record(tmp_path / "capture", Workload(words, dict(os.environ), None), *ON, *options)
    assert recording.status == 0, recording.stderr
    assert recording.lost == 0
    return recording, json.loads(said.read_text())


def rows_of(recording: Recording, truth: dict) -> pd.DataFrame:
    """The thread's launches and syncs in order; every wait is known but those before the first."""
    rows = recording.events.sort_values("timestamp_ns").reset_index(drop=True)
    rows = rows[rows.tid == rows.tid[0]]
    assert (rows.kind == "launch").sum() == truth["launches"]
    assert rows[["runnable_ns", "blocked_ns"]].notna().all().all()
    assert rows[["runnable_before_ns", "blocked_before_ns"]].isna().sum().tolist() == [1, 1]
    assert (rows[COLUMNS].min() >= 0).all()
    assert (rows.runnable_ns + rows.blocked_ns <= rows.duration_ns).all()
    left = rows.timestamp_ns + rows.duration_ns
    gaps = (rows.timestamp_ns - left.shift())[1:]
    assert (rows.runnable_before_ns + rows.blocked_before_ns)[1:].le(gaps + 100_000).all()  # the clock is read apart
    return rows[1:-1]  # what the kernel counted is read after the first and before the last


def test_a_thread_that_is_preempted_waited_for_what_the_kernel_says(tmp_path: Path, program: Path) -> None:
    # Where real-time threads are throttled while one waits, the kernel leaves out that wait: in about 1 run of 16.
    for attempt in range(3):
        (tmp_path / str(attempt)).mkdir()
        with burning(program):
            recording, truth = recorded(tmp_path / str(attempt), program, "spin", 1.2)
        rows = rows_of(recording, truth)
        ready, blocked = rows[READY].sum().sum(), rows[BLOCKED].sum().sum()
        assert 0.35 < ready / truth["took_ns"] < 0.75
        assert ready >= 0.98 * truth["waited_ns"] - 1e6
        assert blocked < 0.02 * truth["took_ns"]
        if ready <= 1.02 * truth["waited_ns"] + 1e6:
            return
    pytest.fail("none of three recordings agrees with what the kernel counted")


def test_a_thread_that_is_alone_waits_for_nothing(tmp_path: Path, program: Path) -> None:
    recording, truth = recorded(tmp_path, program, "spin", 0.4)
    rows = rows_of(recording, truth)
    assert rows[READY].sum().sum() == pytest.approx(truth["waited_ns"], abs=2e6)
    assert rows[READY].sum().sum() < 0.05 * truth["took_ns"]
    assert rows[BLOCKED].sum().sum() < 0.05 * truth["took_ns"]


def test_a_thread_that_sleeps_is_blocked_and_not_ready(tmp_path: Path, program: Path) -> None:
    recording, truth = recorded(tmp_path, program, "sleep", 0.6)
    rows = rows_of(recording, truth)
    # From wake-up to switch a thread takes some 20 us on a busy virtual machine, which the kernel counts in part.
    assert truth["waited_ns"] - 1e6 < rows[READY].sum().sum() < 0.1 * truth["took_ns"]
    assert rows.blocked_before_ns.sum() > 0.8 * truth["took_ns"]
    assert rows.blocked_ns.sum() < 0.05 * truth["took_ns"]


@pytest.mark.parametrize("multi", [True, False], ids=["uprobe_multi", "perf events"])
def test_a_thread_that_waits_for_the_device_is_blocked_in_the_sync(tmp_path: Path, program: Path, multi: bool) -> None:
    if multi:
        recording, truth = recorded(tmp_path, program, "wait", 0.5)
    else:
        command = agent_command(tmp_path / "capture", *ON, command=[str(program), "wait", "0.5", str(CORE)])
        old = (
            "from functools import partial; from kdiff.agent import recorder; from kdiff.agent.cli import main; "
            "recorder.Program = partial(recorder.Program, multi=False); main()"
        )
        done = subprocess.run(
            [sys.executable, "-c", old, *command[1:]], env={**os.environ, "KDIFF_DEBUG": "1"},
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        recording, truth = Recording(tmp_path / "capture", 0, done.stderr), json.loads(done.stdout)
    rows = rows_of(recording, truth)
    syncs = rows[rows.kind == "sync"]
    assert len(syncs) == truth["launches"] - 2
    # Of a kernel of 5 ms the thread spins 2 ms before the next launch, never while it waits.
    assert (syncs.blocked_ns > 4_000_000).mean() > 0.9
    assert syncs.blocked_ns.sum() > 0.9 * (syncs.duration_ns - syncs.runnable_ns).sum()
    # From wake-up to switch a thread takes some 20 us on a busy virtual machine, which the kernel counts in part.
    assert truth["waited_ns"] - 1e6 < rows[READY].sum().sum() < 0.1 * truth["took_ns"]


def test_kdiff_says_that_the_host_was_preempted(tmp_path: Path, program: Path) -> None:
    for side, mode in (("before", "alone"), ("after", "share")):
        (tmp_path / side).mkdir()
        with burning(program, "burn-share") if side == "after" else nullcontext():
            recorded(tmp_path / side, program, mode, 5.0)
    sides = [str(tmp_path / side / "capture") for side in ("before", "after")]
    command = [KDIFF, "--before", sides[0], "--after", sides[1], "--metric", "completion", "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    (kernel,) = json.loads(done.stdout)["kernels"]
    assert kernel["ratio"] > 2
    reasons = [reason for reason in kernel["reasons"] if "preempted" in reason]
    assert len(reasons) == 1
    assert reasons[0].startswith("The host was preempted: without the time in which its threads were ready to run")
    after = kernel["scheduling"]["after"]
    assert after["known"] == after["n"] - 1  # the last launch is proven by another thread's sync
    assert after["value_without"] < 0.3 * after["value"]


def test_without_returns_only_the_time_between_is_known(tmp_path: Path, program: Path) -> None:
    recording, truth = recorded(tmp_path, program, "sleep", 0.3, "--no-return")
    launches = recording.launches.sort_values("timestamp_ns")
    assert len(launches) == truth["launches"]
    assert launches[["runnable_ns", "blocked_ns"]].isna().all().all()
    assert launches.blocked_before_ns[1:].notna().all()
    assert launches.blocked_before_ns.sum() > 0.8 * truth["took_ns"]


def test_off_nothing_is_known_and_nothing_is_attached(tmp_path: Path, program: Path) -> None:
    words = [str(program), "sleep", "0.3", str(CORE)]
    recording = record(tmp_path / "capture", Workload(words, dict(os.environ), None))
    assert recording.status == 0, recording.stderr
    assert len(recording.launches) > 100
    assert recording.events[COLUMNS].isna().all().all()


SMALL_RING = """
import sys
from dataclasses import replace
from kdiff.agent import cli, recorder
recorder._READ_EVERY_S = 0.2
threads, made = int(sys.argv.pop(1)), cli.tracing_of
cli.tracing_of = lambda *given: replace(made(*given), wait_pages=1, threads=threads)
cli.main()
"""


@pytest.mark.parametrize("threads", ["1", "64"])
def test_what_there_is_no_room_for_is_unknown_and_no_event_is_lost(tmp_path: Path, threads: str) -> None:
    # Copies: what else launches on this machine must lose nothing here.
    own = Standins(Path(shutil.copytree(build().build, tmp_path / "build")))
    run = workload("--kernel", "k1:500", "--isolated", "--launches", 10007, "--threads", 4)
    command = agent_command(tmp_path / "capture", *ON, command=[str(own.workload), *run.command[1:]])
    env = host_environment(run) | {"LD_LIBRARY_PATH": str(own.driver.parent)}
    done = subprocess.run(
        [sys.executable, "-c", SMALL_RING, threads, *command[1:]],
        env=env, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    recording = Recording(tmp_path / "capture", 0, done.stderr)
    rows = recording.events
    assert rows.kind.value_counts().to_dict() == {"launch": 10007, "sync": 10007}
    assert recording.lost == 0
    unknown = rows.runnable_ns.isna()
    assert (unknown == rows.blocked_ns.isna()).all()
    if threads == "1":
        # One at a time: of the next something is known only when that one has ended.
        spans = rows[~unknown].groupby("tid").timestamp_ns.agg(["min", "max"]).sort_values("min")
        assert len(spans) >= 1
        assert (spans["min"][1:].to_numpy() > spans["max"][:-1].to_numpy()).all()
    else:
        assert 0 < unknown.sum() < len(rows)  # 72 waits have room between two reads
    known = rows[~unknown]
    assert (known.runnable_ns + known.blocked_ns <= known.duration_ns).all()


AGENT = """
import subprocess, sys, time
from kdiff.agent.bpf import Probe, Program
from kdiff.agent.elf import open_elf
from kdiff.probes.points import POINTS
from kdiff.probes.program import Tracing, cookie
driver, *words = sys.argv[1:]
tracing = Tracing(scheduling=True)
program = Program(tracing)
program.attach_scheduling()
point = next(point for point in POINTS if point.symbol == "cuLaunchKernel")
offset = open_elf(driver).sites(frozenset([point.symbol]))[point.symbol].offset
program.attach(driver, [Probe(offset)], "call_return", returns=True)
program.attach(driver, [Probe(offset, cookie(tracing, point))], "call_entry")
child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdout.readline()
print([value.id == child.pid << 32 | child.pid for value in program.map("threads").values()], flush=True)
child.communicate(b"x")
print(len(program.map("threads").values()), program.attached, flush=True)
time.sleep(60)
"""


def held() -> list[str]:
    return sorted(name for name in bpf_objects.held().elements() if name.endswith(tuple(f" {one}" for one in HELD)))


def test_threads_that_end_leave_nothing_and_a_killed_agent_leaves_no_probe(program: Path, tmp_path: Path) -> None:
    assert held() == []
    own = shutil.copy(build().driver, tmp_path)  # what else records on this machine has probes in the original
    words = ["env", f"LD_LIBRARY_PATH={tmp_path}", str(program), "threads", "0", "0"]
    agent = subprocess.Popen([sys.executable, "-c", AGENT, own, *words], stdout=subprocess.PIPE, text=True)
    try:
        assert agent.stdout is not None
        assert [agent.stdout.readline() for _ in range(2)] == ["[True]\n", "0 5\n"]
        assert len(held()) == 5
    finally:
        agent.send_signal(signal.SIGKILL)
        agent.communicate()
    deadline = time.monotonic() + 15
    while held() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert held() == []
