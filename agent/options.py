"""Options that `record` and `run` share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from kdiff.probes.program import Layers, Tracing

STATE: Final = Path("/var/lib/kdiff/drivers.json")

LayerOption = Annotated[Layers, typer.Option(help="Which calls to probe; driver costs two traps a launch.")]
NoReturnOption = Annotated[
    bool, typer.Option("--no-return", help="One trap less a launch: no call duration and no status.")
]
StateOption = Annotated[Path, typer.Option(help="Where this host keeps what it has confirmed of its CUDA drivers.")]


def tracing_of(layer: Layers, no_return: bool, listen: bool) -> Tracing:
    """What to probe. `listen`: to device libraries."""
    from kdiff.agent.targets import returns_may_kill

    any_returns = not (no_return and returns_may_kill())
    return Tracing(layer, launch_returns=not no_return, any_returns=any_returns, device_pages=4096 if listen else 1)
