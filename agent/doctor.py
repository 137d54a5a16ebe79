"""`kdiff-agent doctor`: whether recording would work on this host, and why not.

Every check runs beside the others and has a time limit: on a host that needs a doctor, things hang.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import wrap
from typing import Any, Final

from kdiff.agent import (
    doctor_cuda,
    doctor_device,
    doctor_host,
    doctor_probes,
    doctor_process,
    doctor_scheduling,
    doctor_store,
)
from kdiff.agent.doctor_check import Answer, Check, Level, device_time, fail, recording, warn
from kdiff.agent.doctor_child import ask
from kdiff.agent.libraries import command_files

SCHEMA: Final = "kdiff-doctor/1"
_LIMIT_S: Final = 30.0
_CHILD_LIMIT_S: Final = 20.0
_COLOURS: Final = {Level.OK: "\x1b[32m", Level.WARN: "\x1b[33m", Level.FAIL: "\x1b[1;31m"}
_RESET: Final = "\x1b[0m"
_BOLD: Final = "\x1b[1m"
_OF_ONE: Final = ("libcuda", "CUPTI")  # what a process or command has makes the host's copy unimportant

Run = Callable[[], Check | Sequence[Check] | None]


@dataclass(frozen=True)
class Question:
    """What to look at besides the host."""

    directory: Path
    state: Path | None = None
    pids: Sequence[int] = ()
    command: Sequence[str] = ()
    store: str = ""
    """The address of the server that `run` would ship to; '' for none."""
    max_bytes: int | None = None
    """How large the spool in `directory` may grow; None where captures are not bounded."""
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    unread: str = ""
    """Why the file of settings does not say which server that is."""


@dataclass(frozen=True)
class Report:
    """Every finding, in the order in which they are shown."""

    checks: Sequence[Check]

    @property
    def exit_code(self) -> int:
        """0: recording works; 2: it does not."""
        return 0 if recording(self.checks) is Answer.WORKS else 2


def examine(question: Question) -> Report:
    """Looks at everything; takes some seconds, at most about 30, whatever hangs."""
    found = _without_consequences(together(_plan(question), _LIMIT_S))
    own = {check.name for check in found if check.group not in _HOST_GROUPS and check.level is Level.OK}
    return Report([c for c in found if not (c.group in _HOST_GROUPS and c.name in _OF_ONE and c.name in own)])


def _without_consequences(found: list[Check]) -> list[Check]:
    """Where no BPF program loads, one finding says so, and not each trial that needs one."""
    programs = [check for check in found if (check.group, check.name) == (doctor_probes.GROUP, "BPF program")]
    if all(check.level is Level.OK for check in programs):
        return found
    return [check for check in found if check.group != doctor_probes.GROUP or check in programs]


_HOST_GROUPS: Final = (doctor_host.GROUP, doctor_probes.GROUP, doctor_cuda.GROUP, doctor_device.GROUP)


def _plan(question: Question) -> list[tuple[str, str, Run]]:
    """(group, name, check) in the order of the report; the name is of what is missing when it fails to answer."""
    environment, state = question.environment, question.state
    host, probes, cuda, device = _HOST_GROUPS
    plan: list[tuple[str, str, Run]] = [
        (host, "permission", doctor_host.permission),
        (host, "kernel", doctor_host.kernel),
        (host, "clock", doctor_host.clock),
        (host, "locked memory", doctor_host.memory),
        (host, "other processes", doctor_host.other_memory),
        (host, "disk", lambda: doctor_host.disk(question.directory, question.max_bytes)),
        (probes, "BPF program", _probes),
        (probes, "scheduling", _scheduling),
        (cuda, "GPUs", lambda: doctor_cuda.nvml(ask("nvml", _CHILD_LIMIT_S))),
        (cuda, "libcuda", lambda: doctor_cuda.driver_library(_drivers(environment), state)),
        (device, "library", doctor_device.library),
        (device, "CUPTI", lambda: doctor_device.cupti(_copies(environment))),
        (device, "GPU counters", doctor_device.admin_only),
    ]
    if not question.pids and not question.command:
        plan.append((device, "injection", lambda: doctor_device.injected(environment, device)))
    for pid in question.pids:
        plan.append((f"Process {pid}", "process", _process(pid, state)))
    if question.unread:
        plan.append((doctor_store.GROUP, "settings", lambda: [doctor_store.unread(question.unread)]))
    if question.store:
        plan.append((doctor_store.GROUP, "server", lambda: doctor_store.store(question.store, environment)))
    if question.command:
        words = question.command
        plan.append(("Command", "program", lambda: doctor_process.command(words, environment, state)))
    return plan


def _probes() -> Sequence[Check]:
    if doctor_host.permission().level is Level.FAIL:
        return [doctor_probes.not_tried()]
    return doctor_probes.probes(ask("probes", _CHILD_LIMIT_S))


def _scheduling() -> Check | None:
    if doctor_host.permission().level is Level.FAIL:
        return None
    return doctor_scheduling.scheduling(ask("scheduling", _CHILD_LIMIT_S), doctor_probes.GROUP)


def _process(pid: int, state: Path | None) -> Run:
    return lambda: doctor_process.process(pid, doctor_process.look_at(pid), state)


def _drivers(environment: Mapping[str, str]) -> list[str]:
    return [path for path in command_files((), environment) if os.path.basename(path).startswith("libcuda.so")]


def _copies(environment: Mapping[str, str]) -> list[str]:
    return doctor_device.cupti_copies(environment, doctor_device.python_packages())


def together(plan: Sequence[tuple[str, str, Run]], limit_s: float) -> list[Check]:
    """Runs the checks side by side. One that hangs or breaks is a finding too: a failure where recording needs it."""
    results: list[list[Check] | None] = [None] * len(plan)

    def run(number: int, group: str, name: str, check: Run) -> None:
        try:
            result = check()
        except Exception as error:  # doctor never ends in a traceback
            results[number] = [_broken(group, name, f"{type(error).__name__}: {error}")]
            return
        results[number] = [result] if isinstance(result, Check) else list(result or ())

    threads = [threading.Thread(target=run, args=(n, *entry), daemon=True) for n, entry in enumerate(plan)]
    for thread in threads:
        thread.start()
    end = time.monotonic() + limit_s
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    found: list[Check] = []
    for (group, name, _), result in zip(plan, results, strict=True):
        found += [_broken(group, name, f"no answer within {limit_s:.0f} s")] if result is None else result
    return found


def _broken(group: str, name: str, fact: str) -> Check:
    if group in (doctor_host.GROUP, doctor_probes.GROUP):
        return fail(group, name, fact, "look into the kernel's log (dmesg); please report it if nothing is there")
    if group == doctor_store.GROUP:
        return warn(group, name, fact, f"look at the server and at the way to it; {doctor_store.WAITS}")
    return warn(group, name, fact, "look into the kernel's log (dmesg) for the GPU driver's errors", Answer.UNSURE)


# ---- the report ----


def render(report: Report, form: str, width: int = 100, colour: bool = False) -> str:
    """The report as text that ends with a newline; `form`: text or json."""
    if form == "json":
        return json.dumps(_object(report), indent=2) + "\n"
    names = max(len(check.name) for check in report.checks)
    lines: list[str] = []
    group = ""
    for check in report.checks:
        if check.group != group:
            lines += [""] * bool(lines) + [_painted(check.group, _BOLD, colour)]
            group = check.group
        level = _painted(f"{check.level.value:<4}", _COLOURS[check.level], colour)
        margin = " " * (names + 10)
        fact, *more = _wrapped(check.fact, width - len(margin))
        lines.append(f"  {level}  {check.name:<{names}}  {fact}")
        lines += [margin + line for line in more]
        if check.mend:
            first, *more = _wrapped(check.mend, width - len(margin) - 2)
            lines += [f"{margin}> {first}", *(f"{margin}  {line}" for line in more)]
    lines += ["", *(_painted(line, _BOLD, colour) for line in _conclusion(report))]
    return "\n".join(lines) + "\n"


def _conclusion(report: Report) -> list[str]:
    lines = []
    failed = [check.name for check in report.checks if check.level is Level.FAIL]
    lines.append(f"Recording does not work: {', '.join(failed)}." if failed else "Recording works.")
    if shipping := _of_store(report):
        broken = ", ".join(check.name for check in shipping if check.level is not Level.OK)
        lines.append(f"Shipping does not work: {broken}." if broken else "Shipping works.")
    answer = device_time(report.checks)
    why = ", ".join(dict.fromkeys(check.name for check in report.checks if check.device_time is answer))
    lines.append(
        {
            Answer.WORKS: "Device time works.",
            Answer.UNSURE: f"Device time may work, it depends on: {why}.",
            Answer.FAILS: f"Device time does not work: {why}.",
        }[answer]
    )
    return lines


def _of_store(report: Report) -> list[Check]:
    return [check for check in report.checks if check.group == doctor_store.GROUP]


def _shipping(report: Report) -> str:
    found = _of_store(report)
    works = all(check.level is Level.OK for check in found)
    return "none" if not found else (Answer.WORKS if works else Answer.FAILS).value


def _object(report: Report) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "recording": recording(report.checks).value,
        "device_time": device_time(report.checks).value,
        "shipping": _shipping(report),
        "exit_code": report.exit_code,
        "checks": [
            {
                "group": check.group,
                "name": check.name,
                "level": check.level.value.lower(),
                "fact": _printable(check.fact),
                "mend": _printable(check.mend),
                "device_time": check.device_time.value,
            }
            for check in report.checks
        ],
    }


def _wrapped(text: str, width: int) -> list[str]:
    return wrap(_printable(text), max(width, 30), break_long_words=False, break_on_hyphens=False) or [""]


def _printable(text: str) -> str:
    """Names and paths are of other people's processes: no control codes of theirs reach a terminal."""
    return "".join(character if character.isprintable() else "?" for character in text)


def _painted(text: str, code: str, colour: bool) -> str:
    return f"{code}{text}{_RESET}" if colour else text
