"""A ClickHouse server for tests: the real engine (chDB) behind ClickHouse's HTTP interface, in a process of its own.

    python clickhouse_server.py --path DIR --port N [--user U --password P] [--grant NAME:PASSWORD:ROLE ...]

Good enough for clickhouse-connect unchanged: inserts in any format, queries, parameters, settings, compression both
ways, authentication, ClickHouse's error codes. Data survives kill -9. Faults are ordered with POST /admin/faults.
Not here: sessions, progress headers, and what the embedded engine lacks (clusters, CREATE USER).
"""

from __future__ import annotations

import argparse
import contextlib
import email.parser
import email.policy
import gzip
import io
import json
import os
import re
import signal
import socket
import ssl
import struct
import sys
import tempfile
import threading
import time
import uuid
import zlib
from base64 import b64decode
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import chdb
import lz4.frame
from clickhouse_faults import Fault, Faults

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

# What is a request parameter of ClickHouse's HTTP interface and no setting.
TRANSPORT = {
    "query", "database", "user", "password", "default_format", "query_id", "session_id", "session_timeout",
    "session_check", "close_session", "buffer_size", "wait_end_of_query", "compress", "decompress", "quota_key",
    "stacktrace", "client_protocol_version", "role",
}  # fmt: skip
# ROLE: the `readonly` setting, and the verbs it may use ('*': all).
ROLES: dict[str, tuple[int, set[str]]] = {
    "admin": (0, {"*"}),
    "reader": (2, {"SELECT"}),
    "readonly": (1, {"SELECT"}),
    "writer": (0, {"SELECT", "INSERT"}),
    "nothing": (0, set()),
}
READS = {"SELECT", "WITH", "SHOW", "DESCRIBE", "DESC", "EXISTS", "EXPLAIN", "CHECK"}
SESSION = {"SET", "USE", "KILL", "SYSTEM"}
STATUS = {
    **dict.fromkeys((192, 193, 497, 516), 403),
    **dict.fromkeys((6, 26, 27, 36, 41, 53, 62, 72, 117), 400),
    **dict.fromkeys((16, 46, 47, 50, 60, 73, 81, 115), 404),
    48: 501, 159: 408, 209: 503, 319: 503,
}  # fmt: skip
NAMES = {159: "TIMEOUT_EXCEEDED", 202: "TOO_MANY_SIMULTANEOUS_QUERIES", 241: "MEMORY_LIMIT_EXCEEDED",
         242: "TABLE_IS_READ_ONLY", 252: "TOO_MANY_PARTS", 319: "UNKNOWN_STATUS_OF_INSERT"}  # fmt: skip
NAME = rb"(?:`(?:[^`\\]|\\.)*`|\"(?:[^\"\\]|\\.)*\"|\w+)"
INSERT = re.compile(
    rb"\A(\s*INSERT\s+INTO\s+(?:TABLE\s+)?" + NAME + rb"(?:\." + NAME + rb")?"
    rb"(?:\s*\((?:`(?:[^`\\]|\\.)*`|[^()`])*\))?)"
    rb"(\s(?:(?!\bVALUES\b|\bSELECT\b).)*?)\bFORMAT\s+(\w+)[ \t]*(?:\r?\n|\Z)",
    re.IGNORECASE | re.DOTALL,
)
FORMAT = re.compile(rb"\bFORMAT\s+(\w+)\s*;?\s*\Z", re.IGNORECASE)
FIELD = 128 << 10  # http_max_field_value_size
STATEMENT = 1 << 16  # where in a body the end of an INSERT statement is looked for


class AnswerError(Exception):
    """An error to answer with, in ClickHouse's words."""

    def __init__(self, code: int, text: str, name: str) -> None:
        super().__init__(f"Code: {code}. DB::Exception: {text} ({name}) (version {chdb.engine_version})")
        self.code = code


