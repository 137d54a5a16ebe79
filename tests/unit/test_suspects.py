"""Renames that are suspected: what speaks for one, what is said, and that it decides nothing."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest

import captures
from captures import AFTER, BEFORE, TwoWindows, only
from kdiff.analysis import suspects
from kdiff.analysis.counts import Counts
from kdiff.analysis.measure import Plan
from kdiff.analysis.output import output_format
from kdiff.analysis.pairing import Pair
from kdiff.analysis.suspects import Place, Suspicion, find
from kdiff.analysis.verdict import Verdict
from kdiff.analysis.window import Window

N = 3_001
SAME = Place({0: 1.0}, {1: 1.0}, {7: 1.0})


def plans(*names: str) -> list[Plan]:
    return [Plan(Pair(name, Counts(), Counts()), "device") for name in names]


def test_signs_are_counted_and_the_best_pair_wins() -> None:
    known = plans("old_attention", "matmul_v1", "flash", "matmul_v2")
    places = {0: SAME, 1: Place({1: 1.0}, {0: 1.0}, {9: 1.0})}, {2: SAME, 3: Place({1: 1.0}, {5: 1.0}, {8: 1.0})}
    rates = {0: 10.0, 1: 10.0}, {2: 10.0, 3: 10.0}
    found = find((0, 1), (2, 3), known, places, rates)
    assert [(one.gone, one.new, one.place, one.shape) for one in found] == [(0, 2, 1.0, 1.0)]
    assert found[0].signs == 2
    places[0][1] = Place({1: 1.0}, {5: 1.0}, {9: 1.0})
    found = find((0, 1), (2, 3), known, places, rates)
    assert [(one.gone, one.new) for one in found] == [(0, 2), (1, 3)]


def test_a_rate_that_differs_is_no_rename() -> None:
    known = plans("gelu_v1", "gelu_v2")
    for rate, many in ((19.9, 1), (20.1, 0), (5.0, 1), (4.9, 0)):
        assert len(find((0,), (1,), known, ({0: SAME}, {1: SAME}), ({0: 10.0}, {1: rate}))) == many


def test_two_that_are_as_likely_are_not_guessed_between() -> None:
    known = plans("gelu_v1", "gelu_v2", "gelu_v3")
    places = {0: SAME}, {1: SAME, 2: SAME}
    assert find((0,), (1, 2), known, places, ({0: 10.0}, {1: 10.0, 2: 10.0})) == []


def test_what_is_not_known_speaks_for_nothing() -> None:
    assert Suspicion(0, 1, None, None, 0.9).signs == 1
    assert find((0,), (1,), plans("gelu_v1", "gelu_v2"), ({}, {}), ({0: 1.0}, {1: 1.0})) == []


def test_beside_others_that_only_one_window_has_any_kernel_would_be_at_one_place() -> None:
    known = plans("abcdef", "123456")
    beside = ({-2: 1.0}, {-2: 1.0})
    rates = {0: 10.0}, {1: 10.0}
    unknown = Place(*beside, {7: 1.0})
    assert find((0,), (1,), known, ({0: unknown}, {1: unknown}), rates) == []
    half = Place({0: 1.0}, {-2: 1.0}, {7: 1.0})
    assert [one.place for one in find((0,), (1,), known, ({0: half}, {1: half}), rates)] == [1.0]
    fused = Place({0: 1.0}, {1: 1.0}, {7: 1.0})
    assert find((0,), (1,), known, ({0: half}, {1: fused}), rates) == []


class Loop(TwoWindows):
    """Kernels that are launched in order, N times in each window, on one thread and stream."""

    def window(self, window: Window, names: list[str], scale: float = 1.0, device: bool = True) -> None:
        times = captures.spread(window.from_ns, window.to_ns, N)
        for place, name in enumerate(names):
            shape = {"grid_x": 1 + place, "grid_y": 1, "grid_z": 1, "block_x": 128, "block_y": 1, "block_z": 1}
            at = times + 1_000_000 * place
            durations = (20_000 * scale * np.random.default_rng(place).lognormal(0.0, 0.1, N)).astype(np.int64)
            self.add("cuda_events", captures.launches(name, at, completion_ns=durations, **shape))
            if device:
                self.add("kernel_executions", captures.executions(name, at, durations, **shape))


@pytest.fixture
def loop(tmp_path: Path, engine: object) -> Loop:
    capture = Loop(tmp_path / "capture")
    capture.window(BEFORE, ["norm", "it's old<a=b>", "tail"])
    return capture


def test_a_kernel_under_another_name_is_suspected_and_the_argument_confirms_it(loop: Loop) -> None:
    loop.window(AFTER, ["norm", "flash", "tail"])
    report = loop.compare()
    row = only(report, "flash")
    assert (row.verdict, row.n_before, row.n_after) == (Verdict.RENAME_SUSPECTED, N, N)
    assert (row.before_names, row.ratio, row.ci) == (("it's old<a=b>",), None, None)
    assert row.value_before is not None
    assert row.value_before == row.value_after
    assert {r.kernel for r in report.kernels} == {"norm", "flash", "tail"}
    assert report.summary()["RENAME_SUSPECTED"] == 1
    assert (report.verdict, report.exit_code) == (Verdict.INCONCLUSIVE, 3)
    assert row.reasons[0].startswith(
        "It may be 'it's old<a=b>' under another name: 5 -> 5 launches a second, and 100% of its neighbours in the "
        "launch sequence, 100% of its grids and blocks, "
    )
    argument = shlex.split(row.reasons[0].partition("If it is, add ")[2].rstrip("."))
    assert argument == ["--map", "it's old<a=b>=flash"]
    assert report.cause.endswith("add --map 'it'\"'\"'s old<a=b>=flash'")
    confirmed = loop.compare(renames=argument[1:])
    assert (only(confirmed, "flash").verdict, confirmed.exit_code) == (Verdict.PASS, 0)


def test_a_suspicion_decides_nothing(loop: Loop) -> None:
    loop.window(AFTER, ["norm", "flash", "tail"], 3.0)
    assert loop.compare(unpaired="ignore").exit_code == 1  # the others got slower
    report = loop.compare(patterns=["flash", "old"])
    assert [row.verdict for row in report.kernels] == [Verdict.RENAME_SUSPECTED]
    assert report.exit_code == 3


def test_ignored_it_leaves_a_pass(loop: Loop) -> None:
    loop.window(AFTER, ["norm", "flash", "tail"])
    assert loop.compare(unpaired="ignore").exit_code == 0
    assert loop.compare(on_undecided="pass").exit_code == 0


def test_a_kernel_at_another_place_of_another_shape_is_not_suspected(loop: Loop) -> None:
    loop.window(AFTER, ["norm", "tail", "flash"])
    verdicts = {row.kernel: row.verdict for row in loop.compare().kernels}
    assert verdicts["flash"] is Verdict.NEW
    assert verdicts["it's old<a=b>"] is Verdict.GONE


def test_neighbours_that_were_renamed_too_are_known_by_each_other(tmp_path: Path, engine: object) -> None:
    capture = Loop(tmp_path / "capture")
    capture.window(BEFORE, ["norm", "abcdef", "uvwxyz", "tail"])
    capture.window(AFTER, ["norm", "123456", "789000", "tail"])
    found = {row.kernel: row.before_names for row in capture.compare().kernels if row.before_names}
    assert found == {"123456": ("abcdef",), "789000": ("uvwxyz",)}


def test_where_all_names_changed_none_is_guessed_by_its_place(tmp_path: Path, engine: object) -> None:
    capture = Loop(tmp_path / "capture")
    capture.window(BEFORE, ["abcdef", "ghijkl", "mnopqr"])
    capture.window(AFTER, ["123456", "789000", "!!!!!!"])
    report = capture.compare()
    assert report.summary()["RENAME_SUSPECTED"] == 0
    assert (report.exit_code, report.summary()["NEW"]) == (3, 3)


def test_a_fusion_is_not_taken_for_a_rename(tmp_path: Path, engine: object) -> None:
    capture = Loop(tmp_path / "capture")
    capture.window(BEFORE, ["norm", "abcdef", "uvwxyz", "tail"])
    capture.window(AFTER, ["norm", "123456", "tail"])
    verdicts = {row.kernel: row.verdict for row in capture.compare().kernels}
    assert verdicts["123456"] is Verdict.NEW


def test_kernels_of_graphs_are_found_by_their_executions(tmp_path: Path, engine: object) -> None:
    capture = Loop(tmp_path / "capture")
    for window, names in ((BEFORE, ["norm", "old", "tail"]), (AFTER, ["norm", "flash", "tail"])):
        times = captures.spread(window.from_ns, window.to_ns, N)
        for place, name in enumerate(names):
            at = times + 1_000_000 * place
            capture.add("kernel_executions", captures.executions(name, at, 20_000, grid_x=1 + place, graph_id=1))
    assert only(capture.compare(), "flash").before_names == ("old",)


def test_every_format_shows_it(loop: Loop) -> None:
    loop.window(AFTER, ["norm", "flash", "tail"])
    report = loop.compare()
    document = json.loads(output_format("json").render(report, 0, False))
    (kernel,) = [k for k in document["kernels"] if k["kernel"] == "flash"]
    assert (kernel["verdict"], kernel["before_names"], kernel["paired_by"]) == (
        "RENAME_SUSPECTED",
        ["it's old<a=b>"],
        None,
    )
    assert document["summary"]["RENAME_SUSPECTED"] == 1
    assert "RENAME_SUSPECTED" in output_format("table").render(report, 120, False)
    assert "| flash | RENAME_SUSPECTED |" in output_format("markdown").render(report, 0, False)
    suite = ET.fromstring(output_format("junit").render(report, 0, False))
    case = suite.find(".//testcase[@name='flash']/system-out")
    assert case is not None
    assert str(case.text).startswith("RENAME_SUSPECTED: It may be")
    assert suite.find(".//testcase[@name='run']/error") is not None


def test_a_kernel_that_was_compiled_anew_is_judged(tmp_path: Path, engine: object) -> None:
    capture = Loop(tmp_path / "capture")
    capture.window(BEFORE, ["norm", "gelu_0d1d2", "tail"])
    capture.window(AFTER, ["norm", "gelu_0d1d2d", "tail"], 1.3)
    report = capture.compare()
    row = only(report, "gelu_0d1d2d")
    assert (row.verdict, row.before_names, row.paired_by) == (Verdict.REGRESSED, ("gelu_0d1d2",), "canonical")
    assert row.reasons[0] == (
        "Paired by canonical name with 'gelu_0d1d2' before, as the same kernel compiled anew: --exact-names keeps them "
        "apart."
    )
    apart = only(capture.compare(by_canonical=False), "gelu_0d1d2d")
    assert apart.verdict is Verdict.RENAME_SUSPECTED


@pytest.mark.parametrize(("patterns", "code"), [((), 3), (("it's", "tail"), 3), (("flash", "tail"), 3), (("tail",), 0)])
def test_what_a_pattern_does_not_choose_may_be_what_is_gone(loop: Loop, patterns: tuple[str, ...], code: int) -> None:
    loop.window(AFTER, ["norm", "tail", "flash"])
    report = loop.compare(patterns=patterns)
    told = (
        "1 kernel is gone and 1 new: if one replaced the other, add --map 'it'\"'\"'s old<a=b>=flash'" if code else ""
    )
    assert (report.exit_code, report.cause) == (code, told)
    assert loop.compare(patterns=patterns, unpaired="ignore").exit_code == 0


def test_what_runs_far_more_often_beside_a_pattern_is_not_taken_for_it(loop: Loop) -> None:
    loop.window(AFTER, ["norm", "tail"])
    often = captures.spread(AFTER.from_ns, AFTER.to_ns, 3 * N)
    loop.add("kernel_executions", captures.executions("flash", often, 900))
    loop.add("cuda_events", captures.launches("flash", often))
    assert loop.compare(patterns=["it's", "tail"]).exit_code == 0
    assert loop.compare().exit_code == 3


def test_a_name_that_a_text_cannot_give_is_for_a_file(tmp_path: Path, engine: object) -> None:
    capture = Loop(tmp_path / "capture")
    capture.window(BEFORE, ["norm", " old"])
    capture.window(AFTER, ["norm", "flash "])
    assert capture.compare().cause.endswith("if one replaced the other, name both in a file for --map-file")


def test_names_are_compared_only_where_they_can_make_a_suspicion(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[str, str]] = []

    def like(one: str, other: str) -> float:
        compared.append((one, other))
        return 1.0

    monkeypatch.setattr(suspects, "_like", like)
    known, rates = plans("a", "b"), ({0: 10.0}, {1: 10.0})
    assert find((0,), (1,), known, ({}, {}), rates) == []
    assert compared == []
    assert [one.name for one in find((0,), (1,), known, ({0: SAME}, {1: SAME}), rates)] == [1.0]
    assert compared == [("a", "b")]


@pytest.mark.parametrize("width", [40, 80])
def test_the_argument_is_shown_whole_however_narrow_the_page(tmp_path: Path, engine: object, width: int) -> None:
    old, new = "void it's  old<float, unsigned int, 4>(float*, int)", "void $(id) `x` !!<float, unsigned int>(float*)"
    capture = Loop(tmp_path / "capture")
    capture.window(BEFORE, ["norm", old, "tail"])
    capture.window(AFTER, ["norm", new, "tail"])
    report = capture.compare()
    lines = output_format("table").render(report, width, False).splitlines()
    shown = [line for line in lines if "--map '" in line]
    assert len(shown) == 2  # with the kernel, and of the run
    for line in shown:
        argument = "".join(line.partition("--map ")[1:]).removesuffix(".")
        pasted = subprocess.run(
            ["bash", "-c", f"printf '%s\\n' {argument}"], capture_output=True, text=True, check=True
        )
        assert pasted.stdout == f"--map\n{old}={new}\n"
    confirmed = capture.compare(renames=[f"{old}={new}"])
    assert (only(confirmed, new).verdict, confirmed.exit_code) == (Verdict.PASS, 0)
