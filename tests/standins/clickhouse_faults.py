"""Faults that a test orders of the ClickHouse stand-in: which requests they meet, how often, and what then happens."""

from __future__ import annotations

import random
import threading
from dataclasses import asdict, dataclass
from typing import Any

# before anything is done: stall, cut (in the request's body), die, html, error
# after it was done:      lose (the answer), die_after, truncate (the answer)
KINDS = ("stall", "cut", "die", "html", "error", "lose", "die_after", "truncate")


@dataclass
class Fault:
    """One order. `match` is a part of the statement's beginning; `skip` requests pass before the first is met."""

    kind: str
    match: str = ""
    times: int = 1
    skip: int = 0
    probability: float = 1.0
    after: int = 0  # cut: bytes of the body that are read before
    seconds: float = 3600.0  # stall: at most, or until the faults are cleared
    code: int = 252  # error: ClickHouse's number
    status: int = 200  # html
    met: int = 0


class Faults:
    """The orders in force."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._orders: list[Fault] = []
        self._random = random.Random(5)
        self.cleared = threading.Event()

    def order(self, given: dict[str, Any]) -> None:
        fault = Fault(**given)
        if fault.kind not in KINDS:
            raise ValueError(f"no such fault: {fault.kind}")
        with self._lock:
            self._orders.append(fault)

    def clear(self) -> None:
        """Forget all, and let go of what is stalled."""
        with self._lock:
            self._orders.clear()
            self.cleared.set()
            self.cleared = threading.Event()

    def told(self) -> list[dict[str, Any]]:
        with self._lock:
            return [asdict(fault) for fault in self._orders]

    def meet(self, statement: str) -> Fault | None:
        """The fault that this request meets, counted."""
        with self._lock:
            for fault in self._orders:
                if fault.met >= fault.times or fault.match.lower() not in statement.lower():
                    continue
                if fault.skip > 0:
                    fault.skip -= 1
                    continue
                if self._random.random() < fault.probability:
                    fault.met += 1
                    return fault
        return None
