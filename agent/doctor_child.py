"""What doctor tries in a process of its own: libraries that may hang or crash, and probes, which end with it.

`python -P -m kdiff.agent.doctor_child probes|nvml` prints what it found as one JSON object.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Final

from kdiff.agent.bpf import Probe, Program
from kdiff.agent.doctor_program import COUNTER, START, function, installed
from kdiff.agent.errors import AgentError
from kdiff.agent.ring import Ring
from kdiff.probes.points import POINTS, Step
from kdiff.probes.program import Tracing, cookie, machine
from kdiff.probes.wire import EVENT, Kind

Found = dict[str, Any]


def ask(what: str, timeout_s: float, python: str = sys.executable) -> Found:
    """What the child found; {'error': sentence} when it did not answer in time, or ended without an answer."""
    command = [python, "-P", "-m", "kdiff.agent.doctor_child", what]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        try:
            out, complaint = child.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            child.kill()
            return {"error": f"no answer within {timeout_s:.0f} s"}
    try:
        found = json.loads(out.splitlines()[-1])
        if isinstance(found, dict):
            return found
    except (ValueError, IndexError):
        pass
    last = (complaint.decode(errors="replace").strip().splitlines() or [""])[-1]
    return {"error": f"it ended with status {child.returncode} {last}".rstrip()}


def try_probes() -> Found:
    """Loads the BPF program, probes a program of our own, runs it, and reads the events it made."""
    found: Found = {}
    tracing = Tracing()
    program = _load(tracing, found)
    try:
        with installed(machine()) as path:
            return found | _events(program, tracing, path)
    finally:
        program.close()


def _load(tracing: Tracing, found: Found) -> Program:
    try:
        program = Program(tracing, multi=True)
        found["multi"] = True
    except AgentError:
        program = Program(tracing, multi=False)
        found["multi"] = False
    found["bcc"] = str(getattr(sys.modules.get("bcc"), "__version__", "unknown"))
    return program


def _events(program: Program, tracing: Tracing, path: str) -> Found:
    point = next(p for p in POINTS if p.symbol == "cuCtxSynchronize")
    at = function(machine())
    ring = Ring(program.map("events").map_fd, tracing.event_pages * 4096, EVENT)
    found: Found = {}
    try:
        program.attach(path, [Probe(START, Step.INIT, COUNTER)], "lifecycle_entry")
        found["counter"] = True
    except OSError as error:
        found["counter"] = False
        found["counter_error"] = error.strerror
        program.attach(path, [Probe(START, Step.INIT)], "lifecycle_entry")
    program.attach(path, [Probe(at)], "call_return", returns=True)
    program.attach(path, [Probe(at, cookie(tracing, point))], "call_entry")
    child = subprocess.Popen([path], stdin=subprocess.DEVNULL)
    try:
        found["exit"] = child.wait(timeout=5)
    except subprocess.TimeoutExpired:
        child.kill()
        found["exit"] = child.wait()
    events = ring.read()
    return found | {
        "pid": child.pid,
        "pids": sorted({int(pid) for pid in events["pid"]}),
        "entries": int((events["kind"] == Kind.INIT).sum()),
        "results": [int(status) for status in events["status"][events["kind"] == Kind.SYNC]],
    }


def ask_nvml() -> Found:
    """The driver and its GPUs, by NVML."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import pynvml
    pynvml.nvmlInit()
    gpus = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        device = pynvml.nvmlDeviceGetHandleByIndex(index)
        mig = _or_none(pynvml.nvmlDeviceGetMigMode, device)
        gpus.append({"name": str(pynvml.nvmlDeviceGetName(device)), "mig": bool(mig and mig[0])})
    confidential = _or_none(pynvml.nvmlSystemGetConfComputeState)
    return {
        "driver": str(pynvml.nvmlSystemGetDriverVersion()),
        "cuda": _or_none(pynvml.nvmlSystemGetCudaDriverVersion_v2),
        "gpus": gpus,
        "confidential": bool(confidential and confidential.ccFeature),
    }


def _or_none(function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except Exception:  # NVML's errors are generated classes; an older driver lacks the function
        return None


_TRIES: Final[Mapping[str, Callable[[], Found]]] = {"probes": try_probes, "nvml": ask_nvml}


def main() -> None:
    """Prints what was found; an error is found too."""
    ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL: nothing outlives doctor
    try:
        found = _TRIES[sys.argv[1]]()
    except Exception as error:  # whatever it is, it is what doctor is asked for
        found = {"error": (str(error).splitlines() or [type(error).__name__])[0]}
        if not isinstance(error, AgentError):
            found["kind"] = type(error).__name__
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
