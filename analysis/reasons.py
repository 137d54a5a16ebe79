"""What a verdict's row says of its calibration, the queue, and what ran side by side."""

from __future__ import annotations

import math

from kdiff.analysis.calibration import Excess, device_interval
from kdiff.analysis.interval import TailEstimate
from kdiff.analysis.output_text import change, duration, interval
from kdiff.analysis.pairing import show
from kdiff.analysis.report import Calibration, quantile_name


def calibration_report(
    before: TailEstimate, after: TailEstimate, excess: Excess, decides: bool, alpha: float
) -> Calibration:
    """What a bound says of the device time, given its excess."""
    limits = device_interval(before, after, excess, alpha)
    known = math.isfinite(limits.log_ratio)
    return Calibration(
        n=excess.n,
        excess_low=excess.low,
        excess_p50=excess.p50,
        excess_high=excess.high,
        hosts=excess.hosts,
        decides=decides,
        value_before=before.value - excess.p50,
        value_after=after.value - excess.p50,
        ratio=limits.ratio if known else None,
        ci=limits.ci if known else None,
    )


def calibration_reason(calibration: Calibration, quantile: float) -> str:
    """How far the bound lies from the device time, and what it means for the verdict."""
    named = quantile_name(quantile)
    text = (
        f"The bound lies {duration(calibration.excess_p50)} (p50) to {duration(calibration.excess_high)} ({named}) "
        f"above the device time, measured on {calibration.n:,} launches"
    )
    if not calibration.decides:
        where = " and ".join(show(host) for host in calibration.hosts)
        return (
            f"{text} of {where}. It does not decide: whether the GPUs there are of the same model is not recorded; "
            "--one-gpu-model says that they are."
        )
    if calibration.ratio is None:
        return f"{text}: it may be all of the bound, which then says nothing of the device."
    return (
        f"{text}: on the device {named} moved by about {change(calibration.ratio)} {interval(calibration.ci)}, "
        f"{duration(calibration.value_before)} -> {duration(calibration.value_after)}."
    )
