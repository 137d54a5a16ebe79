"""Whose rows are whose: what a process and its threads give the rows of their calls."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from kdiff.agent import procfs
from kdiff.agent.device_rows import Place
from kdiff.agent.gpus import Gpus
from kdiff.agent.ring import in_one
from kdiff.agent.rows import Owner
from kdiff.agent.service_names import Services
from kdiff.agent.targets import Targets


class Owners:
    """What is known of threads, kept until their process is forgotten."""

    def __init__(self, targets: Targets, gpus: Gpus, services: Services, host: str, boot_id: str) -> None:
        self._targets = targets
        self._gpus = gpus
        self._services = services
        self._host = host
        self._boot_id = boot_id
        self._known: dict[tuple[int, int], Owner] = {}

    def remember(self, event: NDArray[np.void]) -> None:
        """Asks for the names of the threads of EVENT records while they live."""
        threads = in_one(event["pid"], event["tid"])
        if (threads == threads[0]).all():
            threads = threads[:1]
        for thread in np.unique(threads):
            self.of(int(thread) >> 32, int(thread) & 0xFFFFFFFF)

    def of(self, pid: int, tid: int) -> Owner:
        """What a thread gives its rows."""
        known = self._known.get((pid, tid))
        if known is None:
            process = self._targets.process(pid)
            comm = procfs.thread_name(pid, tid) or (process.comm if process else "")
            known = self._known[pid, tid] = Owner(comm, process.container_id if process else "", "")
        gpus = self._gpus.of(pid)
        uuid = next(iter(gpus)) if len(gpus) == 1 else ""
        if gpus and uuid != known.gpu_uuid:  # it is learned late; of a process that ended the last answer stays
            known = self._known[pid, tid] = replace(known, gpu_uuid=uuid)
        return known

    def place(self, pid: int, monotonic_ns: int) -> Place:
        """What a process gave the rows of its device at that time."""
        owner = self.of(pid, pid)
        return Place(
            self._services.at(pid, monotonic_ns), self._host, owner.container_id, owner.gpu_uuid, self._boot_id
        )

    def forget(self, pid: int) -> None:
        """The process ended some time ago."""
        for owner in [key for key in self._known if key[0] == pid]:
            del self._known[owner]


def processes_of(events: NDArray[np.void]) -> list[int]:
    """The distinct pids of EVENT records, ascending."""
    pids = events["pid"]
    if not len(pids):
        return []
    if (pids == pids[0]).all():
        return [int(pids[0])]
    return [int(pid) for pid in np.unique(pids)]
