"""--policy FILE and --swapped: what a file may say, what goes before it, and each kernel's own tolerance."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Result, Run, kdiff

import captures
from captures import AFTER, BEFORE, TwoWindows
from kdiff.analysis.compare import Options, compare
from kdiff.analysis.evidence import Evidence
from kdiff.analysis.policy_file import PolicyError, read_policy
from kdiff.analysis.renames import show
from kdiff.analysis.tolerances import Tolerance, tolerance_of
from kdiff.queries.errors import KdiffError
from kdiff.queries.store import CaptureStore

pytestmark = pytest.mark.usefixtures("engine")

N = 6_007
WINDOWS = ["--before", "2025-11-27T10:00/10m", "--after", "2025-11-27T10:10/10m"]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: str | Path) -> Result:
        return kdiff(monkeypatch, capsys, *arguments)

    return call


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    def call(text: str) -> Path:
        path = tmp_path / "policy.toml"
        path.write_text(text)
        return path

    return call


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """`attention` is slower by 8%, `gelu` as it was; two kernels that are a group by --map, slower by 8%."""
    capture = TwoWindows(tmp_path / "capture")
    random = np.random.default_rng(1)
    for name, factor in (("attention", 1.08), ("gelu", 1.0), ("a", 1.08), ("b", 1.08)):
        for window, scale in ((BEFORE, 1.0), (AFTER, factor)):
            times = captures.spread(window.from_ns, window.to_ns, N)
            durations = (80_000 * scale * random.lognormal(0.0, 0.02, N)).astype(np.int64)
            capture.add("kernel_executions", captures.executions(name, times, durations))
            capture.add("cuda_events", captures.launches(name, times, batch_launches=24))
    return capture.root


def verdicts(result: Result) -> dict[str, tuple[str, float]]:
    found = json.loads(result.out)
    return {row["kernel"]: (row["verdict"], row["margin"]) for row in found["kernels"]}


def test_a_kernel_may_have_a_tolerance_of_its_own(run: Run, root: Path, write: Callable[[str], Path]) -> None:
    asked = ["--store", root, *WINDOWS, "--format", "json", "--exact"]
    alone = verdicts(run(*asked))
    assert alone["attention"] == ("REGRESSED", 0.05)
    policy = write(
        '[[kernel]]\nmatch = "attent*"\ntolerance = "10%"\n[[kernel]]\nmatch = ["a", "b"]\ntolerance = 0.2\n'
    )
    result = run(*asked, "--policy", policy)
    assert verdicts(result) == {
        "attention": ("PASS", 0.1),
        "gelu": ("PASS", 0.05),
        "a": ("PASS", 0.2),
        "b": ("PASS", 0.2),
    }
    assert result.code == 0
    lines = run("--store", root, *WINDOWS, "--policy", policy).out.splitlines()
    assert any("tolerance 5% (3 by the policy file), 90% intervals" in line for line in lines)
    assert lines[-1] == "PASS: 4 kernels, none over its tolerance at p99 (device)"
    grouped = verdicts(run(*asked, "--policy", policy, "--map", "a+b=a+b"))
    assert grouped["a + b"] == ("PASS", 0.2)
    assert verdicts(run(*asked, "--map", "a+b=a+b"))["a + b"] == ("REGRESSED", 0.05)


def test_what_the_command_line_says_goes_before_the_file(run: Run, root: Path, write: Callable[[str], Path]) -> None:
    policy = write('tolerance = "15%"\non-undecided = "fail"\n')
    asked = ["--store", root, *WINDOWS, "--format", "json", "--policy", policy]
    result = run(*asked)
    assert (result.code, json.loads(result.out)["tolerance"]) == (0, 0.15)
    result = run(*asked, "--tolerance", "5%")
    assert (result.code, json.loads(result.out)["tolerance"]) == (1, 0.05)
    # What is undecided exits as the file says.
    assert run(*asked, "--metric", "completion").code == 1


def test_a_kernel_that_did_not_run_is_warned_of(run: Run, root: Path, write: Callable[[str], Path]) -> None:
    policy = write('[[kernel]]\nmatch = "glue"\ntolerance = "10%"\n')
    result = run("--store", root, *WINDOWS, "--policy", policy, "--tolerance", "20%")
    assert result.code == 0
    assert f"--policy {show(str(policy))}, kernel 1 was not used: no kernel that ran matches 'glue'" in result.err


def test_a_tolerance_that_an_earlier_one_hides_is_warned_of_and_few_are_told(
    run: Run, root: Path, write: Callable[[str], Path]
) -> None:
    def told(*tables: tuple[str, str]) -> list[str]:
        path = write("".join(f"[[kernel]]\nmatch = '{name}'\ntolerance = '{share}'\n" for name, share in tables))
        lines = run("--store", root, *WINDOWS, "--policy", path).err.splitlines()
        return [line.removeprefix("kdiff: warning: ").replace(f"--policy {show(str(path))}, ", "") for line in lines]

    hidden = (
        "kernel 2 was not used: what 'attention' matches is matched by 'att*' further up, and the first that "
        "matches counts"
    )
    assert told(("att*", "30%"), ("attention", "1%")) == [hidden]
    assert told(("attention", "1%"), ("att*", "1%")) == []
    assert told(("gelu", "1%"), ("*", "30%")) == []
    none = [f"kernel {i} was not used: no kernel that ran matches 'none_{i}'" for i in (1, 2, 3)]
    assert told(*((f"none_{i}", "1%") for i in range(1, 1_005))) == [
        *none,
        "1,001 more tolerances of the policy file were not used",
    ]


def test_small_numbers_are_shares_too(write: Callable[[str], Path]) -> None:
    said = read_policy(str(write("tolerance = 5e-05\nmax-loss = 1e-2\n[[kernel]]\nmatch = 'a'\ntolerance = 0.00001")))
    assert said.options == {"tolerance": "0.00005", "max-loss": "0.01"}
    assert said.tolerances[0].share == 0.00001


@pytest.mark.parametrize("command", [[], ["watch", "--baseline", "-1h"], ["gate", "--listen", "127.0.0.1:0"]])
def test_a_name_that_is_empty_is_an_error(run: Run, root: Path, command: list[str]) -> None:
    windows = [] if command else WINDOWS
    result = run(*command, "--store", root, *windows, "--policy", "")
    assert (result.code, result.err) == (2, "kdiff: --policy '' names no file: give one, or leave the option out\n")


def test_swapped_that_is_empty_is_an_error(run: Run, root: Path) -> None:
    result = run("--store", root, *WINDOWS, "--swapped", "")
    said = "kdiff: --swapped '' names nothing: give part of a kernel's name, or leave the option out\n"
    assert (result.code, result.err) == (2, said)


def test_swapped_in_a_file_or_on_the_command_line(run: Run, root: Path, write: Callable[[str], Path]) -> None:
    asked = ["--store", root, *WINDOWS, "--format", "json"]
    note = "Fewer than 10 kernels with enough data were not swapped (3 were compared)"
    for options in (["--swapped", "atten"], ["--policy", write('swapped = "atten"')]):
        found = json.loads(run(*asked, *options).out)
        assert any(text.startswith(note) for text in found["notes"])
        assert found["controls"] == []
    result = run(*asked, "--swapped", "glue")
    assert result.code == 2
    assert "--swapped 'glue': no kernel of either window matches it; see `kdiff kernels`" in result.err


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("tolerence = 1", "has a key that does not exist, 'tolerence': is tolerance meant?"),
        ("max_loss = 1", "has a key that does not exist, 'max_loss': is max-loss meant?"),
        ("colour = 1", "'colour': there are tolerance, quantile, max-loss, max-unjudged, on-undecided, unpaired, swap"),
        ("[[kernels]]\nmatch = 'a'", "'kernels': is kernel meant?"),
        ("[kernel]\nmatch = 'a'", "kernel is a table for each pattern: write lines"),
        ("kernel = [1]", "kernel is a table for each pattern: write lines"),
        ("[[kernel]]\nmatch = 'a'", "kernel 1 has no tolerance: write lines"),
        ("[[kernel]]\ntolerance = 0.1", "kernel 1 has no match: write lines"),
        (
            "[[kernel]]\nmatch = 'a'\ntolerance = 0.1\nquantile = 0.5",
            "kernel 1 has a key that does not exist, 'quantile'",
        ),
        (
            "[[kernel]]\nmatch = 'a'\ntolerance = 0.1\n[[kernel]]\nmatch = []\ntolerance = 1",
            "kernel 2: match is a part",
        ),
        ("[[kernel]]\nmatch = ['']\ntolerance = 0.1", "kernel 1: match is a part"),
        ("[[kernel]]\nmatch = 'a'\ntolerance = 5", "kernel 1: tolerance '5' is over 1: write 5% if that is meant"),
        ("[[kernel]]\nmatch = 'a'\ntolerance = '-5%'", "kernel 1: tolerance '-5%' is not a share"),
        ("tolerance = '5'", "tolerance '5' is over 1: write 5% if that is meant"),
        ("tolerance = true", 'tolerance is a text or a number: write "5%" or 0.05'),
        ("tolerance = nan", "tolerance 'nan' is not a share"),
        ("max-loss = [1]", "max-loss is a text or a number"),
        ("quantile = 'p9'", "quantile: --quantile 'p9' is not between 0.5 and 0.9999: write 0.99 or p99"),
        ("on-undecided = 'fial'", "on-undecided is one of pass, fail: is fail meant?"),
        ("unpaired = 3", "unpaired is one of undecided, ignore: there are undecided, ignore"),
        ("swapped = [1]", 'swapped is a name or a list of names, like ["gelu"]'),
        ("tolerance = ", "cannot be read ("),
        ("tolerance = 1\ntolerance = 2", "cannot be read ("),
        ("a = " + "[" * 10_000, "cannot be read ("),
    ],
)
def test_what_a_file_says_wrong_is_told_in_one_sentence(
    run: Run, root: Path, write: Callable[[str], Path], text: str, why: str
) -> None:
    path = write(text)
    with pytest.raises(KdiffError) as caught:
        read_policy(str(path))
    assert str(caught.value).startswith(f"--policy {show(str(path))}")
    assert why in str(caught.value)
    result = run("--store", root, *WINDOWS, "--policy", path)
    assert (result.code, result.out, len(result.err.splitlines())) == (2, "", 1)


def test_a_file_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match=r"cannot be read \(No such file or directory\)"):
        read_policy(str(tmp_path / "none"))
    with pytest.raises(PolicyError, match=r"cannot be read \(Is a directory\)"):
        read_policy(str(tmp_path))
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PolicyError, match="cannot be read"):
        read_policy(str(tmp_path / "binary"))
    (tmp_path / "large").write_bytes(b"#" * ((1 << 20) + 1))
    with pytest.raises(PolicyError, match="has more than 1 MiB"):
        read_policy(str(tmp_path / "large"))
    (tmp_path / "empty").write_bytes(b"")
    assert read_policy(str(tmp_path / "empty")).tolerances == ()


def test_the_first_that_matches_goes_before_the_others() -> None:
    some = (Tolerance("gelu", 0.1, "one"), Tolerance("gelu_*", 0.2, "two"), Tolerance("old", 0.3, "three"))
    assert tolerance_of(("fused_gelu_1",), some) == 0.1
    assert tolerance_of(("norm", "old_norm"), some) == 0.3
    assert tolerance_of(("norm",), some) is None
    assert tolerance_of(("(graph gelu)",), some) is None  # a graph only by a pattern of graphs


def test_the_watch_holds_a_kernel_to_its_own_tolerance(run: Run, root: Path, write: Callable[[str], Path]) -> None:
    asked = ["watch", "--store", root, "--baseline", "2025-11-27T10:00/10m", "--start", "2025-11-27T10:10"]
    asked += ["--for", "10m", "--format", "json"]
    thresholds = {}
    for name, options in (
        ("without", []),
        ("with", ["--policy", write("[[kernel]]\nmatch='gelu'\ntolerance='50%'\n")]),
    ):
        found = json.loads(run(*asked, *options).out)["watch"]["kernels"]
        thresholds[name] = {row["kernel"]: row["threshold_ns"] for row in found}
    assert thresholds["with"]["gelu"] == pytest.approx(thresholds["without"]["gelu"] * 1.5 / 1.05, abs=1)
    assert thresholds["with"]["attention"] == thresholds["without"]["attention"]


def test_the_gate_hands_the_file_and_what_was_swapped_on(
    run: Run, root: Path, write: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[list[str], dict[str, Any]]] = []

    def gate(fixed: list[str], defaults: dict[str, Any], *_: object, **__: object) -> None:
        made.append((fixed, defaults))
        raise KdiffError("enough")

    monkeypatch.setattr("kdiff.analysis.gate.Gate", gate)
    policy = write('tolerance = "7%"\non-undecided = "pass"\nmax-unjudged = "1%"\nswapped = ["gelu", "norm"]\n')
    result = run("gate", "--store", root, "--listen", "127.0.0.1:0", "--policy", policy)
    assert (result.code, "enough" in result.err) == (2, True)
    ((fixed, defaults),) = made
    assert (defaults["tolerance"], defaults["on_undecided"]) == (["7%"], ["pass"])
    assert f"--policy={policy}" in fixed
    assert "--max-unjudged=1%" in fixed
    assert [one for one in fixed if one.startswith("--swapped")] == ["--swapped=gelu", "--swapped=norm"]


def test_margins_reach_kernels_of_both_measures(root: Path) -> None:
    own = (Tolerance("attention", 0.3, "here"),)
    with CaptureStore(root) as store:
        options = Options(tolerances=own, metric="launch")
        report = compare(Evidence(store, BEFORE), Evidence(store, AFTER), options)
    assert {row.kernel: row.margin for row in report.kernels}["attention"] == 0.3
