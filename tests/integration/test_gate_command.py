"""`kdiff gate` as a process, over a capture and over a server: what Argo Rollouts and Flagger would meet."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import loaded
import numpy as np
import pytest
import schemas

import captures
from captures import AFTER, BEFORE, TwoWindows
from kdiff.queries.address import Address
from kdiff.queries.verdicts import FILE, Wanted, open_log
from server import PASSWORD

KDIFF = Path(sys.executable).parent / "kdiff"
TOKEN = "0123456789abcdef0123"
SPECS = {"before": "2025-11-27T10:00/10m", "after": "2025-11-27T10:10/10m"}
QUERY = "before=2025-11-27T10:00/10m&after=2025-11-27T10:10/10m"


class Process:
    """A gate on a free port of loopback."""

    def __init__(self, *arguments: str | Path, **environment: str) -> None:
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [KDIFF, "gate", "--listen", "127.0.0.1:0", *map(str, arguments)],
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "KDIFF_STORE": "", **environment},
        )
        assert self.process.stderr is not None
        first = self.process.stderr.readline()
        found = re.fullmatch(r"kdiff: the gate listens on http://127\.0\.0\.1:(\d+)\n", first)
        assert found, first
        self.port = int(found[1])

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, str]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=120)
        with contextlib.closing(connection):
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

    def flagger(self, **metadata: str) -> tuple[int, str]:
        payload = {"name": "chat", "namespace": "prod", "phase": "Progressing", "metadata": SPECS | metadata}
        return self.ask("POST", "/flagger", payload)

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """The exit status and what was said."""
        self.process.send_signal(number)
        out, said = self.process.communicate(timeout=60)
        assert out == ""
        assert "Traceback" not in said
        return self.process.returncode, said


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    """gelu got slower, relu did not, and each of too few there is too little to say."""
    windows = TwoWindows(tmp_path / "capture")
    for number, window in enumerate((BEFORE, AFTER)):
        for place, (name, count) in enumerate((("gelu", 4_001), ("relu", 4_003), ("few", 503))):
            times = captures.spread(window.from_ns, window.to_ns, count)
            scale = 1 + 0.3 * number * (place == 0)
            values = (80_000 * scale * np.random.default_rng(place).lognormal(0, 0.05, count)).astype(np.int64)
            windows.add("cuda_events", captures.launches(name, times, completion_ns=values))
    return windows.root


@pytest.fixture
def gates() -> Iterator[list[Process]]:
    running: list[Process] = []
    yield running
    for gate in running:
        if gate.process.poll() is None:
            gate.process.kill()
            gate.process.communicate()


def labels(store: str) -> list[tuple[str, str, str]]:
    rows = open_log(store).read(Wanted(lambda _: True, None, 0, 99)).verdicts
    return sorted((row.label, row.kernel_name, row.verdict) for row in rows)


def test_argo_and_flagger_over_a_capture(capture: Path, gates: list[Process]) -> None:
    gate = Process("--store", capture)
    gates.append(gate)
    assert gate.ask("GET", "/healthz") == (200, '{"status": "ok"}\n')
    status, body = gate.ask("GET", f"/verdict?{QUERY}&kernel=gelu&label=r1")
    assert status == 200
    regressed = schemas.check_text(body)
    assert (regressed["verdict"], regressed["regressed"], regressed["go"]) == ("REGRESSED", 1, 0)
    assert regressed["worst"]["kernel"] == "gelu"
    passed = schemas.check_text(gate.ask("GET", f"/verdict?{QUERY}&kernel=relu")[1])
    assert (passed["verdict"], passed["passed"], passed["largest_ratio"]) == ("PASS", 1, 1.0)
    unsure = schemas.check_text(gate.ask("GET", f"/verdict?{QUERY}&kernel=few")[1])
    assert (unsure["verdict"], unsure["undecided"], unsure["exit_code"]) == ("UNDECIDED", 1, 3)
    assert "2,000" in unsure["reasons"][0]

    status, told = gate.flagger(kernel="gelu")
    assert (status, told) == (409, regressed["sentence"] + "\n")
    assert told.startswith("kdiff: REGRESSED: gelu p99 +30.0% [")
    assert gate.flagger(kernel="relu") == (200, passed["sentence"] + "\n")
    assert gate.flagger(kernel="few") == (409, unsure["sentence"] + "\n")
    assert gate.flagger(kernel="few", on_undecided="pass") == (200, unsure["sentence"] + "\n")

    status, told = gate.ask("GET", "/verdict?before=2020-01-01&after=2020-01-02")
    assert status == 502
    assert "nothing was recorded in the before window" in json.loads(told)["error"]
    code, said = gate.stop()
    assert code == 0
    assert said.count(" level=info ") == 9
    assert labels(str(capture)) == [
        ("", "few", "NOT_ENOUGH_DATA"),
        ("", "relu", "PASS"),
        ("prod/chat", "few", "NOT_ENOUGH_DATA"),
        ("prod/chat", "few", "NOT_ENOUGH_DATA"),
        ("prod/chat", "gelu", "REGRESSED"),
        ("prod/chat", "relu", "PASS"),
        ("r1", "gelu", "REGRESSED"),
    ]


def test_what_the_operator_says_holds_where_a_request_does_not(
    capture: Path, gates: list[Process], tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    arguments = ["--before", SPECS["before"], "--after", SPECS["after"], "--on-undecided", "pass", "--no-keep"]
    gate = Process("--store", capture, *arguments, "--tolerance", "50%", KDIFF_GATE_TOKEN_FILE=str(token))
    gates.append(gate)
    assert gate.ask("GET", "/verdict")[0] == 401
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    status, body = gate.ask("GET", "/verdict?kernel=gelu", **bearer)
    assert (status, schemas.check_text(body)["verdict"]) == (200, "PASS")
    assert schemas.check_text(gate.ask("GET", "/verdict?kernel=gelu&tolerance=5%25", **bearer)[1])["regressed"] == 1
    basic = {"Authorization": "Basic " + base64.b64encode(f"kdiff:{TOKEN}".encode()).decode()}
    assert gate.ask("POST", "/flagger", {"metadata": {"kernel": "few"}}, **basic)[0] == 200
    assert gate.stop(signal.SIGINT)[0] == 0
    assert not (capture / FILE).exists()


def test_a_log_that_nobody_reads_costs_no_verdict(capture: Path, gates: list[Process]) -> None:
    gate = Process("--store", capture)
    gates.append(gate)
    assert gate.process.stderr is not None
    assert gate.process.stdout is not None
    gate.process.stderr.close()
    gate.process.stdout.close()
    for _ in range(3):
        assert gate.ask("GET", "/healthz") == (200, '{"status": "ok"}\n')
    assert gate.flagger()[0] == 409
    gate.process.terminate()
    assert gate.process.wait(60) == 0


def test_a_server_is_judged_and_keeps(capture: Path, own_database: Address, gates: list[Process]) -> None:
    loaded.load(own_database, capture)
    for role, kept in (("reader", []), ("writer", [("v", "gelu", "REGRESSED")])):
        place = replace(own_database, user=role)
        gate = Process("--store", str(place), KDIFF_CLICKHOUSE_PASSWORD=PASSWORD)
        gates.append(gate)
        status, body = gate.ask("GET", f"/verdict?{QUERY}&kernel=gelu&service=svc&label=v")
        assert (status, schemas.check_text(body)["verdict"]) == (200, "REGRESSED")
        code, said = gate.stop()
        assert (code, "the verdict was not kept" in said) == (0, role == "reader")
        assert PASSWORD not in said
        rows = open_log_of(place).read(Wanted(lambda _: True, None, 0, 99)).verdicts
        assert [(row.label, row.kernel_name, row.verdict) for row in rows] == kept


def open_log_of(address: Address) -> Any:
    from kdiff.queries.verdicts import ServerLog

    return ServerLog(address)


def test_a_server_that_is_away_is_a_sentence_and_the_gate_stays(gates: list[Process]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    gate = Process("--store", f"clickhouse://user@127.0.0.1:{port}/kdiff")
    gates.append(gate)
    status, body = gate.ask("GET", f"/verdict?{QUERY}")
    assert status == 502
    assert json.loads(body)["error"].startswith(f"nothing listens on 127.0.0.1:{port}")
    assert gate.ask("GET", "/healthz")[0] == 200


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--listen", "0.0.0.0:0"], "--listen 0.0.0.0 can be reached from elsewhere: give --token-file FILE"),
        (["--listen", "[::]:0"], "can be reached from elsewhere"),
        (["--listen", "9465"], "--listen '9465' is not HOST:PORT: write 127.0.0.1:9465"),
        (["--listen", "no.such.host.invalid:1"], "cannot listen on no.such.host.invalid:1"),
        (["--token-file", "/no/such"], "the token file /no/such cannot be read"),
        (["--token-file", "/dev/null"], "is not one word of at least 16 characters"),
        (["--store", "/no/such"], "there is no capture at /no/such"),
        (["--before", "yesterday"], "--before 'yesterday' is neither a time nor a capture directory"),
        (["--tolerance", "5"], "write 5% if that is meant"),
        (["--concurrency", "0"], "--concurrency 0 is not between 1 and 64"),
        (["--timeout", "2d"], "--timeout 2d is over a day"),
    ],
)
def test_a_gate_that_cannot_be_starts_not(capture: Path, arguments: list[str], words: str) -> None:
    given = arguments if "--store" in arguments else ["--store", str(capture), *arguments]
    listen = [] if "--listen" in arguments else ["--listen", "127.0.0.1:0"]
    done = subprocess.run([KDIFF, "gate", *listen, *given], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert words in done.stderr


def test_a_port_that_is_taken_is_a_sentence(capture: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        command = [str(KDIFF), "gate", "--listen", where, "--store", str(capture)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr == f"kdiff: cannot listen on {where} (Address already in use): choose another with --listen\n"


def test_beyond_loopback_it_serves_with_a_token(capture: Path, gates: list[Process], tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    process = subprocess.Popen(
        [KDIFF, "gate", "--listen", f"0.0.0.0:{port}", "--token-file", token, "--store", capture],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        assert process.stderr.readline() == f"kdiff: the gate listens on http://0.0.0.0:{port}\n"
        connection = HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("GET", "/verdict", headers={"Host": "gate.svc", "Authorization": f"Bearer {TOKEN}"})
        assert connection.getresponse().status == 400  # admitted: the windows are missing
        connection.close()
    finally:
        process.terminate()
        process.communicate(timeout=30)
    assert process.returncode == 0


def test_stopped_in_the_middle_it_leaves_no_process_and_nothing_temporary(
    capture: Path, gates: list[Process], tmp_path: Path
) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    gate = Process("--store", capture, TMPDIR=str(temporary))
    gates.append(gate)
    with socket.create_connection(("127.0.0.1", gate.port)) as client:
        client.sendall(f"GET /verdict?{QUERY} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        end = time.monotonic() + 60
        while not any(temporary.iterdir()):  # the engine is open
            assert time.monotonic() < end
            time.sleep(0.02)
    children = Path(f"/proc/{gate.process.pid}/task/{gate.process.pid}/children")
    while children.read_text():
        assert time.monotonic() < end
        time.sleep(0.02)
    assert list(temporary.iterdir()) == []
    assert gate.stop()[0] == 0
