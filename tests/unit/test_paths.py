"""Paths on command lines: an empty one is a variable that was not set, and not the working directory."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import typer
from recording import AGENT

from kdiff.agent.paths import named_path


def test_a_path_is_taken_as_it_is_and_an_empty_one_refused() -> None:
    assert named_path("a/b") == named_path(Path("a/b")) == Path("a/b")
    assert named_path(".") == Path(".")
    with pytest.raises(typer.BadParameter, match="it is empty: name a path"):
        named_path("")


@pytest.mark.parametrize(
    "arguments",
    [
        ["record", "-o", "", "--", "true"],
        ["record", "--state", "", "--", "true"],
        ["run", "-o", ""],
        ["run", "--state", ""],
        ["ship", ""],
        ["doctor", "-o", ""],
        ["doctor", "--state", ""],
        ["device-library", "-o", ""],
    ],
    ids=" ".join,
)
def test_no_command_takes_an_empty_path_for_the_working_directory(tmp_path: Path, arguments: list[str]) -> None:
    done = subprocess.run([AGENT, *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "it is empty: name a path" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.ebpf
def test_a_command_without_a_name_is_said(tmp_path: Path) -> None:
    done = subprocess.run(
        [AGENT, "record", "-o", "x", "--", ""], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("kdiff-agent: a command without a name cannot be started: ")
