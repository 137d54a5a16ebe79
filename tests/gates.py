"""A gate on a loopback socket, with programs in the place of `kdiff` that are slow, broken or loud."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kdiff.analysis.gate import Gate, Token
from kdiff.analysis.gate_server import Server

ASKED = "/verdict?before=-2h&after=-1h"


def says(verdict: str, code: int, **more: Any) -> str:
    """A program that prints its arguments and a verdict."""
    document = {"verdict": verdict, "go": int(code == 0), "sentence": f"kdiff: {verdict}.", **more}
    return f"import sys, json; print(json.dumps({document!r} | {{'argv': sys.argv[1:]}})); sys.exit({code})"


class Running:
    """A gate in a thread of its own."""

    def __init__(self, program: str, token: Token | None = None, patience_s: float = 5.0, **options: Any) -> None:
        self.log: list[str] = []
        given: dict[str, Any] = {"wait_s": 0.0, "timeout_s": 20.0} | options
        fixed = ["--store=operators"]
        run = (sys.executable, "-P", "-c", program)
        self.gate = Gate(fixed, {"window": ["15m"]}, token, log=self.log.append, program=run, **given)
        self.server = Server(self.gate.answer)
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.where = self.socket.getsockname()
        self.patience_s = patience_s
        self.loop: asyncio.AbstractEventLoop | None = None
        self.thread = threading.Thread(target=lambda: asyncio.run(self._serve()))

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        await self.server.serve(self.socket, self.patience_s)

    def stop(self) -> None:
        assert self.loop is not None
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self.server.stop)
        self.thread.join(30)
        assert not self.thread.is_alive()

    def connect(self, data: bytes = b"") -> socket.socket:
        client = socket.create_connection(self.where, timeout=20)
        client.sendall(data)
        return client

    def raw(self, data: bytes) -> bytes:
        with self.connect(data) as client:
            return read(client)

    def ask(
        self, target: str, method: str = "GET", body: Any = None, **headers: str
    ) -> tuple[int, dict[str, str], str]:
        content = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        named = {"Host": "127.0.0.1", **{name.replace("_", "-"): value for name, value in headers.items()}}
        if content:
            named["Content-Length"] = str(len(content))
        head = "".join(f"{name}: {value}\r\n" for name, value in named.items())
        return parsed(self.raw(f"{method} {target} HTTP/1.1\r\n{head}\r\n".encode() + content))


def read(client: socket.socket) -> bytes:
    found = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := client.recv(1 << 16):
            found += piece
    return found


def parsed(answer: bytes) -> tuple[int, dict[str, str], str]:
    head, _, body = answer.decode().partition("\r\n\r\n")
    first, *lines = head.split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    if not first:
        return 0, {}, ""
    return int(first.split()[1]), headers, body


Start = Callable[..., Running]


@pytest.fixture
def start() -> Iterator[Start]:
    running: list[Running] = []

    def begin(program: str = says("PASS", 0), **options: Any) -> Running:
        one = Running(program, **options)
        running.append(one)
        one.thread.start()
        while one.loop is None:
            time.sleep(0.01)
        return one

    yield begin
    for one in running:
        one.stop()


def waits_for(path: Path) -> str:
    return f"import os, time\nwhile not os.path.exists({str(path)!r}): time.sleep(0.02)\n{says('PASS', 0)}"


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)
