"""`kdiff-agent run`: the service that records every process of a host, and ships what it records."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from kdiff.agent.command_ship import StoreOption, store_address
from kdiff.agent.options import STATE, LayerOption, NoReturnOption, StateOption, tracing_of
from kdiff.agent.terminal import RecordingProgress
from kdiff.probes.program import Layers

if TYPE_CHECKING:
    from kdiff.agent.recording import Summary

SPOOL: Final = Path("/var/lib/kdiff")
_UNITS: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


class Listening(StrEnum):
    """Whether device libraries are listened to."""

    ON = "on"
    OFF = "off"


def size(text: str) -> int:
    """Bytes of a size like 10G or 500M. Raises typer.BadParameter."""
    found = re.fullmatch(r"(\d+)([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if found is None or int(found[1]) == 0:
        raise typer.BadParameter(f"--max-bytes {text!r} is no size: write 10G or 500M")
    return int(found[1]) * _UNITS[found[2].upper()]


def run_command(
    output: Annotated[Path, typer.Option("-o", "--output", help="The spool, a capture directory.")] = SPOOL,
    store: StoreOption = "",
    max_bytes: Annotated[str, typer.Option(metavar="SIZE", help="How large the spool may grow.")] = "10G",
    metrics: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Serve metrics for Prometheus there, like 127.0.0.1:9464.")
    ] = "",
    service: Annotated[str, typer.Option(help="What to call it in the store; host unless given.")] = "",
    layer: LayerOption = Layers.BOTH,
    no_return: NoReturnOption = False,
    device_time: Annotated[
        Listening, typer.Option(help="Collect device times of processes that have the device library, or of none.")
    ] = Listening.ON,
    state: StateOption = STATE,
) -> None:
    """Record every process of this host that uses CUDA until stopped, and ship what is recorded."""
    from kdiff.agent.device_option import DeviceOption
    from kdiff.agent.keeping import Keeping
    from kdiff.agent.metrics import of_summary, place
    from kdiff.agent.recorder import Recorder
    from kdiff.agent.recording import Options

    address = store_address(store)
    bound = size(max_bytes)
    try:
        if metrics:
            place(metrics)
    except ValueError as error:
        raise typer.BadParameter(f"--metrics {error}") from error
    listen = device_time is Listening.ON
    tracing = tracing_of(layer, no_return, listen)
    options = Options(output, service=service, tracing=tracing, state=state, device_time=DeviceOption(listen=listen))
    progress = RecordingProgress()
    keeping = Keeping(output, address, bound, metrics, progress.announce)

    def show(summary: Summary) -> None:
        keeping.tell(of_summary(summary))
        progress.show(summary)

    try:
        summary = Recorder(options, show, progress.announce).run()
    finally:
        keeping.end()
    progress.end(summary, output)
