"""Runs `kdiff-agent record` as a user does, and reads what it wrote."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from standins.standins import Workload, build, workload

BIN = Path(sys.executable).parent
AGENT = str(BIN / "kdiff-agent")
KDIFF = str(BIN / "kdiff")


@dataclass
class Recording:
    """A finished recording."""

    directory: Path
    status: int
    stderr: str

    def table(self, name: str) -> pd.DataFrame:
        frame: pd.DataFrame = pq.read_table(self.directory / name).to_pandas()
        return frame.astype({c: str for c in frame.columns if isinstance(frame[c].dtype, pd.CategoricalDtype)})

    @property
    def events(self) -> pd.DataFrame:
        return self.table("cuda_events")

    @property
    def launches(self) -> pd.DataFrame:
        events = self.events
        return events[events.kind == "launch"]

    @property
    def lost(self) -> int:
        health = self.table("agent_health")
        return int(health.lost_launches.sum() + health.lost_syncs.sum() + health.lost_other.sum())


def agent_command(directory: Path, *options: str | Path, command: Sequence[str] = ()) -> list[str]:
    """A command line whose state file is the capture's neighbour, so that no test learns from another."""
    state = directory.with_name(f"{directory.name}.drivers.json")
    base = [AGENT, "record", "-o", str(directory), "--state", str(state), *map(str, options)]
    return [*base, "--", *command] if command else base


def host_environment(workload: Workload) -> dict[str, str]:
    """The workload's environment on a host whose loader finds the driver, as GPU hosts' loaders do."""
    return {"LD_LIBRARY_PATH": str(build().driver.parent), **workload.env, "KDIFF_DEBUG": "1"}


def record(
    directory: Path, workload: Workload, *options: str | Path, env: Mapping[str, str] | None = None
) -> Recording:
    """Records a workload from its start."""
    done = subprocess.run(
        agent_command(directory, *options, command=workload.command),
        env={**host_environment(workload), **(env or {})},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return Recording(directory, done.returncode, done.stderr)


@contextmanager
def whole_host(directory: Path, *options: str | Path) -> Iterator[subprocess.Popen[str]]:
    """An agent that records every process of the host, once its probes are attached; what is not ended is killed."""
    agent = subprocess.Popen(
        agent_command(directory, *options), env=host_environment(workload()), stderr=subprocess.PIPE, text=True
    )
    assert agent.stderr is not None
    try:
        while "probes attached" not in (line := agent.stderr.readline()):
            assert line, "it ended"
        yield agent
    finally:
        agent.kill()
        agent.communicate()


def by_thread(frame: pd.DataFrame) -> pd.DataFrame:
    """In an order that is the same for rows and for truth: each thread's own calls, in its order."""
    return frame.sort_values(["tid", "timestamp_ns"], kind="stable").reset_index(drop=True)


def truth_frame(records: np.ndarray, names: Sequence[str]) -> pd.DataFrame:
    """Truth records under the names of the columns they should equal."""
    frame = pd.DataFrame({c: records[c] for c in ("tid", "pid", "stream", "shared_bytes", "status", "flags")})
    frame["timestamp_ns"] = records["call_ns"]
    frame["kernel"] = [names[k] if k >= 0 else "" for k in records["kernel"]]
    for i, axis in enumerate("xyz"):
        frame[f"grid_{axis}"] = records["grid"][:, i]
        frame[f"block_{axis}"] = records["block"][:, i]
    frame["true_ns"] = records["end_ns"].astype(np.int64) - records["call_ns"].astype(np.int64)
    return by_thread(frame)
