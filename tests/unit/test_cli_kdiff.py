from __future__ import annotations

import json
import os
import pty
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Result, Run, kdiff

import captures
from captures import MINUTE, T0
from kdiff.analysis import cli
from kdiff.queries.printable import cells
from kdiff.queries.store import CaptureStore

ROOT = Path(__file__).parents[2]
BEFORE = "2025-11-27T10:00/10m"
AFTER = "2025-11-27T10:10/10m"
PAIR = ["--before", BEFORE, "--after", AFTER]
N = 4_001


def record(root: Path, after: float, start: int = T0, gap: int = 10 * MINUTE, **columns: Any) -> Path:
    for i, (begin, scale) in enumerate(((start, 1.0), (start + gap, after))):
        times = captures.spread(begin, begin + 10 * MINUTE, N)
        values = (80_000 * scale * np.random.default_rng(i).lognormal(0, 0.1, N)).astype(np.int64)
        given = {"completion_ns": values} | columns
        captures.write(root, "cuda_events", captures.launches("fused_gelu", times, **given), f"{i}")
        captures.write(root, "agent_health", captures.health(begin, begin + 10 * MINUTE), f"{i}")
    return root


@pytest.fixture(scope="module")
def same(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    root = record(tmp_path_factory.mktemp("same"), 1.0)
    with CaptureStore(root):  # keeps the engine alive between tests
        yield str(root)


@pytest.fixture(scope="module")
def slower(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(record(tmp_path_factory.mktemp("slower"), 1.3))


@pytest.fixture(scope="module")
def batched(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(record(tmp_path_factory.mktemp("batched"), 1.0, batch_launches=24))


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.delenv("KDIFF_STORE", raising=False)
    monkeypatch.delenv("KDIFF_DEBUG", raising=False)
    monkeypatch.setenv("COLUMNS", "80")

    def call(*arguments: str) -> Result:
        return kdiff(monkeypatch, capsys, *arguments)

    return call


def test_no_regression_is_0(run: Run, same: str) -> None:
    result = run("--store", same, *PAIR)
    assert (result.code, result.err) == (0, "")
    assert result.out.splitlines()[-1] == "PASS: 1 kernel, none over +5% at p99 (completion)"


def test_a_regression_is_1(run: Run, slower: str) -> None:
    result = run("--store", slower, *PAIR)
    assert (result.code, result.err) == (1, "")
    assert re.fullmatch(
        r"REGRESSED: fused_gelu p99 \+\d+\.\d% \[\+\d+\.\d%, \+\d+\.\d%\] \(completion\), \d+ us -> \d+ us",
        result.out.splitlines()[-1],
    )


def test_names_are_mapped_from_a_file(run: Run, slower: str, tmp_path: Path) -> None:
    names = tmp_path / "names.toml"
    names.write_text('[[map]]\nold = "fused_gelu"\nnew = "fused_gelu"\n[[map]]\nold = "x"\nnew = "y"\n')
    result = run("--store", slower, *PAIR, "--map-file", str(names), "--exact-names", "--format", "json")
    assert result.code == 1
    assert [k["paired_by"] for k in json.loads(result.out)["kernels"]] == ["map"]
    assert "entry 2 was not used: what it names did not run in these windows" in result.err


def test_undecided_is_3_unless_told_otherwise(run: Run, batched: str) -> None:
    assert run("--store", batched, *PAIR).code == 3
    assert run("--store", batched, *PAIR, "--on-undecided", "pass").code == 0
    assert run("--store", batched, *PAIR, "--on-undecided", "fail").code == 1
    assert run("--store", batched, *PAIR, "--metric", "completion").code == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "--before and --after missing"),
        (["--before", "-2h"], "--after missing"),
        (["--before", "x", "--after", "-2h"], "neither a time nor a capture directory"),
        (["--before", "-2h", "--after", "now"], "in the future"),
        (["--before", "-2h", "--after", "-2h/1m", "--window", "x"], "not a length of time"),
        ([*PAIR, "--tolerance", "5"], "write 5% if that is meant"),
        ([*PAIR, "--quantile", "99"], "--quantile '99'"),
        ([*PAIR, "--store", "/no/such"], "there is no capture at /no/such: record one with"),
        ([*PAIR, "--store", "http://localhost:8123"], "is no address of a server: write clickhouse://"),
        (["--before", BEFORE, "--after", "2025-11-27T10:05/10m"], "overlap by 5m"),
        (["--before", "2020-01-01", "--after", AFTER], "holds 2025-11-27T10:00:00Z..2025-11-27T10:19:59"),
        ([*PAIR, "--service", "nope"], "no launches of the service nope (services: svc)"),
        ([*PAIR, "--kernel", "nope"], "no kernel matches 'nope': these ran: 'fused_gelu'"),
        ([*PAIR, "--map", "old=new"], "no kernel named 'old' ran in the before window"),
        ([*PAIR, "--map", "old*=new"], "no kernel that ran in the before window matches 'old*'"),
        (
            [*PAIR, "--map-file", "/no/such"],
            "--map-file '/no/such' cannot be read (No such file or directory): write tables",
        ),
        (["kernels", "-1h..-2h"], "No such option"),
        (["kernels", "--", "-1h..-2h"], "reversed"),
        ([*PAIR, "--nonsense"], "No such option"),
        ([*PAIR, "--metric", "nonsense"], "Invalid value"),
        (["nonsense"], "No such command"),
    ],
)
def test_errors_are_2_and_say_what_to_do(run: Run, same: str, arguments: list[str], words: str) -> None:
    store = [] if "--store" in arguments or "kernels" in arguments else ["--store", same]
    result = run(*store, *arguments)
    assert (result.code, result.out) == (2, "")
    assert words in " ".join(result.err.split())
    assert "Traceback" not in result.err
    if "option" not in words and "Invalid" not in words and "command" not in words:
        assert result.err.startswith("kdiff: ")
        assert result.err.count("\n") == 1


