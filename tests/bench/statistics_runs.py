"""Tables of whole runs: many kernels, a common shift of all, another mix of shapes, kernels that were fused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np
from statistics_loads import Loads
from statistics_peers import at_most
from statistics_tables import PEERS, POLICY, Run

from kdiff.analysis.controls import Roles
from kdiff.analysis.judging import judge_all
from kdiff.analysis.mix import Mix
from kdiff.analysis.sample import Sample
from kdiff.analysis.strata import Stratum, find_support, together
from kdiff.analysis.totals import Total, Totals
from kdiff.analysis.verdict import Judgement, Verdict

MEASURE = "device"
SHAPES = {
    Stratum(6, 7, "NVIDIA H200", False): 0.4,
    Stratum(9, 7, "NVIDIA H200", False): 1.0,
    Stratum(13, 7, "NVIDIA H200", False): 4.0,
}
"""Of a small, a usual and a big shape: its time in units of a usual one."""

Samples = dict[int, tuple[Sample, Sample]]


def many(run: Run) -> None:
    """Runs of many kernels: 20 alike, and 300 of which a tenth is slower."""
    runs = max(10, run.repetitions // 20)
    print(f"\nRuns of 20 kernels, 6,000 launches each, any REGRESSED, % of {runs} runs")
    for name, factor in (("no change", 1.0), ("all at the tolerance (ratio 1.05)", 1.05)):
        loads, found = run.loads(f"many: {name}"), 0
        for _ in range(runs):
            samples = {k: (loads.serving(6_000, 0.03), loads.serving(6_000, 0.03, factor)) for k in range(20)}
            found += any(j.verdict is Verdict.REGRESSED for j in judge_all(samples, POLICY).values())
        print(f"{name:<44}{100 * found / runs:>10.1f}{100 * at_most(found, runs):>9.2f}", flush=True)
    three_hundred(run)


def three_hundred(run: Run, kernels: int = 300, slower: int = 30) -> None:
    """Who finds which of the slower ones, and how many others beside them."""
    sizes = (2_400, 6_000, 20_000, 60_000)
    runs = max(4, run.repetitions // 25)
    print(
        f"\n{kernels} kernels, {slower} of them slower by 25%, sd 3%, mean of {runs} runs; false ones a run, found by n"
    )
    print(f"{'':<36}{'false':>8}{'runs with any':>15}{'at most':>9}" + "".join(f"{f'{n:,}':>9}" for n in sizes))
    loads = run.loads("300 kernels")
    false: Counter[str] = Counter()
    with_false: Counter[str] = Counter()
    found: Counter[tuple[str, int]] = Counter()
    measures = dict.fromkeys(range(kernels), MEASURE)
    size = [sizes[k % len(sizes)] for k in range(kernels)]
    rules: dict[str, set[int]] = {}
    for _ in range(runs):
        factors = [1.25 if k < slower else 1.0 for k in range(kernels)]
        samples = {
            k: (loads.serving(n, 0.03), loads.serving(n, 0.03, factor))
            for k, (n, factor) in enumerate(zip(size, factors, strict=True))
        }
        for name, roles in (
            ("kdiff", Roles(measures)),
            ("kdiff, the slower ones --swapped", Roles(measures, frozenset(range(slower)), known=True)),
            ("kdiff, another one --swapped", Roles(measures, frozenset([kernels - 1]), known=True)),
        ):
            judged = judge_all(samples, POLICY, roles=roles)
            rules[name] = {k for k, j in judged.items() if j.verdict is Verdict.REGRESSED}
        said = {k: PEERS.say(*pair) for k, pair in samples.items()}
        rules["independent launches, L(1%) > 1.05"] = {k for k, s in said.items() if s.slower}
        rules["Mann-Whitney on the p99 of minutes"] = {k for k, s in said.items() if s.ranks}
        rules["p99 ratio > 1.05"] = {k for k, s in said.items() if s.ratio}
        for rule, chosen in rules.items():
            wrong = sum(k >= slower for k in chosen)
            false[rule] += wrong
            with_false[rule] += wrong > 0
            found.update((rule, size[k]) for k in chosen if k < slower)
    there = Counter(size[:slower])
    for rule in rules:
        shares = "".join(f"{100 * found[rule, n] / (runs * there[n]):>8.1f}%" for n in sizes)
        limit = f"{with_false[rule]:>15}{100 * at_most(with_false[rule], runs):>8.1f}%"
        print(f"{rule:<36}{false[rule] / runs:>8.2f}{limit}{shares}", flush=True)


def clock(run: Run, controls: int = 20, n: int = 12_000) -> None:
    """A kernel that was swapped beside controls, on GPUs whose clocks may have changed for all of them."""
    head(f"A swapped kernel and {controls} controls, {n:,} launches each, sd 3%", "a control REGRESSED")
    measures = dict.fromkeys(range(controls + 1), MEASURE)
    named = Roles(measures, frozenset([0]), known=True)
    for name, drop, factor in (
        ("no change", 0.0, 1.0),
        ("all clocks 6% lower", 0.06, 1.0),
        ("all clocks 10% lower", 0.1, 1.0),
        ("swapped one +15%", 0.0, 1.15),
        ("swapped one +15%, all clocks 6% lower", 0.06, 1.15),
        ("swapped one +15%, all clocks 6% higher", -0.06, 1.15),
    ):
        if not run.asked(name):
            continue
        loads, runs = run.loads(f"clock: {name}"), runs_of(run, factor == 1.0)
        seen: dict[str, Counter[Verdict]] = {"alone": Counter(), "by controls": Counter(), "--swapped": Counter()}
        beside: Counter[str] = Counter()
        for _ in range(runs):
            factors = [factor if k == 0 else 1.0 for k in range(controls + 1)]
            samples = {
                k: (loads.serving(n, 0.03), loads.serving(n, 0.03, its / (1.0 - drop))) for k, its in enumerate(factors)
            }
            for how, judged in (
                ("alone", judge_all(samples, POLICY)),
                ("by controls", judge_all(samples, POLICY, roles=Roles(measures))),
                ("--swapped", judge_all(samples, POLICY, roles=named)),
            ):
                seen[how][judged[0].verdict] += 1
                beside[how] += any(judged[k].verdict is Verdict.REGRESSED for k in range(1, controls + 1))
        for how, verdicts in seen.items():
            print(f"{columns(name, how, verdicts)}{100 * beside[how] / runs:>21.1f}", flush=True)


def mix(run: Run, n: int = 50_000) -> None:
    """A kernel of three shapes whose mix changes between the windows."""
    head(f"A small, a usual and a big shape of a kernel, {n:,} launches, sd 3%", "median ratio")
    rare, usual, often = (0.5, 0.492, 0.008), (0.5, 0.487, 0.013), (0.5, 0.47, 0.03)
    for name, old, new, factors in (
        ("no change", rare, rare, (1.0, 1.0, 1.0)),
        ("no change, big shape 0.8% -> 1.3%", rare, usual, (1.0, 1.0, 1.0)),
        ("no change, big shape 3% -> 0.8%", often, rare, (1.0, 1.0, 1.0)),
        ("+15%, big shape 3% -> 0.8%", often, rare, (1.15, 1.15, 1.15)),
        ("+30% of the small shape", rare, rare, (1.3, 1.0, 1.0)),
        ("+30% of the small shape, big 0.8% -> 1.3%", rare, usual, (1.3, 1.0, 1.0)),
    ):
        if not run.asked(name):
            continue
        loads, runs = run.loads(f"mix: {name}"), runs_of(run, factors == (1.0, 1.0, 1.0))
        seen: dict[str, list[Judgement]] = {"together": [], "by mix": []}
        for _ in range(runs):
            before = shapes(loads, n, old, (1.0, 1.0, 1.0))
            after = shapes(loads, n, new, factors)
            raw = {0: (together([*before.values()]), together([*after.values()]))}
            support = find_support(*({s: sample.size for s, sample in side.items()} for side in (before, after)))
            seen["together"].append(judge_all(raw, POLICY)[0])
            seen["by mix"].append(judge_all(raw, POLICY, mixes={0: Mix.of(support, before, after, "")})[0])
        for how, judgements in seen.items():
            ratio = float(np.median([judgement.ratio for judgement in judgements]))
            verdicts = Counter(judgement.verdict for judgement in judgements)
            print(f"{columns(name, how, verdicts)}{ratio:>21.3f}", flush=True)


def head(title: str, last: str) -> None:
    """Print the header of a table of `columns` and one more."""
    print(f"\n{title}, %\n{'':<44}{'judged':>12}{'runs':>7}{'REGRESSED':>11}{'at most':>9}", end="")
    print(f"{'PASS':>8}{'INCONC':>8}{'other':>8}{last:>21}")


def columns(name: str, how: str, verdicts: Counter[Verdict]) -> str:
    """A row: the verdicts on the kernel, and the upper limit of the rate of REGRESSED."""
    runs, wrong = verdicts.total(), verdicts[Verdict.REGRESSED]
    passed, unclear = verdicts[Verdict.PASS] + verdicts[Verdict.IMPROVED], verdicts[Verdict.INCONCLUSIVE]
    first = f"{name:<44}{how:>12}{runs:>7,}{100 * wrong / runs:>11.1f}{100 * at_most(wrong, runs):>9.2f}"
    return first + "".join(
        f"{100 * count / runs:>8.1f}" for count in (passed, unclear, runs - wrong - passed - unclear)
    )


def runs_of(run: Run, null: bool) -> int:
    """Fewer where something is slower: there it is no small rate that is sought."""
    return run.repetitions if null else max(1, run.repetitions // 5)


def shapes(loads: Loads, n: int, shares: tuple[float, ...], factors: tuple[float, ...]) -> Mapping[Stratum, Sample]:
    """A window of the shapes at these shares of n launches, all at the levels of one GPU."""
    levels = loads.path(0.03)
    sizes = loads.rng.multinomial(n, shares)
    return {
        stratum: loads.at(int(size), levels, time * factor)
        for (stratum, time), size, factor in zip(SHAPES.items(), sizes, factors, strict=True)
    }


def groups(run: Run) -> None:
    """Verdicts on a fusion of two kernels into one, by the mean of their time a launch."""
    runs = max(1, run.repetitions // 2)
    print(f"\nTwo kernels fused into one, % of {runs:,} runs each: REGRESSED, PASS or IMPROVED, L(5%) > 1")
    for n, sd in ((2_000, 0.03), (60_000, 0.03), (60_000, 0.06)):
        for factor in (1.0, 1.05, 1.1, 1.2):
            name = f"{n:,} launches, sd {sd:.0%}, x{factor:g}"
            loads = run.loads(f"groups: {name}")
            seen: Counter[Verdict] = Counter()
            above = 0
            for _ in range(runs):
                before = Total.of([loads.serving(n, sd), loads.serving(n, sd)])
                pair = Totals(before, Total.of([loads.serving(n, sd, 2.0 * factor)]), POLICY.tolerance, ())
                judged = judge_all({}, POLICY, totals={0: pair})[0]
                seen[judged.verdict] += 1
                above += judged.ci is not None and judged.ci[0] > 1.0
            rates = [seen[Verdict.REGRESSED], seen[Verdict.PASS] + seen[Verdict.IMPROVED], above]
            print(f"  {name}: {' / '.join(f'{100 * count / runs:.1f}' for count in rates)}", flush=True)
