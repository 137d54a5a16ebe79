"""Figures of `kdiff-agent run` for Prometheus, on an address of this host."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kdiff.agent.errors import AgentError
from kdiff.agent.metrics_server import serve_page
from kdiff.queries.address import masked
from kdiff.queries.printable import printable

if TYPE_CHECKING:
    from kdiff.agent.health import ServiceCounts
    from kdiff.agent.recording import Summary

_PLACE: Final = re.compile(r"(?:\[([0-9A-Fa-f:]+)\]|([^\[\]:\s]+)):(\d{1,5})")


def place(text: str) -> tuple[str, int]:
    """(host, port) of HOST:PORT. Raises ValueError."""
    found = _PLACE.fullmatch(text)
    if found is None or not 0 < int(found[3]) < 65536:
        raise ValueError(f"'{masked(text)}' is not HOST:PORT, like 127.0.0.1:9464")
    return found[1] or found[2], int(found[3])


@dataclass
class Figures:
    """What there is to tell. `recorder`: what `of_summary` made of the recorder's last summary."""

    recorder: Mapping[str, Any] = field(default_factory=dict)
    waiting_segments: int = 0
    waiting_bytes: int = 0
    spool_bytes: int = 0
    left_segments: int = 0
    shipped_segments: int = 0
    shipped_rows: int = 0
    retries: int = 0
    last_success: float = 0.0
    shed_rows: Mapping[str, int] = field(default_factory=dict)


def of_summary(summary: Summary) -> dict[str, Any]:
    """What a recorder tells about itself."""
    cost = summary.cost
    return {
        "services": {name: _of_service(counts) for name, counts in summary.services.items()},
        "executions_lost": summary.device.lost,
        "launches": summary.launches,
        "unresolved": summary.unresolved_launches,
        "kernels": summary.kernels,
        "executions": summary.device.executions,
        "windows": {"opened": summary.device.windows, "skipped": summary.device.skipped},
        "gpu_samples": {"written": summary.gpus.rows, "failed": summary.gpus.failed},
        "gpu_hangs": summary.gpus.hung,
        "drain_lag_s": summary.drain_lag_ns / 1e9,
        "ring_fill": {name: round(fill.value, 4) for name, fill in summary.ring_fill.items()},
        "probe_cost_s": {} if cost is None else {"runtime": cost.runtime_ns / 1e9, "driver": cost.driver_ns / 1e9},
        "added_s": summary.added_ns / 1e9,
        "attached_probes": summary.attached_probes,
        "cpu_s": summary.cpu_s,
        "resident_bytes": _resident_bytes(),
    }


def _of_service(counts: ServiceCounts) -> dict[str, Any]:
    lost = counts.lost
    return {
        "events": counts.events,
        "lost": {
            "launches": lost.launches,
            "syncs": lost.syncs,
            "other": lost.other + counts.orphaned,
            "full_disk": counts.dropped.total,
        },
    }


