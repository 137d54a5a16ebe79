"""Control and canary as parameters of a request to the gate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gates import Start

from kdiff.analysis.command_gate import gate_command
from kdiff.analysis.gate import Gate
from kdiff.analysis.gate_server import RefusedError
from kdiff.queries.errors import KdiffError

DEFAULTS = {"window": ["15m"], "before": ["now-1h"], "after": ["-15m"]}


def asked(defaults: dict[str, list[str]], **said: str) -> dict[str, str]:
    """What reaches kdiff of a request."""
    values = Gate([], defaults, None)._values(said.items())
    return {name: many[0] for name, many in values.items()}


def test_arms_reach_kdiff(start: Start) -> None:
    query = "control=service%3Dllm,host%3Dgpu-*&canary=service%3Dllm-canary&at=-30m"
    status, _, body = start().ask(f"/verdict?{query}")
    assert status == 200
    assert json.loads(body)["argv"] == [
        *("--store=operators", "--window=15m", "--control=service=llm,host=gpu-*", "--canary=service=llm-canary"),
        *("--at=-30m", "--format=argo"),
    ]
    metadata = {"control": "host=a", "canary": "host=b"}
    assert start().ask("/flagger", "POST", {"metadata": metadata})[0] == 200


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("control=host%3Da", "canary is missing beside control: write host=NAME"),
        ("at=-1h", "control is missing beside at: write host=NAME"),
        ("control=host%3Da&canary=b", "canary 'b': it does not say by what to select"),
        ("control=host%3Da&canary=host%3Db&before=-1h", "before name two windows, control and canary two arms of one"),
        ("control=host%3Da&canary=host%3Db&at=/etc", "(a request may not name a directory)"),
        ("control=host%3Da&canary=host%3Db&at=tests", "(a request may not name a directory)"),
        ("control=host%3Da&canary=host%3Db&at=2125-01-01", "in the future"),
        ("control=host%3Da&canary=host%3Db&canary=host%3Dc", "canary is given 2 times"),
        ("control=host%3Da%00&canary=host%3Db", "control holds what no name has"),
    ],
)
def test_wrong_arms_are_400(start: Start, query: str, words: str) -> None:
    gate = start("import sys; sys.exit(9)")
    status, _, body = gate.ask(f"/verdict?{query}")
    assert (status, body.count("\n")) == (400, 1)
    assert words in body
    assert not any("exit=9" in line for line in gate.log)


def test_who_asks_for_arms_has_no_windows_by_default() -> None:
    arms = {"control": "host=a", "canary": "host=b"}
    assert asked(DEFAULTS, **arms) == {"window": "15m", **arms}
    assert asked(DEFAULTS, before="-2h") == {"window": "15m", "before": "-2h", "after": "-15m"}
    assert asked(DEFAULTS) == {"window": "15m", "before": "now-1h", "after": "-15m"}


def test_who_asks_for_windows_has_no_arms_by_default() -> None:
    defaults = {"window": ["15m"], "control": ["service=llm"], "at": ["-10m"]}
    assert asked(defaults, canary="service=next") == {
        "window": "15m",
        "control": "service=llm",
        "at": "-10m",
        "canary": "service=next",
    }
    assert asked(defaults, before="-2h", after="-1h") == {"window": "15m", "before": "-2h", "after": "-1h"}
    with pytest.raises(RefusedError, match="canary is missing beside control"):
        asked(defaults)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"control": "a"}, "--control 'a': it does not say by what to select"),
        ({"canary": "rack=1"}, "--canary 'rack=1': there is no 'rack' to select by"),
        ({"at": "nonsense"}, "--at 'nonsense' is neither a time nor a capture directory"),
        ({"control": "host=a", "before": "-1h"}, "give defaults of one kind, and let requests name the other"),
    ],
)
def test_defaults_that_cannot_be_are_refused_at_the_start(tmp_path: Path, given: dict[str, Any], words: str) -> None:
    with pytest.raises(KdiffError) as error:
        gate_command(listen="127.0.0.1:0", store=str(tmp_path), **given)
    assert words in str(error.value)
