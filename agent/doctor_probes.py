"""`doctor`: whether the BPF program loads and probes work, by trying it."""

from __future__ import annotations

from typing import Final

from kdiff.agent.doctor_check import Answer, Check, fail, ok, warn
from kdiff.agent.doctor_child import Found
from kdiff.agent.doctor_program import RESULT

GROUP: Final = "Probes"


def probes(found: Found) -> list[Check]:
    """What a trial with a program of our own says (see doctor_child.try_probes)."""
    if "error" in found:
        fact, _, mend = str(found["error"]).partition(": ")
        if "kind" in found:
            fact, mend = f"{found['kind']}: {found['error']}", ""
        return [fail(GROUP, "BPF program", fact, mend or "run it again with KDIFF_DEBUG=1, and report it")]
    way = "uprobe_multi" if found["multi"] else "a perf event each, as before Linux 6.6"
    return [
        ok(GROUP, "BPF program", f"loads, with BCC {found['bcc']}"),
        _uprobes(found, way),
        _returns(found),
        _counter(found),
    ]


def _uprobes(found: Found, way: str) -> Check:
    if not found["entries"]:
        return fail(
            GROUP,
            "uprobes",
            f"attached ({way}), but no event came from a program that ran through the probe",
            "look for a security module or another tool that removes probes, in the kernel's log (dmesg)",
        )
    if found["pids"] != [found["pid"]]:
        return fail(
            GROUP,
            "uprobes",
            f"process {found['pid']} here is {found['pids'][0]} to the kernel",
            "run the agent in the host's process namespace (docker run --pid=host, hostPID: true)",
        )
    return ok(GROUP, "uprobes", f"attached, hit and read from the ring ({way})")


def _returns(found: Found) -> Check:
    if found["exit"] < 0:
        return warn(
            GROUP,
            "return probes",
            f"they kill a program here (signal {-found['exit']})",
            "record with --no-return: the seccomp filter of this container does not know the kernel's return probes",
        )
    if found["results"] != [RESULT]:
        return warn(GROUP, "return probes", "no event came from one", "record with --no-return")
    return ok(GROUP, "return probes", "hit, with the function's result")


def _counter(found: Found) -> Check:
    """Without it the library in the traced program never learns that somebody listens."""
    if not found["counter"]:
        why = f"refused ({found['counter_error']})"
    elif found["exit"] != 1:
        why = f"taken, but the counter stayed at {found['exit']}"
    else:
        return ok(GROUP, "reference counter", "counted in the probed program")
    mend = "take Linux 4.20 or newer with CONFIG_UPROBE_EVENTS; until then launches and syncs are recorded"
    return warn(GROUP, "reference counter", why, mend, Answer.FAILS)
