"""Listening to the device library: which processes have it mapped, and the probe on its function in each of them.

The kernel counts probes in a variable of the library, in each process that the probe is in, and the library opens no
window while it is 0. So there is a probe for each traced process: one for the whole file would switch device time on
in processes that nobody records. A forked child keeps a copy of the count; the library is off in it anyway.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass

from kdiff.agent import procfs
from kdiff.agent.bpf import Link, Probe, Program, explain_attach
from kdiff.agent.elf import Elf
from kdiff.agent.errors import ElfError
from kdiff.probes.device_library import BASENAME
from kdiff.probes.device_wire import HANDOVER, LISTENERS

FileKey = tuple[bytes, int]


@dataclass
class _Listened:
    """A process that has the library mapped. No `link`: it is not listened to."""

    start_ticks: int
    link: Link | None
    key: FileKey  # of the library
    silent_until: float = 0.0  # monotonic seconds


class Listener:
    """The probes on the device library of one recording."""

    def __init__(self, program: Program, note: Callable[[str], None]) -> None:
        """`note` takes warnings."""
        self._program = program
        self._note = note
        self._files: dict[FileKey, Probe | None] = {}
        self._processes: dict[int, _Listened] = {}

    def look(self, pid: int, start_ticks: int, mappings: list[procfs.Mapping], now: float) -> None:
        """Listens to a process that maps the library (`now`: monotonic seconds)."""
        known = self._processes.get(pid)
        libraries = [m for m in mappings if m.executable and BASENAME in os.path.basename(m.path)]
        if known is not None and known.start_ticks == start_ticks:
            # exec keeps the pid, and may bring another copy.
            settled = any(m.key == known.key for m in libraries) if known.link else now < known.silent_until
            if settled:
                return
        for mapping in libraries:
            link = self._attach(pid, mapping)
            if link is not None:
                self.ended(pid)
                self._processes[pid] = _Listened(start_ticks, link, mapping.key)
                return

    def _attach(self, pid: int, mapping: procfs.Mapping) -> Link | None:
        if mapping.key in self._files and self._files[mapping.key] is None:
            return None
        fd = procfs.open_mapping(pid, mapping)
        if fd is None:
            return None
        try:
            if mapping.key not in self._files:
                self._files[mapping.key] = self._probe(fd, mapping.path)
            probe = self._files[mapping.key]
            return self._program.attach_to(pid, f"/proc/self/fd/{fd}", probe, "device_entry") if probe else None
        except OSError as error:
            if error.errno != errno.ESRCH:  # it has ended
                self._note(f"{mapping.path} cannot be probed for device time: {explain_attach(error)}")
            return None
        finally:
            os.close(fd)

    def _probe(self, fd: int, path: str) -> Probe | None:
        try:
            with Elf(fd, path) as elf:
                found = elf.function_and_data(HANDOVER, LISTENERS)
        except ElfError as error:
            self._note(str(error))
            return None
        return Probe(found[0], counter_offset=found[1]) if found else None

    def has_library(self, pid: int) -> bool:
        """Whether the process maps the library, listened to or not."""
        return pid in self._processes

    def silence(self, pid: int, until: float) -> None:
        """Stops listening to a process: its library opens no window until then (monotonic seconds)."""
        known = self._processes.get(pid)
        if known is not None:
            self._leave(known)
            known.silent_until = until

    def ended(self, pid: int) -> None:
        """Forgets a process."""
        known = self._processes.pop(pid, None)
        if known is not None:
            self._leave(known)

    def _leave(self, known: _Listened) -> None:
        if known.link is not None:
            self._program.detach_from(known.link)
            known.link = None
