"""Agents that are killed with -9 at any moment while programs launch, and what must be so afterwards."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import bpf_objects
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from kdiff.queries.shipping_notes import OWN_NAME
from kdiff.queries.tables import TABLES
from standins.standins import build, workload

LAUNCHES = 60_013
"""Of each target, a prime."""
SYNCS = 37
RATE = 30_000
# Segments every fifth of a second in place of ten: a kill meets one that is being written.
_AGENT = (
    "import sys; from kdiff.agent import recorder; recorder._FLUSH_EVERY_S = float(sys.argv.pop(1)); "
    "from kdiff.agent.cli import main; main()"
)
_SAID_BY_A_CLEAN_ONE = (
    *("kdiff-agent: recording, ", "recorded ", "wrote ", "no CUDA call was seen", "unresolved: "),
    "kdiff-agent: names are not read on this CUDA driver",  # none of them has seen a target's start yet
    "kdiff-agent: processes that ended within milliseconds called CUDA",  # a target's end right as an agent came
)


@dataclass
class Outcome:
    """What was done and found. Every count of `wrong` and every list is empty where all is well."""

    kills: Counter[str] = field(default_factory=Counter)  # by what the agent was doing
    targets: list[tuple[int, int, int]] = field(default_factory=list)  # status, launches made, syncs made
    segments: int = 0
    rows: int = 0
    torn: int = 0  # segments that a kill left half written
    wrong: list[str] = field(default_factory=list)
    left_files: list[str] = field(default_factory=list)
    left_bpf: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0


class Lane:
    """One spool, whose agent is started and killed over and over."""

    def __init__(self, tmp: Path, number: int, seed: int, flush_s: float, env: dict[str, str]) -> None:
        self.root = tmp / f"spool-{number}"
        self._said = tmp / f"said-{number}"
        self._state = tmp / f"drivers-{number}.json"
        self._tmp = tmp
        self._flush_s = flush_s
        self._env = env
        self._random = random.Random(seed * 1000 + number)
        self._seen: dict[Path, str] = {}
        self._torn: set[Path] = set()
        self.outcome = Outcome()

    def killed(self, times: int) -> None:
        """Starts and kills that many agents."""
        for _ in range(times):
            agent = self._start()
            doing = self._random.choices(("starting", "recording", "writing", "ending"), (10, 5, 3, 2))[0]
            if doing == "starting":
                time.sleep(self._random.uniform(0, 1.2))
            elif self._records(agent):
                time.sleep(self._random.uniform(0, 0.8))
                if doing == "writing":
                    self._wait_for_a_write()
                elif doing == "ending":
                    agent.send_signal(signal.SIGTERM)
                    time.sleep(self._random.uniform(0, 0.4))
            agent.kill()
            status = agent.wait()
            self.outcome.kills[doing] += 1
            if status not in (-signal.SIGKILL, *((0,) if doing == "ending" else ())):
                self._wrong(f"an agent ended with {status}")
            self._heard()
            self._look()

    @contextmanager
    def last(self) -> Iterator[None]:
        """A start that nobody kills, and which sees one target in the body, from its beginning to its end."""
        before = self._counts()
        agent = self._start()
        try:
            self._records(agent)
            yield
            agent.send_signal(signal.SIGTERM)
            if status := agent.wait(60):
                self._wrong(f"the last agent ended with {status}")
        finally:
            agent.kill()
            agent.wait()
        self._heard()
        self._look()
        if (more := self._counts() - before) != Counter(launch=LAUNCHES, sync=SYNCS):
            self._wrong(f"of a target that made {LAUNCHES} launches and {SYNCS} syncs the last agent has {dict(more)}")

    def check(self) -> None:
        """Reads all there is."""
        for path, content in self._seen.items():
            if not path.exists():
                self._wrong(f"{path} is gone")
            elif _content(path) != content:
                self._wrong(f"{path} has changed")
        events, kernels = self._table("cuda_events"), self._table("kernels")
        doubled = int(events.duplicated(["pid", "tid", "timestamp_ns"]).sum())
        if doubled:
            self._wrong(f"{doubled} rows are there twice")
        launches = events[events.kind == "launch"]
        if (most := int(launches.groupby("pid").size().max())) > LAUNCHES:
            self._wrong(f"{most} launches of a target that made {LAUNCHES}")
        if missing := set(launches.kernel_id) - set(kernels.kernel_id):
            self._wrong(f"{len(missing)} kernels have no name")
        self._accounts()
        self.outcome.segments, self.outcome.rows = len(self._seen), len(events)
        self.outcome.left_files = [str(path) for path in self.root.rglob(".*") if path.name.endswith((".tmp", ".new"))]

    def _accounts(self) -> None:
        """Each account is of the rows that were written since the one before it, never of rows that are not there."""
        rows: Counter[tuple[str, str]] = Counter()
        files = [path for path in self._seen if path.parent.name in ("cuda_events", "agent_health")]
        for path in sorted(files, key=lambda path: path.name):
            named = OWN_NAME.fullmatch(path.name)
            assert named is not None
            recording = named[1], named[2]
            if path.parent.name == "cuda_events":
                rows[recording] += pq.read_metadata(path).num_rows
            else:
                account = sum(pq.read_table(path)["events"].to_pylist())
                if account != rows[recording]:
                    self._wrong(f"{path.name} accounts for {account} rows, {rows[recording]} are there")
                rows[recording] = 0

    def _start(self) -> subprocess.Popen[bytes]:
        # Of this test's own targets: others on this machine are no business of it.
        options = ["--state", str(self._state), "--include", f"command=*{self._tmp}/standins/*"]
        with open(self._said, "wb") as said:
            return subprocess.Popen(
                [sys.executable, "-c", _AGENT, str(self._flush_s), "run", "-o", str(self.root), *options],
                env=self._env,
                stderr=said,
            )

    def _records(self, agent: subprocess.Popen[bytes]) -> bool:
        deadline = time.monotonic() + 60
        while b"recording, " not in self._said.read_bytes():
            if agent.poll() is not None or time.monotonic() > deadline:
                self._wrong("an agent does not start")
                return False
            time.sleep(0.005)
        return True

    def _wait_for_a_write(self) -> None:
        """Until a segment is half written, or a second is over."""
        folders = [self.root / table for table in ("cuda_events", "agent_health")]
        deadline = time.monotonic() + 1.0
        while time.monotonic() < deadline:
            for folder in folders:
                with suppress(FileNotFoundError):
                    if any(name.endswith(".tmp") for name in os.listdir(folder)):
                        return

    def _heard(self) -> None:
        for line in self._said.read_text().splitlines():
            if not line.startswith(_SAID_BY_A_CLEAN_ONE):
                self._wrong(f"an agent says: {line}")

    def _look(self) -> None:
        """Takes note of every segment that is there by now; whether it can be read as a whole."""
        torn = set(self.root.glob("*/.*.tmp"))
        self.outcome.torn += len(torn - self._torn)
        self._torn = torn
        for path in self.root.glob("*/*.parquet"):
            if path not in self._seen:
                self._seen[path] = _content(path)
                pq.read_table(path)

    def _counts(self) -> Counter[str]:
        return Counter(self._table("cuda_events").kind.tolist())

    def _table(self, name: str) -> pd.DataFrame:
        tables = [pq.read_table(path, schema=TABLES[name]) for path in self._seen if path.parent.name == name]
        frame: pd.DataFrame = pa.concat_tables([TABLES[name].empty_table(), *tables]).to_pandas()
        return frame

    def _wrong(self, what: str) -> None:
        self.outcome.wrong.append(f"{self.root.name}: {what}")


def killed(tmp: Path, kills: int, *, lanes: int, seed: int, flush_s: float = 0.2) -> Outcome:
    """Kills that many agents, on as many spools at a time as there are lanes, while targets come and go."""
    began = time.monotonic()
    before = bpf_objects.held()
    # Copies of our own: probes belong to files, and other agents on this machine may probe the originals.
    own = tmp / "standins"
    shutil.copytree(build().build, own)
    temporary = tmp / "tmp"
    temporary.mkdir()
    env = {**os.environ, "LD_LIBRARY_PATH": str(own), "TMPDIR": str(temporary), "KDIFF_DEBUG": "1"}
    run = workload(
        "--kernel", "k1:1", "--kernel", "k2:1", "--launches", LAUNCHES, "--rate", RATE, "--threads", 2,
        "--syncs", SYNCS, program=own / "workload", env=env,
    )  # fmt: skip
    whole = Outcome()
    over = threading.Event()

    def target() -> None:
        process = run.start()
        printed, _ = process.communicate(timeout=120)
        made = json.loads(printed) if process.returncode == 0 else {"launches": 0, "syncs": 0}
        whole.targets.append((process.returncode, made["launches"], made["syncs"]))

    def targets() -> None:
        while not over.is_set():
            target()

    spools = [Lane(tmp, number, seed, flush_s, env) for number in range(lanes)]
    with ThreadPoolExecutor(lanes + 1) as pool:
        launching = pool.submit(targets)
        try:
            shares = [kills // lanes + (number < kills % lanes) for number in range(lanes)]
            for done in [pool.submit(lane.killed, share) for lane, share in zip(spools, shares, strict=True)]:
                done.result()
        finally:
            over.set()
        launching.result()
    time.sleep(1.1)  # what is younger may be being written
    with ExitStack() as records:
        for lane in spools:
            records.enter_context(lane.last())
        target()
    for lane in spools:
        lane.check()
        whole.kills += lane.outcome.kills
        whole.segments += lane.outcome.segments
        whole.rows += lane.outcome.rows
        whole.torn += lane.outcome.torn
        whole.wrong += lane.outcome.wrong
        whole.left_files += lane.outcome.left_files
    whole.left_files += [str(path) for path in temporary.iterdir()]
    whole.left_bpf = bpf_objects.left_over(before)
    whole.seconds = time.monotonic() - began
    return whole


def _content(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
