"""`kdiff-agent run`: the service that records every process of a host, and ships what it records."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Final, Self

import typer

from kdiff.agent.command_ship import StoreOption, refuse_more, require_directory, store_address
from kdiff.agent.options import (
    STATE,
    ConfigOption,
    ExcludeOption,
    GpuSamplesOption,
    IncludeOption,
    LayerOption,
    NoReturnOption,
    RunSchedulingOption,
    Scheduling,
    ServiceOption,
    StateOption,
    tracing_of,
)
from kdiff.agent.paths import named_path
from kdiff.agent.signals import ENDING
from kdiff.agent.terminal import RecordingProgress
from kdiff.probes.program import Layers, Tracing
from kdiff.queries.address import masked

if TYPE_CHECKING:
    from kdiff.agent.recording import Summary
    from kdiff.agent.selection import Selection

SPOOL: Final = Path("/var/lib/kdiff")
_UNITS: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


class Ending:
    """Signals that end `run` before, while and after its recorder takes them: none of them ends the process by itself.

    One that comes while the recorder starts is passed on once it records, and ends an empty recording. Use as a context
    manager, in the main thread of a process that ends soon after: what comes then is ignored.
    """

    def __init__(self) -> None:
        self._came: int | None = None

    def __enter__(self) -> Self:
        for number in ENDING:
            signal.signal(number, self._on_signal)
            signal.siginterrupt(number, False)  # what loads the program in C is not to fail for it
        return self

    def __exit__(self, *_: object) -> None:
        for number in ENDING:
            signal.signal(number, signal.SIG_IGN)

    def pass_on(self) -> None:
        """To whoever takes signals now. Called often."""
        came = self._came
        if came is not None and signal.getsignal(came) != self._on_signal:
            self._came = None
            signal.raise_signal(came)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        self._came = number


class Listening(StrEnum):
    """Whether device libraries are listened to."""

    ON = "on"
    OFF = "off"


def size(text: str) -> int:
    """Bytes of a size like 10G or 500M. Raises typer.BadParameter."""
    found = re.fullmatch(r"(\d+)([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if found is None or int(found[1]) == 0:
        raise typer.BadParameter(f"--max-bytes '{masked(text)}' is no size: write 10G or 500M")
    return int(found[1]) * _UNITS[found[2].upper()]


def checked(
    output: Path, store: str, max_bytes: str, metrics: str, include: Sequence[str] | None, exclude: Sequence[str] | None
) -> tuple[str, int, Selection]:
    """The server's address ('' for none), the spool's bound in bytes, and which processes are recorded.

    Raises KdiffError or typer.BadParameter for what `run` cannot be set to.
    """
    from kdiff.agent.metrics import place
    from kdiff.agent.selection import Selection

    require_directory(output)
    address = store_address(store)
    bound = size(max_bytes)
    try:
        if metrics:
            place(metrics)
    except ValueError as error:
        raise typer.BadParameter(f"--metrics {error}") from error
    return address, bound, Selection.parse(include or (), exclude or ())


def run_command(
    context: typer.Context,
    output: Annotated[
        Path,
        typer.Option("-o", "--output", parser=named_path, metavar="PATH", help="The spool, a capture directory."),
    ] = SPOOL,
    store: StoreOption = "",
    max_bytes: Annotated[str, typer.Option(metavar="SIZE", help="How large the spool may grow.")] = "10G",
    metrics: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Serve metrics for Prometheus there, like 127.0.0.1:9464.")
    ] = "",
    service: ServiceOption = "",
    layer: LayerOption = Layers.BOTH,
    no_return: NoReturnOption = False,
    device_time: Annotated[
        Listening, typer.Option(help="Collect device times of processes that have the device library, or of none.")
    ] = Listening.ON,
    state: StateOption = STATE,
    include: IncludeOption = None,
    exclude: ExcludeOption = None,
    gpu_samples: GpuSamplesOption = True,
    scheduling: RunSchedulingOption = Scheduling.OFF,
    config: ConfigOption = None,
) -> None:
    """Record every process of this host that uses CUDA until stopped, and ship what is recorded."""
    refuse_more(context)
    address, bound, selection = checked(output, store, max_bytes, metrics, include, exclude)
    listen = device_time is Listening.ON
    with Ending() as ending:
        tracing = tracing_of(layer, no_return, listen, scheduling)
        _run(output, address, bound, metrics, service, tracing, listen, state, gpu_samples, selection, ending)


def _run(
    output: Path,
    address: str,
    bound: int,
    metrics: str,
    service: str,
    tracing: Tracing,
    listen: bool,
    state: Path,
    gpu_samples: bool,
    selection: Selection,
    ending: Ending,
) -> None:
    from kdiff.agent.device_option import DeviceOption
    from kdiff.agent.keeping import Keeping
    from kdiff.agent.metrics import of_summary
    from kdiff.agent.recorder import Recorder
    from kdiff.agent.recording import Options

    device = DeviceOption(listen=listen)
    options = Options(
        output,
        service=service,
        tracing=tracing,
        state=state,
        device_time=device,
        selection=selection,
        gpu_samples=gpu_samples,
        measure_cost=bool(metrics),
    )
    progress = RecordingProgress()
    keeping = Keeping(output, address, bound, metrics, progress.announce)

    def show(summary: Summary) -> None:
        keeping.tell(of_summary(summary))
        progress.show(summary)
        ending.pass_on()

    def announce(line: str) -> None:
        progress.announce(line)
        ending.pass_on()

    try:
        summary = Recorder(options, show, announce).run()
    finally:
        keeping.end()
    progress.end(summary, output)
