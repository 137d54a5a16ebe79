"""`kdiff watch`: a rollout while it goes on, stopped as soon as a kernel surely got slower."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from kdiff.analysis import arguments, timespec
from kdiff.analysis.arguments import ListFormat, MetricName
from kdiff.analysis.options import (
    KernelOption,
    PolicyOption,
    QuantileOption,
    ServiceOption,
    StoreOption,
    SwappedOption,
    ToleranceOption,
    UndecidedOption,
    WindowOption,
)
from kdiff.analysis.terminal import colour, interruptible, show, tell, warn
from kdiff.analysis.window import NS, Window, length_text, utc, utc_short
from kdiff.queries.errors import KdiffError
from kdiff.queries.printable import printable

if TYPE_CHECKING:
    from kdiff.analysis.evidence import Evidence
    from kdiff.analysis.report import Report
    from kdiff.analysis.watching import Look, Watch, Watched

EXAMPLE: Final = "kdiff watch --baseline -1h..now --for 30m"
_LEAST_NS: Final = NS
_MOST_STRETCHES: Final = 10_000


def watch_command(
    context: typer.Context,
    baseline: Annotated[
        str, typer.Option("--baseline", metavar="SPEC", help="The window to compare with, from before the rollout.")
    ] = "",
    start: Annotated[str, typer.Option("--start", metavar="TIME", help="When the watch begins.")] = "now",
    length: Annotated[str, typer.Option("--for", metavar="LENGTH", help="How long it goes on at most.")] = "30m",
    every: Annotated[str, typer.Option("--every", metavar="LENGTH", help="How long a look is.")] = "1m",
    patience: Annotated[
        str,
        typer.Option("--patience", metavar="LENGTH", help="How long to wait for what agents have not delivered yet."),
    ] = "2m",
    store: StoreOption = "./kdiff-capture",
    metric: Annotated[
        MetricName, typer.Option("--metric", help="What to judge; auto is the best that the baseline has.")
    ] = MetricName.AUTO,
    tolerance: ToleranceOption = "5%",
    quantile: QuantileOption = "0.99",
    policy_file: PolicyOption = "",
    service: ServiceOption = "",
    kernel: KernelOption = None,
    swapped: SwappedOption = None,
    window: WindowOption = "15m",
    output: Annotated[ListFormat, typer.Option("--format", help="Output format.")] = ListFormat.TABLE,
    on_undecided: UndecidedOption = None,
    max_loss: Annotated[
        str, typer.Option("--max-loss", metavar="SHARE", help="Loss above which a look is left out.")
    ] = "1%",
) -> None:
    """Watch a rollout: exit 1 as soon as a kernel surely got slower, else compare when the time is up.

    Looking often makes no false alarm more likely. A stretch that is over is read at once.

    Example:  kdiff watch --baseline -1h..now --for 30m
    """
    if not baseline:
        raise KdiffError(f"--baseline is missing: try `{EXAMPLE}`")
    now_ns = time.time_ns()
    spec = timespec.parse(baseline, "before", now_ns, timespec.parse_length(window), option="--baseline")
    lengths = {
        option: timespec.parse_length(text)
        for option, text in (("--for", length), ("--every", every), ("--patience", patience))
    }
    begin = timespec.parse_instant(start, now_ns)
    watched = Window(begin, begin + lengths["--for"])
    if not _LEAST_NS <= lengths["--every"] <= lengths["--for"]:
        raise KdiffError(f"--every is {every}: give 1s or more, and not more than --for ({length})")
    if lengths["--for"] > _MOST_STRETCHES * lengths["--every"]:
        raise KdiffError(f"--for {length} holds more than {_MOST_STRETCHES:,} looks: give a longer --every")
    strict = {"tolerance": arguments.share("--tolerance", tolerance), "quantile": arguments.quantile(quantile)}
    lost = arguments.share("--max-loss", max_loss)

    from kdiff.analysis import compare, watching
    from kdiff.analysis.policy_file import tolerances
    from kdiff.analysis.verdict import Policy

    policy = Policy(**strict)
    own = tolerances(context) if policy_file else ()
    options = watching.Options(
        metric=metric.value,
        policy=policy,
        patterns=kernel or (),
        max_loss=lost,
        stretch_ns=lengths["--every"],
        patience_ns=lengths["--patience"],
        tolerances=own,
    )

    def opened(which: Window) -> AbstractContextManager[Evidence]:
        return _evidence(store, which, service)

    report: Report | None = None
    with interruptible(), _evidence(store, spec, service) as base:
        if _same(spec, store) and base.window.overlap_ns(watched):
            raise KdiffError(
                f"the watch from {utc_short(begin)} on begins before the baseline ends: give a later --start"
            )
        state = watching.Watch(watching.read_baseline(base, options), options)
        warn(base.store.warnings)
        for look in watching.watch(state, watched, opened, time.time_ns, time.sleep):
            tell(_progress(state, look, watched))
        if not state.slower:
            judged = compare.Options(
                metric=metric.value,
                policy=policy,
                patterns=kernel or (),
                max_loss=lost,
                on_undecided=on_undecided.value if on_undecided else None,
                all_metrics=output is ListFormat.JSON,
                swapped=swapped or (),
                tolerances=own,
            )

            def compared() -> Report:
                with opened(watched) as evidence:
                    return compare.compare(base, evidence, judged)

            report = watching.patiently(compared, options.patience_ns, time.time_ns, time.sleep)
            warn(report.warnings)
    code = report.exit_code if report else 1
    if output is ListFormat.JSON:
        show(_as_json(state, report), code)
    show(_as_text(state, report), code)


@contextmanager
def _evidence(store: str, spec: Window | Path, service: str) -> Iterator[Evidence]:
    """A window of the store as it is now, or the whole of the capture that `spec` names."""
    from kdiff.analysis.evidence import Evidence, whole_window
    from kdiff.queries.store import open_store

    opened = open_store(store if isinstance(spec, Window) else str(spec))
    try:
        yield Evidence(opened, spec if isinstance(spec, Window) else whole_window(opened, service), service)
    finally:
        opened.close()


def _same(spec: Window | Path, store: str) -> bool:
    """Whether the baseline is in the store that is watched."""
    return isinstance(spec, Window) or os.path.realpath(spec) == os.path.realpath(os.path.expanduser(store))


def _progress(state: Watch, look: Look, watched: Window) -> str:
    done = -(-(look.window.to_ns - watched.from_ns) // state.options.stretch_ns)
    total = -(-watched.length_ns // state.options.stretch_ns)
    text = f"kdiff: {utc_short(look.window.to_ns)} {done} of {total}"
    if look.left_out:
        return f"{text}: left out, {look.left_out}"
    best = state.ranked[0]
    return f"{text}: most evidence {best.evidence.value:,.2f} of {state.needed:,.0f}, {printable(best.kernel)[:60]}"


def _sentence(watched: Watched, needed: float) -> str:
    """What was seen of a kernel, in a sentence."""
    from kdiff.analysis.output_text import duration

    seen = watched.evidence
    return (
        f"{printable(watched.kernel)}: {seen.above:,} of {seen.launches:,} launches ({seen.above / seen.launches:.1%}) "
        f"took longer than {duration(watched.threshold_ns)} ({watched.metric}), {100 * (1 - seen.q):.3g}% "
        f"may; evidence {seen.value:,.0f}, needed {needed:,.0f}"
    )


def _as_text(state: Watch, report: Report | None) -> str:
    from kdiff.analysis.output import output_format

    if report is not None:
        return output_format("table").render(report, get_terminal_size().columns, colour())
    first, last = state.looks[0].window, state.looks[-1].window
    after = length_text(last.to_ns - first.from_ns)
    lines = [f"REGRESSED after {after}, {len(state.looks)} looks from {utc_short(first.from_ns)} on"]
    lines += [_sentence(one, state.needed) for one in state.slower]
    return "\n".join(lines) + "\n"


def _as_json(state: Watch, report: Report | None) -> str:
    from kdiff.analysis.output import output_format

    def of(one: Watched) -> dict[str, Any]:
        return {
            "kernel": one.kernel,
            "metric": one.metric,
            "isolated": one.isolated,
            "threshold_ns": round(one.threshold_ns),
            "launches": one.evidence.launches,
            "above": one.evidence.above,
            "e_value": one.evidence.value,
            "regressed": one.evidence.value >= state.needed,
        }

    document = {
        "watch": {
            "verdict": "REGRESSED" if report is None else report.verdict.value,
            "stopped": report is None,
            "from": utc(state.looks[0].window.from_ns),
            "to": utc(state.looks[-1].window.to_ns),
            "looks": len(state.looks),
            "left_out": [
                {"from": utc(look.window.from_ns), "to": utc(look.window.to_ns), "why": look.left_out}
                for look in state.looks
                if look.left_out
            ],
            "e_value_needed": state.needed,
            "too_rare": state.baseline.too_rare,
            "kernels": [of(one) for one in state.ranked],
        },
        "report": None if report is None else json.loads(output_format("json").render(report, 80, False)),
    }
    return json.dumps(document, indent=2) + "\n"
