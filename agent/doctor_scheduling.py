"""`doctor`: whether `--scheduling on` would work, by trying it on a program of our own."""

from __future__ import annotations

import subprocess
import time
from typing import Any, Final

from kdiff.agent.bpf import Probe, Program
from kdiff.agent.doctor_check import Check, ok, warn
from kdiff.agent.doctor_program import START, functions, installed
from kdiff.agent.ring import rings_of
from kdiff.probes.points import POINTS
from kdiff.probes.program import Tracing, cookie, machine

_NAME: Final = "scheduling"
_WAIT_S: Final = 0.2
_MEND: Final = "record with --scheduling off, and report it with the end of the kernel's log (dmesg)"


def try_scheduling() -> dict[str, Any]:
    """Runs a program that calls, waits until it is told to go on, calls again and ends; what was seen of it."""
    tracing = Tracing(event_pages=16, name_pages=1, device_pages=1, wait_pages=1, any_returns=False, scheduling=True)
    program = Program(tracing)
    try:
        program.attach_scheduling()
        rings = rings_of(program, tracing)
        point = next(p for p in POINTS if p.symbol == "cuCtxSynchronize")
        with installed(machine()) as path:
            # Entries alone: a return probe kills a program under some seccomp filters.
            entries = [Probe(at, cookie(tracing, point)) for at in (START, functions(machine())[0])]
            program.attach(path, entries, "call_entry")
            child = subprocess.Popen([path], stdin=subprocess.PIPE)
            try:
                time.sleep(_WAIT_S)
                child.communicate(b"\n", timeout=5)
            finally:
                child.kill()
                child.wait()
        return {
            "calls": len(rings["events"].read()),
            "blocked_ns": int(rings["waits"].read()["blocked_before_ns"].sum()),
            "left": len(program.map("threads").values()),
        }
    finally:
        program.close()


def scheduling(found: dict[str, Any], group: str) -> Check:
    """What the trial says."""
    if "error" in found:
        fact, _, mend = str(found["error"]).partition(": ")
        return warn(group, _NAME, f"--scheduling on does not work: {fact}", mend or _MEND)
    if found["calls"] != 2 or not found["blocked_ns"]:
        return warn(group, _NAME, "--scheduling on does not work: the wait of a program was not seen", _MEND)
    if found["left"]:
        return warn(group, _NAME, "--scheduling on does not work: the end of a thread was not seen", _MEND)
    return ok(group, _NAME, "--scheduling on works: the kernel's scheduler tells which threads wait")
