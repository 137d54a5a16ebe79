"""The process beside a recorder, with a spool that the test writes as a recorder would."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self
from urllib.request import urlopen

import numpy as np
import pyarrow.parquet as pq
import pytest
import shipped

from kdiff.agent.command_run import size
from kdiff.agent.health import Losses, ServiceCounts
from kdiff.agent.keeping import Keeping
from kdiff.agent.metrics import of_summary
from kdiff.agent.metrics_server import ANSWER_WITHIN_S, MOST_CONNECTIONS
from kdiff.agent.probe_cost import ProbeCost
from kdiff.agent.recording import Summary
from kdiff.agent.ring import Highest
from kdiff.agent.segments import SegmentWriter
from kdiff.probes.points import POINTS
from kdiff.queries.connection import connect
from server import PASSWORD, StandIn

API = {point.symbol: number for number, point in enumerate(POINTS)}
Ask = Callable[[str], tuple[Any, ...]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandIn]:
    """A server that may be stopped; a test leaves it running."""
    with shipped.own_server(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture
def store(server: StandIn) -> Ask:
    """Asks the server for one row; its tables are empty."""
    client = connect(server.address())
    shipped.empty(client)
    client.close()

    def ask(sql: str) -> tuple[Any, ...]:
        client = connect(server.address())
        try:
            return tuple(client.query(sql).first_row)
        finally:
            client.close()

    return ask


EXPECTED = {
    'kdiff_events_total{service="a"}': 7,
    'kdiff_lost_events_total{kind="launches",service="a"}': 3,
    'kdiff_lost_events_total{kind="syncs",service="a"}': 2,
    'kdiff_lost_events_total{kind="full_disk",service="a"}': 19,
    'kdiff_lost_events_total{kind="other",service=""}': 8,
    'kdiff_lost_events_total{kind="executions",service=""}': 13,
    "kdiff_launches_total": 5,
    "kdiff_unresolved_launches_total": 2,
    "kdiff_kernels": 3,
    "kdiff_attached_probes": 3,
    "kdiff_agent_cpu_seconds_total": 1.5,
    'kdiff_ring_fill_ratio{ring="events"}': 0.75,
    'kdiff_probe_cost_seconds{call="runtime"}': 1.5e-6,
    'kdiff_probe_cost_seconds{call="driver"}': 9e-7,
    "kdiff_added_seconds_total": 6.9e-6,
    "kdiff_executions_total": 11,
    'kdiff_device_windows_total{kind="opened"}': 4,
    'kdiff_device_windows_total{kind="skipped"}': 1,
    'kdiff_gpu_samples_total{kind="written"}': 9,
    'kdiff_gpu_samples_total{kind="failed"}': 2,
    "kdiff_gpu_hangs_total": 7,
}


class Running:
    """The keeper of one spool."""

    def __init__(self, root: Path, *options: str, env: Mapping[str, str] | None = None) -> None:
        self.root = root
        root.mkdir(exist_ok=True)
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "kdiff.agent.keeper", str(root), *options],
            env={**os.environ, **({"KDIFF_CLICKHOUSE_PASSWORD": PASSWORD} if env is None else env)},
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stderr):
            if pipe:
                pipe.close()

    def end(self) -> str:
        """As a recorder ends; what was said."""
        _, said = self.process.communicate(timeout=15)
        assert self.process.returncode == 0
        return said

    @property
    def segments(self) -> list[Path]:
        return sorted(self.root.glob("*/*.parquet"))

    @property
    def bytes(self) -> int:
        return sum(path.stat().st_size for path in self.segments if path.exists())


def eventually(what: Callable[[], bool], seconds: float = 25) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def write_more(writer: SegmentWriter, sizes: list[int]) -> None:
    """As `shipped.write`, behind what the writer has written."""
    at = time.time_ns()
    for number, rows in enumerate(sizes):
        events = shipped.events(rows, number, at)
        at = int(events["timestamp_ns"][-1].as_py()) + 1
        writer.write("cuda_events", events)
        writer.write("agent_health", shipped.health(int(events["timestamp_ns"][0].as_py()), at, rows))


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


LOST = "SELECT sum(lost_launches) + sum(lost_syncs) + sum(lost_other) FROM agent_health"


def test_what_the_bound_allows_survives_an_outage_and_what_it_does_not_is_counted(
    server: StandIn, store: Ask, tmp_path: Path
) -> None:
    port = free_port()
    server.stop()
    options = ("--store", f"{server.url()}?timeout=3", "--max-bytes", "300000", "--metrics", f"127.0.0.1:{port}")
    with Running(tmp_path / "spool", *options) as keeper:
        # Within the bound: all of it arrives.
        writer = shipped.write(keeper.root, [1009] * 5)
        eventually(lambda: b"kdiff_waiting_segments 11.0" in metrics(port))
        time.sleep(1.5)
        assert len(keeper.segments) == 11
        server.start()
        eventually(lambda: store("SELECT count() FROM cuda_events") == (5045,))
        eventually(lambda: b"kdiff_waiting_segments 0.0" in metrics(port))
        assert store(LOST) == (0,)
        # Beyond it: the oldest goes, after what the server has.
        server.stop()
        sizes = [5003] * 12
        write_more(writer, sizes)
        eventually(lambda: keeper.bytes <= 300_000)
        shed = sum(pq.read_table(keeper.root / "agent_health").to_pandas()[["lost_launches", "lost_syncs"]].sum())
        assert shed > 0
        assert shed % 5003 == 0
        assert b'kdiff_shed_rows_total{table="cuda_events"} %d.0' % shed in metrics(port)
        server.start()
        eventually(lambda: store("SELECT count() FROM cuda_events")[0] + store(LOST)[0] == 5045 + sum(sizes))
        assert store(LOST) == (shed,)
        assert store("SELECT sum(launches) FROM kernel_minutes") == store(
            "SELECT countIf(kind != 'sync') FROM cuda_events"
        )
        summary = Summary(launches=5, unresolved_launches=2, kernels=3, attached_probes=3, cpu_s=1.5)
        summary.device.executions, summary.device.windows, summary.device.skipped = 11, 4, 1
        summary.device.lost = 13
        summary.services["a"] = ServiceCounts(7, dropped=Losses(17, 2), lost=Losses(3, 2, 0, 101))
        summary.services[""] = ServiceCounts(orphaned=3, lost=Losses(other=5))
        summary.gpus.rows, summary.gpus.failed, summary.gpus.hung = 9, 2, 7
        summary.ring_fill = {"events": Highest()}
        summary.ring_fill["events"].see(0.75, 1.0)
        summary.cost, summary.launches = ProbeCost(1500.0, 900.0), 0
        summary.launched(np.array([API["cudaLaunchKernel"]] * 4 + [API["cuLaunchKernel"]]))
        keeper.process.stdin.write(json.dumps(of_summary(summary)) + "\n")
        keeper.process.stdin.flush()
        eventually(lambda: b'kdiff_events_total{service="a"} 7.0' in metrics(port))
        told = dict(line.rsplit(" ", 1) for line in metrics(port).decode().splitlines() if not line.startswith("#"))
        assert {name: float(told[name]) for name in told if name in EXPECTED} == EXPECTED
        assert 10e6 < float(told["kdiff_agent_resident_memory_bytes"]) < 4e9
        said = keeper.end()
    assert said.count("the oldest rows are given up and counted as lost") == 1
    assert said.count("nothing listens on") <= 2
    assert PASSWORD not in said


def metrics(port: int) -> bytes:
    try:
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            told: bytes = answer.read()
    except OSError:
        return b""
    return told


def test_it_ends_with_its_recorder_and_not_before(server: StandIn, store: Ask, tmp_path: Path) -> None:
    with Running(tmp_path / "spool", "--store", server.url(), "--max-bytes", "1000000000") as keeper:
        writer = shipped.write(keeper.root, [101])
        eventually(lambda: store("SELECT count() FROM cuda_events") == (101,))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            keeper.process.send_signal(number)
        # What is written last, right before the end, is shipped.
        write_more(writer, [103])
        said = keeper.end()
    assert said == ""
    assert store("SELECT count() FROM cuda_events") == (204,)
    assert len(keeper.segments) == 5  # the bound leaves them


def test_a_server_that_hangs_does_not_keep_it(server: StandIn, store: Ask, tmp_path: Path) -> None:
    with Running(tmp_path / "spool", "--store", server.url(), "--max-bytes", "1000000000") as keeper:
        server.fault("stall", match="INSERT INTO cuda_events")
        shipped.write(keeper.root, [101])
        eventually(lambda: server.told()["faults"][0]["met"] == 1)
        began = time.monotonic()
        keeper.end()
        assert time.monotonic() - began < 8
    server.clear_faults()
    assert (keeper.root / ".shipped").read_text().splitlines()[-1].startswith("?cuda_events/")


def test_what_an_administrator_can_mend_is_said_and_tried_again(
    server: StandIn, store: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("guessed")
    root = tmp_path / "spool"
    shipped.write(root, [101])
    monkeypatch.delenv("KDIFF_CLICKHOUSE_PASSWORD", raising=False)
    options = ("--max-bytes", "1000000", "--store", server.url())
    with Running(root, *options, env={"KDIFF_CLICKHOUSE_PASSWORD_FILE": str(secret)}) as keeper:
        assert keeper.process.stderr is not None
        assert "wrong password" in keeper.process.stderr.readline()
        secret.write_text(PASSWORD)
        eventually(lambda: store("SELECT count() FROM cuda_events") == (101,))
        assert keeper.end() == ""


def test_one_that_dies_is_started_again_and_never_waited_for(tmp_path: Path) -> None:
    said: list[str] = []
    keeping = Keeping(tmp_path, "", 1 << 30, "", said.append)
    try:
        keeping.tell({"events": 1})
        first = keeping.pid
        assert first
        os.kill(first, signal.SIGSTOP)
        began = time.monotonic()
        for _ in range(3000):  # more than the pipe holds, which takes some of a long line
            keeping.tell({"events": 1, "padding": "x" * 50_000})
        assert time.monotonic() - began < 10
        os.kill(first, signal.SIGKILL)
        eventually(lambda: (keeping.tell({}), keeping.pid != first and keeping.pid != 0)[1])
        assert said == ["the process that ships and bounds the spool ended (-9): starting it again in 1 s"]
    finally:
        keeping.end()
    assert keeping.pid == 0


def test_figures_that_a_pipe_takes_in_parts_arrive_whole(tmp_path: Path) -> None:
    """200 services are more than a write to a pipe passes on at once."""
    port = free_port()
    counts = {"events": 5, "lost": dict.fromkeys(("launches", "syncs", "other", "full_disk"), 11)}
    services = {f"{number:0100d}": counts for number in range(1000)}
    said: list[str] = []
    keeping = Keeping(tmp_path, "", 1 << 30, f"127.0.0.1:{port}", said.append)
    try:
        keeping.tell({"services": services})
        os.kill(keeping.pid, signal.SIGSTOP)
        for _ in range(100):
            keeping.tell({"services": services})
        os.kill(keeping.pid, signal.SIGCONT)
        for launches in range(100):
            keeping.tell({"services": services, "launches": launches})
            time.sleep(0.02)
        eventually(lambda: (keeping.tell({"launches": 7}), b"kdiff_launches_total 7.0" in metrics(port))[1])
        assert metrics(port).count(b"kdiff_events_total{") == 0
        keeping.tell({"services": services})
        eventually(lambda: (keeping.tell({"services": services}), b"kdiff_events_total{" in metrics(port))[1])
        told = metrics(port)
        assert told.count(b"kdiff_events_total{") == 1000
        assert told.count(b"} 11.0") == 4000
    finally:
        keeping.end()
    assert said == []


@pytest.mark.parametrize(
    ("text", "bytes_"), [("1", 1), ("10G", 10 << 30), ("500m", 500 << 20), ("2TiB", 2 << 40), ("64KB", 64 << 10)]
)
def test_sizes(text: str, bytes_: int) -> None:
    assert size(text) == bytes_


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5G", "G", "10 G B", "1e9"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(Exception, match="is no size: write 10G or 500M"):
        size(text)


@pytest.mark.parametrize("host", ["a..b", "x" * 70])
def test_a_name_that_is_none_costs_the_metrics_and_nothing_else(tmp_path: Path, host: str) -> None:
    with Running(tmp_path, "--max-bytes", "1000000", "--metrics", f"{host}:9464") as keeper:
        said = keeper.end()
    assert said == f"kdiff-agent: no metrics on {host}:9464 (not a host's name): name another place with --metrics\n"


def test_a_port_that_is_taken_is_tried_again(tmp_path: Path) -> None:
    """The keeper of a recorder that was killed answers for some seconds more, and the next one begins at once."""
    port = free_port()
    where = ("--max-bytes", "1000000", "--metrics", f"127.0.0.1:{port}")
    with Running(tmp_path, *where) as before:
        eventually(lambda: answers(port))
        with Running(tmp_path, *where) as after:
            assert after.process.stderr
            said = after.process.stderr.readline()
            before.process.kill()
            before.process.wait()
            eventually(lambda: answers(port))
            assert after.end() == ""
    assert said.startswith(f"kdiff-agent: no metrics on 127.0.0.1:{port} (Address already in use")


def test_a_client_that_hangs_up_leaves_no_traceback(tmp_path: Path) -> None:
    port = free_port()
    with Running(tmp_path, "--max-bytes", "1000000", "--metrics", f"127.0.0.1:{port}") as keeper:
        eventually(lambda: answers(port))
        for request in (b"GET /metrics HTTP/1.0\r\n\r\n", b"\xff\r\n") * 10:
            with socket.create_connection(("127.0.0.1", port)) as client:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                client.send(request)
        assert answers(port)
        assert keeper.end() == ""


def answers(port: int) -> bool:
    try:
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            return bool(answer.read())
    except OSError:
        return False


def test_no_client_keeps_another_from_scraping(tmp_path: Path) -> None:
    """Idle ones, ones that send a byte now and then, and ones that read nothing; ten times as many as are let in."""
    port = free_port()
    clients: list[socket.socket] = []
    with Running(tmp_path, "--max-bytes", "1000000", "--metrics", f"127.0.0.1:{port}") as keeper:
        eventually(lambda: answers(port))
        before = open_files(keeper)
        try:
            for number in range(10 * MOST_CONNECTIONS):
                client = socket.create_connection(("127.0.0.1", port), timeout=10)
                clients.append(client)
                with contextlib.suppress(OSError):  # it was closed for a newer one
                    client.sendall([b"", b"GET /metrics HTTP/1.1\r\nX: ", b"GET / HTTP/1.1\r\n\r\n"][number % 3])
                if number % 64 == 63:
                    assert metrics(port).count(b"kdiff_spool_bytes 0.0") == 1
            assert open_files(keeper) <= before + MOST_CONNECTIONS + 33  # that were accepted at once
            # Slow ones have a deadline, however little they send at a time.
            slow = socket.create_connection(("127.0.0.1", port), timeout=ANSWER_WITHIN_S + 10)
            clients.append(slow)
            eventually(lambda: is_closed(slow), ANSWER_WITHIN_S + 10)
            eventually(lambda: open_files(keeper) <= before + 1)
            assert answers(port)
        finally:
            for client in clients:
                client.close()
        assert keeper.end() == ""


def open_files(keeper: Running) -> int:
    return len(os.listdir(f"/proc/{keeper.process.pid}/fd"))


def is_closed(slow: socket.socket) -> bool:
    """Whether it takes no more of a request that is sent byte by byte."""
    try:
        slow.sendall(b"x")
    except OSError:
        return True
    return False


@pytest.mark.parametrize(
    "request_",
    [b"POST / HTTP/1.1\r\n\r\n", b"\x00\xff\r\n\r\n", b"GET /\r\n\r\n", b"GET / HTTP/1.1\r\n" + b"a" * 99999],
)
def test_what_is_no_request_is_refused(tmp_path: Path, request_: bytes) -> None:
    port = free_port()
    with Running(tmp_path, "--max-bytes", "1000000", "--metrics", f"127.0.0.1:{port}") as keeper:
        eventually(lambda: answers(port))
        with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
            answer = b""
            with contextlib.suppress(ConnectionError):
                client.sendall(request_)
                answer = client.recv(100)
            assert answer == b"" or answer.startswith(b"HTTP/1.1 400 ")
        assert answers(port)
        assert keeper.end() == ""
