"""kdiff.agent.doctor*: each outcome of each check, on made-up hosts."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from kdiff.agent import (
    doctor,
    doctor_cuda,
    doctor_device,
    doctor_host,
    doctor_probes,
    doctor_process,
    doctor_scheduling,
)
from kdiff.agent.cli import app
from kdiff.agent.doctor_check import Answer, Check, Level, device_time, fail, ok, recording, warn
from kdiff.agent.doctor_child import ask
from kdiff.agent.doctor_process import Kind, Process
from kdiff.agent.doctor_program import COUNTER, RESULT, START, functions, image, installed
from kdiff.agent.elf import open_elf
from kdiff.agent.errors import AgentError
from kdiff.probes.device_library import NAME, DeviceLibraryError, version
from kdiff.probes.device_wire import HANDOVER
from standins.standins import build

GONE = 4_194_304  # above the highest pid there can be


def said(check: Check | None) -> tuple[str, str]:
    assert check is not None
    return check.level.value, f"{check.fact} > {check.mend}"


# ---- what findings together say ----


def test_recording_fails_by_a_failure_only_and_device_time_by_its_worst() -> None:
    fine = ok("Host", "a", "")
    unsure = warn("CUDA", "b", "", "", Answer.UNSURE)
    hopeless = warn("Device time", "c", "", "", Answer.FAILS)
    assert (recording([fine, unsure, hopeless]), device_time([fine, unsure])) == (Answer.WORKS, Answer.UNSURE)
    assert device_time([hopeless, unsure, fine]) is Answer.FAILS
    assert device_time([fine, warn("Host", "d", "", "")]) is Answer.WORKS
    assert (recording([fine, fail("Host", "e", "", "")]), device_time([fail("Host", "e", "", "")])) == (
        Answer.FAILS,
        Answer.FAILS,
    )


# ---- host ----


def refusing(sentence: str) -> Any:
    def check() -> None:
        raise AgentError(sentence)

    return check


def test_permission() -> None:
    assert doctor_host.permission(lambda: None).level is Level.OK
    level, text = said(doctor_host.permission(refusing("attaching needs CAP_SYS_ADMIN: run it as root")))
    assert (level, text) == ("FAIL", "attaching needs CAP_SYS_ADMIN > run it as root")
    level, text = said(doctor_host.permission(refusing("this kernel is locked down to confidentiality")))
    assert level == "FAIL"
    assert "lockdown=integrity" in text


@pytest.mark.parametrize(
    ("release", "machine", "may_kill", "level", "words"),
    [
        ("6.18.44-fc", "x86_64", False, "ok", "Linux 6.18.44-fc on x86_64"),
        ("5.15.0-97-generic", "aarch64", False, "ok", "aarch64"),
        ("5.14.0-427.el9", "x86_64", False, "warn", "5.15 or newer"),  # tried all the same: it may be backported
        ("4.18.0", "x86_64", False, "warn", "5.15 or newer"),
        ("6.12.1", "x86_64", True, "warn", "--no-return"),
        ("6.18.0", "riscv64", False, "FAIL", "x86-64 and arm64 only"),
    ],
)
def test_kernel(release: str, machine: str, may_kill: bool, level: str, words: str) -> None:
    found = said(doctor_host.kernel(release, machine, may_kill))
    assert found[0] == level
    assert words in found[1]


@pytest.mark.parametrize(("source", "level"), [("tsc", "ok"), ("kvm-clock", "ok"), ("hpet", "warn"), (None, "warn")])
def test_clock(tmp_path: Path, source: str | None, level: str) -> None:
    if source:
        (tmp_path / "current_clocksource").write_text(f"{source}\n")
    found = said(doctor_host.clock(tmp_path))
    assert found[0] == level
    assert (source or "cannot be read") in found[1]


def test_memory_lock_limit() -> None:
    assert "8,192 KiB" in doctor_host.memory(8 << 20).fact
    assert "unlimited" in doctor_host.memory(resource.RLIM_INFINITY).fact


def disk(place: Path, free: int = 3 << 30, max_bytes: int | None = None) -> Check:
    return doctor_host.disk(place, max_bytes, lambda _: free)


def test_disk(tmp_path: Path) -> None:
    deep = tmp_path / "not" / "there" / "yet"
    check = disk(deep)
    assert (check.level, check.fact) == (Level.OK, f"3.0 GiB free at {tmp_path}")
    assert list(tmp_path.iterdir()) == [], "nothing is made"
    assert disk(deep, (1 << 30) - 1).level is Level.WARN
    (tmp_path / "file").touch()
    assert said(doctor_host.disk(tmp_path / "file" / "x")) == (
        "FAIL",
        f"{tmp_path / 'file'} is no directory > name another capture directory with -o",
    )
    assert "cannot be written" in disk(Path("/proc/sys")).fact

    def gone(_: Path) -> int:
        raise OSError(5, "Input/output error")

    assert "Input/output error" in doctor_host.disk(tmp_path, None, gone).fact


def test_a_spool_that_may_grow_larger_than_its_disk(tmp_path: Path) -> None:
    (tmp_path / "cuda_events").mkdir()
    (tmp_path / "cuda_events" / "a.parquet").write_bytes(bytes(3 << 20))
    room = (5 << 30) + (1 << 20)
    assert disk(tmp_path, room, room + (3 << 20)).level is Level.OK, "what is there counts to the bound"
    level, text = said(disk(tmp_path, room, 10 << 30))
    assert level == "warn"
    assert text == (
        f"5.0 GiB free at {tmp_path}, the spool may grow to 10.0 GiB: the disk is full first"
        " > give --max-bytes less than 5.0 GiB, or name a larger disk with -o"
    )


@pytest.mark.parametrize(
    ("what", "number", "level", "words"),
    [
        ("os.fsync", errno.EIO, "FAIL", "Input/output error at fsync or rename"),
        ("os.rename", errno.ENOSYS, "FAIL", "Function not implemented at fsync or rename"),
        ("os.write", errno.ENOSPC, "FAIL", "is full > free space there"),
        ("fcntl.flock", errno.ENOLCK, "warn", "on a file system without locks"),
    ],
)
def test_a_file_system_that_lacks_what_captures_rest_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, number: int, level: str, words: str
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(f"kdiff.agent.doctor_host.{what}", refuse)
    found = said(disk(tmp_path))
    assert found[0] == level
    assert words in found[1]
    assert list(tmp_path.iterdir()) == [], "what was tried is removed"


@pytest.mark.parametrize(
    ("scope", "capabilities", "level", "words"),
    [
        (0, 1 << 19, "ok", "ptrace_scope 0"),
        (2, 1 << 19, "ok", "ptrace_scope 2"),
        (3, 1 << 19, "warn", "ptrace_scope=2 or lower"),
        (None, 1 << 19, "ok", "ptrace_scope 0"),  # no Yama
        (0, ~(1 << 19), "warn", "add CAP_SYS_PTRACE"),
    ],
)
def test_memory_of_others(tmp_path: Path, scope: int | None, capabilities: int, level: str, words: str) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self/mountinfo").write_text("22 28 0:20 / /proc rw,nosuid - proc proc rw\n")
    if scope is not None:
        (tmp_path / "sys/kernel/yama").mkdir(parents=True)
        (tmp_path / "sys/kernel/yama/ptrace_scope").write_text(f"{scope}\n")
    found = said(doctor_host.other_memory(tmp_path, capabilities))
    assert found[0] == level
    assert words in found[1]


def test_hidden_processes_matter_to_a_user_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self/mountinfo").write_text("22 28 0:20 / /proc rw,nosuid - proc proc rw,hidepid=invisible\n")
    (tmp_path / "self/status").write_text("Name:\tx\nCapEff:\t0000000000080000\n")
    assert doctor_host.other_memory(tmp_path).level is Level.OK
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "hidepid" in doctor_host.other_memory(tmp_path).fact


# ---- probes ----

TRIED: dict[str, Any] = {
    "bcc": "0.26.0", "multi": True, "device": "", "exit": 1, "pid": 77, "pids": [77], "entries": 1,
    "results": [RESULT], "handed": ["kdiff ok"], "hung": False,
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "name", "level", "words"),
    [
        ({}, "uprobes", "ok", "(uprobe_multi)"),
        ({"multi": False}, "uprobes", "ok", "before Linux 6.6"),
        ({"entries": 0, "pids": []}, "uprobes", "FAIL", "no event came"),
        ({"hung": True, "exit": -9}, "uprobes", "FAIL", "did not end"),
        ({"pids": [1234]}, "uprobes", "FAIL", "process 77 here is 1234 to the kernel > run the agent in the host's"),
        ({"exit": -31, "results": []}, "return probes", "warn", "signal 31) > record with --no-return"),
        ({"results": []}, "return probes", "warn", "no event came from one"),
        ({"results": [RESULT + 1]}, "return probes", "warn", "no event came from one"),
        ({"device": "Invalid argument"}, "device time", "warn", "Invalid argument > update the kernel"),
        ({"exit": 0}, "device time", "warn", "the kernel counted 0 probes"),
        ({"handed": []}, "device time", "warn", "did not come"),
    ],
)
def test_probes(change: dict[str, Any], name: str, level: str, words: str) -> None:
    checks = doctor_probes.probes(TRIED | change)
    assert [check.name for check in checks] == ["BPF program", "uprobes", "return probes", "device time"]
    found = next(check for check in checks if check.name == name)
    assert found.level.value == level
    assert words in f"{found.fact} > {found.mend}"
    harmless = level == "ok" or (name == "return probes" and "exit" not in change)
    assert (device_time(checks) is Answer.WORKS) == harmless


def test_probes_that_could_not_be_tried() -> None:
    sentence = "BCC is not installed: apt-get install python3-bpfcc (pip's `bcc` is another project)"
    (check,) = doctor_probes.probes({"error": sentence})
    assert said(check) == ("FAIL", sentence.replace(": ", " > ", 1))
    (check,) = doctor_probes.probes({"error": "odd: very", "kind": "ValueError"})
    assert check.fact == "ValueError: odd: very"
    assert "report it" in check.mend


@pytest.mark.parametrize(
    ("found", "level", "fact", "mend"),
    [
        ({"calls": 2, "blocked_ns": 200_000_000, "left": 0}, "ok", "--scheduling on works", ""),
        ({"calls": 2, "blocked_ns": 0, "left": 0}, "warn", "the wait of a program was not seen", "dmesg"),
        ({"calls": 1, "blocked_ns": 9, "left": 0}, "warn", "the wait of a program was not seen", "dmesg"),
        ({"calls": 2, "blocked_ns": 9, "left": 1}, "warn", "the end of a thread was not seen", "dmesg"),
        (
            {"error": "the kernel's tracepoint x cannot be used: record without"},
            "warn",
            "tracepoint x",
            "record without",
        ),
        ({"error": "no answer within 20 s"}, "warn", "no answer within 20 s", "--scheduling off"),
    ],
)
def test_scheduling(found: dict[str, Any], level: str, fact: str, mend: str) -> None:
    check = doctor_scheduling.scheduling(found, "Probes")
    assert (check.group, check.name, check.level.value) == ("Probes", "scheduling", level)
    assert fact in check.fact
    assert mend in check.mend
    assert recording([check]) is Answer.WORKS


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_program_to_probe_is_what_it_says(machine: str, tmp_path: Path) -> None:
    path = tmp_path / "program"
    path.write_bytes(image(machine))
    listing = subprocess.run(["readelf", "-hlW", str(path)], capture_output=True, text=True, check=True)
    assert listing.stderr == ""
    assert "Entry point address:               0x400100" in listing.stdout
    assert "GNU_STACK" in listing.stdout
    assert len(path.read_bytes()) == COUNTER + 24
    assert all(START < at < START + 100 for at in functions(machine))
    with open_elf(str(path)) as elf:
        assert elf.interpreter() is None


def test_the_program_leaves_no_name_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with installed(os.uname().machine) as path:
        assert list(tmp_path.iterdir()) == []
        assert subprocess.run([path], stdin=subprocess.DEVNULL, check=False).returncode == 0, "nobody counts"
    assert not os.path.exists(path)


# ---- CUDA ----


def test_nvml() -> None:
    h200, a10 = {"name": "NVIDIA H200", "mig": False}, {"name": "NVIDIA A10", "mig": False}
    found = {"driver": "580.159.04", "cuda": 13000, "gpus": [h200, a10, h200], "confidential": False}
    checks = doctor_cuda.nvml(found)
    assert [check.fact for check in checks] == ["580.159.04, CUDA 13.0", "2 x NVIDIA H200, 1 x NVIDIA A10"]
    assert device_time(checks) is Answer.WORKS
    assert doctor_cuda.nvml(found | {"gpus": []})[1].level is Level.WARN


def test_nvml_that_warns_of_cupti() -> None:
    found = {"driver": "580.159.04", "cuda": None, "gpus": [{"name": "H100", "mig": True}], "confidential": False}
    assert [check.name for check in doctor_cuda.nvml(found)] == ["driver", "GPUs", "MIG"]
    assert device_time(doctor_cuda.nvml(found)) is Answer.UNSURE
    found["confidential"] = True
    assert device_time(doctor_cuda.nvml(found)) is Answer.FAILS


def test_no_nvml() -> None:
    (check,) = doctor_cuda.nvml({"error": "NVML Shared Library Not Found", "kind": "NVMLError"})
    assert (check.level, check.device_time) == (Level.WARN, Answer.WORKS)
    (check,) = doctor_cuda.nvml({"error": "Driver/library version mismatch"})
    assert "reboot" in check.mend


def test_libcuda(tmp_path: Path) -> None:
    driver = build().driver
    with open_elf(str(driver)) as elf:
        build_id = elf.build_id()
    beside = tmp_path / "libcuda.so"
    beside.symlink_to(driver)
    state = tmp_path / "drivers.json"
    checks = doctor_cuda.driver_library([str(driver), str(beside)], state)
    assert [(check.name, check.level.value) for check in checks] == [("libcuda", "ok"), ("names", "warn")]
    assert build_id[:12] in checks[1].fact
    state.write_text(json.dumps({build_id: 8}))
    assert doctor_cuda.driver_library([str(driver)], state)[1].level is Level.OK
    state.write_text(json.dumps({build_id: 0}))  # refuted
    assert doctor_cuda.driver_library([str(driver)], state)[1].level is Level.WARN


def test_libcuda_that_is_none(tmp_path: Path) -> None:
    (check,) = doctor_cuda.driver_library([], None)
    assert (check.level, check.device_time) == (Level.WARN, Answer.UNSURE)
    torn = tmp_path / "libcuda.so.1"
    torn.write_bytes(build().driver.read_bytes()[:5000])
    (check,) = doctor_cuda.driver_library([str(torn)], None)
    assert "is cut off or no ELF file" in check.fact
    (check,) = doctor_cuda.driver_library([str(build().workload_static_stripped)], None)
    assert "launches nothing" in check.fact


# ---- device time ----


def shared(path: Path, soname: str, source: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    command = ["gcc", "-shared", "-nostdlib", "-fPIC", f"-Wl,-soname,{soname}", "-xc", "-", "-o", str(path)]
    subprocess.run(command, input=source, text=True, check=True)
    return path


def test_copies_of_cupti_and_their_release(tmp_path: Path) -> None:
    real = shared(tmp_path / "usr/local/cuda-13.0/extras/CUPTI/lib64/libcupti.so.2025.3.1", "libcupti.so.13")
    link = tmp_path / "usr/local/cuda-13.0/lib64/libcupti.so.13"
    link.parent.mkdir()
    link.symlink_to(real)
    pip = shared(tmp_path / "opt/conda/lib/python3.12/site-packages/nvidia/cuda_cupti/lib/libcupti.so.12", "x")
    triton = tmp_path / "venv/triton/backends/nvidia/lib/cupti/libcupti.so.12"
    triton.parent.mkdir(parents=True)
    triton.write_bytes(b"no ELF file")
    listed = shared(tmp_path / "listed/libcupti.so.11.8", "libcupti.so.11.8")
    listing = (
        f"\tlibcupti.so.11.8 (libc6,x86-64) => {listed}\n\tlibcupti.so.13 (libc6,x86-64) => /gone/libcupti.so.13\n"
    )
    copies = doctor_device.cupti_copies({}, [str(tmp_path / "venv")], tmp_path, listing)
    assert set(copies) == {str(link), str(pip), str(triton), str(listed)}
    releases = {os.path.basename(path): doctor_device.cupti_release(path) for path in map(os.path.realpath, copies)}
    assert releases == {"libcupti.so.2025.3.1": 13, "libcupti.so.12": 12, "libcupti.so.11.8": None}
    assert doctor_device.cupti_copies({"LD_LIBRARY_PATH": f":{listed.parent}"}, [], tmp_path / "none", "") == [
        str(listed)
    ]


def test_cupti(tmp_path: Path) -> None:
    copies = [str(shared(tmp_path / f"{n}/libcupti.so.{n}", f"libcupti.so.{n}")) for n in (11, 12, 13, 14)]
    check = doctor_device.cupti(copies)
    assert check.fact == f"of CUDA 13: {copies[2]}, and 3 more"
    unknown = doctor_device.cupti([copies[0], copies[3]])
    assert (unknown.level, unknown.device_time) == (Level.WARN, Answer.FAILS)
    assert "(CUDA 14)" in unknown.fact
    none = doctor_device.cupti([])
    assert (none.level, none.device_time) == (Level.WARN, Answer.UNSURE)


def device_library(path: Path) -> Path:
    return shared(path, NAME, f"void {HANDOVER}(void) {{}}")


def test_the_device_library_is_found_built_or_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KDIFF_DEVICE_LIBRARY", raising=False)

    def builds(directory: Path) -> Path:
        return device_library(directory / "x86_64-abc" / NAME)

    def has_no_compiler(directory: Path) -> Path:
        raise DeviceLibraryError("there is no C compiler: apt-get install gcc")

    kept = tmp_path / "kept"
    check = doctor_device.library(builds, [kept])
    assert (check.level, check.fact[:17]) == (Level.OK, "can be built here")
    assert not kept.exists(), "nothing is kept"
    check = doctor_device.library(has_no_compiler, [kept])
    assert said(check) == ("warn", "there is no C compiler > apt-get install gcc")
    assert check.device_time is Answer.FAILS
    device_library(kept / "x86_64-other" / NAME)
    assert doctor_device.library(has_no_compiler, [kept]).level is Level.WARN, "another version"
    mine = device_library(kept / version() / NAME)
    assert said(doctor_device.library(has_no_compiler, [tmp_path / "none", kept])) == ("ok", f"{mine} > ")
    monkeypatch.setenv("KDIFF_DEVICE_LIBRARY", str(mine))
    assert said(doctor_device.library(lambda _: mine, []))[1].startswith(f"{mine}, as KDIFF_DEVICE_LIBRARY")
    other = shared(tmp_path / NAME, NAME)
    assert doctor_device.library(lambda _: other, []).device_time is Answer.FAILS


def test_what_is_no_device_library(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", tmp_path / "gone", tmp_path, Path("/dev/zero"), build().driver):
        assert not doctor_device.is_device_library(path)


def test_injection(tmp_path: Path) -> None:
    ours = device_library(tmp_path / "anything.so")
    named = {"CUDA_INJECTION64_PATH": str(ours)}
    assert doctor_device.injected({}, "g") == []
    assert [check.level for check in doctor_device.injected(named, "g")] == [Level.OK]
    assert device_time(doctor_device.injected(named | {"KDIFF_DEVICE_TIME": "off"}, "g")) is Answer.FAILS
    (check,) = doctor_device.injected({"CUDA_INJECTION64_PATH": "/opt/nsys/libToolsInjection64.so"}, "g")
    assert (check.level, check.device_time) == (Level.WARN, Answer.FAILS)
    assert "which is not there" in check.fact
    (check,) = doctor_device.injected({"CUDA_INJECTION64_PATH": str(build().driver)}, "g")
    assert "another tool's" in check.mend
    checks = doctor_device.injected(named | {"NVTX_INJECTION64_PATH": "/x"}, "g")
    assert device_time(checks) is Answer.UNSURE


def test_gpu_counters(tmp_path: Path) -> None:
    params = tmp_path / "params"
    assert doctor_device.admin_only(params) is None
    params.write_text("ResmanDebugLevel: 4294967295\nRmProfilingAdminOnly: 1\n")
    assert said(doctor_device.admin_only(params))[1].startswith("for administrators only; kernel times need none")
    params.write_text("RmProfilingAdminOnly: 0\n")
    assert said(doctor_device.admin_only(params))[1].startswith("for everybody")
    params.write_text("ResmanDebugLevel: 1\n")
    assert doctor_device.admin_only(params) is None


# ---- a process ----


def levels(checks: list[Check]) -> dict[str, str]:
    return {check.name: check.level.value for check in checks}


def test_a_process_that_is_gone() -> None:
    assert doctor_process.look_at(GONE) is None
    assert levels(doctor_process.process(GONE, None, None)) == {"process": "FAIL"}


def test_a_process_whose_maps_are_hidden() -> None:
    checks = doctor_process.process(7, Process(7, "x", readable=False), None)
    assert levels(checks) == {"process": "ok", "mappings": "warn"}


def test_a_process_under_seccomp() -> None:
    found = Process(7, "x", filtered=True)
    assert levels(doctor_process.process(7, found, None, may_kill=False))["seccomp"] == "ok"
    checks = doctor_process.process(7, found, None, may_kill=True)
    assert recording(checks) is Answer.FAILS
    assert "--no-return" in next(check.mend for check in checks if check.name == "seccomp")


def test_a_process_with_everything(tmp_path: Path) -> None:
    library = device_library(tmp_path / NAME)
    found = Process(
        7,
        "python",
        container="c" * 64,
        environment={"CUDA_INJECTION64_PATH": str(library)},
        files={
            Kind.DRIVER: [str(build().driver)],
            Kind.RUNTIME: ["/x/libcudart.so.13", "/x/torch.so"],
            Kind.DEVICE_LIBRARY: [str(library)],
            Kind.CUPTI: [str(shared(tmp_path / "libcupti.so.12", "libcupti.so.12"))],
        },
    )
    checks = doctor_process.process(7, found, None, may_kill=False)
    assert (recording(checks), device_time(checks)) == (Answer.WORKS, Answer.WORKS)
    facts = {check.name: check.fact for check in checks}
    assert facts["process"] == "python in container cccccccccccc"
    assert facts["CUDA runtime"] == "/x/libcudart.so.13, /x/torch.so (static)"
    assert facts["CUPTI"] == f"of CUDA 12, mapped: {tmp_path}/libcupti.so.12"


def test_a_process_without_device_time(tmp_path: Path) -> None:
    driver, library = {Kind.DRIVER: [str(build().driver)]}, device_library(tmp_path / NAME)

    def answer(name: str, **fields: Any) -> tuple[Answer, str]:
        checks = doctor_process.process(7, Process(7, "x", **fields), None, may_kill=False)
        return device_time(checks), next(check.fact for check in checks if check.name == name)

    assert answer("device library", files=driver) == (Answer.FAILS, "not asked for")
    named = {"CUDA_INJECTION64_PATH": str(library)}
    assert answer("device library", files=driver, environment=named) == (Answer.FAILS, "named, but not mapped")
    mapped = driver | {Kind.DEVICE_LIBRARY: [str(library)]}
    nsys = mapped | {Kind.PROFILER: ["/opt/libToolsInjection64.so"]}
    assert answer("profiler", files=nsys) == (Answer.UNSURE, "mapped: /opt/libToolsInjection64.so")
    assert answer("debugger", files=mapped, tracer="cuda-gdb") == (Answer.UNSURE, "traced by cuda-gdb")
    old = mapped | {Kind.CUPTI: [str(shared(tmp_path / "libcupti.so.11", "libcupti.so.11"))]}
    assert answer("CUPTI", files=old) == (Answer.FAILS, f"mapped: {tmp_path}/libcupti.so.11 (CUDA 11)")
    proton = mapped | {Kind.PROTON: ["/triton/_C/libproton.so"]}
    assert answer("CUPTI", files=proton) == (Answer.FAILS, "Proton brings one: /triton/_C/libproton.so")
    chosen = {"KDIFF_DEVICE_CUPTI": str(shared(tmp_path / "libcupti.so.13", "libcupti.so.13"))}
    settled = {**named, **chosen}
    assert answer("CUPTI", files=proton, environment=settled)[0] is not Answer.FAILS
    given = {"KDIFF_DEVICE_CUPTI": "/gone/libcupti.so.13"}
    assert answer("CUPTI", files=mapped, environment=given)[0] is Answer.FAILS
    assert answer("libcuda", files={Kind.DEVICE_LIBRARY: ["/x"]})[1] == "none is mapped"


def test_proton_is_known_by_what_a_process_maps(tmp_path: Path) -> None:
    proton = tmp_path / "libproton.so"
    shutil.copy(build().profiler_dlsym, proton)
    command = [sys.executable, "-c", f"import ctypes; ctypes.CDLL({str(proton)!r}); input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as child:
        while not (found := doctor_process.look_at(child.pid)) or not found.mapped(Kind.PROTON):
            time.sleep(0.01)
        child.communicate(b"\n")
    assert found.mapped(Kind.PROTON) == [str(proton)]
    assert not found.mapped(Kind.CUPTI)


def test_only_what_matters_of_an_environment_is_read() -> None:
    environment = {"NVTX_INJECTION64_PATH": "/x", "SECRET": "s3cret", "KDIFF_DEVICE_TIME": "off"}
    with subprocess.Popen(["sleep", "60"], env=environment) as child:
        while not (found := doctor_process.look_at(child.pid)) or found.comm != "sleep":
            time.sleep(0.01)
        child.kill()
    assert found.environment == {"NVTX_INJECTION64_PATH": "/x", "KDIFF_DEVICE_TIME": "off"}


# ---- a command ----


def test_a_command(tmp_path: Path) -> None:
    environment = {"LD_LIBRARY_PATH": str(build().driver.parent), "PATH": os.environ["PATH"]}
    checks = doctor_process.command([str(build().workload)], environment, tmp_path / "state")
    found = {check.name: check for check in checks}
    assert found["libcuda"].level is Level.OK
    assert str(build().driver) in found["libraries"].fact
    assert str(build().runtime) in found["libraries"].fact
    (check,) = doctor_process.command(["no-such-program"], environment, None)
    assert said(check)[0] == "FAIL"
    foreign = doctor_process.command(["true"], environment | {"CUDA_INJECTION64_PATH": "/x.so"}, None)
    assert device_time(foreign) is Answer.FAILS


def test_cupti_beside_the_commands_interpreter(tmp_path: Path) -> None:
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    shutil.copy("/bin/true", python)
    script = tmp_path / "serve"
    script.write_text(f"#!{python}\n")
    script.chmod(0o755)
    copy = shared(tmp_path / "lib/python3.12/site-packages/nvidia/cuda_cupti/lib/libcupti.so.12", "libcupti.so.12")
    check = doctor_process.command([str(script)], {"PATH": "/bin"}, None)[-1]
    assert check.name == "CUPTI"
    packages = doctor_device.python_packages(str(python))
    assert str(copy) in doctor_device.cupti_copies({}, packages, tmp_path / "none", "")


# ---- time limits, and the report ----


def test_a_check_that_hangs_or_breaks_is_a_finding() -> None:
    def hang() -> Check:
        time.sleep(5)
        return ok("Host", "late", "")

    def broken() -> Check:
        raise ZeroDivisionError("odd")

    began = time.monotonic()
    plan: list[tuple[str, str, doctor.Run]] = [
        ("Host", "slow", hang),
        ("CUDA", "wrong", broken),
        ("Host", "several", lambda: [ok("Host", "a", ""), ok("Host", "b", "")]),
        ("Host", "nothing", lambda: None),
    ]
    found = doctor.together(plan, 0.3)
    assert time.monotonic() - began < 3
    assert [(check.name, check.level.value) for check in found] == [
        ("slow", "FAIL"), ("wrong", "warn"), ("a", "ok"), ("b", "ok"),
    ]  # fmt: skip
    assert found[0].fact == "no answer within 0 s"
    assert found[1].fact == "ZeroDivisionError: odd"


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_a_child_that_hangs_dies_or_babbles(tmp_path: Path) -> None:
    assert ask("x", 0.3, script(tmp_path / "a", "exec sleep 60")) == {"error": "no answer within 0 s"}
    assert ask("x", 9, script(tmp_path / "b", "echo no; echo why >&2; kill -SEGV $$")) == {
        "error": "it ended with status -11 why"
    }
    assert ask("x", 9, script(tmp_path / "c", "echo '[1]'")) == {"error": "it ended with status 0"}
    assert ask("x", 9, script(tmp_path / "d", "echo babble; echo '{\"a\": 1}'")) == {"a": 1}
    assert "cannot be started" in ask("x", 9, str(tmp_path / "gone"))["error"]
    assert "KeyError" in ask("unheard-of", 20, sys.executable).values()


def test_what_a_process_has_makes_the_hosts_unimportant(monkeypatch: pytest.MonkeyPatch) -> None:
    checks = [
        warn("Device time", "CUPTI", "none found", "", Answer.UNSURE),
        warn("CUDA", "libcuda", "none found", "", Answer.UNSURE),
        ok("Process 7", "CUPTI", "mapped"),
        warn("Process 7", "libcuda", "none is mapped", "", Answer.UNSURE),
    ]
    monkeypatch.setattr(doctor, "together", lambda plan, limit_s: checks)
    assert doctor.examine(doctor.Question(Path("x"))).checks == checks[1:]


REPORT = doctor.Report(
    [
        ok("Host", "kernel", "Linux 6.18"),
        warn("Host", "other processes", "hidden", "mount /proc anew " * 9),
        fail("Probes", "uprobes", "a\x1b[31mb\udcff", "look"),
    ]
)


def test_the_report_as_text() -> None:
    lines = doctor.render(REPORT, "text", 100).splitlines()
    assert lines[:3] == [
        "Host",
        "  ok    kernel           Linux 6.18",
        "  warn  other processes  hidden",
    ]
    assert lines[3].startswith("                         > mount /proc anew")
    assert "  FAIL  uprobes          a?[31mb?" in lines
    assert lines[-2:] == ["Recording does not work: uprobes.", "Device time does not work: uprobes."]
    assert max(map(len, lines)) <= 100
    assert "\x1b" not in "".join(lines)
    assert "\x1b[1;31mFAIL\x1b[0m" in doctor.render(REPORT, "text", 100, colour=True)
    assert doctor.render(doctor.Report([ok("Host", "a", "b")]), "text").endswith(
        "\nRecording works.\nDevice time works.\n"
    )


def test_the_report_as_json() -> None:
    told = json.loads(doctor.render(REPORT, "json"))
    assert {key: told[key] for key in ("schema", "recording", "device_time", "exit_code")} == {
        "schema": "kdiff-doctor/1",
        "recording": "fails",
        "device_time": "fails",
        "exit_code": 2,
    }
    assert told["checks"][2] == {
        "group": "Probes", "name": "uprobes", "level": "fail", "fact": "a?[31mb?", "mend": "look",
        "device_time": "fails",
    }  # fmt: skip


@given(st.text(), st.text(), st.integers(20, 200))
def test_no_text_breaks_the_report(fact: str, mend: str, width: int) -> None:
    report = doctor.Report([warn("Host", "x", fact, mend)])
    text = doctor.render(report, "text", width)
    assert all(line.isprintable() for line in text.splitlines())
    assert json.loads(doctor.render(report, "json"))["checks"][0]["level"] == "warn"


def test_every_option_and_group_is_documented() -> None:
    guide = (Path(__file__).resolve().parents[2] / "docs" / "guide-agent-doctor.md").read_text(encoding="utf-8")
    command: Any = typer.main.get_command(app)
    options = {o for parameter in command.commands["doctor"].params for o in parameter.opts if o.startswith("-")}
    assert {option for option in options if f"`{option}" not in guide} == set()
    assert {group for group in doctor._HOST_GROUPS if f"\n| {group} |" not in guide} == set()