def test_the_store_comes_from_the_environment_or_the_usual_place(
    run: Run, same: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "there is no capture at kdiff-capture" in run(*PAIR).err
    (tmp_path / "kdiff-capture").symlink_to(same)
    assert run(*PAIR).code == 0
    monkeypatch.setenv("KDIFF_STORE", "/no/such")
    assert run(*PAIR).code == 2
    monkeypatch.setenv("KDIFF_STORE", same)
    assert run(*PAIR).code == 0


def test_captures_as_windows(run: Run, same: str, slower: str) -> None:
    result = run("--before", same, "--after", slower, "--format", "json")
    document = json.loads(result.out)
    assert document["before"]["launches"] == document["after"]["launches"] == 2 * N
    assert document["before"]["store"] == same
    result = run("--before", same, "--after", same)
    assert result.code == 2
    assert "overlap" in result.err


def test_relative_times_with_a_leading_dash(run: Run, tmp_path: Path) -> None:
    now = time.time_ns()
    record(tmp_path, 1.0, start=now - 100 * MINUTE, gap=80 * MINUTE)
    result = run("--store", str(tmp_path), "--before", "-90m", "--after", "-20m", "--window", "10m")
    assert (result.code, result.err) == (0, "")


def test_the_example_in_the_help_works(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (example,) = re.findall(r"Example:\s+(kdiff .*)", run("--help").out)
    program, *arguments = shlex.split(example)
    assert program == "kdiff"
    now = time.time_ns()
    record(tmp_path / "kdiff-capture", 1.0, start=now - 71 * MINUTE, gap=60 * MINUTE)
    monkeypatch.chdir(tmp_path)
    result = run(*arguments)
    assert result.code in (0, 3)
    assert f"{N:,} launches" in result.out


def test_messages_go_to_stderr_and_data_to_stdout(run: Run, tmp_path: Path) -> None:
    record(tmp_path, 1.0)
    (tmp_path / "cuda_events" / "torn\n.parquet").write_bytes(b"PAR1")
    result = run("--store", str(tmp_path), *PAIR, "--format", "json")
    assert result.code == 0
    assert result.err.startswith("kdiff: warning: skipped ")
    assert result.err.count("\n") == 1
    document = json.loads(result.out)
    assert len(document["warnings"]) == 1


@pytest.mark.parametrize("columns", ["40", "80", "140"])
def test_the_table_uses_the_width_it_gets(run: Run, slower: str, columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    for arguments in (["--store", slower, *PAIR], ["kernels", "--store", slower]):
        lines = run(*arguments).out.splitlines()
        # A path in the first lines of `kernels` may be longer than any terminal.
        assert all(cells(line) <= int(columns) for line in lines if not line.startswith("/"))
        assert any("fused_gelu" in line for line in lines)


def test_json_keys_are_documented_in_order(run: Run, slower: str) -> None:
    document = json.loads(run("--store", slower, *PAIR, "--format", "json").out)
    page = (ROOT / "docs" / "json.md").read_text()
    assert document["schema"] == "kdiff/1"
    assert (document["verdict"], document["exit_code"]) == ("REGRESSED", 1)
    places = [page.find(f"| `{key}` |") for key in document]
    assert -1 not in places
    assert places == sorted(places)
    for part in (document["before"], document["kernels"][0]):
        assert [key for key in part if f"`{key}`" not in page] == []
    assert list(document["kernels"][0])[:5] == ["kernel", "verdict", "metric", "n_before", "n_after"]


def test_kernels(run: Run, same: str) -> None:
    result = run("kernels", "--store", same)
    assert result.code == 0
    assert f"{2 * N:,} launches of 1 kernel, lost 0 (0%), recorded 100%" in result.out
    document = json.loads(run("kernels", "2025-11-27T10:00/10m", "--store", same, "--format", "json").out)
    assert document["schema"] == "kdiff-kernels/1"
    (row,) = document["kernels"]
    assert (row["kernel_name"], row["launches"], row["device_p99_ns"]) == ("fused_gelu", N, None)


def test_graphs_are_listed_and_are_no_kernels(run: Run, tmp_path: Path) -> None:
    named = "(graph 5e0c19a2: 12 x fused_gelu, 12 x layer_norm, 3 more)"
    times = captures.spread(T0, T0 + MINUTE, 997)
    of_graph = captures.spread(T0 + 7 * captures.SECOND, T0 + MINUTE, 101)
    values = np.random.default_rng(5).integers(50_000, 90_000, 101)
    for segment, rows in enumerate(
        (
            captures.launches("fused_gelu", times, completion_ns=7_000),
            captures.launches(named, of_graph, completion_ns=values, kind="graph_launch"),
            captures.launches("", times[:13], kind="graph_launch"),
            captures.launches("", times[:3]),
            captures.launches(named, times[:5], kind="graph_launch", status=1),
        )
    ):
        captures.write(tmp_path, "cuda_events", rows, str(segment))
    captures.write(tmp_path, "agent_health", captures.health(T0, T0 + MINUTE, events=186, lost_launches=1))
    store = ("--store", str(tmp_path))
    document = json.loads(run("kernels", *store, "--format", "json").out)
    assert [(row["kernel_name"], row["launches"]) for row in document["kernels"]] == [
        ("fused_gelu", 997),
        ("(no name)", 3),
    ]
    assert document["graphs"] == [
        {
            "graph": named, "launches": 101, "completions": 101, "completion_avg_ns": values.mean(),
            "completion_p99_ns": int(np.sort(values)[99]), "first_ns": int(of_graph[0]), "last_ns": int(of_graph[-1]),
        },
        {
            "graph": "(graph launches)", "launches": 13, "completions": 0, "completion_avg_ns": None,
            "completion_p99_ns": None, "first_ns": T0, "last_ns": int(times[12]),
        },
    ]  # fmt: skip
    assert document["lost"] == 6
    result = run("kernels", *store)
    assert "1,000 launches of 2 kernels, 114 launches of 2 graphs, lost 6 (0.53%)" in result.out
    lines = result.out.splitlines()
    assert all(len(line) <= 80 for line in lines)
    heading = next(place for place, line in enumerate(lines) if line.startswith("graph "))
    assert lines[heading].split("  ")[-1].split() == ["launches", "first", "seen", "compl.", "p99", "compl.", "avg"]
    assert lines[heading + 1].startswith("(graph 5e0c19a2: 12 x fused_gelu")
    assert lines[heading + 1].split()[-6:-4] == ["101", "10:00:07"]
    assert lines[heading + 2].split() == ["(graph", "launches)", "13", "10:00:00", "-", "-"]
    assert not any("graph" in line for line in lines[3:heading])


def test_graphs_alone_are_listed(run: Run, tmp_path: Path) -> None:
    captures.write(tmp_path, "cuda_events", captures.launches("(graph 1: 1 x k)", [T0, T0 + 1], kind="graph_launch"))
    out = run("kernels", "--store", str(tmp_path)).out
    assert "0 launches of 0 kernels, 2 launches of 1 graph, loss not known" in out
    assert out.splitlines()[-1].split() == ["(graph", "1:", "1", "x", "k)", "2", "10:00:00", "10:00:00"]
    assert "no kernel ran" not in out


def test_version(run: Run) -> None:
    assert re.fullmatch(r"kdiff \d\S+\n", run("--version").out)


def test_what_nobody_foresaw_is_one_line(run: Run, same: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("a\nb\x1b")

    monkeypatch.setattr("kdiff.analysis.compare.compare", fail)
    result = run("--store", same, *PAIR)
    assert result.code == 2
    assert result.err == f"kdiff: unexpected ZeroDivisionError: a; {cli.ISSUES}\n"
    monkeypatch.setenv("KDIFF_DEBUG", "1")
    monkeypatch.setattr(sys, "argv", ["kdiff", "--store", same, *PAIR])
    with pytest.raises(ZeroDivisionError):
        cli.main()


def command(*arguments: str, **environment: str) -> dict[str, Any]:
    return {
        "args": [sys.executable, "-W", "error", "-c", "from kdiff.analysis.cli import main; main()", *arguments],
        "env": {key: value for key, value in os.environ.items() if key != "COLUMNS"} | environment,
    }


def test_a_reader_that_goes_away_changes_nothing(slower: str) -> None:
    with subprocess.Popen(
        **command("--store", slower, *PAIR), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 1


def test_a_full_disk_is_2(slower: str) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            **command("--store", slower, *PAIR), stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 2
    assert done.stderr.startswith("kdiff: cannot write the output")


def test_an_ascii_terminal(tmp_path: Path) -> None:
    root = record(tmp_path / "核", 1.0)
    done = subprocess.run(
        **command("--store", str(root), *PAIR, PYTHONIOENCODING="ascii"), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("environment", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)]
)
def test_colour_in_terminals_only(slower: str, environment: dict[str, str], coloured: bool) -> None:
    leader, follower = pty.openpty()
    started = command("--store", slower, *PAIR, **({"TERM": "xterm", "NO_COLOR": ""} | environment))
    with subprocess.Popen(**started, stdout=follower, stderr=subprocess.PIPE) as process:
        os.close(follower)
        output = b""
        while True:
            try:
                chunk = os.read(leader, 65536)
            except OSError:
                break
            if not chunk:
                break
            output += chunk
        os.close(leader)
        assert process.wait(60) == 1
        assert process.stderr is not None
        assert process.stderr.read() == b""
    assert (b"\x1b[31;1mREGRESSED" in output) is coloured
    assert (b"\x1b" in output) is coloured


def test_help_imports_nothing_slow() -> None:
    program = (
        "import sys; sys.argv = ['kdiff', '--help']; from kdiff.analysis.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "slow = {'numpy', 'scipy', 'pandas', 'pyarrow', 'chdb', 'clickhouse_connect', 'rich', 'plotly'}\n"
        "sys.exit(repr(slow & set(sys.modules)) if slow & set(sys.modules) else 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_comparison_does_not_import_pandas(same: str) -> None:
    program = (
        f"import sys; sys.argv = ['kdiff', '--store', {same!r}, *{PAIR!r}]; from kdiff.analysis.cli import main\n"
        "try: main()\n"
        "finally: print('pandas' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.endswith("False\n")


def test_every_option_is_in_the_guide(run: Run) -> None:
    guide = (ROOT / "docs" / "guide-kdiff.md").read_text()
    for text in (run("--help").out, run("kernels", "--help").out):
        for option in re.findall(r"(?m)^\s+(?:-h, )?(--[a-z-]+)", text):
            assert f"`{option}" in guide, option


def test_kernels_of_days_are_dated(run: Run, tmp_path: Path) -> None:
    for day in (0, 3):
        times = captures.spread(T0 + day * 24 * 60 * MINUTE, T0 + (day * 24 + 1) * 60 * MINUTE, 11)
        captures.write(tmp_path, "kernel_executions", captures.executions("k", times, 5_000), f"{day}")
    result = run("kernels", "--store", str(tmp_path))
    assert "0 launches of 1 kernel, loss not known, recorded 0%, 22 timed on the device" in result.out
    assert result.out.splitlines()[-1].split()[-2:] == ["2025-11-30T10:54", "2025-11-27T10:00"]
