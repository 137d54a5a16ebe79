"""The recorder's side of the keeper process: starts it, tells it figures, starts it again when it dies."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from kdiff.agent.signals import ENDING

GRACE_S: Final = 5.0
"""How long the keeper goes on shipping what the recorder wrote last."""
_FIRST_DELAY_S: Final = 1.0
_LONGEST_DELAY_S: Final = 60.0
_WELL_AFTER_S: Final = 60.0


class Keeping:
    """One keeper process after another."""

    def __init__(self, root: Path, store: str, max_bytes: int, metrics: str, announce: Callable[[str], None]) -> None:
        """Starts nothing yet."""
        self._command = [
            *(sys.executable, "-P", "-m", "kdiff.agent.keeper", str(root), "--max-bytes", str(max_bytes)),
            *(("--store", store) if store else ()),
            *(("--metrics", metrics) if metrics else ()),
        ]
        self._announce = announce
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = self._start_at = 0.0
        self._delay_s = _FIRST_DELAY_S
        self._rest = b""  # of figures that were begun to be told

    @property
    def pid(self) -> int:
        """Of the process; 0 when there is none."""
        return self._process.pid if self._process is not None else 0

    def tell(self, figures: Mapping[str, Any]) -> None:
        """Passes figures on without waiting for anything; called about once a second."""
        now = time.monotonic()
        if self._process is not None and (status := self._process.poll()) is not None:
            if now - self._started_at > _WELL_AFTER_S:
                self._delay_s = _FIRST_DELAY_S
            told = f"ended ({status}): starting it again in {self._delay_s:.0f} s"
            self._announce(f"the process that ships and bounds the spool {told}")
            self._start_at = now + self._delay_s
            self._delay_s = min(_LONGEST_DELAY_S, 2 * self._delay_s)
            self._close()
        if self._process is None:
            if now < self._start_at:
                return
            self._start(now)
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):  # it is busy: what was begun is gone on with, newer figures come later
                if not self._pass_on(self._rest, self._process.stdin.fileno()):
                    return
                self._pass_on(json.dumps(figures).encode() + b"\n", self._process.stdin.fileno())

    def _pass_on(self, line: bytes, descriptor: int) -> bool:
        """Writes what the pipe has room for; whether that is all. Raises OSError where it has none."""
        if line:
            self._rest = line[os.write(descriptor, line) :]
        return not self._rest

    def end(self) -> None:
        """Lets it ship what was written last, for a moment."""
        process = self._process
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        try:
            process.wait(GRACE_S + 2.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._process = None

    def _start(self, now: float) -> None:
        # A terminal and a service manager signal all processes, also one that does not ignore it yet.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
        try:
            self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, bufsize=0)
        except OSError as error:
            self._announce(f"the spool is neither shipped nor bounded ({error.strerror}): trying again")
            self._start_at = now + self._delay_s
            return
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self._started_at = now
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)

    def _close(self) -> None:
        self._rest = b""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
        self._process = None
