"""Runs `kdiff` in this process as a user does."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from kdiff.analysis import cli
from kdiff.queries.address import Address


class Result(NamedTuple):
    code: int
    out: str
    err: str


Run = Callable[..., Result]


def named(monkeypatch: pytest.MonkeyPatch, store: Path | Address | str) -> str:
    """What a user calls the store, whose password, if it has one, is in the environment."""
    if isinstance(store, Address):
        monkeypatch.setenv("KDIFF_CLICKHOUSE_PASSWORD", store.password)
    return str(store)


def kdiff(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> Result:
    monkeypatch.setattr(sys, "argv", ["kdiff", *map(str, arguments)])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    return Result(int(caught.value.code or 0), *capsys.readouterr())
