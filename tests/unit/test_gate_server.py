"""Many clients of the gate, slow ones, ones that go away, and what is no request."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from gates import ASKED, Start, parsed, read, until, waits_for

from kdiff.analysis import gate_server
from kdiff.analysis.gate_server import MOST_BODY_BYTES, MOST_CONNECTIONS, MOST_HEAD_BYTES

# ---- many clients, slow clients, clients that go ----


def test_beyond_its_places_the_gate_says_when_to_come_again(start: Start, tmp_path: Path) -> None:
    go = tmp_path / "go"
    gate = start(waits_for(go), concurrency=2)
    request = f"GET {ASKED} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    first = [gate.connect(request) for _ in range(2)]
    until(lambda: gate.gate._slots.locked())
    status, headers, body = gate.ask(ASKED)
    assert (status, headers["Retry-After"], body) == (503, "10", "2 verdicts are being judged: ask again later\n")
    assert gate.ask("/healthz")[0] == 200
    go.touch()
    for client in first:
        with client:
            assert parsed(read(client))[0] == 200
    assert gate.ask(ASKED)[0] == 200


def test_one_more_waits_a_moment_for_a_place(start: Start, tmp_path: Path) -> None:
    go = tmp_path / "go"
    gate = start(waits_for(go), concurrency=1, wait_s=20.0)
    clients = [gate.connect(f"GET {ASKED} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()) for _ in range(3)]
    until(lambda: gate.gate._slots.locked())
    go.touch()
    for client in clients:
        with client:
            assert parsed(read(client))[0] == 200


def test_a_client_that_goes_away_ends_its_verdict(start: Start, tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    program = f"import os, time; open({str(mark)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    gate = start(program, concurrency=1)
    client = gate.connect(f"GET {ASKED} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    until(lambda: mark.exists() and mark.read_text() != "")
    client.close()
    until(lambda: not gate.gate._slots.locked())
    until(lambda: not Path(f"/proc/{mark.read_text()}").exists())
    until(lambda: any("status=499" in line for line in gate.log))
    asked = 'level=info client=127.0.0.1 method=GET path="/verdict" status=499'
    assert [line.partition(" seconds=")[0] for line in gate.log] == [asked]


def test_slow_clients_hold_nobody_up(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_server, "REQUEST_WITHIN_S", 1.0)
    gate = start()
    slow = [gate.connect(b"GET /healthz HT") for _ in range(MOST_CONNECTIONS + 30)]
    assert gate.ask("/healthz")[0] == 200
    began = time.monotonic()
    for client in slow:
        with client:
            assert read(client) == b""
    assert time.monotonic() - began < 15


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET / HTTP/1.1\r\nX: " + b"x" * (MOST_HEAD_BYTES + 9) + b"\r\n\r\n", 431),
        (b"GET /\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\r\n\r\n", 400),
        (b"GET / HTTP/2\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\n folded: b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"POST /flagger HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"POST /flagger HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST /flagger HTTP/1.1\r\nContent-Length: \xb2\r\n\r\n", 400),
        (b"POST /flagger HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (MOST_BODY_BYTES + 1), 413),
        (b"POST /flagger HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n", 413),
        (b"POST /flagger HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 411),
    ],
)
def test_what_is_no_request_is_refused(start: Start, data: bytes, status: int) -> None:
    gate = start()
    assert parsed(gate.raw(data))[0] == status
    assert gate.ask("/healthz")[0] == 200


def test_a_body_that_waits_to_be_asked_for_is(start: Start) -> None:
    gate = start()
    body = b'{"metadata": {"before": "-2h", "after": "-1h"}}'
    head = f"POST /flagger HTTP/1.1\r\nHost: [::1]:1\r\nExpect: 100-continue\r\nContent-Length: {len(body)}\r\n\r\n"
    with gate.connect(head.encode()) as client:
        assert client.recv(99) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(body)
        assert parsed(read(client))[0] == 200


def test_stopped_it_finishes_what_it_judges_and_takes_no_more(start: Start, tmp_path: Path) -> None:
    go = tmp_path / "go"
    gate = start(waits_for(go))
    with gate.connect(f"GET {ASKED} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()) as client:
        until(lambda: gate.gate._slots._value == 1)
        assert gate.loop is not None
        gate.loop.call_soon_threadsafe(gate.server.stop)

        def refused() -> bool:
            try:
                gate.connect().close()
            except ConnectionRefusedError:
                return True
            return False

        until(refused)
        go.touch()
        assert parsed(read(client))[0] == 200
    gate.thread.join(10)
    assert not gate.thread.is_alive()


def test_stopped_it_does_not_wait_for_ever(start: Start) -> None:
    gate = start("import time; time.sleep(60)", patience_s=0.5)
    with gate.connect(f"GET {ASKED} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()):
        until(lambda: gate.gate._slots._value == 1)
        began = time.monotonic()
        gate.stop()
        assert time.monotonic() - began < 15
