"""HTTP for `kdiff gate`: one request a connection, read within a bounded time and size, so that no client holds it up.

Clients that have asked for nothing yet are bounded in number; where there are too many the oldest goes. A client that
goes away while its answer is made ends the making of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import http
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

MOST_CONNECTIONS: Final = 64
REQUEST_WITHIN_S: Final = 5.0
MOST_HEAD_BYTES: Final = 16 << 10
MOST_BODY_BYTES: Final = 64 << 10
_MOST_PARAMETERS: Final = 64
_LINGER_S: Final = 1.0
_END_WITHIN_S: Final = 10.0
_SETTLED_S: Final = 0.05
_ONCE: Final = ("authorization", "content-length", "host")


@dataclass(frozen=True, slots=True)
class Request:
    """What a client asked. Header names are in lower case; `query` has blank values too."""

    method: str
    path: str
    query: tuple[tuple[str, str], ...]
    headers: Mapping[str, str]
    body: bytes
    client: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What it is told."""

    status: int
    body: str
    kind: str = "text/plain; charset=utf-8"
    headers: Mapping[str, str] = field(default_factory=dict)


class RefusedError(Exception):
    """A request that is answered without being asked further."""

    def __init__(self, status: int, reason: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(reason)
        self.answer = Answer(status, f"{reason}\n", headers=headers or {})


Handler = Callable[[Request], Awaitable[Answer]]


class Server:
    """Listens from `open` on; `serve` answers with `handler` until `stop`."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._reading: dict[asyncio.Task[None], None] = {}  # the oldest first
        self._working: set[asyncio.Task[None]] = set()
        self._every: set[asyncio.Task[None]] = set()
        self._stopping = asyncio.Event()

    async def serve(self, listening: socket.socket, patience_s: float) -> None:
        """Answers until `stop`; then takes no more connections and gives those that are worked on `patience_s`."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda *_: None)  # of clients: no traceback's worth
        server = await asyncio.start_server(self._connection, sock=listening, limit=MOST_HEAD_BYTES, backlog=64)
        await self._stopping.wait()
        # asyncio loses, unclosed, a connection that it is taking while its server is closed: none is then.
        loop.remove_reader(listening.fileno())
        await asyncio.sleep(_SETTLED_S)
        server.close()
        for task in [*self._reading]:
            task.cancel()
        if self._working:
            await asyncio.wait(self._working, timeout=patience_s)
        for task in self._every:
            task.cancel()
        if self._every:
            await asyncio.wait(self._every, timeout=_END_WITHIN_S)

    def stop(self) -> None:
        """As of SIGTERM."""
        self._stopping.set()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        this = asyncio.current_task()
        assert this is not None
        self._every.add(this)
        self._reading[this] = None
        if len(self._reading) > MOST_CONNECTIONS:
            oldest = next(iter(self._reading))
            del self._reading[oldest]
            oldest.cancel()
        head_only = False
        try:
            try:
                async with asyncio.timeout(REQUEST_WITHIN_S):
                    request = await _read(reader, writer)
                head_only = request.method == "HEAD"
            finally:
                self._reading.pop(this, None)
            self._working.add(this)
            answer = await self._while_connected(request, reader)
            await _write(writer, answer, head_only)
            await _linger(reader, writer)
        except RefusedError as error:
            with contextlib.suppress(Exception):
                async with asyncio.timeout(_LINGER_S):
                    await _write(writer, error.answer, head_only)
                    await _linger(reader, writer)
        except (Exception, asyncio.CancelledError):
            writer.transport.abort()
        finally:
            self._working.discard(this)
            with contextlib.suppress(Exception):
                writer.close()
                async with asyncio.timeout(_LINGER_S):
                    await writer.wait_closed()
            self._every.discard(this)

    async def _while_connected(self, request: Request, reader: asyncio.StreamReader) -> Answer:
        """The handler's answer. Raises ConnectionError where nobody waits for it any more."""
        working = asyncio.ensure_future(self._handler(request))
        gone = asyncio.ensure_future(_gone(reader))
        try:
            await asyncio.wait((working, gone), return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise ConnectionError("the client has gone away")
            return working.result()
        finally:
            for task in (working, gone):
                task.cancel()
            await asyncio.wait((working, gone))
            for task in (working, gone):
                if not task.cancelled():
                    task.exception()  # seen


async def _gone(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(OSError):
        while await reader.read(1 << 12):  # what comes behind the request is nobody's
            pass


async def _read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Request:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError as error:
        raise RefusedError(431, f"the request's head is over {MOST_HEAD_BYTES} bytes: ask shorter") from error
    first, *lines = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    parts = first.split(" ")
    if len(parts) != 3 or not parts[2].startswith("HTTP/1.") or not parts[0].isalpha() or len(parts[0]) > 16:
        raise RefusedError(400, "this is no HTTP/1 request: check who asks")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        name = name.lower()
        if not colon or not name or name != name.strip():
            raise RefusedError(400, "the request has a header that cannot be read: check who asks")
        if name in headers and name in _ONCE:
            raise RefusedError(400, f"the request has {name} twice: send it once")
        headers[name] = value.strip()
    try:
        target = urlsplit(parts[1])
        query = parse_qsl(
            target.query, keep_blank_values=True, errors="strict", max_num_fields=_MOST_PARAMETERS, separator="&"
        )
        path = unquote(target.path, errors="strict")
    except ValueError as error:
        raise RefusedError(400, f"the address cannot be read: at most {_MOST_PARAMETERS} parameters, UTF-8") from error
    body = await _body(reader, writer, headers)
    client = str((writer.get_extra_info("peername") or ("unknown",))[0])
    return Request(parts[0], path, tuple(query), headers, body, client)


async def _body(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, headers: Mapping[str, str]) -> bytes:
    if "transfer-encoding" in headers:
        raise RefusedError(411, "a body needs a Content-Length")
    length = headers.get("content-length", "0")
    if not (length.isascii() and length.isdecimal()):
        raise RefusedError(400, "Content-Length is no number")
    if len(length) > 9 or int(length) > MOST_BODY_BYTES:
        raise RefusedError(413, f"the body is over {MOST_BODY_BYTES} bytes: send less")
    if headers.get("expect", "").lower() == "100-continue" and int(length):
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    return await reader.readexactly(int(length))


async def _write(writer: asyncio.StreamWriter, answer: Answer, head_only: bool) -> None:
    body = answer.body.encode("utf-8", "backslashreplace")
    headers = {
        "Content-Type": answer.kind,
        "Content-Length": str(len(body)),
        "Cache-Control": "no-store",
        "X-Content-Type-Options": "nosniff",
        "Connection": "close",
        **answer.headers,
    }
    reason = http.HTTPStatus(answer.status).phrase
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    writer.write(f"HTTP/1.1 {answer.status} {reason}\r\n{head}\r\n".encode("latin-1"))
    if not head_only:
        writer.write(body)
    async with asyncio.timeout(REQUEST_WITHIN_S):
        await writer.drain()


async def _linger(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """An answer must not be cut off by what was sent behind the request."""
    with contextlib.suppress(Exception):
        async with asyncio.timeout(_LINGER_S):
            writer.write_eof()
            while await reader.read(1 << 12):
                pass
