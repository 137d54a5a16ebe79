"""JSON, schema kdiff/1: docs/json.md. Only additions within one schema version; never NaN or Infinity."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import Any, Final

from kdiff.analysis.quantiles import Quantiles
from kdiff.analysis.report import (
    Arm,
    Calibration,
    CleaningStep,
    DeviceReport,
    HistoryReport,
    KernelReport,
    Load,
    Measured,
    MixReport,
    Queue,
    Report,
    Scheduling,
    StratumReport,
    WindowReport,
)
from kdiff.analysis.surroundings import ControlsReport, GpuReport
from kdiff.analysis.verdict import NOT_COMPARED
from kdiff.analysis.window import utc

SCHEMA: Final = "kdiff/1"
_READINGS: Final = (
    "sm_clock_mhz",
    "sm_clock_p5_mhz",
    "power_w",
    "temperature_c",
    "temperature_max_c",
    "utilization",
    "memory_utilization",
    "memory_used_bytes",
    "memory_total_bytes",
)


def render(report: Report, width: int = 0, colour: bool = False) -> str:
    """The report as one JSON object, keys in a fixed order."""
    return json.dumps(document(report), indent=2, allow_nan=False, ensure_ascii=True) + "\n"


def document(report: Report) -> dict[str, Any]:
    """The report as plain values."""
    return {
        "schema": SCHEMA,
        "verdict": report.verdict.value,
        "exit_code": report.exit_code,
        "cause": report.cause,
        "metric": report.metric,
        "quantile": report.quantile,
        "tolerance": report.tolerance,
        "before": _window(report.before),
        "after": _window(report.after),
        "summary": report.summary(),
        "kernels": [_kernel(kernel) for kernel in report.kernels],
        "rare": [{"kernel": k.kernel, "n_before": k.n_before, "n_after": k.n_after} for k in report.rare],
        "rare_launches": finite(report.rare_launches),
        "rare_time": finite(report.rare_time),
        "notes": list(report.notes),
        "warnings": list(report.warnings),
        "history": None if report.history is None else _history(report.history),
        "arms": None if report.arms is None else _arms(*report.arms),
        "controls": [_controls(controls) for controls in report.controls],
    }


def _window(report: WindowReport) -> dict[str, Any]:
    return {
        "from": utc(report.window.from_ns),
        "to": utc(report.window.to_ns),
        "from_ns": report.window.from_ns,
        "to_ns": report.window.to_ns,
        "store": report.store,
        "launches": report.launches,
        "executions": report.executions,
        "failed": report.failed,
        "captured": report.captured,
        "unresolved": report.unresolved,
        "lost": report.lost,
        "loss": finite(report.loss),
        "coverage": finite(report.coverage),
        "buckets": report.buckets,
        "bucket_ns": report.bucket_ns,
        "device": None if report.device is None else _device(report.device),
        "gpus": [_gpu(gpu) for gpu in report.gpus],
        "cleaning": [_cleaning(step) for step in report.cleaning],
    }


def _cleaning(step: CleaningStep) -> dict[str, Any]:
    return {**asdict(step), "left_out": not step.why}


def _gpu(gpu: GpuReport) -> dict[str, Any]:
    readings = {name: finite(getattr(gpu, name)) for name in _READINGS}
    return {
        "host": gpu.host,
        "gpu_uuid": gpu.gpu_uuid,
        "parent_uuid": gpu.parent_uuid,
        "model": gpu.model,
        "samples": gpu.samples,
        "busy": finite(gpu.busy),
        **readings,
        "throttled": {name: finite(share) for name, share in gpu.throttled.items()},
        "neighbours": list(gpu.neighbours),
    }


def _controls(report: ControlsReport) -> dict[str, Any]:
    return {
        "metric": report.metric,
        "n": report.n,
        "common_ratio": finite(report.common_ratio),
        "ci": limits(report.ci),
        "apart": report.apart,
        "adjusted": report.adjusted,
    }


def _arms(control: Arm, canary: Arm) -> dict[str, Any]:
    return {
        name: {"hosts": list(arm.hosts), "service": arm.service}
        for name, arm in (("control", control), ("canary", canary))
    }


def _history(report: HistoryReport) -> dict[str, Any]:
    return {
        "made_at": utc(report.made_at_ns),
        "from": utc(report.from_ns),
        "to": utc(report.to_ns),
        "from_ns": report.from_ns,
        "to_ns": report.to_ns,
        "window_ns": report.window_ns,
        "pairs": report.pairs,
        "tolerance": finite(report.tolerance),
        "factor_low": finite(report.factor_low),
        "factor_high": finite(report.factor_high),
        "unknown": report.unknown,
        "comparisons": report.comparisons,
        "regressed": report.regressed,
        "regressed_limit": finite(report.regressed_limit),
        "runs": report.runs,
        "runs_regressed": report.runs_regressed,
        "runs_regressed_limit": finite(report.runs_regressed_limit),
    }


def _device(report: DeviceReport) -> dict[str, Any]:
    return {
        "windows": report.windows,
        "covered_ns": report.covered_ns,
        "coverage": finite(report.coverage),
        "executions": report.executions,
        "uncollected": report.uncollected,
        "dropped": report.dropped,
        "lost": report.lost,
        "loss": finite(report.loss),
        "clock_error_ns": report.clock_error_ns,
        "busy": finite(report.busy),
    }


def _kernel(kernel: KernelReport) -> dict[str, Any]:
    return {
        "kernel": kernel.kernel,
        "verdict": kernel.verdict.value,
        "metric": kernel.metric,
        "n_before": kernel.n_before,
        "n_after": kernel.n_after,
        **_quantiles("before", kernel.quantiles_before),
        **_quantiles("after", kernel.quantiles_after),
        "value_before": kernel.value_before,
        "value_after": kernel.value_after,
        "ratio": finite(kernel.ratio),
        "ci": limits(kernel.ci),
        "p_regressed": finite(kernel.p_regressed),
        "margin": finite(kernel.margin),
        "adjusted_ratio": finite(kernel.adjusted_ratio),
        "adjusted_ci": limits(kernel.adjusted_ci),
        "mix_effect": None if kernel.mix is None else finite(kernel.mix.mix_effect),
        "reasons": list(kernel.reasons),
        "metrics": {m.metric: _measured(m, judged) for m, judged in _measures(kernel)},
        "calibration": None if kernel.calibration is None else _calibration(kernel.calibration),
        "queue": {"before": _queue(kernel.queue_before), "after": _queue(kernel.queue_after)},
        "scheduling": {"before": _waits(kernel.scheduling_before), "after": _waits(kernel.scheduling_after)},
        "before_names": list(kernel.before_names),
        "mix": None if kernel.mix is None else _mix(kernel.mix),
        "load": {"before": _load(kernel.load_before), "after": _load(kernel.load_after)},
        "paired_by": kernel.paired_by if kernel.verdict not in NOT_COMPARED else None,
        "widened": finite(kernel.widened),
    }


def _mix(mix: MixReport) -> dict[str, Any]:
    return {
        "raw_ratio": finite(mix.raw_ratio),
        "kernel_effect": finite(mix.kernel_effect),
        "mix_effect": finite(mix.mix_effect),
        "support_before": finite(mix.support_before),
        "support_after": finite(mix.support_after),
        "strata": [_stratum(stratum) for stratum in mix.strata],
        "worst": None if mix.worst is None else _stratum(mix.worst),
        "decides": mix.decides,
    }


def _stratum(stratum: StratumReport) -> dict[str, Any]:
    return asdict(stratum) | {
        "share_before": finite(stratum.share_before),
        "share_after": finite(stratum.share_after),
        "ratio": finite(stratum.ratio),
        "ci": limits(stratum.ci),
    }


def _load(load: Load | None) -> dict[str, float | None] | None:
    return None if load is None else {name: finite(value) for name, value in asdict(load).items()}


def _queue(queue: Queue | None) -> dict[str, Any] | None:
    if queue is None:
        return None
    return {
        "n": queue.n,
        "p50": queue.p50,
        "p99": queue.p99,
        "overlap": finite(queue.overlap),
        "stream_busy": finite(queue.stream_busy),
    }


def _waits(scheduling: Scheduling | None) -> dict[str, int | None] | None:
    return None if scheduling is None else asdict(scheduling)


def _measures(kernel: KernelReport) -> list[tuple[Measured, bool]]:
    """The judged measure first, where both windows have it, and the others; each with whether it is judged."""
    found = [(m, False) for m in kernel.others]
    return [(kernel.judged, True), *found] if kernel.ratio is not None else found


def _measured(measure: Measured, judged: bool) -> dict[str, Any]:
    return {
        "judged": judged,
        "isolated": measure.isolated,
        "n_before": measure.n_before,
        "n_after": measure.n_after,
        "value_before": measure.value_before,
        "value_after": measure.value_after,
        "ratio": finite(measure.ratio),
        "ci": limits(measure.ci),
    }


def _calibration(calibration: Calibration) -> dict[str, Any]:
    return {
        "n": calibration.n,
        "excess_low": calibration.excess_low,
        "excess_p50": calibration.excess_p50,
        "excess_high": calibration.excess_high,
        "hosts": list(calibration.hosts),
        "decides": calibration.decides,
        "value_before": calibration.value_before,
        "value_after": calibration.value_after,
        "ratio": finite(calibration.ratio),
        "ci": limits(calibration.ci),
    }


def limits(ci: tuple[float, float] | None) -> list[float | None] | None:
    """An interval as JSON has it: an end that is infinite is null."""
    return None if ci is None else [finite(limit) for limit in ci]


def _quantiles(side: str, quantiles: Quantiles | None) -> dict[str, int | None]:
    names = ("p50", "p90", "p99", "p999")
    return {f"{name}_{side}": None if quantiles is None else getattr(quantiles, name) for name in names}


def finite(value: float | None) -> float | None:
    """A number as JSON has it: null where it is not known, or infinite."""
    return value if value is not None and math.isfinite(value) else None
