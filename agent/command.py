"""The command that `record` starts: as its own child, with its exit status passed on as a shell would."""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
from collections.abc import Mapping, Sequence
from typing import Final

from kdiff.agent.errors import AgentError

_PR_SET_CHILD_SUBREAPER: Final = 36


class Command:
    """A started command."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        """Starts it. Raises AgentError when it cannot be started."""
        # Orphans of the command become children of this process: their ancestry still leads here.
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        try:
            self._process = subprocess.Popen(
                arguments, env=environment, close_fds=False
            )  # as a shell: what it inherits is its own
        except OSError as error:
            raise AgentError(
                f"{arguments[0] or 'a command without a name'} cannot be started: {error.strerror}"
            ) from error
        self.pid = self._process.pid

    def status(self) -> int | None:
        """The exit status as a shell gives it (128 + signal); None while it runs."""
        code = self._process.poll()
        if code is None:
            return None
        return 128 - code if code < 0 else code

    def reap_orphans(self) -> None:
        """Waits for descendants whose parents have ended: they are this process's children now."""
        with contextlib.suppress(ChildProcessError):
            while found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                if found.si_pid == self.pid:
                    return
                os.waitpid(found.si_pid, os.WNOHANG)

    def send(self, number: int) -> None:
        """Passes a signal on."""
        if self._process.poll() is None:
            os.kill(self.pid, number)

    @staticmethod
    def reads_terminal_signals() -> bool:
        """Whether Ctrl-C reaches the command by itself: it is in the terminal's foreground process group, as we are."""
        try:
            return os.tcgetpgrp(2) == os.getpgrp()
        except OSError:
            return False