@dataclass
class Options:
    path: str
    users: dict[str, tuple[str, str]]  # name: password, role
    unanswered: bool = False


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    allow_reuse_address = True

    def __init__(self, port: int, options: Options, tls: tuple[str, str] | None) -> None:
        self.options = options
        self.faults = Faults()
        self.context: ssl.SSLContext | None = None
        if tls:
            self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self.context.load_cert_chain(*tls)
        self.keep = chdb.connect(options.path)  # the engine lives while one connection is open
        self.counts: dict[str, int] = {}
        super().__init__(("127.0.0.1", port), Handler)

    def get_request(self) -> tuple[Any, Any]:
        connection, peer = super().get_request()
        if self.context:
            connection = self.context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        return connection, peer

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # as the real one: an answer is two writes, and the second would wait for an ACK
    server: Server

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        if path == "/ping":
            self.answer(200, b"Ok.\n")
        elif path == "/admin/faults":
            self.answer(200, json.dumps({"faults": self.server.faults.told(), "counts": self.server.counts}).encode())
        else:
            self.serve()

    def do_DELETE(self) -> None:
        self.server.faults.clear()
        self.answer(200, b"")

    def do_POST(self) -> None:
        if urlsplit(self.path).path == "/admin/faults":
            self.server.faults.order(json.loads(b"".join(self.chunks())))
            self.answer(200, b"")
        else:
            self.serve()

    # ---- one request ----

    def serve(self) -> None:
        params = dict(parse_qsl(urlsplit(self.path).query, keep_blank_values=True))
        with tempfile.TemporaryFile() as body:
            chunks = self.chunks()
            first = next(chunks, b"")
            begin = beginning(first, self.headers.get("Content-Encoding", ""))
            statement = (params.get("query", "") + "\n" + begin.decode("utf-8", "replace")).strip()
            fault = self.server.faults.meet(statement)
            if not self.before(fault, first, chunks, body):
                return
            verb = statement.split(None, 1)[0].upper() if statement else ""
            self.server.counts[verb] = self.server.counts.get(verb, 0) + 1
            headers = {"X-ClickHouse-Query-Id": params.get("query_id") or str(uuid.uuid4())}
            try:
                role = self.authenticate(params, fault)
                answer = self.execute(params, body, role, headers)
                status = 200
            except AnswerError as error:
                headers["X-ClickHouse-Exception-Code"] = str(error.code)
                status, answer = STATUS.get(error.code, 500), str(error).encode() + b"\n"
        if fault and fault.kind == "lose":
            self.reset()
        elif fault and fault.kind == "die_after":
            os.kill(os.getpid(), signal.SIGKILL)
        else:
            answer = self.compress(answer, headers, params)
            self.answer(status, answer, headers, cut=bool(fault and fault.kind == "truncate"))

    def before(self, fault: Fault | None, first: bytes, chunks: Any, body: Any) -> bool:
        """Reads the body; False where a fault has ended the request."""
        if fault and fault.kind == "stall":
            self.server.faults.cleared.wait(fault.seconds)
        read = len(first)
        body.write(first)
        while not (fault and fault.kind == "cut" and read >= fault.after):
            chunk = next(chunks, b"")
            if not chunk:
                break
            read += len(chunk)
            body.write(chunk)
        if fault and fault.kind == "cut":
            self.reset()
            return False
        if fault and fault.kind == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault and fault.kind == "html":
            page = b"<!DOCTYPE html><html><head><title>Sign in</title></head><body>A proxy's page</body></html>"
            self.answer(fault.status, page, {"Content-Type": "text/html"})
            return False
        return True

    def execute(self, params: dict[str, str], body: Any, role: tuple[str, str], headers: dict[str, str]) -> bytes:
        body.seek(0)
        form = self.headers.get("Content-Type", "")
        if form.startswith(("multipart/form-data", "application/x-www-form-urlencoded")):
            params = params | fields(form, body.read())
            if any(len(value) > FIELD for value in params.values()):
                raise AnswerError(1000, "HTML Form Exception: Field value too long", "POCO_EXCEPTION")
            body = io.BytesIO()
        body = decoded(body, self.headers.get("Content-Encoding", ""))
        statement = params.get("query", "").encode()
        with contextlib.ExitStack() as stack:
            begin = statement or body.read(STATEMENT)
            insert = INSERT.match(begin)
            if insert:
                file = stack.enter_context(tempfile.NamedTemporaryFile(prefix="insert-"))
                file.write(b"" if statement else begin[insert.end() :])
                while chunk := body.read(1 << 20):
                    file.write(chunk)
                file.flush()
                head, rest, kind = insert.groups()
                sql = head + f" FROM INFILE '{file.name}' ".encode() + rest + b" FORMAT " + kind
            else:
                sql = begin + (b"\n" if statement else b"") + body.read()
            return self.run(sql, insert is not None, params, role, headers)

    def run(
        self, sql: bytes, insert: bool, params: dict[str, str], user: tuple[str, str], headers: dict[str, str]
    ) -> bytes:
        text = re.sub(rb"\A(?:\s|--[^\n]*\n|/\*.*?\*/)*", b"", sql, flags=re.DOTALL)
        if not text:
            raise AnswerError(62, "Syntax error: Empty query", "SYNTAX_ERROR")
        verb = text.split(None, 1)[0].decode("utf-8", "replace").upper().lstrip("(")
        readonly = self.allow(verb, text, user)
        connection = chdb.connect(self.server.options.path)  # one for each request: its settings end with it
        try:
            if readonly:
                connection.query(f"SET readonly = {readonly}", "TabSeparated")
            if database := params.get("database"):
                connection.query(f"USE `{database.replace('`', '``')}`", "TabSeparated")
            for name, value in params.items():
                if name not in TRANSPORT and not name.startswith("param_"):
                    if not name.isidentifier():
                        raise AnswerError(115, f"Unknown setting '{name}'.", "UNKNOWN_SETTING")
                    connection.query(f"SET {name} = {quoted(value)}", "TabSeparated")
            bound = {name[6:]: value for name, value in params.items() if name.startswith("param_")}
            began = time.monotonic_ns()
            result = connection.query(sql, params.get("default_format", "TabSeparated"), params=bound)
            answer: bytes = result.bytes() or b""
            rows, size = result.rows_read(), result.bytes_read()
        except RuntimeError as error:
            raise in_words(str(error)) from error
        finally:
            connection.close()
        counts = ("written_rows", "written_bytes") if insert else ("read_rows", "read_bytes")
        summary = dict(zip(counts, (str(rows), str(size)), strict=True))
        headers["X-ClickHouse-Summary"] = json.dumps(summary | {"elapsed_ns": str(time.monotonic_ns() - began)})
        headers["X-ClickHouse-Timezone"] = "UTC"
        if verb in READS:
            named = FORMAT.search(sql)
            headers["X-ClickHouse-Format"] = named[1].decode() if named else "TabSeparated"
        return answer

    # ---- who may do what ----

    def authenticate(self, params: dict[str, str], fault: Fault | None) -> tuple[str, str]:
        """(user, role) of the request."""
        if fault and fault.kind == "error":
            raise AnswerError(fault.code, "ordered by the test.", NAMES.get(fault.code, "ORDERED"))
        kind, _, encoded = self.headers.get("Authorization", "").partition(" ")
        if kind == "Basic":
            user, _, password = b64decode(encoded).decode("utf-8", "replace").partition(":")
        else:
            user = self.headers.get("X-ClickHouse-User") or params.get("user") or "default"
            password = self.headers.get("X-ClickHouse-Key") or params.get("password", "")
        known = self.server.options.users.get(user)
        if known is None or known[0] != password:
            raise AnswerError(
                516,
                f"{user}: Authentication failed: password is incorrect, or there is no user with such name.",
                "AUTHENTICATION_FAILED",
            )
        return user, known[1]

    def allow(self, verb: str, sql: bytes, user: tuple[str, str]) -> int:
        """The `readonly` setting under which the statement runs."""
        readonly, verbs = ROLES[user[1]]
        if "*" in verbs or verb in SESSION or (verb in READS and ("SELECT" in verbs or not outside_system(sql))):
            return readonly
        if verb not in verbs:
            grant = "SELECT(a)" if verb in READS else verb
            raise AnswerError(
                497,
                f"{user[0]}: Not enough privileges. To execute this query, it's necessary to have the grant "
                f"{grant} ON kdiff.*.",
                "ACCESS_DENIED",
            )
        return readonly

    # ---- bytes in and out ----

    def chunks(self) -> Any:
        """The request's body in pieces, whichever way it comes."""
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            while size := int(self.rfile.readline().split(b";")[0] or b"0", 16):
                yield self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return
        left = int(self.headers.get("Content-Length") or 0)
        while left > 0:
            piece = self.rfile.read(min(left, STATEMENT))
            if not piece:
                raise ConnectionResetError
            left -= len(piece)
            yield piece

    def compress(self, answer: bytes, headers: dict[str, str], params: dict[str, str]) -> bytes:
        if params.get("enable_http_compression") != "1" or not answer:
            return answer
        accepted = {part.strip() for part in self.headers.get("Accept-Encoding", "").split(",")}
        for encoding, pack in (("lz4", lz4.frame.compress), ("zstd", zstd.compress), ("gzip", gzip.compress)):
            if encoding in accepted:
                headers["Content-Encoding"] = encoding
                return bytes(pack(answer))
        return answer

    def answer(self, status: int, body: bytes, headers: dict[str, str] | None = None, cut: bool = False) -> None:
        self.send_response(status)
        for name, value in {"X-ClickHouse-Server-Display-Name": "standin", **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if cut else body)
        if cut:
            self.wfile.flush()
            self.reset()

    def reset(self) -> None:
        """Ends the connection without another byte."""
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()


