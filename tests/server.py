"""A ClickHouse server that tests start, break and kill, and the fixtures for it.

Where KDIFF_TEST_CLICKHOUSE names a real server's address, tests that break nothing run against that one.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Self
from urllib.request import Request, urlopen

import loaded
import pytest

from kdiff.queries.address import Address
from kdiff.queries.connection import connect

_PROGRAM: Final = Path(__file__).parent / "standins" / "clickhouse_server.py"
TRITON: Final = Path(__file__).parent / "data" / "triton-swap"
PASSWORD: Final = "pa55'word"
ROLES: Final = ("reader", "readonly", "writer", "nothing")
"""Users of the stand-in beside `default`, each with PASSWORD and the rights of its name."""


class StandIn:
    """The stand-in as a process. Its port and its data stay the same over restarts."""

    def __init__(self, path: Path, *flags: str, tls: tuple[Path, Path] | None = None) -> None:
        """Starts it."""
        self.path = path
        self.port = 0
        self._tls = tls
        self._flags = flags
        self._process: subprocess.Popen[str] | None = None
        self.start()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        grants = [f"--grant={role}:{PASSWORD}:{role}" for role in ROLES]
        tls = ["--tls", *map(str, self._tls)] if self._tls else []
        self._process = subprocess.Popen(
            [
                *(sys.executable, str(_PROGRAM), "--watch-stdin", "--path", str(self.path), "--port", str(self.port)),
                *("--password", PASSWORD, *grants, *tls, *self._flags),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        word, _, port = self._process.stdout.readline().partition(" ")
        assert word == "ready", "the stand-in does not start"
        self.port = int(port)

    def kill(self) -> None:
        """kill -9."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def wait(self, timeout: float = 10) -> None:
        """Waits for a death that was ordered by a fault."""
        assert self._process is not None
        self._process.wait(timeout)
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """kill -9 and start on the same data and port."""
        self.kill()
        self.start()

    def pause(self) -> None:
        """Stall the whole process: connections are accepted by the kernel, nothing answers."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def _end(self, number: int) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal.SIGCONT)
        process.send_signal(number)
        process.wait(20)
        for stream in (process.stdin, process.stdout):
            if stream:
                stream.close()

    def fault(self, kind: str, **order: Any) -> None:
        """Order a fault: see Fault in standins/clickhouse_faults.py.

        After a cut, and where the answer is lost, clickhouse-connect may repeat a request once by itself, an insert
        too: order it twice, and clear what is left.
        """
        self._admin("POST", json.dumps({"kind": kind, **order}).encode())

    def clear_faults(self) -> None:
        self._admin("DELETE", None)

    def told(self) -> dict[str, Any]:
        """The faults with how often each was met, and the requests by verb since the start."""
        told: dict[str, Any] = json.loads(self._admin("GET", None))
        return told

    def _admin(self, method: str, body: bytes | None) -> bytes:
        assert self._tls is None
        with urlopen(Request(f"http://127.0.0.1:{self.port}/admin/faults", body, method=method), timeout=10) as answer:
            told: bytes = answer.read()
            return told

    def address(self, database: str = "kdiff", user: str = "default", password: str = PASSWORD) -> Address:
        return Address.parse(self.url(database, user), {"KDIFF_CLICKHOUSE_PASSWORD": password})

    def url(self, database: str = "kdiff", user: str = "default") -> str:
        """What a command line would say; the password is PASSWORD, from the environment."""
        scheme = "clickhouses" if self._tls else "clickhouse"
        return f"{scheme}://{user}@127.0.0.1:{self.port}/{database}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


@pytest.fixture(scope="session")
def standin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandIn]:
    """One stand-in for all tests that leave it whole. Those that kill it start their own."""
    with StandIn(tmp_path_factory.mktemp("clickhouse")) as running:
        yield running


@pytest.fixture
def faults(standin: StandIn) -> Iterator[StandIn]:
    """The shared stand-in for a test that orders faults, which end with the test."""
    yield standin
    standin.clear_faults()


@pytest.fixture(scope="session")
def server_address(request: pytest.FixtureRequest) -> Address:
    """The server that KDIFF_TEST_CLICKHOUSE names, with a user that may do all; otherwise the stand-in."""
    named = os.environ.get("KDIFF_TEST_CLICKHOUSE")
    if named:
        return Address.parse(named, os.environ)
    standin: StandIn = request.getfixturevalue("standin")
    return standin.address()


@pytest.fixture
def database(server_address: Address) -> Iterator[Address]:
    """The address of an empty database, dropped in the end."""
    with _empty(server_address) as address:
        yield address


@pytest.fixture(scope="session")
def triton(server_address: Address) -> Iterator[Address]:
    """A database with the recording of a Triton kernel swap, before and after, to be read only."""
    with _empty(server_address) as address:
        loaded.load(address, *(TRITON / side for side in ("before", "after")))
        yield address


@pytest.fixture
def own_database(standin: StandIn) -> Iterator[Address]:
    """The same, on the stand-in in any case: for tests that need its users or its faults."""
    with _empty(standin.address()) as address:
        yield address


@contextmanager
def _empty(address: Address) -> Iterator[Address]:
    address = replace(address, database=f"test_{uuid.uuid4().hex[:12]}")
    client = connect(address, database="")
    try:
        client.command(f"CREATE DATABASE {address.database}")
        yield address
    finally:
        client.command(f"DROP DATABASE IF EXISTS {address.database} SYNC")
        client.close()
