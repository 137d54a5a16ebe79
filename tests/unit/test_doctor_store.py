"""kdiff.agent.doctor_store: whether `run` could ship, asked of the stand-in for a server."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import shipped

from kdiff.agent import doctor
from kdiff.agent.doctor import Question, Report, examine, render
from kdiff.agent.doctor_check import Check, Level, ok
from kdiff.agent.doctor_store import WAITS, store
from kdiff.queries import migrations
from kdiff.queries.connection import connect
from server import PASSWORD, StandIn

ENVIRON = {"KDIFF_CLICKHOUSE_PASSWORD": PASSWORD}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandIn]:
    with shipped.own_server(tmp_path_factory.mktemp("server")) as running:
        yield running


def told(checks: list[Check]) -> dict[str, tuple[str, str]]:
    return {check.name: (check.level.value, f"{check.fact} > {check.mend}") for check in checks}


def test_a_server_that_is_ready(server: StandIn) -> None:
    client = connect(server.address())
    tables = [name for name, *_ in client.query("SHOW TABLES").result_rows]
    before = {name: client.query(f"SELECT count() FROM {name}").first_row for name in tables}
    found = told(store(server.url(user="writer"), ENVIRON))
    newest = migrations.migrations()[-1].version
    assert found["server"][0] == "ok"
    assert f"127.0.0.1:{server.port}/kdiff answers, ClickHouse " in found["server"][1]
    assert found["schema"] == ("ok", f"version {newest}, which is this kdiff's > ")
    assert found["rights"] == ("ok", "writer may SELECT and INSERT > ")
    assert {name: client.query(f"SELECT count() FROM {name}").first_row for name in tables} == before
    client.close()


@pytest.mark.parametrize(
    ("user", "name", "words"),
    [
        ("reader", "rights", "lacks a right on"),
        ("nothing", "schema", "lacks a right on"),
        ("nobody", "server", "refuses the user nobody"),
    ],
)
def test_a_user_that_may_not_ship(server: StandIn, user: str, name: str, words: str) -> None:
    found = told(store(server.url(user=user), ENVIRON))
    assert found[name][0] == "warn"
    assert words in found[name][1]
    assert found[name][1].endswith(WAITS)


def test_a_wrong_password_is_not_repeated(server: StandIn) -> None:
    found = told(store(server.url(user="writer"), {"KDIFF_CLICKHOUSE_PASSWORD": "sesame-open"}))
    assert list(found) == ["server"]
    assert "wrong password, or no such user" in found["server"][1]
    assert "sesame" not in str(found)
    found = told(store(f"clickhouse://writer:sesame-open@127.0.0.1:{server.port}/kdiff", {}))
    assert found["address"][0] == "FAIL", "`run` would not start"
    assert "sesame" not in str(found)


def test_no_database_an_old_schema_and_a_newer_one(server: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "there is no database other" in told(store(server.url("other"), ENVIRON))["server"][1]
    known = migrations.migrations()
    monkeypatch.setattr(migrations, "migrations", lambda: (*known, migrations.Migration(999, "to_come", "SELECT 1")))
    found = told(store(server.url(), ENVIRON))
    assert found["schema"][0] == "warn"
    assert f"is of version {known[-1].version}, this kdiff needs 999 > run `kdiff migrate`" in found["schema"][1]
    assert found["rights"][0] == "ok"
    monkeypatch.setattr(migrations, "migrations", lambda: known[:-1])
    newer = told(store(server.url(), ENVIRON))["schema"]
    assert newer[0] == "warn"
    assert "install a newer kdiff" in newer[1]


def test_nobody_there_and_one_that_stalls(server: StandIn) -> None:
    began = time.monotonic()
    found = told(store("clickhouse://writer@127.0.0.1:1/kdiff", ENVIRON))
    assert found["server"][0] == "warn"
    assert "nothing listens on 127.0.0.1:1" in found["server"][1]
    server.pause()
    try:
        found = told(store(server.url(user="writer"), ENVIRON))
    finally:
        server.resume()
    assert found["server"][0] == "warn"
    assert time.monotonic() - began < 28


def test_what_the_report_says_of_shipping(server: StandIn, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor, "_probes", lambda: [ok("Probes", "BPF program", "")])
    monkeypatch.setattr(doctor, "ask", lambda *_: {"error": "none"})
    question = Question(tmp_path, store=server.url(user="writer"), environment=ENVIRON)
    report = examine(question)
    assert "Shipping works." in render(report, "text").splitlines()
    assert json.loads(render(report, "json"))["shipping"] == "works"
    report = examine(Question(tmp_path, store=server.url(user="reader"), environment=ENVIRON))
    assert "Shipping does not work: rights." in render(report, "text").splitlines()
    assert json.loads(render(report, "json"))["shipping"] == "fails"
    report = examine(Question(tmp_path, environment=ENVIRON))
    assert "Shipping" not in render(report, "text")
    assert json.loads(render(report, "json"))["shipping"] == "none"
    assert PASSWORD not in render(report, "text")


def test_one_that_hangs_is_said_with_a_mend_of_its_own() -> None:
    [check] = doctor.together([("Store", "server", lambda: time.sleep(3))], 0.1)
    assert check.level is Level.WARN
    assert check.mend == f"look at the server and at the way to it; {WAITS}"
    assert Report([check]).exit_code == 0


@pytest.mark.parametrize(("inherited", "asked"), [("", ""), ("/some/capture", ""), ("clickhouse://a@b/c", "b:8123")])
def test_the_store_of_the_environment(monkeypatch: pytest.MonkeyPatch, inherited: str, asked: str) -> None:
    from kdiff.agent import cli

    asked_for: list[Question] = []

    def examined(question: Question) -> Report:
        asked_for.append(question)
        return Report([ok("Host", "a", "")])

    monkeypatch.setattr(doctor, "examine", examined)
    monkeypatch.setenv("KDIFF_STORE", inherited)
    monkeypatch.setattr("sys.argv", ["kdiff-agent", "doctor", "--max-bytes", "2G"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 0
    assert asked_for[0].store == (inherited if asked else "")
    assert asked_for[0].max_bytes == 2 << 30


@pytest.mark.parametrize(
    ("arguments", "variable", "content", "expected"),
    [
        ([], "", 'store = "clickhouse://u@file/d"', "clickhouse://u@file/d"),
        ([], "clickhouse://u@variable/d", 'store = "clickhouse://u@file/d"', "clickhouse://u@variable/d"),
        (["--store", "clickhouse://u@flag/d"], "clickhouse://u@variable/d", "x", "clickhouse://u@flag/d"),
        ([], "", 'max-bytes = "20G"', "clickhouse://u@inherited/d"),
        ([], "", "store = 7", "clickhouse://u@inherited/d"),
    ],
    ids=["file", "variable", "flag", "neither", "torn"],
)
def test_the_store_that_run_would_take(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    arguments: list[str],
    variable: str,
    content: str,
    expected: str,
) -> None:
    from kdiff.agent import cli

    asked_for: list[Question] = []

    def examined(question: Question) -> Report:
        asked_for.append(question)
        return Report([ok("Host", "a", "")])

    settings = tmp_path / "agent.toml"
    settings.write_text(content)
    monkeypatch.setattr(doctor, "examine", examined)
    monkeypatch.setattr("kdiff.agent.settings.FILE", settings)
    monkeypatch.setenv("KDIFF_STORE", "clickhouse://u@inherited/d")
    monkeypatch.setenv("KDIFF_AGENT_STORE", variable)
    monkeypatch.setattr("sys.argv", ["kdiff-agent", "doctor", *arguments])
    with pytest.raises(SystemExit):
        cli.main()
    assert asked_for[0].store == expected
    assert asked_for[0].unread == (f"{settings}: store is a text: write it in quotes" if "7" in content else "")


def test_settings_that_cannot_be_read_are_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor, "_probes", lambda: [ok("Probes", "BPF program", "")])
    monkeypatch.setattr(doctor, "ask", lambda *_: {"error": "none"})
    report = examine(Question(tmp_path, environment=ENVIRON, unread="/etc/kdiff/agent.toml cannot be read (x): name y"))
    (check,) = [check for check in report.checks if check.name == "settings"]
    assert (check.level, check.fact) == (Level.WARN, "/etc/kdiff/agent.toml cannot be read (x)")
    assert check.mend == "name y; run doctor as the user that `run` is"
