"""`kdiff-agent doctor` as a user runs it, with real probes."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from nvml_host import H200, OTHER, Host
from recording import AGENT, host_environment, record

from standins.standins import Workload, build, workload

pytestmark = pytest.mark.ebpf


def run(*arguments: str | int | Path, prefix: Sequence[str] = (), env: Mapping[str, str] | None = None) -> Any:
    done = subprocess.run(
        [*prefix, AGENT, "doctor", *map(str, arguments)],
        env={**os.environ, **(env or {})}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    return done


def told(*arguments: str | int | Path, status: int = 0, **how: Any) -> dict[str, Any]:
    """The report: {group: {name: check}}, and the rest under ''."""
    done = run("--format", "json", *arguments, **how)
    assert done.returncode == status, done.stdout + done.stderr
    assert done.stderr == ""
    report = json.loads(done.stdout)
    groups: dict[str, Any] = {"": report}
    for check in report["checks"]:
        groups.setdefault(check["group"], {})[check["name"]] = check
    return groups


def bpf_links() -> int:
    """BPF programs that are held through descriptors, by any process."""
    count = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            count += sum("bpf" in os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd"))
    return count


@contextlib.contextmanager
def running(tmp_path: Path, program: Path, *options: str | float | Path, **env: str) -> Iterator[int]:
    ready = tmp_path / "ready"
    given = workload(
        "--duration", 60, "--rate", 100, "--ready-file", ready, *options, program=program,
        env={"LD_LIBRARY_PATH": str(build().driver.parent), **env},
    )  # fmt: skip
    process = given.start()
    try:
        while not ready.exists():
            time.sleep(0.02)
            assert process.poll() is None
        yield process.pid
    finally:
        process.kill()
        process.communicate()


def test_on_this_machine_as_root_probes_work(tmp_path: Path) -> None:
    before = set(os.listdir("/tmp"))
    capture = tmp_path / "capture"
    groups = told("-o", capture)
    assert groups[""]["schema"] == "kdiff-doctor/1"
    assert groups[""]["recording"] == "works"
    assert {check["level"] for check in groups["Probes"].values()} == {"ok"}
    assert list(groups["Probes"]) == ["BPF program", "uprobes", "return probes", "device time", "scheduling"]
    assert {groups["Host"][name]["level"] for name in ("permission", "kernel", "disk")} == {"ok"}
    assert groups["Device time"]["library"]["level"] == "ok"
    assert not capture.exists()
    assert {name for name in set(os.listdir("/tmp")) - before if "kdiff-doctor" in name} == set()


def test_as_a_person_sees_it() -> None:
    done = run()
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert lines[0] == "Host"
    assert "\x1b" not in done.stdout
    assert max(map(len, lines)) <= 100
    facts = [line for line in lines if re.match(r"  (ok|warn|FAIL) ", line)]
    assert len({re.search(r"^  (?:ok|warn|FAIL) +.*?\S(?=  )  +", line)[0].__len__() for line in facts}) == 1  # type: ignore[index]
    assert "Recording works." in lines
    seen = subprocess.run(
        ["script", "-qec", shlex.join([str(AGENT), "doctor"]), "/dev/null"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert "\x1b[32mok" in seen.stdout, "colour on a terminal"


@pytest.mark.parametrize(
    "prefix",
    [
        ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"],
        ["setpriv", "--bounding-set=-all", "--inh-caps=-all"],
    ],
    ids=["nobody", "root without capabilities"],
)
def test_without_privileges_it_says_so(prefix: list[str]) -> None:
    groups = told(status=2, prefix=prefix)
    assert groups[""]["recording"] == groups[""]["device_time"] == "fails"
    assert groups["Host"]["permission"] == {
        "group": "Host",
        "name": "permission",
        "level": "fail",
        "fact": "attaching probes needs CAP_SYS_ADMIN",
        "mend": "run kdiff-agent as root (sudo)",
        "device_time": "fails",
    }
    assert groups["Probes"]["BPF program"]["fact"] == "not tried without permission"


def test_without_bcc_it_says_how_to_get_it() -> None:
    hidden = 'mount -t tmpfs none /usr/lib/python3/dist-packages/bcc; exec "$0" "$@"'
    groups = told(status=2, prefix=["unshare", "--mount", "sh", "-c", hidden])
    assert list(groups["Probes"]) == ["BPF program"]
    assert groups["Probes"]["BPF program"]["fact"] == "BCC is not installed"
    assert groups["Probes"]["BPF program"]["mend"].startswith("apt-get install python3-bpfcc")


def test_in_a_process_namespace_of_its_own_it_says_what_the_container_lacks() -> None:
    groups = told(status=2, prefix=["unshare", "--pid", "--mount-proc", "--fork"])
    assert groups["Probes"]["uprobes"]["level"] == "fail"
    assert "--pid=host" in groups["Probes"]["uprobes"]["mend"]


def test_without_a_link_for_many_places_it_finds_the_same() -> None:
    """Linux before 6.6."""
    old = (
        "import json, sys\nfrom kdiff.agent import doctor_child as child\n"
        "program = child.Program\n"
        "def older(tracing, *, multi):\n"
        "    if multi: raise child.AgentError('no')\n"
        "    return program(tracing, multi=False)\n"
        "child.Program = older\nprint(json.dumps(child.try_probes()))"
    )
    done = subprocess.run([sys.executable, "-c", old], capture_output=True, text=True, timeout=60, check=False)
    found = json.loads(done.stdout)
    assert {key: found[key] for key in ("multi", "device", "exit", "entries", "results", "handed")} == {
        "multi": False, "device": "", "exit": 1, "entries": 1, "results": [7], "handed": ["kdiff ok"],
    }  # fmt: skip


def test_gpus_as_nvml_tells(tmp_path: Path) -> None:
    host = Host(tmp_path, H200, H200, OTHER, version="580.159.03")
    found = told(env=host.environment)["CUDA"]
    assert found["GPUs"]["level"] == "ok"
    assert found["GPUs"]["fact"] == "2 x NVIDIA H200, 1 x NVIDIA T4"
    assert found["driver"]["fact"] == "580.159.03"
    host.set(OTHER, error__nvmlSystemGetDriverVersion=999)
    assert told(env=host.environment)["CUDA"]["driver"]["fact"] == "unknown"
    host.set(driver=0)
    gpus = told(env=host.environment)["CUDA"]["GPUs"]
    assert (gpus["level"], gpus["fact"]) == ("warn", "NVML: Driver Not Loaded")
    assert gpus["mend"].startswith("install the NVIDIA driver")


def test_a_spool_and_a_server_that_are_not_ready(tmp_path: Path) -> None:
    groups = told("-o", tmp_path, "--max-bytes", "900T", "--store", "clickhouse://agent@127.0.0.1:1/kdiff")
    assert groups["Host"]["disk"]["level"] == "warn"
    assert "the disk is full first" in groups["Host"]["disk"]["fact"]
    assert "nothing listens on 127.0.0.1:1" in groups["Store"]["server"]["fact"]
    assert (groups[""]["recording"], groups[""]["shipping"], groups[""]["exit_code"]) == ("works", "fails", 0)


def test_a_driver_is_known_once_it_was_recorded(tmp_path: Path) -> None:
    run_ = workload("--kernel", "k1:5", "--launches", 101)
    state = tmp_path / "capture.drivers.json"
    env = host_environment(run_)
    groups = told("--state", state, env=env)
    assert str(build().driver) in groups["CUDA"]["libcuda"]["fact"]
    assert groups["CUDA"]["names"]["level"] == "warn"
    assert record(tmp_path / "capture", run_).status == 0
    assert told("--state", state, env=env)["CUDA"]["names"]["level"] == "ok"


def test_a_running_process(tmp_path: Path) -> None:
    with running(tmp_path, build().workload) as pid:
        groups = told("--pid", pid)
        process = groups[f"Process {pid}"]
        assert process["process"]["fact"] == "workload"
        assert str(build().driver) in process["libcuda"]["fact"]
        assert process["CUDA runtime"]["fact"] == str(build().runtime)
        assert process["device library"]["fact"] == "not asked for"
        assert groups[""]["device_time"] == "fails"
        assert "libcuda" not in groups["CUDA"], "the process has one: the host's does not matter"
        os.kill(pid, 0)


def test_a_static_runtime_and_another_tools_injection(tmp_path: Path) -> None:
    tool = {"CUDA_INJECTION64_PATH": "/opt/nsys/libToolsInjection64.so", "NVTX_INJECTION64_PATH": "/opt/nsys/nvtx.so"}
    with running(tmp_path, build().workload_static, **tool) as pid:
        process = told("--pid", pid)[f"Process {pid}"]
    assert process["CUDA runtime"]["fact"] == f"{build().workload_static} (static)"
    assert process["injection"]["fact"].startswith("CUDA_INJECTION64_PATH=/opt/nsys/libToolsInjection64.so")
    assert process["profiler"]["fact"] == "NVTX_INJECTION64_PATH=/opt/nsys/nvtx.so"


def test_the_device_library_in_a_running_process(tmp_path: Path) -> None:
    from kdiff.probes.device_library import library

    ours = library(tmp_path / "built")
    # The loader maps it here; on a GPU host the driver does, as the variable says.
    given = {"CUDA_INJECTION64_PATH": str(ours), "LD_PRELOAD": str(ours), "KDIFF_DEVICE_TIME": "off"}
    with running(tmp_path, build().workload, **given) as pid:
        process = told("--pid", pid)[f"Process {pid}"]
    assert process["device library"]["fact"] == f"mapped: {ours}"
    assert process["injection"]["fact"] == "KDIFF_DEVICE_TIME=off turns it off"


def test_a_process_that_is_missing() -> None:
    groups = told("--pid", 4194304, status=2)
    assert groups["Process 4194304"]["process"]["level"] == "fail"


def test_a_command_is_not_started(tmp_path: Path) -> None:
    touched = tmp_path / "touched"
    groups = told("--", "touch", touched)
    assert groups["Command"]["program"]["fact"].endswith("/touch")
    assert not touched.exists()
    assert told("--", "no-such-program", status=2)["Command"]["program"]["level"] == "fail"
    run_: Workload = workload("--launches", 3)
    found = told("--", *run_.command, env=host_environment(run_))["Command"]
    assert str(build().runtime) in found["libraries"]["fact"]


def test_interrupted_or_killed_it_leaves_no_probe() -> None:
    before = bpf_links()
    for number in (signal.SIGINT, signal.SIGKILL):
        doctor = subprocess.Popen([AGENT, "doctor"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(1.2)
        doctor.send_signal(number)
        assert doctor.wait(timeout=20) != 2
    deadline = time.monotonic() + 10
    while bpf_links() > before:
        assert time.monotonic() < deadline, "a probe stayed"
        time.sleep(0.1)
