"""What a kernel's judgement says of the mix of its shapes: numbers, and sentences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from kdiff.analysis.mix import Mix, Mixed
from kdiff.analysis.output_text import change, duration, interval
from kdiff.analysis.quantiles import quantile, summary
from kdiff.analysis.report import MixReport, StratumReport, quantile_name
from kdiff.analysis.sample import Sample
from kdiff.analysis.strata import MIN_LAUNCHES, MIN_SUPPORT, REST, Stratum, Support
from kdiff.analysis.verdict import Judgement, Policy, Verdict

_LEFT_OUT: Final = 0.01
"""Shapes that are not compared and hold less of both windows are not spoken of."""
_OF_TAIL: Final = 0.5
"""Of the launches above the quantile: where that many of the after window are of shapes that are not compared, and
slower, what is compared does not say that the kernel is not."""
_NAMED: Final = 3
_HINT: Final = "--no-strata judges all launches together"


def names(strata: Sequence[Stratum]) -> dict[Stratum, str]:
    """Each stratum in words, with no more than what tells them apart."""
    models = {stratum.gpu_model for stratum in strata if stratum != REST}
    graphs = {stratum.in_graph for stratum in strata if stratum != REST}
    shapes = {stratum[:2] for stratum in strata if stratum != REST}
    found = {}
    for stratum in strata:
        words = []
        if len(shapes) > 1 or (len(models) == 1 and len(graphs) == 1):
            words.append(_shape(stratum))
        if len(models) > 1:
            words.append(stratum.gpu_model or "an unknown GPU")
        if len(graphs) > 1:
            words.append("in a graph" if stratum.in_graph else "outside graphs")
        found[stratum] = "the rarer shapes" if stratum == REST else ", ".join(words)
    return found


def why_not_comparable(support: Support) -> str:
    """Why the windows of a kernel cannot be compared, one sentence; '' where they can."""
    if support.comparable:
        return ""
    sides = [[stratum for stratum, sizes in support.sizes.items() if sizes[side]] for side in (0, 1)]
    for what, of in (("ran on", _models), ("was launched", _graphs)):
        one, other = of(sides[0]), of(sides[1])
        if one and other and not set(one) & set(other):
            return (
                f"In the before window it {what} {' and '.join(one)}, in the after window "
                f"{' and '.join(other)}: no launch of one is like one of the other ({_HINT})."
            )
    named = names(list(support.sizes))
    apart = support.apart
    shown = [f"{named[stratum]} ({_shares(support, stratum)})" for stratum in apart[:_NAMED]]
    more = f" and {len(apart) - _NAMED} more" if len(apart) > _NAMED else ""
    if not support.common:
        return f"No shape has {MIN_LAUNCHES} launches in both windows: {'; '.join(shown)}{more} ({_HINT})."
    # Rounded down: 89.9% are not the 90% that are needed.
    before, after = (math.floor(100.0 * share + 1e-9) for share in support.shares)
    return (
        f"Of the launches {before}% before and {after}% after are of shapes that both windows have "
        f"{MIN_LAUNCHES} launches of; {MIN_SUPPORT:.0%} are needed. Others: {'; '.join(shown)}{more} ({_HINT})."
    )


def undecided_by_shape(mixed: Mixed, policy: Policy) -> str:
    """Why a kernel is undecided that would be decided at one mix; '' where that is not so."""
    worse, whole = mixed.barring(policy.alpha_pass), mixed.at_one_mix
    if worse and whole.passes_at(policy.alpha_pass):
        worst = mixed.every[worse[0]].limits(policy.alpha_pass)
        name = names(list(mixed.every))[worse[0]]
        return (
            f"All shapes together are within the margin, but {name} is at {change(worst.ratio)} {interval(worst.ci)}: "
            "not beyond doubt for REGRESSED, and too much for PASS. Take longer windows."
        )
    if mixed.strata and not mixed.regressed_at(policy.alpha_regressed) and whole.regressed_at(policy.alpha_regressed):
        return (
            f"Alone the ratio of all shapes together would be REGRESSED, but not among the tests of "
            f"{len(mixed.strata)} shapes beside it: take longer windows, or judge without these (--no-strata)."
        )
    return ""


def with_mix(
    judged: Judgement, raw: tuple[Sample | None, Sample | None], mix: Mix, mixed: Mixed | None, policy: Policy
) -> Judgement:
    """The judgement with what is told of the mix; MIX_NOT_COMPARABLE unless what is in common is REGRESSED."""
    before, after = raw
    if before is None or after is None:
        return judged
    report = _report(judged, (before, after), mix, mixed, policy)
    reasons = [*judged.reasons]
    verdict = judged.verdict
    if mix.why and verdict is not Verdict.REGRESSED:
        verdict = Verdict.MIX_NOT_COMPARABLE
        common = f" In the common shapes {_moved(judged, policy)}." if mixed else ""
        reasons = [mix.why + common]
    elif hidden := _hidden(judged, report, mix, policy):
        verdict = Verdict.MIX_NOT_COMPARABLE
        reasons = [hidden, *reasons]
    reasons += _told(judged, report, mix, policy)
    return replace(
        judged,
        verdict=verdict,
        n_before=before.size,
        n_after=after.size,
        quantiles_before=summary(before.ordered),
        quantiles_after=summary(after.ordered),
        reasons=tuple(reasons),
        mix=report,
    )


def _hidden(judged: Judgement, report: MixReport, mix: Mix, policy: Policy) -> str:
    """Why a kernel that passes on common shapes does not pass: the tail of the after window is of other ones."""
    if judged.verdict not in (Verdict.PASS, Verdict.IMPROVED) or report.raw_ratio <= 1.0 + judged.margin:
        return ""
    slow = mix.slow_apart(judged.value_before or 0, judged.margin, policy.quantile)
    if sum(slow.values()) < _OF_TAIL * (1.0 - policy.quantile):
        return ""
    named = names([*mix.support.common, *mix.support.apart])
    order = sorted(slow, key=lambda stratum: (-slow[stratum], stratum))
    shown = [f"{named[stratum]} ({_shares(mix.support, stratum)})" for stratum in order[:_NAMED]]
    more = f" and {len(order) - _NAMED} more" if len(order) > _NAMED else ""
    return (
        f"{_percent(sum(slow.values()))} of the launches after are slower than the margin allows and of shapes that "
        f"are too rare in the before window to compare: {'; '.join(shown)}{more}. No PASS ({_HINT})."
    )


def _report(judged: Judgement, raw: tuple[Sample, Sample], mix: Mix, mixed: Mixed | None, policy: Policy) -> MixReport:
    values = [max(quantile(sample.ordered, policy.quantile), judged.quantum_ns) for sample in raw]
    ratio = values[1] / values[0]
    effect = judged.ratio if mixed else None
    support = mix.support
    every = [*support.common, *support.apart]
    named = names(every)
    reports = {s: _stratum(named[s], s, mix, mixed, policy) for s in every}
    worst = mixed.worst if mixed else None
    regressed = judged.verdict is Verdict.REGRESSED
    decides = regressed and mixed is not None and worst is not None and mixed.decided_by(worst, policy)
    shares = support.shares
    return MixReport(
        raw_ratio=ratio,
        kernel_effect=effect,
        mix_effect=ratio / effect if effect else None,
        support_before=shares[0],
        support_after=shares[1],
        strata=tuple(reports.values()),
        worst=reports[worst] if worst is not None else None,
        decides=decides,
    )


def _stratum(name: str, stratum: Stratum, mix: Mix, mixed: Mixed | None, policy: Policy) -> StratumReport:
    sizes, shares = mix.support.size(stratum), mix.support.share(stratum)
    told = StratumReport(
        name=name,
        grid=stratum.grid if stratum.grid >= 0 else None,
        block=stratum.block if stratum.block >= 0 else None,
        gpu_model=stratum.gpu_model,
        in_graph=stratum.in_graph,
        n_before=sizes[0],
        n_after=sizes[1],
        share_before=shares[0],
        share_after=shares[1],
        compared=stratum in mix.strata,
        tested=mixed is not None and stratum in mixed.strata,
    )
    if mixed is None or stratum not in mixed.raw:
        return told
    limits = mixed.raw[stratum].limits(policy.alpha_pass)
    values = [quantile(sample.ordered, policy.quantile) for sample in mix.strata[stratum]]
    return replace(told, value_before=values[0], value_after=values[1], ratio=limits.ratio, ci=limits.ci)


def _told(judged: Judgement, report: MixReport, mix: Mix, policy: Policy) -> list[str]:
    """What a reader of the verdict must know of the mix."""
    named, reasons = quantile_name(policy.quantile), []
    worst = report.worst
    if report.decides and worst is not None:
        together = f"all shapes together ({change(judged.ratio)}) do not show it"
        if judged.ratio is not None and judged.ratio > 1.0 + judged.margin:
            together = f"of all shapes together ({change(judged.ratio)} {interval(judged.ci)}) that is less sure"
        reasons.append(
            f"At {worst.name}, {worst.share_after:.0%} of the launches, {named} moved by {change(worst.ratio)} "
            f"{interval(worst.ci)}, {duration(worst.value_before)} -> {duration(worst.value_after)}: {together}."
        )
    if report.mix_effect is not None and abs(math.log(report.mix_effect)) > math.log1p(judged.margin):
        moved = _most_moved(mix, judged.value_before or 0)
        before, after = map(_percent, mix.support.share(moved))
        name = names([*mix.support.common, *mix.support.apart])[moved]
        reasons.append(
            f"{named} of all launches moved by x{report.raw_ratio:.3g}, of which x{report.mix_effect:.3g} is the mix "
            f"of shapes: {name} went from {before} to {after} of the launches. At the mix of the before window it is "
            f"x{report.kernel_effect:.3g}."
        )
    if not mix.why and 1.0 - min(report.support_before, report.support_after) >= _LEFT_OUT:
        reasons.append(
            f"Compared on common shapes, {_percent(report.support_before)} of the launches before and "
            f"{_percent(report.support_after)} after."
        )
    return reasons


def _most_moved(mix: Mix, value: int) -> Stratum:
    """The shape by whose share most launches came to be longer than `value` ns, or shorter."""

    def moved(stratum: Stratum) -> float:
        before, after = mix.support.share(stratum)
        if stratum not in mix.strata:
            return abs(after - before)
        ordered = mix.strata[stratum][0].ordered
        slow = ordered.counts[ordered.values >= value].sum() / ordered.size
        return abs(after - before) * float(slow)

    return max([*mix.support.common, *mix.support.apart], key=moved)


def _moved(judged: Judgement, policy: Policy) -> str:
    return f"{quantile_name(policy.quantile)} moved by {change(judged.ratio)} {interval(judged.ci)}"


def _shape(stratum: Stratum) -> str:
    if stratum.grid < 0 or stratum.block < 0:
        return "launches of unknown shape"
    return f"grid 2^{stratum.grid} blocks of 2^{stratum.block} threads"


def _shares(support: Support, stratum: Stratum) -> str:
    before, after = support.share(stratum)
    return f"{_percent(before)} before, {_percent(after)} after"


def _percent(share: float) -> str:
    """12.3%, and two digits of a small one."""
    return f"{100 * share:.1f}%" if share >= 0.01 or not share else f"{100 * share:.2g}%"


def _models(strata: Sequence[Stratum]) -> list[str]:
    found = sorted({stratum.gpu_model for stratum in strata})
    return [] if "" in found else found


def _graphs(strata: Sequence[Stratum]) -> list[str]:
    return sorted({"by graphs" if stratum.in_graph else "outside graphs" for stratum in strata})
