"""Which processes rules choose."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdiff.agent import selection
from kdiff.agent.errors import AgentError
from kdiff.agent.selection import KINDS, Rule, Selection, facts

CONTAINER = "3f1c" + "0" * 60
POD = "12345678-9abc-def0-1234-56789abcdef0"
KNOWN = {
    "command": ["python3", "/usr/bin/python3.12", "python3.12", "python3 serve.py --port 80"],
    "user": ["1000", "inference"],
    "container": [CONTAINER],
    "pod": [POD],
    "unit": ["inference.service"],
    "cgroup": ["/system.slice/inference.service"],
}


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("command=python3", True),
        ("command=python", False),
        ("command=*serve.py*", True),
        ("command=/usr/bin/*", True),
        ("user=inference", True),
        ("user=1000", True),
        ("user=100", False),
        ("container=3f1c00000000", True),
        ("container=f1c0", False),
        (f"pod={POD}", True),
        ("unit=inference.*", True),
        ("unit=inference", False),
        ("cgroup=/system.slice/*", True),
        ("cgroup=/user.slice/*", False),
        (" user = inference ", True),
    ],
)
def test_rules(text: str, fits: bool) -> None:
    assert Rule.parse(text).fits(KNOWN) is fits


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("usr=me", "is user meant?"),
        ("colour=red", "there are command, user, container, pod, unit, cgroup"),
        ("user", "is not KIND=PATTERN"),
        ("user=", "is not KIND=PATTERN"),
        ("", "is not KIND=PATTERN"),
        ("=x", "there are command"),
    ],
)
def test_what_is_no_rule(text: str, why: str) -> None:
    with pytest.raises(AgentError, match=why.replace("?", r"\?")) as raised:
        Selection.parse([], [text])
    assert "\n" not in str(raised.value)


@given(st.text(max_size=40))
def test_any_text_is_a_rule_or_one_sentence(text: str) -> None:
    try:
        kind = Rule.parse(text).kind
    except AgentError as raised:
        error = str(raised)
    else:
        error = ""
        assert kind in KINDS
    assert error.isprintable()


def test_what_is_included_and_not_excluded(monkeypatch: pytest.MonkeyPatch) -> None:
    of = {1: {"user": ["a"], "command": ["x"]}, 2: {"user": ["a"], "command": ["y"]}, 3: {"user": ["b"]}, 4: {}}
    monkeypatch.setattr(selection, "facts", of.__getitem__)

    def chosen(include: list[str], exclude: list[str]) -> list[int]:
        made = Selection.parse(include, exclude)
        return [pid for pid in of if made.wants(pid)]

    assert chosen([], []) == [1, 2, 3, 4]
    assert chosen(["user=a"], []) == [1, 2]
    assert chosen(["user=a", "user=b"], ["command=x"]) == [2, 3]
    assert chosen([], ["user=*"]) == [4]
    assert chosen(["command=y"], ["user=a"]) == []


@pytest.fixture
def child(tmp_path: Path) -> Iterator[int]:
    program = tmp_path / "serve model.py"
    program.write_text("import time; print('up', flush=True); time.sleep(60)")
    with subprocess.Popen([sys.executable, str(program), "--port=80"], stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        yield process.pid
        process.kill()


def test_what_is_known_of_a_process(child: int) -> None:
    found = facts(child)
    interpreter = os.path.realpath(sys.executable)
    assert found["command"][1:3] == [interpreter, os.path.basename(interpreter)]
    assert found["command"][3].endswith("serve model.py --port=80")
    assert found["user"] == [str(os.getuid()), pwd.getpwuid(os.getuid()).pw_name]
    assert all(path.startswith("/") for path in found["cgroup"])
    assert Selection.parse(["command=*serve model.py*"], []).wants(child)
    assert not Selection.parse([], [f"user={os.getuid()}"]).wants(child)


def test_a_process_that_is_gone() -> None:
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
    while os.path.exists(f"/proc/{ended.pid}"):
        time.sleep(0.01)
    assert not any(facts(ended.pid).values())
    assert not Selection.parse(["command=*"], []).wants(ended.pid)
    assert Selection.parse([], ["command=true"]).wants(ended.pid)


@pytest.mark.parametrize(
    ("cgroup", "kind", "expected"),
    [
        ("0::/system.slice/inference.service\n", "unit", ["inference.service"]),
        ("0::/user.slice/user-1000.slice/session-4.scope\n", "unit", ["session-4.scope"]),
        (f"0::/kubepods.slice/kubepods-burstable-pod{POD.replace('-', '_')}.slice/cri\n", "pod", [POD]),
        (f"12:memory:/kubepods/pod{POD}/{CONTAINER}\n1:cpu:/kubepods/pod{POD}/{CONTAINER}\n", "pod", [POD]),
        ("torn", "cgroup", []),
        ("0::/a:b/c\n", "cgroup", ["/a:b/c"]),
        ("0::/\udcff/a.service\n", "cgroup", ["/\udcff/a.service"]),  # bytes that are no text
        ("0::/x\x0b0::y.service\n", "unit", ["x\x0b0::y.service"]),  # one line, whatever it holds
    ],
)
def test_what_a_cgroup_tells(monkeypatch: pytest.MonkeyPatch, cgroup: str, kind: str, expected: list[str]) -> None:
    monkeypatch.setattr(Path, "read_bytes", lambda _: os.fsencode(cgroup))
    monkeypatch.setattr(selection.procfs, "stat", lambda _: None)  # read so too
    assert facts(os.getpid())[kind] == expected
