"""What doctor tries in a process of its own: libraries that may hang or crash, and probes, which end with it.

`python -P -m kdiff.agent.doctor_child probes|scheduling|nvml` prints what it found as one JSON object.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Final

from kdiff.agent.bpf import Probe, Program, explain_attach
from kdiff.agent.doctor_program import COUNTER, START, functions, installed
from kdiff.agent.doctor_scheduling import try_scheduling
from kdiff.agent.errors import AgentError
from kdiff.agent.ring import Ring
from kdiff.probes.device_wire import HANDED
from kdiff.probes.points import POINTS, Step
from kdiff.probes.program import Tracing, cookie, machine
from kdiff.probes.wire import EVENT, Kind

Found = dict[str, Any]


def ask(what: str, timeout_s: float, python: str = sys.executable) -> Found:
    """What the child found; {'error': sentence} when it did not answer in time, or ended without an answer."""
    command = [python, "-P", "-m", "kdiff.agent.doctor_child", what]
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    except OSError as error:
        return {"error": f"{python} cannot be started ({error.strerror})"}
    try:
        out, complaint = child.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        child.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # what hangs in a driver does not end by that
            child.communicate(timeout=1)
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
    function, handover = functions(machine())
    events = Ring(program.map("events").map_fd, tracing.event_pages * 4096, EVENT)
    batches = Ring(program.map("device").map_fd, tracing.device_pages * 4096, HANDED)
    program.attach(path, [Probe(START, Step.INIT)], "lifecycle_entry")
    program.attach(path, [Probe(function)], "call_return", returns=True)
    program.attach(path, [Probe(function, cookie(tracing, point))], "call_entry")
    found: Found = {"device": "", "hung": False}
    child = subprocess.Popen([path], stdin=subprocess.PIPE)
    try:
        try:
            program.attach_to(child.pid, path, Probe(handover, 0, COUNTER), "device_entry")
        except OSError as error:
            found["device"] = explain_attach(error)
        child.communicate(b"\n", timeout=5)
    except subprocess.TimeoutExpired:
        found["hung"] = True
    finally:
        child.kill()
        found["exit"] = child.wait()
    seen, handed = events.read(), batches.read()
    return found | {
        "pid": child.pid,
        "pids": sorted({int(pid) for pid in seen["pid"]}),
        "entries": int((seen["kind"] == Kind.INIT).sum()),
        "results": [int(status) for status in seen["status"][seen["kind"] == Kind.SYNC]],
        "handed": [batch["batch"].tobytes()[: int(batch["bytes"])].decode("latin-1") for batch in handed],
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
        "driver": str(_or_none(pynvml.nvmlSystemGetDriverVersion) or "unknown"),
        "cuda": _or_none(pynvml.nvmlSystemGetCudaDriverVersion_v2),
        "gpus": gpus,
        "confidential": bool(confidential and confidential.ccFeature and not confidential.devToolsMode),
    }


def _or_none(function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except Exception:  # NVML's errors are generated classes; an older driver lacks the function
        return None


_TRIES: Final[Mapping[str, Callable[[], Found]]] = {
    "probes": try_probes,
    "scheduling": try_scheduling,
    "nvml": ask_nvml,
}


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
