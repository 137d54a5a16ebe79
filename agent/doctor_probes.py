"""`doctor`: whether the BPF program loads and probes work, by trying it."""

from __future__ import annotations

from typing import Final

from kdiff.agent.doctor_check import Answer, Check, fail, ok, warn
from kdiff.agent.doctor_child import Found
from kdiff.agent.doctor_program import HANDED, RESULT

GROUP: Final = "Probes"


def not_tried() -> Check:
    """In place of a trial that would only be refused."""
    return warn(GROUP, "BPF program", "not tried without permission", "run doctor as root", Answer.FAILS)


def probes(found: Found) -> list[Check]:
    """What a trial with a program of our own says (see doctor_child.try_probes)."""
    if "error" in found:
        fact, _, mend = str(found["error"]).partition(": ")
        if "kind" in found:
            fact, mend = f"{found['kind']}: {found['error']}", ""
        return [fail(GROUP, "BPF program", fact, mend or "please report it, with the end of the kernel's log (dmesg)")]
    way = "uprobe_multi" if found["multi"] else "a perf event each, as before Linux 6.6"
    return [
        ok(GROUP, "BPF program", f"loads, with BCC {found['bcc']}"),
        _uprobes(found, way),
        _returns(found),
        _device(found),
    ]


def _uprobes(found: Found, way: str) -> Check:
    if found["hung"]:
        mend = "look into the kernel's log (dmesg), and report it"
        return fail(GROUP, "uprobes", "a program that ran through a probe did not end", mend)
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


def _device(found: Found) -> Check:
    """Without the counter the library in the traced program never learns that somebody listens."""
    if found["device"]:
        why = found["device"]
    elif found["exit"] != 1:
        why = f"the kernel counted {found['exit']} probes in the program in place of 1"
    elif found["handed"] != [HANDED.decode()]:
        why = "what a program handed over did not come"
    else:
        return ok(GROUP, "device time", "a probe in one process, counted there; what it handed over came")
    mend = "update the kernel, and report it with the end of its log (dmesg); launches and syncs are recorded"
    return warn(GROUP, "device time", why, mend, Answer.FAILS)
