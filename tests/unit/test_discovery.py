"""Processes that use CUDA are found by what they map."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kdiff.agent import discovery
from kdiff.agent.discovery import LOOK_EVERY_S, Discovery
from standins.standins import build

LATE = (
    "import ctypes, sys; sys.stdin.readline(); ctypes.CDLL(sys.argv[1]); print('up', flush=True); sys.stdin.readline()"
)


@pytest.fixture(autouse=True)
def _all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "_AT_ONCE_S", 60.0)


@pytest.fixture
def late() -> Iterator[subprocess.Popen[str]]:
    """A program that loads the driver when it is told to."""
    with subprocess.Popen(
        [sys.executable, "-c", LATE, str(build().driver)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


def tell(process: subprocess.Popen[str]) -> None:
    assert process.stdin
    assert process.stdout
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.stdout.readline() == "up\n"


def test_a_process_is_told_once_when_it_maps_a_driver(late: subprocess.Popen[str]) -> None:
    found, now = Discovery(), time.monotonic()
    assert late.pid not in set(found.found(now))
    tell(late)
    assert set(found.found(now + LOOK_EVERY_S / 2)) == set()
    assert late.pid in set(found.found(now + LOOK_EVERY_S))
    assert late.pid not in set(found.found(now + 100))
    found.forget(late.pid)
    assert late.pid in set(found.found(now + 200))


def test_an_old_process_is_looked_at_seldom(late: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch) -> None:
    boot = time.clock_gettime(time.CLOCK_BOOTTIME)
    monkeypatch.setattr(discovery.time, "clock_gettime", lambda _: boot + 40)
    found, now = Discovery(), time.monotonic()
    assert late.pid not in set(found.found(now))
    tell(late)
    assert late.pid not in set(found.found(now + 9))
    assert late.pid in set(found.found(now + 11))


def test_what_is_no_program_is_left_alone() -> None:
    found, now = Discovery(), time.monotonic()
    set(found.found(now))
    never = {pid for pid, at in found._look_at.items() if at == float("inf")}
    told = {pid for pid in never if os.path.lexists(f"/proc/{pid}/exe")}
    assert os.getpid() not in never
    assert all(b"/libcuda" in Path(f"/proc/{pid}/maps").read_bytes() for pid in told)


def test_a_process_that_ends_is_forgotten(late: subprocess.Popen[str]) -> None:
    found, now = Discovery(), time.monotonic()
    set(found.found(now))
    assert late.pid in found._look_at
    late.kill()
    late.communicate()
    set(found.found(now + LOOK_EVERY_S))
    assert late.pid not in found._look_at


def test_a_look_at_many_processes_is_taken_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """No call takes long, each process gets its turn, and one that is new goes before those that were looked at."""
    looked: list[int] = []

    def look(pid: int, now: float) -> tuple[bool, float]:
        time.sleep(0.001)
        looked.append(pid)
        return False, now + LOOK_EVERY_S

    present = list(range(1, 201))
    monkeypatch.setattr(discovery, "_look", look)
    monkeypatch.setattr(discovery, "_AT_ONCE_S", 0.02)
    monkeypatch.setattr(discovery.procfs, "pids", lambda: present)
    found, now = Discovery(), 1000.0
    calls = 0
    while len(looked) < 200:
        before = len(looked)
        set(found.found(now + calls * 0.01))
        calls += 1
        assert len(looked) - before <= 20
    assert looked == present
    present.insert(0, 999)
    set(found.found(now + 100))
    assert looked[200:203] == [999, 1, 2]
