"""Options that `record` and `run` share."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from kdiff.agent.paths import named_path
from kdiff.agent.settings import FILE, load_file, variable_of
from kdiff.probes.program import Layers, Tracing

STATE: Final = Path("/var/lib/kdiff/drivers.json")

SCHEDULING_VARIABLE: Final = "KDIFF_SCHEDULING"


class Scheduling(StrEnum):
    """Whether the host's scheduler is watched."""

    ON = "on"
    OFF = "off"


def _scheduling(*variables: str) -> Any:
    return typer.Option(
        envvar=[*variables, SCHEDULING_VARIABLE],
        help="Record for how long threads that launch are preempted or blocked; costs each context switch of the host.",
    )


ServiceOption = Annotated[
    str,
    typer.Option(metavar="NAME", help="What to call all of it in the store; unless given each process by its service."),
]
LayerOption = Annotated[Layers, typer.Option(help="Which calls to probe; driver costs two traps a launch.")]
NoReturnOption = Annotated[
    bool, typer.Option("--no-return", help="One trap less a launch: no call duration and no status.")
]
GpuSamplesOption = Annotated[
    bool,
    typer.Option("--gpu-samples/--no-gpu-samples", help="Sample clocks, power and memory of each GPU by the second."),
]
SchedulingOption = Annotated[Scheduling, _scheduling()]
RunSchedulingOption = Annotated[Scheduling, _scheduling(variable_of("scheduling"))]
StateOption = Annotated[
    Path,
    typer.Option(
        parser=named_path,
        metavar="PATH",
        help="Where this host keeps what it has confirmed of its CUDA drivers.",
    ),
]
IncludeOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KIND=PATTERN",
        help="Record only processes like user=inference or unit=*.service; kinds: "
        "command, user, container, pod, unit, cgroup. Repeatable.",
    ),
]
ExcludeOption = Annotated[
    list[str] | None,
    typer.Option(metavar="KIND=PATTERN", help="Leave out processes, by rules as for --include. Repeatable."),
]


def _load(context: typer.Context, given: Path | None) -> Path | None:
    load_file(context, given)
    return given


ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        envvar=variable_of("config"),
        is_eager=True,
        callback=_load,
        help=f"A file of settings; {FILE} where it is there.",
    ),
]


def tracing_of(layer: Layers, no_return: bool, listen: bool, scheduling: Scheduling) -> Tracing:
    """What to probe. `listen`: to device libraries."""
    from kdiff.agent.targets import returns_may_kill

    any_returns = not (no_return and returns_may_kill())
    return Tracing(
        layer,
        launch_returns=not no_return,
        any_returns=any_returns,
        device_pages=4096 if listen else 1,
        scheduling=scheduling is Scheduling.ON,
    )
