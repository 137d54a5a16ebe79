"""What the gate answers: verdicts, refusals, failures, and whom it admits."""

from __future__ import annotations

import json
import sys
import time
from base64 import b64encode
from pathlib import Path

import pytest
from gates import ASKED, Start, says

from kdiff.analysis.gate import Token
from kdiff.queries.errors import KdiffError

TOKEN = "0123456789abcdef0123"

# ---- answers ----


@pytest.mark.parametrize(
    ("verdict", "code", "flagger"),
    [("PASS", 0, 200), ("REGRESSED", 1, 409), ("UNDECIDED", 3, 409), ("UNDECIDED", 0, 200)],
)
def test_argo_gets_200_and_flagger_what_it_goes_on_or_halts_by(
    start: Start, verdict: str, code: int, flagger: int
) -> None:
    gate = start(says(verdict, code))
    status, headers, body = gate.ask(ASKED)
    assert (status, headers["Content-Type"], json.loads(body)["verdict"]) == (200, "application/json", verdict)
    assert headers["Connection"] == "close"
    payload = {"name": "chat", "namespace": "prod", "phase": "Progressing"}
    asked = {"before": "-2h", "after": "-1h"}
    assert gate.ask("/flagger", "POST", payload | {"metadata": asked})[::2] == (flagger, f"kdiff: {verdict}.\n")


def test_what_is_asked_reaches_kdiff_and_nothing_else(start: Start) -> None:
    gate = start()
    query = (
        "before=-2h&after=now-30m&service=a%20b&kernel=--store%3Dx&kernel=b&map=a%3Db&tolerance=3%25&on_undecided=pass"
    )
    told = json.loads(gate.ask(f"/verdict?{query}&label=v%201&metric=device&quantile=p99.9&window=5m")[2])["argv"]
    assert told == [
        *("--store=operators", "--window=5m", "--before=-2h", "--after=now-30m", "--service=a b", "--kernel=--store=x"),
        *("--kernel=b", "--map=a=b", "--tolerance=3%", "--on-undecided=pass", "--label=v 1", "--metric=device"),
        *("--quantile=p99.9", "--format=argo"),
    ]
    told = json.loads(gate.ask("/verdict?before=-2h&after=-1h&swapped=gelu*&swapped=norm")[2])["argv"]
    assert [one for one in told if one.startswith("--swapped")] == ["--swapped=gelu*", "--swapped=norm"]
    metadata = {"before": "-2h", "after": "-1h", "kernel": "a\nb", "label": "x"}
    body = {"name": "n", "namespace": "s", "metadata": metadata}
    gate.gate.program = (
        sys.executable,
        "-c",
        "import sys, json; print(json.dumps({'verdict': 'PASS', 'go': 1, 'sentence': ' '.join(sys.argv[1:])}))",
    )
    told_flagger = gate.ask("/flagger", "POST", body)[2]
    assert told_flagger == (
        "--store=operators --window=15m --label=x --before=-2h --after=-1h --kernel=a --kernel=b --format=argo\n"
    )
    del metadata["label"]
    assert "--label=s/n " in gate.ask("/flagger", "POST", body)[2]


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("", "before is missing: name a window"),
        ("before=-2h", "after is missing"),
        ("before=./capture&after=-1h", "(a request may not name a directory)"),
        ("before=/etc&after=-1h", "(a request may not name a directory)"),
        ("before=~root&after=-1h", "(a request may not name a directory)"),
        ("before=tests&after=-1h", "(a request may not name a directory)"),
        ("before=now%2B1h&after=-1h", "in the future"),
        ("before=-2h&after=-1h&store=x", "there is no parameter 'store': known are before, after, service"),
        ("before=-2h&after=-1h&format=json", "there is no parameter 'format'"),
        ("before=-2h&after=-1h&token=x", "there is no parameter 'token'"),
        ("before=-2h&before=-3h&after=-1h", "before is given 2 times"),
        ("before=-2h&after=-1h&service=a%00b", "service holds what no name has"),
        ("before=-2h&after=-1h&service=%1b[31m", "service holds what no name has"),
        ("before=-2h&after=-1h&kernel=" + "x" * 5_000, "over 4096 characters"),
        ("before=-2h&after=-1h&" + "&".join(["kernel=a"] * 60), "at most 64 parameters"),
        ("before=-2h&after=-1h&tolerance=5", "write 5% if that is meant"),
        ("before=-2h&after=-1h&quantile=2", "quantile"),
        ("before=-2h&after=-1h&metric=cpu", "metric 'cpu' is not one of auto, device, completion"),
        ("before=-2h&after=-1h&on_undecided=halt", "on_undecided 'halt' is not one of pass, fail"),
        ("before=-2h&after=-1h&window=x", "is not a length of time"),
        ("before=-2h&after=-1h&window=", "'' is not a length of time"),
        ("before=-2h&after=-1h&service=%ff", "UTF-8"),
    ],
)
def test_hostile_or_wrong_parameters_are_400_and_judge_nothing(start: Start, query: str, words: str) -> None:
    gate = start("import sys; sys.exit(9)")
    if query.count("kernel=a") == 60:
        query += "&kernel=a" * 9
    status, _, body = gate.ask(f"/verdict?{query}")
    assert (status, body.count("\n")) == (400, 1)
    assert words in body
    assert "\x1b" not in body
    assert not any("exit=9" in line for line in gate.log)


