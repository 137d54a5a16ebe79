"""What is known of each build of the CUDA driver: where in a function handle the pointer to the kernel's name is.

The layout is undocumented. An offset counts only when names read through it agreed with names seen at load, on
this build: earlier, by us (drivers.json); earlier, on this host (the state file); or in this recording.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Final

from kdiff.probes.wire import DEFAULT_NAME_OFFSET
from kdiff.queries.locks import lock

_BEGUN_WITHIN_S: Final = 1.0  # who writes it may not have locked it yet
_HANDLES_TO_LEARN: Final = 2  # handles that must agree before an offset that differs from the default is believed


_REFUTED: Final = 0  # in the state file: an offset that was believed once turned out wrong


def _regular(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


@dataclass
class Driver:
    """One build of libcuda."""

    build_id: str
    name_offset: int = DEFAULT_NAME_OFFSET
    confirmed: bool = False
    agreed: int = 0
    disagreed: int = 0
    suggested: Counter[int] = field(default_factory=Counter)


class Drivers:
    """Every build met, with what is known of it."""

    def __init__(self, state: Path | None = None) -> None:
        """`state`: the file that keeps what this host has confirmed; unreadable or foreign content counts as none."""
        self._state = state
        self._known: dict[str, int] = {}
        self._learned: dict[str, int] = {}
        shipped = json.loads((files("kdiff.agent") / "drivers.json").read_text())
        self._known.update({build: int(facts["name_offset"]) for build, facts in shipped["drivers"].items()})
        if state is not None:
            with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
                self._learned = {str(k): int(v) for k, v in json.loads(state.read_text()).items()}
            self._known.update(self._learned)
            remove_left(state)
        self._drivers: dict[str, Driver] = {}

    def get(self, build_id: str) -> Driver:
        """The driver of that build; an unknown one starts at the default offset, unconfirmed."""
        driver = self._drivers.get(build_id)
        if driver is None:
            driver = Driver(build_id)
            if self._known.get(build_id, _REFUTED) != _REFUTED:
                driver.name_offset = self._known[build_id]
                driver.confirmed = True
            self._drivers[build_id] = driver
        return driver

    def agree(self, driver: Driver) -> None:
        """A name read through the handle was the name seen at load."""
        driver.agreed += 1
        if driver.disagreed == 0 and driver.build_id:
            driver.confirmed = True
            if self._known.get(driver.build_id) != driver.name_offset:
                self._known[driver.build_id] = self._learned[driver.build_id] = driver.name_offset
                self._save()

    def disagree(self, driver: Driver) -> None:
        """They differ: nothing read through the handle is believed on this build any more, here or next time."""
        driver.disagreed += 1
        driver.confirmed = False
        if self._known.get(driver.build_id):
            self._known[driver.build_id] = self._learned[driver.build_id] = _REFUTED
            self._save()

    def suggest(self, driver: Driver, offsets: Iterable[int]) -> int | None:
        """A handle has pointers to its name at these offsets; returns one to move to when handles enough agree.

        From then on agreements and disagreements are counted afresh.
        """
        driver.suggested.update(offsets)
        if not driver.suggested:
            return None
        offset, handles = driver.suggested.most_common(1)[0]
        if handles < _HANDLES_TO_LEARN or offset == driver.name_offset:
            return None
        driver.name_offset = offset
        driver.agreed = driver.disagreed = 0
        driver.suggested.clear()
        return offset

    def _save(self) -> None:
        # Never in the place of a device or a link: `--state /dev/null` keeps nothing.
        if self._state is None or (os.path.lexists(self._state) and not _regular(self._state)):
            return
        with contextlib.suppress(OSError):  # a read-only host confirms again next time
            self._state.parent.mkdir(parents=True, exist_ok=True)
            remove_left(self._state)
            beside = self._state.with_name(f".{self._state.name}.{os.getpid()}")
            with beside.open("w") as file:
                lock(file.fileno())  # while it is held it is nobody's to remove
                file.write(json.dumps(self._learned, indent=1))
                file.flush()
                beside.replace(self._state)


def remove_left(state: Path) -> None:
    """Removes what agents that were killed have left half written beside a state file."""
    named = re.compile(rf"\.{re.escape(state.name)}\.\d+")
    with contextlib.suppress(OSError):
        for left in [entry for entry in state.parent.iterdir() if named.fullmatch(entry.name)]:
            with contextlib.suppress(OSError):
                if not _regular(left) or time.time() - left.lstat().st_mtime < _BEGUN_WITHIN_S:
                    continue
                with left.open() as file:
                    if lock(file.fileno()):
                        left.unlink()
