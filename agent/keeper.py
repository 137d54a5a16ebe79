"""The process beside a recorder that keeps its spool: ships it, bounds it, answers for metrics.

A process of its own, because the recorder must not wait for a server, a disk or a thread of Python's. It lives as long
as its standard input is open, through which the recorder tells its figures: however the recorder ends, this ends too.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

from kdiff.agent.clock import boot_id
from kdiff.agent.disk_policy import DiskPolicy, account_prefix
from kdiff.agent.errors import AgentError
from kdiff.agent.following import Follower
from kdiff.agent.journal import Journal, server_id
from kdiff.agent.keeping import GRACE_S
from kdiff.agent.metrics import Figures, place, serve
from kdiff.agent.redo import RedoLog
from kdiff.agent.segment_files import Listing
from kdiff.agent.shipping import EndedError, Hooks, Shipper
from kdiff.agent.signals import ENDING
from kdiff.agent.terminal import announce
from kdiff.queries.address import Address
from kdiff.queries.errors import KdiffError
from kdiff.queries.printable import printable

_EVERY_S: Final = 1.0
_LONGEST_S: Final = 60.0


class Keeper:
    """What the process does."""

    def __init__(self, root: Path, store: str, max_bytes: int) -> None:
        """Raises OSError when the spool cannot be used."""
        self._ending = threading.Event()
        self._figures: dict[str, Any] = {}
        self._said: dict[str, str] = {}
        self._journal = Journal(root, server=server_id(Address.parse(store, {})) if store else "")
        self._policy = DiskPolicy(
            Listing(root, lambda _: None),
            max_bytes,
            self._journal,
            account_prefix(socket.gethostname(), boot_id(), time.time_ns()),
            announce,
        )
        log = RedoLog(root)
        hooks = Hooks(
            announce,
            lambda file: self._journal.begun(file.key),
            lambda file: self._journal.confirmed(file.key),
            lambda file: self._journal.withdrawn(file.key),
            lambda file: file.key in log.victims(),
        )
        self._shipper = Shipper(
            lambda: Address.parse(store, os.environ), hooks, retry_for_s=float("inf"), ending=self._ending
        )
        self._follower = Follower(
            Listing(root, announce), self._shipper, lambda file: self._journal.is_confirmed(file.key)
        )
        self._ships = bool(store)

    def figures(self) -> Figures:
        """As of now."""
        tally, policy = self._shipper.tally, self._policy
        return Figures(
            self._figures,
            policy.waiting,
            policy.waiting_bytes,
            policy.bytes,
            len(tally.left),
            tally.segments,
            tally.rows,
            tally.retries,
            tally.last_success,
            dict(policy.shed.rows),
        )

    def answer(self, where: tuple[str, int]) -> None:
        """Metrics on `where`, as soon as it is free: the keeper of a recorder that was killed has it for a moment."""
        try:
            serve(where, self.figures)
        except AgentError as error:
            self._say("metrics", str(error))
            later = threading.Timer(_EVERY_S, self.answer, (where,))
            later.daemon = True
            later.start()

    def run(self) -> None:
        """Until standard input ends, and at most GRACE_S longer."""
        threading.Thread(target=self._listen, daemon=True).start()
        threading.Thread(target=self._bound, daemon=True).start()
        failures = 0
        last = False
        while True:
            try:
                if self._ships:
                    self._follower.round()
                failures = 0
                self._said.pop("shipping", None)
            except EndedError:
                return
            except KdiffError as error:
                # An administrator may mend it while this runs: a password, a right, a schema.
                failures += 1
                self._say("shipping", str(error))
            if last:
                return
            # What the recorder wrote last is there once it has ended: one more round.
            last = self._ending.wait(min(_LONGEST_S, _EVERY_S * 2.0 ** min(failures, 20)))

    def _listen(self) -> None:
        for line in sys.stdin:
            self._figures = json.loads(line)
        self._ending.set()
        time.sleep(GRACE_S)
        os._exit(0)  # in the middle of a request: it is sent again, with its token

    def _bound(self) -> None:
        while True:
            try:
                self._policy.apply()
            except Exception as error:  # one that ended this thread would leave the spool to grow for good
                self._say("bounding", f"the spool cannot be kept within its bound: {printable(str(error))}")
            time.sleep(_EVERY_S)

    def _say(self, what: str, line: str) -> None:
        """Once, until something else is wrong with it."""
        if line != self._said.get(what):
            self._said[what] = line
            announce(line)


def main() -> None:
    """Runs the process; an error is one line on stderr and status 2."""
    parser = argparse.ArgumentParser(prog="kdiff.agent.keeper")
    parser.add_argument("root", type=Path)
    parser.add_argument("--store", default="")
    parser.add_argument("--max-bytes", type=int, required=True)
    parser.add_argument("--metrics", default="")
    given = parser.parse_args()
    # A terminal and a service manager signal the whole group: the recorder ends first, then this.
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)
    try:
        keeper = Keeper(given.root, given.store, given.max_bytes)
        if given.metrics:
            keeper.answer(place(given.metrics))
        keeper.run()
    except (KdiffError, OSError) as error:
        announce(str(error))
        sys.exit(2)


if __name__ == "__main__":
    main()
