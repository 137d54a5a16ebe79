"""What `kdiff-agent` says while it works, all of it on stderr."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kdiff.agent.device import DeviceSummary
    from kdiff.agent.gpu_samples import GpuSummary
    from kdiff.agent.recording import Summary


def tell(line: str, end: str = "\n") -> None:
    """To stderr, if anybody reads it: a recording does not end because nobody does."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        print(line, end=end, file=sys.stderr, flush=True)


def announce(line: str) -> None:
    """Says one line in the command's name."""
    tell(f"kdiff-agent: {line}")


class RecordingProgress:
    """One line on a terminal while it records, and a summary at the end, on stderr."""

    def __init__(self) -> None:
        self._live = sys.stderr is not None and sys.stderr.isatty()

    def show(self, summary: Summary) -> None:
        """The figures so far."""
        if self._live:
            line = f"recording {summary.elapsed_s:4.0f} s · {_figures(summary)}"
            tell(f"\r\x1b[K{line[: os.get_terminal_size(2).columns - 1]}", end="")

    def announce(self, line: str) -> None:
        """One line when something happens."""
        self._clear()
        announce(line)

    def end(self, summary: Summary, directory: Path) -> None:
        """The summary."""
        self._clear()
        tell(f"recorded {summary.elapsed_s:.1f} s · {_figures(summary)}")
        if summary.device.heard:
            tell(_device_figures(summary.device))
        if summary.gpus.rows or summary.gpus.failed:
            tell(_gpu_figures(summary.gpus))
        if summary.unresolved_launches:
            share = summary.unresolved_launches / summary.launches
            tell(f"unresolved: {summary.unresolved_launches:,} launches ({share:.2%})")
        tell(f"wrote {directory} ({summary.bytes_written:,} bytes, {summary.segments} segments)")
        if not summary.events:
            tell("no CUDA call was seen: does the program use CUDA, and did it while this recorded?")

    def _clear(self) -> None:
        if self._live:
            tell("\r\x1b[K", end="")


def _figures(summary: Summary) -> str:
    share = summary.cpu_s / summary.elapsed_s if summary.elapsed_s else 0.0
    lost = summary.lost.total + summary.dropped
    return (
        f"{summary.events:,} events · {summary.kernels} kernel{'s' * (summary.kernels != 1)} · {lost:,} lost · "
        f"agent CPU {summary.cpu_s:.2f} s ({share:.1%})"
    )


def _device_figures(device: DeviceSummary) -> str:
    return (
        f"device time: {device.executions:,} executions in {device.windows:,} windows · {device.skipped:,} skipped · "
        f"{device.lost:,} lost"
    )


def _gpu_figures(gpus: GpuSummary) -> str:
    each = gpus.cpu_ns / 1e6 / max(1, gpus.rows)
    return f"GPU samples: {gpus.rows:,} · {gpus.failed:,} failed · agent CPU {each:.2f} ms each"


@contextlib.contextmanager
def shipping_progress(total: int) -> Iterator[tuple[Callable[[int], None], Callable[[str], None]]]:
    """A bar of `total` bytes while the body runs, on a terminal only: how to advance it, and to say a line above it."""
    if total == 0 or sys.stderr is None or not sys.stderr.isatty():
        yield lambda _: None, announce
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    columns = BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()
    with Progress("shipping", *columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("shipping", total=total)
        yield (
            lambda size: progress.advance(task, size),
            lambda line: progress.console.print(f"kdiff-agent: {line}", markup=False, highlight=False),
        )
