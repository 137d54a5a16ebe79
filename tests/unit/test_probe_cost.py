"""kdiff.agent.probe_cost, and how full rings were: what an agent tells of its own cost."""

from __future__ import annotations

import signal
import subprocess
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kdiff.agent import probe_cost
from kdiff.agent.bpf import Program
from kdiff.agent.doctor_program import BASE, START, image
from kdiff.agent.elf import open_elf
from kdiff.agent.probe_cost import ProbeCost, measure
from kdiff.agent.recording import Summary
from kdiff.agent.ring import Highest, rings_of
from kdiff.probes.points import POINTS
from kdiff.probes.program import Layers, Tracing
from kdiff.probes.wire import Kind

API = {point.symbol: number for number, point in enumerate(POINTS)}
CODE = {machine: bytes.fromhex(code) for machine, code in probe_cost._CODE.items()}


def test_launches_are_charged_by_the_function_that_was_called() -> None:
    cost = ProbeCost(1500.0, 900.0)
    calls = ["cudaLaunchKernel"] * 3 + ["cudaGraphLaunch"] + ["cuLaunchKernel"] * 2 + ["cuLaunchKernelEx"]
    assert cost.added_ns(np.array([API[symbol] for symbol in calls], np.uint8)) == 4 * 1500 + 3 * 900
    assert cost.added_ns(np.array([], np.uint8)) == 0


def test_a_summary_counts_launches_where_their_cost_was_not_measured() -> None:
    summary = Summary()
    summary.launched(np.array([API["cuLaunchKernel"]] * 7))
    assert (summary.launches, summary.added_ns) == (7, 0.0)


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_program_is_what_it_says(machine: str, tmp_path: Path) -> None:
    path = tmp_path / "program"
    path.write_bytes(image(machine, CODE[machine]))
    with open_elf(str(path)) as elf:
        assert elf.interpreter() is None
    first = {"x86_64": b"\x55", "aarch64": None}[machine]
    runtime, driver = probe_cost._FUNCTIONS[machine]
    assert len(CODE[machine]) < 0x100
    assert CODE[machine][runtime : runtime + 1] == (first or b"\xfd")
    assert CODE[machine][driver : driver + 1] == (first or b"\x1f")


@pytest.mark.ebpf
def test_it_ends_well_and_says_what_it_used(tmp_path: Path) -> None:
    path = tmp_path / "program"
    path.write_bytes(image("x86_64", CODE["x86_64"]))
    path.chmod(0o700)
    for offset in probe_cost._FUNCTIONS["x86_64"]:
        assert 0 < probe_cost._used_ns(str(path), 1000, BASE + START + offset) < 1e9
        with pytest.raises(ValueError, match="it ended with -11"):
            probe_cost._used_ns(str(path), 1000, 8)


@pytest.mark.ebpf
@pytest.mark.filterwarnings("ignore:not a bytes object:DeprecationWarning")
@pytest.mark.parametrize("layers", list(Layers))
def test_the_cost_is_that_of_the_probes_and_leaves_nothing(layers: Layers) -> None:
    tracing = Tracing(layers=layers)
    program = Program(tracing)
    try:
        cost = measure(program, tracing)
        assert cost is not None
        probed = {
            Layers.BOTH: (cost.runtime_ns, cost.driver_ns),
            Layers.RUNTIME: (cost.runtime_ns,),
            Layers.DRIVER: (cost.driver_ns,),
        }
        assert all(200 < ns < 100_000 for ns in probed[layers]), cost
        if layers is Layers.BOTH:
            assert cost.runtime_ns > 1.2 * cost.driver_ns, "two layers cost more than one"
        if layers is Layers.RUNTIME:
            assert cost.driver_ns < 200, "nothing is probed there"
        assert program.attached == 0
        assert [len(ring.read()) for ring in rings_of(program, tracing).values()] == [0, 0, 0]
        lost = program.map("lost")
        assert [lost.sum(lost.Key(kind)).value for kind in range(len(Kind))] == [0] * len(Kind)
    finally:
        program.close()


def test_where_it_cannot_be_measured_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing:
        def attach(self, *_: object, **__: object) -> None:
            raise OSError(1, "Operation not permitted")

        def detach(self) -> None:
            pass

    monkeypatch.setattr(probe_cost, "rings_of", lambda *_: {})
    assert measure(Refusing(), Tracing()) is None  # type: ignore[arg-type]
    monkeypatch.setattr(probe_cost, "machine", lambda: "riscv64")
    assert measure(Refusing(), Tracing()) is None  # type: ignore[arg-type]


def test_a_program_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_cost, "_LIMIT_S", 0.2)
    hanging = tmp_path / "program"
    hanging.write_text("#!/bin/sh\nexec sleep 60\n")
    hanging.chmod(0o700)
    with pytest.raises(ValueError, match="it ended with -9"):
        probe_cost._used_ns(str(hanging), 1, 1)
    assert subprocess.run(["true"], check=False).returncode == 0


def test_where_no_thread_may_be_started_it_is_not_measured_and_the_program_is_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[subprocess.Popen[bytes]] = []

    class Kept(subprocess.Popen[bytes]):
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            started.append(self)

    def refuse(_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(subprocess, "Popen", Kept)
    monkeypatch.setattr(threading.Timer, "start", refuse)
    monkeypatch.setattr(probe_cost, "_attach", lambda *_: None)
    monkeypatch.setattr(probe_cost, "rings_of", lambda *_: {})
    assert measure(SimpleNamespace(detach=lambda: None), Tracing()) is None  # type: ignore[arg-type]
    assert [child.returncode for child in started] == [-signal.SIGKILL]


def test_the_highest_is_of_a_minute_or_two() -> None:
    highest = Highest()
    assert highest.value == 0
    for at, value, told in ((100, 0.3, 0.3), (130, 0.1, 0.3), (161, 0.2, 0.3), (219, 0.1, 0.3), (222, 0.1, 0.2)):
        highest.see(value, at)
        assert highest.value == told
    highest.see(0.05, 500)
    assert highest.value == 0.05
