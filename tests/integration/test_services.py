"""Several services of a host in one recording, with real probes: what is of which, and who lost what."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
import pytest
from recording import KDIFF, Recording, agent_command, host_environment, whole_host

from standins.standins import Standins, Workload, build, workload

pytestmark = pytest.mark.ebpf

MARK = "kdiffsvc"
ONLY_OURS = ("--include", f"command=*{MARK}*")
ID = "b08acd44196c2da768f48f14b1a0adea" * 2
POD = "kubepods-burstable-pod12345678_9abc_def0_1234_56789abcdef0.slice"

SMALL_RINGS = """
import sys
from dataclasses import replace
from kdiff.agent import cli
entries, made = int(sys.argv.pop(1)), cli.tracing_of
cli.tracing_of = lambda *given: replace(made(*given), event_pages=64, loss_entries=entries)
cli.main()
"""


@pytest.fixture(scope="module", autouse=True)
def standins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standins]:
    """Copies: what else runs on this machine must lose nothing in the small rings."""
    own = Standins(shutil.copytree(build().build, tmp_path_factory.mktemp("standins") / "build"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LD_LIBRARY_PATH", str(own.driver.parent))
        patch.delenv("HOSTNAME", raising=False)
        patch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
        patch.setenv("KDIFF_TEST_PROGRAM", str(own.workload))
        yield own


@pytest.fixture
def groups() -> Iterator[Path]:
    """A control group for those of a test."""
    for root in ("/sys/fs/cgroup/systemd", "/sys/fs/cgroup/unified", "/sys/fs/cgroup"):
        top = Path(root, f"kdiff-test-{os.getpid()}")
        if not Path(root, "cgroup.procs").exists():
            continue
        try:
            top.mkdir()
        except OSError:
            continue
        yield top
        deadline = time.monotonic() + 10
        while top.exists():
            assert time.monotonic() < deadline
            for group in [*sorted(top.rglob("*/"), reverse=True), top]:
                try:
                    group.rmdir()
                except OSError:
                    time.sleep(0.05)
        return
    pytest.skip("no control group can be made here")


def inside(group: Path, run: Workload, **said: str) -> Workload:
    """The same, in a control group, with these variables in its environment."""
    group.mkdir(parents=True, exist_ok=True)
    enter = 'echo $$ > "$0/cgroup.procs" && exec "$@"'
    return Workload(["sh", "-c", enter, str(group), *run.command], {**run.env, **said}, run.truth)


def load(kernel: str, launches: int, *options: str | float | Path, **said: str) -> Workload:
    """Launches, and seven waits unless options say otherwise."""
    waits = () if "--isolated" in options else ("--syncs", 7)
    what = ("--kernel", f"{MARK}_{kernel}:5", "--launches", launches, "--wait-after", 0.4)
    return workload(*what, *waits, *options, program=Path(os.environ["KDIFF_TEST_PROGRAM"]), env=said)


def end(agent: subprocess.Popen[str], directory: Path) -> Recording:
    agent.send_signal(signal.SIGTERM)
    _, stderr = agent.communicate(timeout=60)
    recording = Recording(directory, agent.returncode, stderr)
    assert recording.status == 0, stderr
    return recording


def by_service(frame: pd.DataFrame, *columns: str) -> dict[str, tuple[int, ...]]:
    sums = frame.groupby("service")[list(columns)].sum()
    return {str(name): tuple(int(n) for n in row) for name, row in zip(sums.index, sums.to_numpy(), strict=True)}


@contextmanager
def small_rings(directory: Path, loss_entries: int = 4096) -> Iterator[subprocess.Popen[str]]:
    """An agent of the whole host whose ring holds 2,900 events."""
    command = agent_command(directory, *ONLY_OURS)
    agent = subprocess.Popen(
        [sys.executable, "-c", SMALL_RINGS, str(loss_entries), *command[1:]],
        env=host_environment(workload()), stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert agent.stderr is not None
    try:
        while "probes attached" not in (line := agent.stderr.readline()):
            assert line, "it ended"
        yield agent
    finally:
        agent.kill()
        agent.communicate()


def start_all(runs: Sequence[Workload]) -> list[subprocess.Popen[str]]:
    return [run.start() for run in runs]


def finish(processes: Sequence[subprocess.Popen[str]]) -> None:
    for process in processes:
        _, said = process.communicate(timeout=60)
        assert process.returncode == 0, said


def test_each_process_is_called_by_its_own_service(tmp_path: Path, groups: Path) -> None:
    pod = groups / POD / f"cri-containerd-{ID}.scope"
    kubernetes = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "HOSTNAME": "chat-7d4b8c9f5d-x7k2p"}
    runs = {
        "unit": inside(groups / "inference.service", load("unit", 997)),
        "instance": inside(groups / "worker@3.service", load("instance", 499)),
        "pod": inside(pod, load("pod", 503), **kubernetes),
        "docker": inside(groups / "docker" / ID, load("docker", 251), HOSTNAME=ID[:12]),
        "said": inside(groups / "inference.service", load("said", 307), KDIFF_SERVICE="mine"),
        "session": inside(groups / "session-4.scope", load("session", 101)),
    }
    with whole_host(tmp_path / "capture", *ONLY_OURS) as agent:
        running = dict(zip(runs, start_all(list(runs.values())), strict=True))
        finish(list(running.values()))
        recording = end(agent, tmp_path / "capture")
    assert recording.lost == 0
    expected = {
        "unit": ("inference", 997), "instance": ("worker@3", 499), "pod": ("chat", 503), "docker": ("workload", 251),
        "said": ("mine", 307), "session": ("workload", 101),
    }  # fmt: skip
    launches = recording.launches.groupby(["kernel_name", "pid", "service"]).size().to_dict()
    assert launches == {
        (f"{MARK}_{kernel}", running[kernel].pid, service): count for kernel, (service, count) in expected.items()
    }
    # The account of the host, which covers all of the time, and one of each service for what it did.
    health = recording.table("agent_health")
    syncs = recording.events.groupby("service").size() - recording.launches.groupby("service").size()
    told = by_service(health, "events", "lost_launches", "lost_syncs", "lost_other")
    assert told == {
        "": (0, 0, 0, 0),
        "inference": (997 + 7, 0, 0, 0),
        "worker@3": (499 + 7, 0, 0, 0),
        "chat": (503 + 7, 0, 0, 0),
        "workload": (251 + 101 + 14, 0, 0, 0),
        "mine": (307 + 7, 0, 0, 0),
    }
    assert syncs.sum() == 6 * 7
    of_host = health[health.service == ""].sort_values("from_ns")
    assert (of_host.from_ns.to_numpy()[1:] == of_host.to_ns.to_numpy()[:-1]).all()
    kernels = recording.table("kernels")
    assert set(zip(kernels.kernel_name, kernels.service, strict=True)) == {
        (f"{MARK}_{kernel}", service) for kernel, (service, _) in expected.items()
    }


def test_one_name_for_all_wins(tmp_path: Path) -> None:
    with whole_host(tmp_path / "capture", *ONLY_OURS, "--service", "serving") as agent:
        finish(start_all([load("a", 307, KDIFF_SERVICE="a"), load("b", 101, KDIFF_SERVICE="b")]))
        recording = end(agent, tmp_path / "capture")
    assert set(recording.events.service) == {"serving"}
    assert by_service(recording.table("agent_health"), "events") == {"serving": (307 + 101 + 14,)}


def test_processes_that_are_named_by_pid_are_their_services_too(tmp_path: Path) -> None:
    go = tmp_path / "go"
    running = start_all([load(name, 307, "--go-file", go, KDIFF_SERVICE=name) for name in "ab"])
    with whole_host(tmp_path / "capture", *(part for p in running for part in ("--pid", str(p.pid)))) as agent:
        go.touch()
        finish(running)
        _, stderr = agent.communicate(timeout=60)
    assert agent.returncode == 0, stderr
    launches = Recording(tmp_path / "capture", 0, "").launches.groupby(["pid", "service"]).size().to_dict()
    assert launches == {(process.pid, name): 307 for process, name in zip(running, "ab", strict=True)}


BECOMES = """
#include <stdlib.h>
#include <unistd.h>
typedef unsigned u;
int cuLaunchKernel(void *, u, u, u, u, u, u, u, void *, void **, void **);
int cuInit(unsigned), cuDevicePrimaryCtxRetain(void **, int), cuCtxSetCurrent(void *), cuCtxSynchronize(void);
int cuModuleLoadData(void **, const void *), cuModuleGetFunction(void **, void *, const char *);
int main(int count, char **arguments)
{
    void *context, *module, *function;
    cuInit(0);
    cuDevicePrimaryCtxRetain(&context, 0);
    cuCtxSetCurrent(context);
    cuModuleLoadData(&module, "kernel kdiffsvc_first 5000\\n");
    cuModuleGetFunction(&function, module, "kdiffsvc_first");
    usleep(400000); /* it is looked at */
    for (int launch = 0; launch < 1009; launch++)
        cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, 0, 0, 0);
    cuCtxSynchronize();
    setenv("KDIFF_SERVICE", "second", 1);
    execv(arguments[1], arguments + 1);
    return count;
}
"""


def test_a_program_that_becomes_another_is_that_from_its_first_call_on(tmp_path: Path, standins: Standins) -> None:
    source, program = tmp_path / "becomes.c", tmp_path / "becomes"
    source.write_text(BECOMES)
    link = [str(standins.driver), f"-Wl,-rpath,{standins.driver.parent}"]
    subprocess.run(["gcc", "-O1", "-w", "-o", str(program), str(source), *link], check=True)
    second = load("second", 503)
    run = Workload([str(program), *second.command], {**second.env, "KDIFF_SERVICE": "first"}, None)
    with whole_host(tmp_path / "capture", *ONLY_OURS) as agent:
        process = run.start()
        finish([process])
        recording = end(agent, tmp_path / "capture")
    assert recording.lost == 0
    assert recording.launches.groupby(["pid", "service"]).size().to_dict() == {
        (process.pid, "first"): 1009,
        (process.pid, "second"): 503,
    }
    assert by_service(recording.table("agent_health"), "events") == {
        "": (0,),
        "first": (1009 + 1,),
        "second": (503 + 7,),
    }


def judged(directory: Path, windows: Mapping[str, str], service: str) -> dict[str, object]:
    sides = [part for side, window in windows.items() for part in (f"--{side}", window)]
    command = [KDIFF, *sides, "--store", str(directory), "--service", service, "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    report: dict[str, object] = json.loads(done.stdout)
    assert report["exit_code"] == done.returncode, done.stderr
    return report


def lose(agent: subprocess.Popen[str], *runs: Workload) -> None:
    """Runs them while the agent reads nothing, for the most of their time."""
    running = start_all(runs)
    time.sleep(1.5)  # they have been looked at, and wait before they launch
    agent.send_signal(signal.SIGSTOP)
    time.sleep(3.0)
    agent.send_signal(signal.SIGCONT)
    finish(running)


def test_what_one_service_loses_is_its_own_loss_and_no_others(tmp_path: Path) -> None:
    total, whole = 20_011, 4_001
    capture = tmp_path / "capture"
    with small_rings(capture) as agent:
        time.sleep(0.5)
        begin = time.time()
        finish(start_all([load("b", whole, "--rate", 8000, "--isolated", KDIFF_SERVICE="b")]))
        between = time.time()
        finish(start_all([load("b", whole, "--rate", 8000, "--isolated", KDIFF_SERVICE="b")]))
        lose(agent, load("a", total, "--wait-before", 2.0, KDIFF_SERVICE="a"))
        done = time.time()
        recording = end(agent, capture)
    launches = recording.launches.groupby("service").size().to_dict()
    health = by_service(recording.table("agent_health"), "lost_launches", "lost_syncs", "lost_other")
    syncs = recording.events.query("service == 'a' and kind == 'sync'")
    assert launches["b"] == 2 * whole
    assert health["b"] == health[""] == (0, 0, 0)
    assert 0 < launches["a"] < total
    assert launches["a"] + health["a"][0] == total
    assert len(syncs) + health["a"][1] == 7
    # One is refused for its loss; the other, whose host it is too, has lost nothing.
    windows = {"before": f"{begin:.3f}..{between:.3f}", "after": f"{between:.3f}..{done:.3f}"}
    a, b = (judged(capture, windows, service) for service in "ab")
    assert a["after"]["lost"] == sum(health["a"])  # type: ignore[index]
    assert a["exit_code"] == 3
    assert "of its events (limit 1%)" in str(a["cause"])
    assert b["after"]["lost"] == b["before"]["lost"] == 0  # type: ignore[index]
    assert b["before"]["launches"] == b["after"]["launches"] == whole  # type: ignore[index]
    assert "of its events" not in str(b["cause"])
    # Launches that the loss leaves uncertain are those of the service that has it.
    isolated = recording.launches.query("service == 'b'")
    assert (isolated.batch_launches == 1).all()


def test_what_there_is_no_room_to_tell_apart_counts_for_all(tmp_path: Path) -> None:
    total = 20_011
    with small_rings(tmp_path / "capture", loss_entries=1) as agent:
        time.sleep(0.5)
        waits = ("--wait-before", 2.0)
        lose(agent, load("a", total, *waits, KDIFF_SERVICE="a"), load("b", total, *waits, KDIFF_SERVICE="b"))
        recording = end(agent, tmp_path / "capture")
    launches = recording.launches.groupby("service").size().to_dict()
    health = by_service(recording.table("agent_health"), "lost_launches", "lost_syncs", "lost_other")
    lost = {service: counts[0] for service, counts in health.items()}
    assert lost[""] > 0
    assert sorted(lost.get(service, 0) == 0 for service in "ab") == [False, True]
    assert launches.get("a", 0) + launches.get("b", 0) + sum(lost.values()) == 2 * total
