"""Each way in which a server cannot be used is one sentence that names the mend and never the password."""

from __future__ import annotations

import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import loaded
import pytest
from clickhouse_connect.driver.exceptions import OperationalError

from kdiff.queries import connection
from kdiff.queries.address import Address
from kdiff.queries.connection import connect
from kdiff.queries.errors import StoreError
from kdiff.queries.store import open_store
from server import PASSWORD, StandIn

Refused = Callable[[str], str]


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> Refused:
    """What is said of an address that cannot be used."""
    monkeypatch.setenv("KDIFF_CLICKHOUSE_PASSWORD", PASSWORD)
    monkeypatch.setattr(connection, "FIRST_ANSWER_S", 1)

    def said(text: str) -> str:
        with pytest.raises(StoreError) as caught, closing(open_store(text)) as store:
            store.query("services")
        sentence = str(caught.value)
        assert sentence.isprintable()
        assert PASSWORD not in sentence
        assert len(sentence) < 400
        return sentence

    return said


def test_wrong_password(refused: Refused, standin: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KDIFF_CLICKHOUSE_PASSWORD", "hunter2-wrong")
    said = refused(standin.url("default"))
    assert f"127.0.0.1:{standin.port} refuses the user default: wrong password, or no such user" in said
    assert "set KDIFF_CLICKHOUSE_PASSWORD or KDIFF_CLICKHOUSE_PASSWORD_FILE" in said
    assert "hunter2" not in said
    assert "refuses the user nobody" in refused(standin.url("default", user="nobody"))


def test_unknown_database(refused: Refused, standin: StandIn) -> None:
    said = refused(standin.url("no'such"))
    assert f"there is no database no'such on 127.0.0.1:{standin.port}: create it with `kdiff migrate`" in said


def test_no_permission(refused: Refused, own_database: Address, standin: StandIn) -> None:
    loaded.load(own_database)
    said = refused(standin.url(own_database.database, user="nothing"))
    assert "the user nothing lacks a right on" in said
    assert "ask its administrator for GRANT SELECT" in said


def test_nothing_listens(refused: Refused) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert f"nothing listens on 127.0.0.1:{port}" in refused(f"clickhouse://127.0.0.1:{port}")


def test_a_name_that_does_not_resolve(refused: Refused) -> None:
    assert "the name of no-such-host.invalid:8123 does not resolve" in refused("clickhouse://no-such-host.invalid")


@pytest.mark.parametrize("status", [200, 403, 502])
def test_a_web_page(refused: Refused, faults: StandIn, status: int) -> None:
    faults.fault("html", status=status, times=9)
    said = refused(faults.url("default"))
    assert f"127.0.0.1:{faults.port} answers with a web page: it is no ClickHouse server, or a proxy" in said


def test_a_server_that_answers_nothing_in_time(refused: Refused, faults: StandIn) -> None:
    faults.fault("stall", times=9)
    assert "took the connection but does not answer in time" in refused(faults.url("default"))


def test_a_query_that_takes_longer_than_it_may(refused: Refused, faults: StandIn, own_database: Address) -> None:
    loaded.load(own_database)
    faults.fault("error", match="FROM cuda_events", code=159)
    said = refused(faults.url(own_database.database))
    assert "ask for a shorter window, or add ?timeout=SECONDS to the address" in said


@pytest.mark.parametrize(
    ("raised", "words"),
    [
        ("timed out. (connect timeout=5)", "db:8123 does not answer: check that the server runs, and that no firewall"),
        ("Failed to establish a new connection: [Errno 113] No route to host", "cannot be reached (No route to host)"),
        ("[SSL: TLSV1_ALERT_UNKNOWN_CA] tlsv1 alert unknown ca", "closed the connection"),
    ],
)
def test_ways_that_end_nowhere(raised: str, words: str) -> None:
    address = Address.parse("clickhouse://db", {})
    cause = f"Error HTTPConnectionPool(host='db', port=8123): Max retries exceeded (Caused by X('{raised}'))"
    error = OperationalError(f"{cause} executing HTTP request attempt 1 (http://db:8123)")
    error.__cause__ = ConnectionError()
    assert words in str(connection.explain(error, address))


class Port(NamedTuple):
    number: int
    answer: bytes


@pytest.fixture(
    params=[
        b"",
        b"\x00\xff nothing that HTTP knows\r\n",
        b"HTTP/1.0 400 Bad Request\r\n\r\nPort 9000 is for clickhouse-client program\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n1\t2",
    ],
    ids=["hangs up", "no HTTP", "native port", "other answer"],
)
def port(request: pytest.FixtureRequest) -> Iterator[Port]:
    """A port whose answer to everything is the same."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            with client:
                client.recv(1 << 16)
                client.sendall(request.param)

    thread = threading.Thread(target=serve)
    thread.start()
    yield Port(listener.getsockname()[1], request.param)
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


def test_what_is_no_clickhouse(refused: Refused, port: Port) -> None:
    said = refused(f"clickhouse://127.0.0.1:{port.number}")
    if not port.answer:
        assert "closed the connection without an answer" in said
        assert "or it speaks TLS: then write clickhouses://" in said
    elif b"clickhouse-client" in port.answer:
        assert "is the port of ClickHouse's own protocol: kdiff speaks HTTP; name its port, 8123 by default" in said
    else:
        assert "answers as no ClickHouse does" in said


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandIn]:
    """A stand-in that speaks TLS for localhost, with its certificate beside its data."""
    root = tmp_path_factory.mktemp("tls")
    cert, key = root / "cert.pem", root / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-keyout", key, "-out", cert, "-days", "2", "-subj", "/CN=localhost"),
            *("-addext", "subjectAltName=DNS:localhost"),
        ],
        check=True,
        capture_output=True,
    )
    with StandIn(root / "data", tls=(cert, key)) as running:
        yield running


def test_tls(refused: Refused, secure: StandIn, standin: StandIn) -> None:
    cert = secure.path.parent / "cert.pem"
    trusted = replace(secure.address("default"), hosts=(("localhost", secure.port),), ca=str(cert))
    with connect(trusted) as client:
        assert client.command("SELECT 40 + 2") == 42
    assert "is not accepted (self-signed certificate): add ?ca=PATH" in refused(secure.url("default"))
    said = refused(f"clickhouses://127.0.0.1:{secure.port}/default?ca={cert}")
    assert "name the host as in its certificate" in said
    said = refused(f"clickhouses://127.0.0.1:{standin.port}")
    assert f"127.0.0.1:{standin.port} does not speak TLS: write clickhouse:// for it" in said
    assert "it speaks TLS: then write clickhouses://" in refused(f"clickhouse://127.0.0.1:{secure.port}")
    assert "no/such.pem" in refused(f"clickhouses://localhost:{secure.port}/default?ca=/no/such.pem")


def test_the_next_host_is_taken_where_one_is_down(refused: Refused, faults: StandIn) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        down = ("127.0.0.1", free.getsockname()[1])
    up = ("127.0.0.1", faults.port)
    both = replace(faults.address("default"), hosts=(down, up))
    with connect(both) as client:
        assert client.command("SELECT 1") == 1
    wrong = replace(both, password="x")
    with pytest.raises(StoreError, match="wrong password"):
        connect(wrong)
    said = refused(f"clickhouse://127.0.0.1:{down[1]},127.0.0.1:{down[1]}")
    assert "none of the servers of clickhouse://default@127.0.0.1:" in said


def test_the_password_shows_nowhere(standin: StandIn, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text(PASSWORD)
    kdiff = Path(__file__).parents[2] / ".venv" / "bin" / "kdiff"
    for url in (
        f"clickhouses://127.0.0.1:{standin.port}",
        standin.url("default", user="nothing"),
        f"{standin.url()}?password=x",
    ):
        done = subprocess.run(
            [kdiff, "kernels", "--store", url],
            env={"KDIFF_CLICKHOUSE_PASSWORD_FILE": str(file), "KDIFF_DEBUG": "1", "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 2
        assert done.stdout == ""
        assert len(done.stderr.splitlines()) == 1
        assert PASSWORD not in done.stderr
