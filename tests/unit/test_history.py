"""Keeping verdicts with `kdiff --keep`, and `kdiff history` over either store."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import loaded
import numpy as np
import pytest
from command_line import Result, Run, kdiff, named

import captures
from captures import AFTER, BEFORE, TwoWindows
from kdiff.queries.address import Address
from kdiff.queries.printable import cells
from kdiff.queries.verdicts import FILE

PAIR = ["--before", str(BEFORE), "--after", str(AFTER)]
LONG = "void at::native::" + "elementwise_kernel<float, " * 9 + "4>(int)\x1b[31m日本語"
pytestmark = pytest.mark.usefixtures("engine")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """gelu got slower, the other did not."""
    windows = TwoWindows(tmp_path_factory.mktemp("history"))
    for number, window in enumerate((BEFORE, AFTER)):
        for place, name in enumerate(("gelu", LONG)):
            times = captures.spread(window.from_ns, window.to_ns, 4_001 + place)
            scale = 1 + 0.3 * number * (place == 0)
            values = (80_000 * scale * np.random.default_rng(place).lognormal(0, 0.05, len(times))).astype(np.int64)
            windows.add("cuda_events", captures.launches(name, times, completion_ns=values))
    return windows.root


@pytest.fixture
def store(recorded: Path, tmp_path: Path) -> Path:
    """The same recording under another name, without verdicts."""
    root = tmp_path / "capture"
    root.mkdir()
    for table in recorded.iterdir():
        if table.is_dir():
            (root / table.name).symlink_to(table)
    return root


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    for name in ("KDIFF_STORE", "KDIFF_KEEP", "KDIFF_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "80")

    def call(place: Path | Address, *arguments: str) -> Result:
        monkeypatch.setenv("KDIFF_STORE", named(monkeypatch, place))
        return kdiff(monkeypatch, capsys, *arguments)

    return call


def test_nothing_is_kept_unless_asked(run: Run, store: Path) -> None:
    assert run(store, *PAIR).code == 1
    assert not (store / FILE).exists()
    told = run(store, "history", "gelu", "--service", "chat")
    assert told == (
        0,
        f"no verdict on gelu and the service chat is kept in {store}: judge with `kdiff --keep`, or let `kdiff gate` "
        "do so\n",
        "",
    )


def test_a_verdict_is_kept_and_shown(run: Run, store: Path) -> None:
    compared = run(store, *PAIR, "--keep", "--label", "v2\x1b", "--format", "json")
    assert (compared.code, compared.err) == (1, "")
    kernels = {row["kernel"]: row for row in json.loads(compared.out)["kernels"]}
    told = run(store, "history", "gelu", "--format", "json")
    document = json.loads(told.out)
    assert (document["schema"], document["store"]) == ("kdiff-history/1", str(store))
    [row] = document["verdicts"]
    same = ["kernel", "verdict", "metric", "n_before", "n_after", "value_before", "value_after", "ratio", "ci"]
    assert {key: row[key] for key in same} == {key: kernels["gelu"][key] for key in same}
    assert (row["verdict"], row["label"], row["service"], row["run_verdict"]) == (
        "REGRESSED",
        "v2\x1b",
        "",
        "REGRESSED",
    )
    assert [row["before"]["from_ns"], row["after"]["to_ns"]] == [BEFORE.from_ns, AFTER.to_ns]
    lines = run(store, "history", "gelu").out.splitlines()
    assert "".join(lines).replace(" ", "").startswith(f"geluin{store}")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ REGRESSED [\d.]+ us +[\d.]+ us \+30.0% \[.*\]", lines[-4])
    assert lines[-3:] == [
        r"  label v2\x1b",
        "  2025-11-27T10:00:00Z/10m before, 2025-11-27T10:10:00Z/10m after",
        "  p99 of completion, tolerance 5%, 4,001 before and 4,001 after",
    ]


def test_what_a_file_holds_reaches_no_terminal(run: Run, store: Path) -> None:
    assert run(store, *PAIR, "--keep").code == 1
    kept = (store / FILE).read_text()
    kept = kept.replace('"verdict":"', '"verdict":"\\u001b[31m').replace('"metric":"', '"metric":"\\u001b]0;')
    (store / FILE).write_text(kept)
    told = run(store, "history", "gelu")
    assert (told.code, told.err) == (0, "")
    assert "\x1b" not in told.out
    assert r"\x1b[31mREGRESSED" in told.out
    assert r"p99 of \x1b]0;completion" in told.out


@pytest.mark.parametrize("width", [40, 52, 64, 80, 120])
def test_a_table_keeps_within_its_width(run: Run, store: Path, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for label in ("", "x" * 99):
        run(store, *PAIR, "--keep", "--label", label)
    monkeypatch.setenv("COLUMNS", str(width))
    told = run(store, "history", "*")
    assert (told.code, told.err) == (0, "")
    assert told.out.count("REGRESSED") == 2
    assert told.out.count("PASS ") == 2
    assert "\x1b" not in told.out
    lines = told.out.splitlines()[2:]
    assert max(cells(line) for line in lines) <= width
    assert sum("change" in line for line in lines) == 1


def test_newest_first_since_and_at_most(run: Run, store: Path) -> None:
    for label in "abc":
        run(store, *PAIR, "--keep", "--label", label)

    def labels(*arguments: str) -> list[str]:
        told = run(store, "history", "gelu", "--format", "json", *arguments)
        assert told.code == 0
        return [row["label"] for row in json.loads(told.out)["verdicts"]]

    assert labels() == ["c", "b", "a"]
    assert labels("--limit", "2") == ["c", "b"]
    assert labels("--since", "-1h") == ["c", "b", "a"]
    assert labels("--since", "now") == []
    assert labels("--service", "svc") == []


def test_the_environment_can_keep_and_a_flag_can_not(run: Run, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KDIFF_KEEP", "1")
    run(store, *PAIR, "--no-keep")
    assert not (store / FILE).exists()
    run(store, *PAIR)
    assert (store / FILE).exists()


def test_what_cannot_be_kept_changes_no_exit_status(run: Run, store: Path) -> None:
    (store / FILE).mkdir()
    told = run(store, *PAIR, "--keep")
    assert told.code == 1
    assert told.out.splitlines()[-1].startswith("REGRESSED: gelu")
    assert told.err == (
        f"kdiff: warning: the verdict was not kept: {store / FILE} cannot be written (Is a directory): free space, or "
        "run as a user who may write there\n"
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "the kernel is missing: try `kdiff history fused_gelu --since -7d`"),
        (["gelu", "--limit", "0"], "--limit 0 is not between 1 and 100000"),
        (["gelu", "--since", "yesterday"], "--since: 'yesterday' is not a time"),
        (["gelu", "--store", "/no/such"], "there is no capture at /no/such"),
    ],
)
def test_errors_are_2_and_say_what_to_do(run: Run, store: Path, arguments: list[str], words: str) -> None:
    told = run(store, "history", *arguments)
    assert (told.code, told.out) == (2, "")
    assert words in told.err
    assert told.err.count("\n") == 1


def test_a_server_keeps_and_shows_the_same(run: Run, store: Path, own_database: Address) -> None:
    loaded.load(own_database, store)
    shown = []
    for place in (store, replace(own_database, user="writer")):
        assert run(place, *PAIR, "--keep", "--label", "v3").code == 1
        told = run(place, "history", "*", "--format", "json")
        assert (told.code, told.err) == (0, "")
        rows = json.loads(told.out)["verdicts"]
        assert len(rows) == 2
        shown.append(
            [{k: v for k, v in row.items() if k not in ("judged_at", "judged_at_ns", "run_id")} for row in rows]
        )
    assert shown[0] == shown[1]
    reader = replace(own_database, user="reader")
    told = run(reader, *PAIR, "--keep")
    assert told.code == 1
    assert "warning: the verdict was not kept: the user reader lacks a right" in told.err
    assert len(json.loads(run(reader, "history", "*", "--format", "json").out)["verdicts"]) == 2


def test_a_run_with_nothing_to_judge_is_kept_too(run: Run, tmp_path: Path) -> None:
    root = tmp_path / "idle"
    captures.write(root, "agent_health", captures.health(BEFORE.from_ns, AFTER.to_ns))
    assert run(root, *PAIR, "--keep").code == 3
    lines = run(root, "history", "*").out.splitlines()
    assert "INCONCLUSIVE" in lines[-4] + lines[-3]
    assert lines[-1] == "  The run: no kernel ran that could be compared."
