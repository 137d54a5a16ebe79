"""A comparison as verdicts to keep, and keeping them without a bearing on the verdict itself."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import replace

from kdiff.analysis.output_json import finite
from kdiff.analysis.output_text import arm_line
from kdiff.analysis.report import Report
from kdiff.queries.errors import StoreError
from kdiff.queries.store import Store
from kdiff.queries.verdicts import KeptVerdict, log_of


def keep(store: Store, report: Report, service: str, label: str, now_ns: int) -> list[str]:
    """Keep the verdicts of a run in `store`, judged at `now_ns`; warnings, one sentence each, where that fails.

    A history that cannot be written is no reason to stop a rollout, nor to let one go on.
    """
    try:
        log_of(store).keep(list(verdicts(report, service, label, now_ns, uuid.uuid4().hex)))
    except StoreError as error:
        return [f"the verdict was not kept: {error}"]
    return []


def verdicts(report: Report, service: str, label: str, now_ns: int, run_id: str) -> Iterator[KeptVerdict]:
    """One for each kernel that was judged; of a run that had none, one without a kernel's name."""
    before, after = report.before.window, report.after.window
    # A history has two windows; which hosts of one window they were is told in words.
    arms: tuple[str, ...] = ()
    if report.arms is not None:
        control, canary = map(arm_line, report.arms)
        arms = (f"Before is the control, {control}; after is the canary, {canary}.",)
    of_run = KeptVerdict(
        judged_at_ns=now_ns,
        run_id=run_id,
        kernel_name="",
        service=service,
        label=label,
        verdict=report.verdict.value,
        metric=report.metric,
        quantile=report.quantile,
        tolerance=report.tolerance,
        before_from_ns=before.from_ns,
        before_to_ns=before.to_ns,
        after_from_ns=after.from_ns,
        after_to_ns=after.to_ns,
        n_before=0,
        n_after=0,
        value_before=None,
        value_after=None,
        ratio=None,
        ci_low=None,
        ci_high=None,
        reasons=(*arms, *report.notes),
        run_verdict=report.verdict.value,
        run_cause=report.cause,
    )
    if not report.kernels:
        yield of_run
    for kernel in report.kernels:
        low, high = kernel.ci or (None, None)
        yield replace(
            of_run,
            kernel_name=kernel.kernel,
            verdict=kernel.verdict.value,
            metric=kernel.metric,
            n_before=kernel.n_before,
            n_after=kernel.n_after,
            value_before=kernel.value_before,
            value_after=kernel.value_after,
            ratio=finite(kernel.ratio),
            ci_low=finite(low),
            ci_high=finite(high),
            reasons=(*arms, *kernel.reasons),
        )
