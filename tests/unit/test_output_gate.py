"""What a gate is told: --format argo and --format sentence."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from captures import AFTER, BEFORE, TwoWindows, launches, spread
from kdiff.analysis.output import output_format
from kdiff.analysis.output_argo import document
from kdiff.analysis.output_sentence import MOST_CELLS, sentence
from kdiff.analysis.output_text import rare_line
from kdiff.analysis.report import EXIT_UNDECIDED, RareKernel, Report
from kdiff.analysis.verdict import Verdict
from kdiff.queries.printable import cells

WINDOWS = " (2025-11-27T10:10:00Z/10m against 2025-11-27T10:00:00Z/10m)."
HOSTILE = [
    "<!channel> urgent",
    "<@U123>",
    "@here",
    "@channel!",
    "a\nb\x1b[31m\u202e",
    "日本語" * 300,
    "x" * 5_000,
    "`*_~|",
]


def compared(root: Path, slowdown: dict[str, float], count: int = 4_001, **options: object) -> Report:
    windows = TwoWindows(root)
    for number, window in enumerate((BEFORE, AFTER)):
        for place, (name, scale) in enumerate(slowdown.items()):
            times = spread(window.from_ns, window.to_ns, count + place)
            values = (80_000 * scale**number * np.random.default_rng(place).lognormal(0, 0.05, len(times))).astype(int)
            windows.add("cuda_events", launches(name, times, completion_ns=values))
    return windows.compare(**options)


@pytest.fixture(scope="module")
def regressed(tmp_path_factory: pytest.TempPathFactory, engine: None) -> Report:
    return compared(tmp_path_factory.mktemp("r"), {"gelu": 1.3, "relu": 1.0, "silu": 1.5})


@pytest.fixture(scope="module")
def undecided(tmp_path_factory: pytest.TempPathFactory, engine: None) -> Report:
    return compared(tmp_path_factory.mktemp("u"), {"gelu": 1.0}, 503, max_unjudged=0.0)


def test_rare_kernels_are_counted_where_no_name_fits(regressed: Report) -> None:
    report = replace(regressed, rare=(RareKernel("a_kernel_of_a_name_that_is_long", 3, 4),), rare_launches=0.001)
    held = "Rare, not judged: 1 kernel, 0.1% of the launches, 0.0% of the time"
    assert rare_line(report, 40) == f"{held}."
    assert rare_line(report, 80) == f"{held}: a_kernel_of_a_name_that_is_long (3/4)"


def test_a_regression_is_told_in_words_and_numbers(regressed: Report) -> None:
    told = document(regressed)
    counts = ("kernels", "kernels_regressed", "kernels_undecided")
    words = ("verdict", "go", "passed", "regressed", "undecided", "exit_code")
    assert [told[key] for key in words] == ["REGRESSED", 0, 0, 1, 0, 1]
    assert [told[key] for key in counts] == [3, 2, 0]
    assert told["largest_ratio"] == told["worst"]["ratio"] == max(k.ratio or 0 for k in regressed.kernels)
    assert (told["worst"]["kernel"], told["worst"]["verdict"], told["worst"]["metric"]) == (
        "silu",
        "REGRESSED",
        "completion",
    )
    assert told["sentence"].startswith("kdiff: REGRESSED: silu p99 +50.0% [")
    assert told["sentence"].endswith(", and 1 more" + WINDOWS)


def test_undecided_says_why(undecided: Report) -> None:
    told = document(undecided)
    words = ("verdict", "go", "passed", "regressed", "undecided", "exit_code", "kernels_undecided")
    assert [told[key] for key in words] == ["UNDECIDED", 0, 0, 0, 1, 3, 1]
    assert undecided.exit_code == EXIT_UNDECIDED
    assert told["reasons"][0].startswith("The before window has 503 launches; p99 needs 2,000")
    assert told["sentence"].startswith("kdiff: UNDECIDED: 1 of 1 kernels cannot be judged: gelu (The before window has")
    assert document(replace(undecided, exit_code=0))["go"] == 1


def test_numbers_are_there_where_nothing_is_known(regressed: Report) -> None:
    empty = replace(regressed, kernels=(), verdict=Verdict.INCONCLUSIVE, exit_code=3, cause="nothing ran")
    told = document(empty)
    assert (told["largest_ratio"], told["worst"], told["kernels"]) == (0.0, None, 0)
    assert told["reasons"][0] == "nothing ran."
    assert told["sentence"] == "kdiff: UNDECIDED: nothing ran" + WINDOWS
    broken = replace(regressed.kernels[0], ratio=math.inf, ci=(0.5, math.inf))
    told = json.loads(output_format("argo").render(replace(regressed, kernels=(broken,)), 80, False))
    assert (told["largest_ratio"], told["worst"]["ratio"], told["worst"]["ci"]) == (0.0, None, [0.5, None])


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_name_calls_nobody_and_fits(regressed: Report, name: str) -> None:
    row = replace(regressed.kernels[0], kernel=name, reasons=(name, name * 9))
    for report in (
        replace(regressed, kernels=(row,)),
        replace(regressed, kernels=(row,), verdict=Verdict.INCONCLUSIVE, cause=name * 3),
        replace(regressed, kernels=(replace(row, verdict=Verdict.INCONCLUSIVE),), verdict=Verdict.INCONCLUSIVE),
    ):
        line = sentence(report)
        assert line.isprintable()
        assert cells(line) <= MOST_CELLS
        assert line.endswith(WINDOWS)
        assert line.startswith(f"kdiff: {report.word}: ")
        assert not any(call in line for call in ("<!", "<@", "@here", "@channel", "@everyone"))
        told = document(report)
        assert told["sentence"] == line
        assert all(text.isprintable() for text in (told["worst"]["kernel"], *told["reasons"]))


def test_a_pass_is_one_sentence(regressed: Report) -> None:
    fine = tuple(replace(k, verdict=Verdict.PASS) for k in regressed.kernels)
    report = replace(regressed, kernels=fine, verdict=Verdict.PASS, exit_code=0)
    assert output_format("sentence").render(report, 80, False) == (
        f"kdiff: PASS: 3 kernels, none over +5% at p99 (completion){WINDOWS}\n"
    )
