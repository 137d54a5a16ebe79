"""A server for one page, which no client can keep from answering the next one.

One thread, connections in a bounded number, each for a bounded time. Where there are too many the oldest goes: a
request that has come is answered at once, so that one which is old has asked for nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Final

MOST_CONNECTIONS: Final = 64
ANSWER_WITHIN_S: Final = 5.0
_MOST_REQUEST_BYTES: Final = 1 << 14


def serve_page(where: tuple[str, int], page: Callable[[str], tuple[str, bytes]]) -> None:
    """Answers each GET with `page`, in a thread of its own, until the process ends. Raises OSError, UnicodeError.

    `page`: from the request's Accept to the type and the content.
    """
    found = socket.getaddrinfo(*where, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    listening = socket.create_server(found[0][4][:2], family=found[0][0])
    threading.Thread(target=lambda: asyncio.run(_serve(listening, page)), daemon=True, name="metrics").start()


async def _serve(listening: socket.socket, page: Callable[[str], tuple[str, bytes]]) -> None:
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # of clients: no traceback's worth
    waiting: dict[asyncio.Task[None], None] = {}  # the oldest first

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        this = asyncio.current_task()
        assert this is not None
        waiting[this] = None
        if len(waiting) > MOST_CONNECTIONS:
            oldest = next(iter(waiting))
            del waiting[oldest]
            oldest.cancel()
        try:
            async with asyncio.timeout(ANSWER_WITHIN_S):
                request = await reader.readuntil(b"\r\n\r\n")
                writer.write(_answer(request, page))
                await writer.drain()
                writer.write_eof()
                while await reader.read(1 << 12):  # an answer must not be cut off by what was sent behind the request
                    pass
        except (Exception, asyncio.CancelledError):
            writer.transport.abort()
        finally:
            waiting.pop(this, None)
            with contextlib.suppress(Exception):
                writer.close()

    server = await asyncio.start_server(answer, sock=listening, limit=_MOST_REQUEST_BYTES, backlog=32)
    async with server:
        await server.serve_forever()


def _answer(request: bytes, page: Callable[[str], tuple[str, bytes]]) -> bytes:
    first, *lines = request.decode("latin-1").split("\r\n")
    method = first.partition(" ")[0]
    if method not in ("GET", "HEAD") or " HTTP/1." not in first:
        return b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    kind, content = page(headers.get("accept", ""))
    head = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {len(content)}\r\nConnection: close\r\n\r\n"
    return head.encode("latin-1") + (content if method == "GET" else b"")
