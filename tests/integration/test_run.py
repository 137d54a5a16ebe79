"""`kdiff-agent run` with real probes: what it records is in the store, and nothing that fails beside it harms that."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import shipped
from recording import AGENT, host_environment
from shipped import count

from kdiff.queries.connection import connect
from server import PASSWORD, StandIn
from standins.standins import workload

pytestmark = pytest.mark.ebpf

LAUNCHES = 10_007


@contextmanager
def running(root: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """The service, once it records."""
    state = root.with_name("drivers.json")
    agent = subprocess.Popen(
        [AGENT, "run", "-o", str(root), "--state", str(state), *options],
        env={**host_environment(workload()), "KDIFF_CLICKHOUSE_PASSWORD": PASSWORD},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert agent.stderr is not None
        while "recording" not in (line := agent.stderr.readline()):
            assert line
        yield agent
    finally:
        agent.kill()
        agent.communicate()


def launch() -> None:
    load = workload("--launches", LAUNCHES, "--syncs", 11)
    subprocess.run(load.command, env=host_environment(load), check=True, capture_output=True, timeout=60)


def keeper_of(agent: subprocess.Popen[str]) -> int:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        children = Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_text().split()
        for pid in children:
            if b"kdiff.agent.keeper" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return int(pid)
        time.sleep(0.05)
    raise AssertionError("no process ships")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandIn]:
    with shipped.own_server(tmp_path_factory.mktemp("server")) as running:
        yield running


def test_what_a_host_launches_is_in_the_store_when_it_ends(server: StandIn, tmp_path: Path) -> None:
    root = tmp_path / "spool"
    with running(root, "--store", server.url(), "--service", "serving") as agent:
        launch()
        # The process that ships dies: nothing is lost, and the recorder goes on.
        os.kill(keeper_of(agent), signal.SIGKILL)
        launch()
        time.sleep(3)
        assert keeper_of(agent)
        agent.send_signal(signal.SIGTERM)
        _, said = agent.communicate(timeout=30)
    assert agent.returncode == 0
    assert "the process that ships and bounds the spool ended (-9): starting it again" in said
    client = connect(server.address())
    assert count(client) == 2 * (LAUNCHES + 11)
    assert shipped.checksum_of_server(client) == shipped.checksum_of_files(client, [root])
    assert client.query("SELECT DISTINCT service FROM cuda_events").result_rows == [("serving",)]
    assert client.query("SELECT sum(events) FROM agent_health").first_row == (2 * (LAUNCHES + 11),)
    client.close()


def test_a_dead_server_and_a_killed_agent_leave_the_rows_to_the_next_start(server: StandIn, tmp_path: Path) -> None:
    root = tmp_path / "spool"
    with running(root, "--store", "clickhouse://127.0.0.1:1/kdiff") as agent:
        launch()
        agent.send_signal(signal.SIGTERM)
        began = time.monotonic()
        agent.communicate(timeout=30)
        assert agent.returncode == 0
        assert time.monotonic() - began < 10
    with running(root) as agent:  # without a store: it only records
        keeper = keeper_of(agent)
        agent.kill()
        agent.wait()
        deadline = time.monotonic() + 15
        while Path(f"/proc/{keeper}").exists():
            assert time.monotonic() < deadline
            time.sleep(0.1)
    environment = {**os.environ, "KDIFF_CLICKHOUSE_PASSWORD": PASSWORD}
    command = [AGENT, "ship", str(root), "--store", server.url()]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    client = connect(server.address())
    assert shipped.checksum_of_files(client, [root])[0] == LAUNCHES + 11
    client.close()


def test_two_services_never_share_a_spool(tmp_path: Path) -> None:
    with running(tmp_path / "spool"):
        second = subprocess.run(
            [AGENT, "run", "-o", str(tmp_path / "spool")], capture_output=True, text=True, timeout=30, check=False
        )
    assert second.returncode == 2
    assert second.stderr.startswith("kdiff-agent: another kdiff-agent records to")


def takes_signals(pid: int) -> bool:
    """Whether the command has begun: before that Python ends as any program does."""
    caught = re.search(r"SigCgt:\s+([0-9a-f]+)", Path(f"/proc/{pid}/status").read_text())
    return caught is not None and bool(int(caught[1], 16) >> (signal.SIGTERM - 1) & 1)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("whom", ["the agent", "its group"])
def test_a_signal_at_any_moment_ends_it_well(tmp_path: Path, number: signal.Signals, whom: str) -> None:
    """While it loads and attaches its probes, while the process that ships starts, and later."""
    seed = time.time_ns() % 1_000_000
    print(f"seed {seed}")
    for delay in (-1, 0, random.Random(seed).uniform(0, 2.5)):
        root = tmp_path / f"{delay}"
        agent = subprocess.Popen(
            [AGENT, "run", "-o", str(root), "--state", str(tmp_path / "drivers.json")],
            env={**os.environ, "KDIFF_DEBUG": "1"}, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        try:
            # As soon as the command has begun, as soon as the spool is there, later.
            while not (takes_signals(agent.pid) if delay < 0 else root.is_dir()):
                assert agent.poll() is None
                time.sleep(0.002)
            time.sleep(max(0, delay))
            for _ in range(2):  # in a hurry
                (os.killpg if whom == "its group" else os.kill)(agent.pid, number)
            _, said = agent.communicate(timeout=60)
        finally:
            agent.kill()
            agent.communicate()
        assert agent.returncode == 0, (delay, said)
        assert "Traceback" not in said
        assert f"wrote {root}" in said
        assert list((root / "agent_health").glob("*.parquet"))


def test_a_signal_while_it_fails_to_start_leaves_the_error(tmp_path: Path) -> None:
    (tmp_path / "spool").touch()
    agent = subprocess.Popen([AGENT, "run", "-o", str(tmp_path / "spool")], stderr=subprocess.PIPE, text=True)
    while agent.poll() is None and not takes_signals(agent.pid):
        time.sleep(0.002)
    agent.send_signal(signal.SIGTERM)
    _, said = agent.communicate(timeout=60)
    assert agent.returncode == 2
    assert said == f"kdiff-agent: {tmp_path}/spool cannot be written (File exists): name another directory with -o\n"
