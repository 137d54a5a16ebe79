"""What probes add to a launch on this host: measured with a program of the agent's own before anything is recorded.

The program calls a function that stands for the runtime's launch, which calls one that stands for the driver's, or the
latter alone, so and so many times. Both are probed as the real ones are, with the same BPF programs; what it used of
the CPU, in a long run less a short one, is what the probes cost: a call without them takes two nanoseconds. Why so:
docs/adr/0018-cost-measured-at-the-start.md.
"""

from __future__ import annotations

import os
import statistics
import struct
import subprocess
import threading
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kdiff.agent.bpf import Probe, Program
from kdiff.agent.doctor_program import BASE, START, installed
from kdiff.agent.errors import AgentError
from kdiff.agent.ring import rings_of
from kdiff.probes.points import POINTS, Layer, Point
from kdiff.probes.program import Tracing, cookie, machine

_LONG, _SHORT = 1_100, 100  # calls
_TURNS: Final = 5
_LIMIT_S: Final = 2.0
_CODE: Final = {
    "x86_64": (
        "31ff 488d3507ff0000 ba10000000 31c0 0f05"  # read(0, BUFFER, 16)
        "488b1df7fe0000 4c8b25f8fe0000 4885db 740f"  # count, function = BUFFER; while (count)
        "488d3dd4fe0000 41ffd4 48ffcb 75f1"  # function(DATA), count--
        "31ff b83c000000 0f05"  # exit(0)
        "55 e802000000 5d c3"  # runtime: push %rbp, call driver, pop %rbp, ret
        "55 31c0 5d c3"  # driver: push %rbp, xor %eax, %eax, pop %rbp, ret
    ),
    "aarch64": (
        "000080d2 61f80710 020280d2 e80780d2 010000d4"  # read(0, BUFFER, 16)
        "e9f70710 335140a9 b30000b4"  # ldp x19, x20, BUFFER, cbz x19
        "00f70710 80023fd6 730600f1 a1ffff54"  # adr x0, DATA, blr x20, subs x19, x19, #1, b.ne
        "000080d2 a80b80d2 010000d4"  # exit(0)
        "fd7bbfa9 03000094 fd7bc1a8 c0035fd6"  # runtime: stp x29, x30, bl driver, ldp, ret
        "1f2003d5 00008052 c0035fd6"  # driver: nop, mov w0, #0, ret
    ),
}
_FUNCTIONS: Final = {"x86_64": (0x3D, 0x45), "aarch64": (0x3C, 0x4C)}  # runtime and driver, bytes into the code
_SYMBOLS: Final = ("cudaLaunchKernel", "cuLaunchKernel")
_OF_RUNTIME: Final = np.array([point.layer is Layer.RUNTIME for point in POINTS])


@dataclass(frozen=True)
class ProbeCost:
    """CPU ns that probes add to a launch by the runtime, through both layers, and to one by the driver alone."""

    runtime_ns: float = 0.0
    driver_ns: float = 0.0

    def added_ns(self, apis: NDArray[Any]) -> float:
        """To launches by these functions, as `cuda_events` numbers them."""
        by_runtime = int(np.count_nonzero(_OF_RUNTIME[apis]))
        return by_runtime * self.runtime_ns + (len(apis) - by_runtime) * self.driver_ns


def measure(program: Program, tracing: Tracing) -> ProbeCost | None:
    """None where it cannot be measured. Nothing else is attached yet and nothing has been read; takes about 0.1 s."""
    try:
        code = bytes.fromhex(_CODE[machine()])
        with installed(machine(), code) as path:
            try:
                _attach(program, tracing, path)
                return ProbeCost(*(_cost(path, offset) for offset in _FUNCTIONS[machine()]))
            finally:
                program.detach()
                for ring in rings_of(program, tracing).values():  # some 12,000 events are nobody's
                    ring.read()
    except (OSError, AgentError, ValueError, KeyError, RuntimeError):  # the latter: no thread may be started
        return None


def _attach(program: Program, tracing: Tracing, path: str) -> None:
    points = [_point(symbol) for symbol in _SYMBOLS]
    places = [(point, START + at) for point, at in zip(points, _FUNCTIONS[machine()], strict=True)]
    probed = [(point, offset) for point, offset in places if tracing.probes(point)]
    returns = [Probe(offset) for point, offset in probed if tracing.returns(point)]
    program.attach(path, returns, "call_return", returns=True)
    program.attach(path, [Probe(offset, cookie(tracing, point)) for point, offset in probed], "call_entry")


def _point(symbol: str) -> Point:
    return next(point for point in POINTS if point.symbol == symbol)


def _cost(path: str, offset: int) -> float:
    """CPU ns of one call. Raises OSError, ValueError, RuntimeError."""
    function = BASE + START + offset
    costs = [(_used_ns(path, _LONG, function) - _used_ns(path, _SHORT, function)) for _ in range(_TURNS)]
    return max(0.0, statistics.median(costs) / (_LONG - _SHORT))


def _used_ns(path: str, count: int, function: int) -> float:
    child = subprocess.Popen([path], stdin=subprocess.PIPE, bufsize=0)
    assert child.stdin is not None
    hanging = threading.Timer(_LIMIT_S, child.kill)
    try:
        hanging.start()
        child.stdin.write(struct.pack("<QQ", count, function))
        child.stdin.close()
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    finally:
        hanging.cancel()
        if child.returncode is None:
            child.kill()  # before its input ends, which is an end of its own
            child.stdin.close()
            child.wait()
    if child.returncode:  # a return probe under a seccomp filter, say
        raise ValueError(f"it ended with {child.returncode}")
    return (used.ru_utime + used.ru_stime) * 1e9
