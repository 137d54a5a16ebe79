"""Which GPU a process uses, as the sampler's thread last learned it: nobody who asks here waits for NVML."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping


class Gpus:
    """The GPUs of this host. Without NVML there are none, and every process's GPU is ''.

    One thread tells, any may ask: an answer is replaced whole, never changed.
    """

    def __init__(self) -> None:
        self._count = 0
        self._uuids: frozenset[str] = frozenset()
        self._of_process: Mapping[int, frozenset[str]] = {}
        self._told = threading.Event()

    def tell(self, count: int, uuids: Collection[str], processes: Mapping[str, Collection[int]]) -> None:
        """What NVML says: of `count` GPUs these answered, and of these the pids that compute are known.

        A GPU stays known when it falls silent: what is left is not the host's only one.
        """
        found: dict[int, set[str]] = {}
        for uuid, pids in processes.items():
            for pid in pids:
                found.setdefault(pid, set()).add(uuid)
        self._uuids |= frozenset(uuids)
        self._count = max(self._count, count, len(self._uuids))
        self._of_process = {pid: frozenset(of) for pid, of in found.items()}
        self._told.set()

    def wait(self, timeout_s: float) -> None:
        """Until something was told, that there is no NVML, say; no longer than `timeout_s`."""
        self._told.wait(timeout_s)

    def of(self, pid: int) -> frozenset[str]:
        """UUIDs of the GPUs the process computes on; on a host with one GPU that one. Empty: not known."""
        if self._count == 1:
            return self._uuids
        return self._of_process.get(pid, frozenset())