def outside_system(sql: bytes) -> bool:
    """Whether a statement reads other tables than those of `system`."""
    return re.search(rb"\b(?:FROM|JOIN|TABLE|DESCRIBE)\s+(?!system\.|\(|FROM)[`\"\w]", sql, re.IGNORECASE) is not None


def in_words(message: str) -> AnswerError:
    found = re.search(r"Code: (\d+)\. DB::Exception: (.*?)(?: \((\w+)\))?\s*\Z", message, re.DOTALL)
    return (
        AnswerError(int(found[1]), found[2], found[3] or "UNKNOWN")
        if found
        else AnswerError(1001, message, "STD_EXCEPTION")
    )


def quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def fields(kind: str, body: bytes) -> dict[str, str]:
    """The parts of a form."""
    if kind.startswith("application/x-www-form-urlencoded"):
        return dict(parse_qsl(body.decode(), keep_blank_values=True))
    message = email.parser.BytesParser(policy=email.policy.HTTP).parsebytes(
        b"Content-Type: " + kind.encode() + b"\r\n\r\n" + body
    )
    found = {}
    for part in message.iter_parts():
        name = part.get_param("name", header="Content-Disposition")
        found[str(name)] = (part.get_payload(decode=True) or b"").decode()
    return found


def beginning(first: bytes, encoding: str) -> bytes:
    """What the first piece of a body begins with, its compression undone as far as it goes."""
    with contextlib.suppress(EOFError, OSError, RuntimeError, zlib.error, zstd.ZstdError):
        if encoding == "lz4":
            return lz4.frame.LZ4FrameDecompressor().decompress(first, STATEMENT)
        if encoding == "zstd":
            return zstd.ZstdDecompressor().decompress(first, STATEMENT)
        if encoding in ("gzip", "deflate"):
            return zlib.decompressobj(47).decompress(first, STATEMENT)
    return first[:STATEMENT]