def _resident_bytes() -> int:
    """Of this process, now."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
    except (OSError, IndexError, ValueError):
        return 0


def serve(where: tuple[str, int], figures: Callable[[], Figures]) -> None:
    """Answers on `where`, in a thread of its own, until the process ends. Raises AgentError."""
    from prometheus_client import CollectorRegistry
    from prometheus_client.exposition import choose_encoder
    from prometheus_client.registry import Collector

    class Told(Collector):
        def collect(self) -> Iterator[Any]:
            return _families(figures())

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Told())

    def page(accept: str) -> tuple[str, bytes]:
        encode, kind = choose_encoder(accept)
        return kind, encode(registry)

    try:
        serve_page(where, page)
    except (OSError, UnicodeError) as error:  # the latter: no name by the rules of names
        why = error.strerror if isinstance(error, OSError) else "not a host's name"
        raise AgentError(
            f"no metrics on {printable(where[0])}:{where[1]} ({why}): name another place with --metrics"
        ) from error


def _families(now: Figures) -> Iterator[Any]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    recorder = now.recorder
    events = CounterMetricFamily("kdiff_events", "CUDA calls that were written.", labels=["service"])
    lost = CounterMetricFamily(
        "kdiff_lost_events",
        "Events that were lost before they were written; without a service where it is not known of which.",
        labels=["service", "kind"],
    )
    for service, counts in recorder.get("services", {}).items():
        events.add_metric([service], counts["events"])
        for kind, count in counts["lost"].items():
            lost.add_metric([service, kind], count)
    lost.add_metric(["", "executions"], recorder.get("executions_lost", 0))
    yield events
    yield lost
    windows = CounterMetricFamily("kdiff_device_windows", "Windows of device time.", labels=["kind"])
    for kind, count in recorder.get("windows", {}).items():
        windows.add_metric([kind], count)
    yield windows
    samples = CounterMetricFamily(
        "kdiff_gpu_samples", "Samples of GPUs, and those that NVML failed to give.", labels=["kind"]
    )
    for kind, count in recorder.get("gpu_samples", {}).items():
        samples.add_metric([kind], count)
    yield samples
    shed = CounterMetricFamily("kdiff_shed_rows", "Rows given up because the spool was full.", labels=["table"])
    for table, count in sorted(now.shed_rows.items()):
        shed.add_metric([table], count)
    yield shed
    fill = GaugeMetricFamily(
        "kdiff_ring_fill_ratio", "How full a ring was at most in the last minute or two.", labels=["ring"]
    )
    for ring, share in recorder.get("ring_fill", {}).items():
        fill.add_metric([ring], share)
    yield fill
    cost = GaugeMetricFamily(
        "kdiff_probe_cost_seconds",
        "CPU time that probes add to one launch, by the function that is called, measured at the start.",
        labels=["call"],
    )
    for call, seconds in recorder.get("probe_cost_s", {}).items():
        cost.add_metric([call], seconds)
    yield cost
    if recorder.get("probe_cost_s"):
        told = "CPU time that probes have added to the launches that were written: each by kdiff_probe_cost_seconds."
        yield CounterMetricFamily("kdiff_added_seconds", told, value=recorder["added_s"])
    for name, told, count in (
        ("kdiff_launches", "Launches that were written.", recorder.get("launches", 0)),
        ("kdiff_unresolved_launches", "Launches whose kernel has no name.", recorder.get("unresolved", 0)),
        ("kdiff_executions", "Executions that the device timed.", recorder.get("executions", 0)),
        ("kdiff_gpu_hangs", "Times that NVML stopped answering.", recorder.get("gpu_hangs", 0)),
        ("kdiff_agent_cpu_seconds", "CPU time of the process that records.", recorder.get("cpu_s", 0)),
        ("kdiff_shipped_rows", "Rows that the server has confirmed.", now.shipped_rows),
        ("kdiff_shipped_segments", "Segments that the server has confirmed.", now.shipped_segments),
        ("kdiff_ship_retries", "Requests that were tried again.", now.retries),
    ):
        yield CounterMetricFamily(name, told, value=count)
    for name, told, value in (
        ("kdiff_spool_bytes", "Bytes of segments in the spool.", now.spool_bytes),
        ("kdiff_waiting_segments", "Segments that the server has not confirmed.", now.waiting_segments),
        ("kdiff_waiting_bytes", "Bytes of segments that the server has not confirmed.", now.waiting_bytes),
        ("kdiff_left_segments", "Segments that cannot be shipped.", now.left_segments),
        ("kdiff_last_ship_success_timestamp_seconds", "When the server last answered; 0: never.", now.last_success),
        ("kdiff_drain_lag_seconds", "The longest time between two reads of the ring.", recorder.get("drain_lag_s", 0)),
        ("kdiff_attached_probes", "Probes that are attached.", recorder.get("attached_probes", 0)),
        ("kdiff_kernels", "Kernels seen since the start.", recorder.get("kernels", 0)),
        ("kdiff_agent_resident_memory_bytes", "Memory of the process that records.", recorder.get("resident_bytes", 0)),
    ):
        yield GaugeMetricFamily(name, told, value=value)
