"""A capture that grows while it is shipped and while everything around it fails: how many rows arrive, and which."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import shipped

import captures
from kdiff.agent.segments import SegmentWriter
from kdiff.queries.connection import connect
from kdiff.queries.errors import StoreError
from kdiff.queries.migrations import migrate
from server import PASSWORD, StandIn

AGENT = str(Path(sys.executable).parent / "kdiff-agent")
ENVIRONMENT = {**os.environ, "KDIFF_CLICKHOUSE_PASSWORD": PASSWORD}
INSERT = "INSERT INTO"


@dataclass
class Outcome:
    rows: int
    of_files: tuple[int, ...]
    of_server: tuple[int, ...]
    of_minutes: tuple[int, ...]
    of_rows: tuple[int, ...]
    accounts: int  # rows of agent_health
    segments: int
    again: str  # what shipping a copy once more said
    faults: dict[str, int] = field(default_factory=dict)


class Chaos:
    """Two shippers of one directory, a server, and somebody who breaks both."""

    def __init__(self, tmp: Path, seed: int, say: Callable[[str], None]) -> None:
        self.root = tmp / "capture"
        self.random = random.Random(seed)
        self.say = say
        self.server = StandIn(tmp / "server")
        client = connect(self.server.address(), database="")
        migrate(client, "kdiff")
        client.close()
        self.url = f"{self.server.url()}?timeout=4"
        self.shippers: list[subprocess.Popen[bytes]] = []
        self.faults: dict[str, int] = {}

    def run(self, rows: int, faults: int) -> Outcome:
        """Ships `rows` launches and syncs, cut at random, among that many faults."""
        per = rows // (faults + 1)
        began = time.time_ns() - 3_600_000_000_000
        writer = SegmentWriter(self.root, "host-1", shipped.BOOT, began)
        writer.write("kernels", captures.table("kernels", {"kernel_id": [1, 2, 3], "first_seen_ns": began}, rows=3))
        self.shippers = [self._shipper(), self._shipper()]
        self.accounts, self._at, self._number = 0, began, 0
        for _ in range(faults):
            self._write(writer, per)
            self._break()
        self._write(writer, rows - per * faults)
        self._finish(writer.segments_written)
        client = connect(self.server.address())
        outcome = Outcome(
            rows,
            shipped.checksum_of_files(client, [self.root]),
            shipped.checksum_of_server(client),
            tuple(client.query(shipped.ROLLED_UP).result_rows[0]),
            tuple(client.query(shipped.FROM_ROWS).result_rows[0]),
            client.query("SELECT count() FROM agent_health").first_row[0],
            writer.segments_written,
            self._again(),
            self.faults,
        )
        assert self.accounts == writer.segments_written // 2
        client.close()
        return outcome

    def close(self) -> None:
        for shipper in self.shippers:
            shipper.kill()
            shipper.wait()
        self.server.kill()

    def _shipper(self) -> subprocess.Popen[bytes]:
        command = [AGENT, "ship", str(self.root), "--store", self.url, "--follow"]
        self.root.mkdir(exist_ok=True)
        return subprocess.Popen(command, env=ENVIRONMENT, stderr=subprocess.DEVNULL)

    def _write(self, writer: SegmentWriter, rows: int) -> None:
        """Up to three segments of the rows, each with its account."""
        cuts = sorted(self.random.sample(range(1, rows), self.random.randrange(3))) if rows > 3 else []
        for begin, end in zip([0, *cuts], [*cuts, rows], strict=True):
            events = shipped.events(end - begin, self._number, self._at)
            to = int(events["timestamp_ns"][-1].as_py()) + 1
            writer.write("cuda_events", events)
            writer.write("agent_health", shipped.health(self._at, to, end - begin))
            self._number += 1
            self.accounts += 1
            self._at = to

    def _break(self) -> None:
        kinds: list[tuple[str, Callable[[], None]]] = [
            ("server killed", self._kill_server),
            ("server killed within an insert", lambda: self._die("die")),
            ("server killed after an insert", lambda: self._die("die_after")),
            ("connection cut in mid-insert", lambda: self._order("cut", after=self.random.randrange(200_000))),
            ("answer lost after the insert", lambda: self._order("lose")),
            ("answer lost of the list", lambda: self._order("lose", match="shipped_segments")),
            ("server refuses", lambda: self._order("error", code=self.random.choice([202, 242, 252, 319]))),
            ("server stalled", self._stall),
            ("shipper killed", self._kill_shipper),
        ]
        # Every kind in turn, in an order of chance.
        if not hasattr(self, "_left") or not self._left:
            self._left = self.random.sample(kinds, len(kinds))
        name, fault = self._left.pop()
        time.sleep(self.random.uniform(0, 0.4))
        self.faults[name] = self.faults.get(name, 0) + 1
        self.say(f"{sum(self.faults.values()):3d} {name}")
        fault()

    def _order(self, kind: str, match: str = INSERT, **more: Any) -> None:
        # The library sends an insert again by itself, once.
        self.server.fault(kind, match=match, times=self.random.choice([1, 2, 3]), **more)
        time.sleep(self.random.uniform(0.1, 1.0))

    def _kill_server(self) -> None:
        self.server.kill()
        time.sleep(self.random.uniform(0, 1.0))
        self.server.start()

    def _die(self, kind: str) -> None:
        self.server.fault(kind, match=INSERT)
        try:
            self.server.wait(20)
        except subprocess.TimeoutExpired:  # nothing was left to insert
            self.server.kill()
        self.server.start()

    def _stall(self) -> None:
        self.server.fault("stall", match=INSERT, seconds=30)
        time.sleep(self.random.uniform(0.5, 5.0))
        self.server.clear_faults()

    def _kill_shipper(self) -> None:
        one = self.random.randrange(len(self.shippers))
        self.shippers[one].kill()
        self.shippers[one].wait()
        self.shippers[one] = self._shipper()

    def _finish(self, segments: int) -> None:
        """Until both shippers have confirmed all there is."""
        self.server.clear_faults()
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            try:
                client = connect(self.server.address())
                listed = client.query(
                    "SELECT count(DISTINCT \"table\", splitByChar('#', segment)[1]) FROM shipped_segments"
                )
                client.close()
                if listed.first_row[0] == segments:
                    break
            except StoreError as error:
                self.say(str(error))
            time.sleep(0.2)
        for shipper in self.shippers:
            shipper.terminate()
        for shipper in self.shippers:
            assert shipper.wait(60) in (0, 2)  # the other one may have been behind

    def _again(self) -> str:
        """A copy, from another place, once more."""
        copy = self.root.with_name("copy")
        shutil.copytree(self.root, copy)
        done = subprocess.run(
            [AGENT, "ship", str(copy), "--store", self.url],
            env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stderr
