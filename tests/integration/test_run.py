"""`kdiff-agent run` with real probes: what it records is in the store, and nothing that fails beside it harms that."""

from __future__ import annotations

import os
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