@pytest.mark.parametrize(
    "body",
    [
        *(b"x", b"[]", b"{", b"[" * 60_000, b"\xff", b'{"metadata": 5}', b'{"metadata": {"before": 5}}'),
        *(b'{"name": "a", "metadata": "x"}', b'{"name": "a", "metadata": [5]}'),
    ],
)
def test_what_flagger_would_not_send_is_400(start: Start, body: bytes) -> None:
    status, _, told = start().ask("/flagger", "POST", body)
    assert status == 400
    assert told.count("\n") == 1


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/healthz", 200),
        ("HEAD", "/healthz", 200),
        ("POST", "/healthz", 405),
        ("GET", "/", 404),
        ("GET", "/../verdict", 404),
        ("GET", "//verdict", 404),
        ("DELETE", ASKED, 405),
        ("GET", "/flagger", 405),
    ],
)
def test_there_is_nothing_else(start: Start, method: str, path: str, status: int) -> None:
    told = start().ask(path, method)
    assert told[0] == status
    assert (told[2] == "") == (method == "HEAD")


# ---- kdiff fails ----


@pytest.mark.parametrize(
    ("program", "status", "words"),
    [
        (
            "import sys; print('kdiff: warning: x\\nkdiff: there is no x: do y', file=sys.stderr); sys.exit(2)",
            502,
            "there is no x: do y",
        ),
        ("raise ValueError('secret /path')", 500, "kdiff ended without a verdict: see the gate's log"),
        ("import os; os.kill(os.getpid(), 9)", 500, "kdiff ended without a verdict"),
        ("print('no json')", 500, "kdiff ended without a verdict"),
        ("import sys; print('Usage'); sys.exit(2)", 500, "kdiff ended without a verdict"),
    ],
)
def test_a_failure_is_a_sentence_without_a_traceback(start: Start, program: str, status: int, words: str) -> None:
    gate = start(program)
    code, _, body = gate.ask(ASKED)
    assert code == status
    assert words in json.loads(body)["error"]
    told = gate.ask("/flagger", "POST", {"metadata": {"before": "-2h", "after": "-1h"}})
    assert told[0] == status
    assert words in told[2]
    for text in (body, told[2]):
        assert "Traceback" not in text
        assert "secret" not in text
    assert any("level=error" in line for line in gate.log)


