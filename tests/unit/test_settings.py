"""Where `run` takes its settings from, and what `config` says of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from kdiff.agent import cli, command_run, settings
from kdiff.agent.errors import AgentError

FILE = """
max-bytes = "1G"
metrics = "127.0.0.1:9464"
layer = "driver"
no-return = true
exclude = ["user=root", "command=*a b*"]
"""


@pytest.fixture(autouse=True)
def _no_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(settings, "FILE", tmp_path / "etc" / "agent.toml")
    # It ends a process: signals are ignored after it, also in programs that other tests start.
    monkeypatch.setattr(command_run, "Ending", nullcontext)
    for name in list(os.environ):
        if name.startswith("KDIFF_"):
            monkeypatch.delenv(name)


def written(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "agent.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def shown(*arguments: str | Path) -> dict[str, tuple[Any, str]]:
    """What `config` shows, by key."""
    done = CliRunner().invoke(cli.app, ["config", "--format", "json", *map(str, arguments)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return {row["key"]: (row["value"], row["from"]) for row in json.loads(done.stdout)["settings"]}


def refused(*arguments: str | Path) -> str:
    with pytest.raises(AgentError) as raised:
        shown(*arguments)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_a_flag_goes_before_the_environment_before_a_file_before_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, FILE)
    monkeypatch.setenv("KDIFF_AGENT_MAX_BYTES", "2G")
    monkeypatch.setenv("KDIFF_AGENT_INCLUDE", "user=a unit=b")
    assert shown("--config", path) == {
        "output": ("/var/lib/kdiff", "default"),
        "store": ("", "default"),
        "max-bytes": ("2G", "KDIFF_AGENT_MAX_BYTES"),
        "metrics": ("127.0.0.1:9464", str(path)),
        "service": ("", "default"),
        "layer": ("driver", str(path)),
        "no-return": (True, str(path)),
        "device-time": ("on", "default"),
        "state": ("/var/lib/kdiff/drivers.json", "default"),
        "include": (["user=a", "unit=b"], "KDIFF_AGENT_INCLUDE"),
        "exclude": (["user=root", "command=*a b*"], str(path)),
        "gpu-samples": (True, "default"),
        "scheduling": ("off", "default"),
    }


def test_scheduling_has_a_variable_that_record_knows_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KDIFF_SCHEDULING", "on")
    assert shown()["scheduling"] == ("on", "KDIFF_SCHEDULING")
    monkeypatch.setenv("KDIFF_AGENT_SCHEDULING", "off")
    assert shown()["scheduling"] == ("off", "KDIFF_AGENT_SCHEDULING")
    monkeypatch.delenv("KDIFF_AGENT_SCHEDULING")
    monkeypatch.setenv("KDIFF_SCHEDULING", "sometimes")
    with pytest.raises(AgentError, match="KDIFF_SCHEDULING is one of on, off"):
        CliRunner().invoke(cli.app, ["config"], catch_exceptions=False)


def test_run_is_set_as_config_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def note(output: Path, address: str, bound: int, metrics: str, *rest: Any) -> None:
        seen.update(output=output, address=address, bound=bound, metrics=metrics, exclude=rest[-2].exclude)

    monkeypatch.setattr("kdiff.agent.command_run._run", note)
    monkeypatch.setenv("KDIFF_AGENT_OUTPUT", str(tmp_path / "spool"))
    monkeypatch.setenv("KDIFF_STORE", "clickhouse://w@h/db")
    path = written(tmp_path, FILE)
    done = CliRunner().invoke(cli.app, ["run", "--config", str(path), "--max-bytes", "3M"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert [rule.pattern for rule in seen.pop("exclude")] == ["root", "*a b*"]
    assert seen == {
        "output": tmp_path / "spool",
        "address": "clickhouse://w@h/db",
        "bound": 3 << 20,
        "metrics": "127.0.0.1:9464",
    }


def test_the_hosts_file_is_taken_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.FILE.parent.mkdir()
    settings.FILE.write_text('service = "serving"')
    assert shown()["service"] == ("serving", str(settings.FILE))
    assert shown("--config", written(tmp_path, ""))["service"] == ("", "default")
    monkeypatch.setenv("KDIFF_AGENT_CONFIG", str(written(tmp_path, 'service = "other"')))
    assert shown()["service"] == ("other", str(tmp_path / "agent.toml"))


def test_a_store_that_is_kdiffs_directory_is_not_the_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KDIFF_STORE", "/var/lib/captures")
    assert shown()["store"] == ("", "default")
    monkeypatch.setenv("KDIFF_STORE", "clickhouse://h/db")
    assert shown()["store"] == ("clickhouse://h/db", "KDIFF_STORE")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('max-byte = "1G"', "a key that does not exist, 'max-byte': is max-bytes meant?"),
        ('passphrase = "s3cret"', "'passphrase': there are device-time,"),
        ("[run]\n", "a key that does not exist, 'run'"),
        ("config = 'x'", "a key that does not exist, 'config'"),
        ('layer = "drivr"', "layer is one of both, runtime, driver: is driver meant?"),
        ("max-bytes = 10", "max-bytes is a text: write it in quotes"),
        ('no-return = "yes"', "no-return is true or false, without quotes"),
        ('include = "user=a"', 'include is a list of texts, like ["user=inference"]'),
        ("include = [1]", "include is a list of texts"),
        ('include = ["usr=a"]', "is user meant?"),
        ("layer = both", "is no TOML (Invalid value (at line 1, column 9))"),
        (b"\xff\xfe", "is no text in UTF-8"),
        (b"# " + b"x" * (1 << 20), "is larger than 1 MiB"),
        ("include = " + "[" * 20_000, "is no file of settings: write lines like"),
        ("max-bytes = " + "9" * 6000, "is no file of settings: write lines like"),
        ('output = ""', "output is empty: name a path"),
        ('state = "a\\u0000b"', "state holds a NUL character: leave it out"),
        ('store = "clickhouse://h\\u0000/kdiff"', "store holds a NUL character: leave it out"),
        ('include = ["user=\\u0000"]', "include holds a NUL character: leave it out"),
        ("layer = 2026-01-01", "layer is a text: write it in quotes"),
        ('"clickhouse://u:s3cret@h/kdiff" = 1', "a key that does not exist, 'clickhouse://***@h/kdiff': there are"),
        ('layer = "clickhouse://u:s3cret@h/kdiff"', "layer is one of both, runtime, driver"),
        ('include = ["clickhouse://u:s3cret@h/kdiff"]', "the rule 'clickhouse://***@h/kdiff' is not KIND=PATTERN"),
        ('include = ["usr=clickhouse://u:s3cret@h"]', "the rule 'usr=clickhouse://***@h' is about 'usr'"),
    ],
)
def test_a_file_that_is_wrong_is_one_sentence(tmp_path: Path, text: str | bytes, why: str) -> None:
    error = refused("--config", written(tmp_path, text))
    assert why in error
    assert "s3cret" not in error


def test_a_file_that_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "No such file" in refused("--config", tmp_path / "gone")
    for path in (tmp_path, tmp_path / "pipe", Path("/dev/zero")):
        assert refused("--config", path) == f"{path} is no regular file: name another with --config"


def test_a_file_that_may_not_be_seen_is_not_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = tmp_path / "loop"
    hidden.symlink_to(hidden)
    monkeypatch.setattr(settings, "FILE", hidden)
    assert refused() == f"{hidden} cannot be read (Too many levels of symbolic links): name another file with --config"


@pytest.mark.parametrize(
    "key", ["CONFIG", "LAYER", "DEVICE_TIME", "NO_RETURN", "INCLUDE", "EXCLUDE", "METRICS", "STORE"]
)
@pytest.mark.parametrize("command", ["config", "run"])
def test_no_variable_makes_a_secret_shown(key: str, command: str) -> None:
    environment = {**os.environ, f"KDIFF_AGENT_{key}": "clickhouse://u:s3cret@h:8123/kdiff?x"}
    done = subprocess.run(
        [sys.executable, "-c", "from kdiff.agent.cli import main; main()", command],
        env=environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "s3cret" not in done.stdout + done.stderr


@pytest.mark.parametrize("arguments", [["run", "--layer"], ["config", "--format"], ["ship", "x", "--retry-for"]])
def test_no_argument_makes_a_secret_shown(arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from kdiff.agent.cli import main; main()", *arguments, "clickhouse://u:s3cret@h/kdiff"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "s3cret" not in done.stdout + done.stderr


def test_a_variable_without_effect_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KDIFF_AGENT_METRIC", "127.0.0.1:1")
    assert refused() == "KDIFF_AGENT_METRIC is no setting: is KDIFF_AGENT_METRICS meant?"


def test_what_run_refuses_config_refuses(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli.app, ["config", "--config", str(written(tmp_path, 'max-bytes = "ten"'))])
    assert done.exit_code == 2
    assert "is no size" in done.output


@hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_file_is_settings_or_one_sentence(tmp_path: Path, raw: bytes) -> None:
    try:
        shown("--config", written(tmp_path, raw))
    except AgentError as raised:
        error = str(raised)
    else:
        error = ""
    assert "\n" not in error