def decoded(body: Any, encoding: str) -> Any:
    """The request's body without its compression."""
    if encoding == "lz4":
        return lz4.frame.open(body, "rb")
    if encoding == "zstd":
        return zstd.open(body, "rb")
    if encoding == "gzip":
        return gzip.open(body, "rb")
    if encoding == "deflate":
        return io.BytesIO(zlib.decompress(body.read()))
    return body


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--path", required=True, help="where the data lies")
    parser.add_argument("--port", type=int, default=0, help="0: any free one")
    parser.add_argument("--user", default="default")
    parser.add_argument("--password", default="")
    parser.add_argument("--grant", action="append", default=[], metavar="NAME:PASSWORD:ROLE", help=", ".join(ROLES))
    parser.add_argument("--tls", nargs=2, metavar=("CERT", "KEY"))
    parser.add_argument("--watch-stdin", action="store_true", help="end when stdin is closed")
    given = parser.parse_args()
    users = {given.user: (given.password, "admin")}
    for grant in given.grant:
        name, password, role = grant.split(":")
        users[name] = (password, role)
    Path(given.path).mkdir(parents=True, exist_ok=True)
    server = Server(given.port, Options(given.path, users), given.tls)
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
    if given.watch_stdin:
        threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    print(f"ready {server.server_address[1]}", flush=True)
    server.serve_forever(poll_interval=0.05)
    server.keep.close()


if __name__ == "__main__":
    main()