def test_a_verdict_that_takes_too_long_is_ended(start: Start, tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    program = f"import os, time; open({str(mark)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    gate = start(program, timeout_s=1.5)
    began = time.monotonic()
    code, _, body = gate.ask(ASKED)
    assert (code, json.loads(body)) == (504, {"error": "there was no verdict within 1.5 s: ask for shorter windows"})
    assert time.monotonic() - began < 20
    assert not Path(f"/proc/{mark.read_text()}").exists()


def test_one_that_ignores_being_told_is_killed(start: Start, tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    program = (
        "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        f"open({str(mark)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    )
    assert start(program, timeout_s=1.5).ask(ASKED)[0] == 504
    assert not Path(f"/proc/{mark.read_text()}").exists()


# ---- the token ----


@pytest.fixture
def token(tmp_path: Path) -> Token:
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    return Token(path)


@pytest.mark.parametrize(
    ("authorization", "status"),
    [
        (f"Bearer {TOKEN}", 200),
        (f"bearer  {TOKEN}", 200),
        ("Basic " + b64encode(f"kdiff:{TOKEN}".encode()).decode(), 200),
        ("", 401),
        ("Bearer", 401),
        (f"Bearer {TOKEN}x", 401),
        (f"Bearer {TOKEN[:-1]}", 401),
        (f"Digest {TOKEN}", 401),
        (TOKEN, 401),
        ("Basic " + b64encode(f"{TOKEN}:".encode()).decode(), 401),
        ("Basic ***", 401),
        ("Bearer Größe", 401),
    ],
)
def test_the_token_admits(start: Start, token: Token, authorization: str, status: int) -> None:
    gate = start(token=token)
    for path in (ASKED, "/nowhere"):
        wanted = status if path == ASKED or status == 401 else 404
        answer = gate.ask(path, Authorization=authorization) if authorization else gate.ask(path)
        assert answer[0] == wanted
        assert ("WWW-Authenticate" in answer[1]) == (status == 401)
    assert gate.ask("/healthz")[0] == 200
    assert not any(TOKEN in line for line in gate.log)


def test_the_token_can_be_changed_while_the_gate_runs(start: Start, token: Token) -> None:
    gate = start(token=token)
    token.path.write_text("another-token-that-is-long")
    assert gate.ask(ASKED, Authorization=f"Bearer {TOKEN}")[0] == 401
    assert gate.ask(ASKED, Authorization="Bearer another-token-that-is-long")[0] == 200
    token.path.unlink()
    assert gate.ask(ASKED, Authorization="Bearer another-token-that-is-long")[0] == 401


@pytest.mark.parametrize("text", ["", "short", "two words of a long token", "größer-als-sechzehn-zeichen"])
def test_a_token_that_can_be_guessed_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "token"
    path.write_text(text)
    with pytest.raises(KdiffError, match="is not one word of at least 16 characters: make one with"):
        Token(path).read()
    with pytest.raises(KdiffError, match="cannot be read"):
        Token(tmp_path / "none").read()


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:9465", 200),
        ("[::1]:9465", 200),
        ("localhost", 200),
        ("LOCALHOST:1", 200),
        ("evil.example:9465", 403),
        ("", 403),
    ],
)
def test_without_a_token_no_page_reaches_it_under_another_name(start: Start, host: str, status: int) -> None:
    assert start().ask(ASKED, Host=host)[0] == status


def test_the_log_has_a_line_a_request_and_no_query(start: Start) -> None:
    gate = start()
    gate.ask(f"{ASKED}&label=private")
    gate.ask("/no%0awhere\x1b")
    assert len(gate.log) == 2
    assert gate.log[0].startswith(
        'level=info client=127.0.0.1 method=GET path="/verdict" status=200 verdict=PASS seconds='
    )
    assert r'path="/no\\nwhere\\x1b" status=404' in gate.log[1]
    assert not any("private" in line for line in gate.log)
