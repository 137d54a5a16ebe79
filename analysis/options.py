"""Options that more than one command has."""

from __future__ import annotations

from typing import Annotated

import typer

from kdiff.analysis.arguments import Undecided, Unpaired

StoreOption = Annotated[
    str,
    typer.Option(
        "--store",
        metavar="PATH|ADDRESS",
        envvar="KDIFF_STORE",
        help="Capture directory, or server as clickhouse[s]://user@host:port/db.",
    ),
]
ServiceOption = Annotated[str, typer.Option("--service", metavar="NAME", help="Only this service.")]
WindowOption = Annotated[
    str, typer.Option("--window", metavar="LENGTH", help="Length of a window given by one instant.")
]
ControlOption = Annotated[
    str,
    typer.Option(
        "--control", metavar="ARM", help="Hosts to compare with, in one window: host=a,b,gpu-*, service=NAME or both."
    ),
]
CanaryOption = Annotated[str, typer.Option("--canary", metavar="ARM", help="Hosts to judge, as --control.")]
AtOption = Annotated[
    str, typer.Option("--at", metavar="SPEC", help="The window of --control and --canary: the last --window by itself.")
]
ExactOption = Annotated[
    bool, typer.Option("--exact", help="Read each row, where windows of two hours or more are read from roll-ups.")
]
NoCalibrationOption = Annotated[
    bool, typer.Option("--no-calibration", help="Do not widen intervals by what kdiff calibrate measured.")
]
ToleranceOption = Annotated[str, typer.Option("--tolerance", metavar="SHARE", help="Slowdown that is accepted.")]
QuantileOption = Annotated[str, typer.Option("--quantile", metavar="Q", help="Quantile that is judged.")]
KernelOption = Annotated[
    list[str] | None,
    typer.Option("--kernel", metavar="PATTERN", help="Only kernels whose name holds or matches it (repeat)."),
]
SwappedOption = Annotated[
    list[str] | None,
    typer.Option(
        "--swapped",
        metavar="PATTERN",
        help="What was swapped; all other kernels are controls for clocks and heat (repeat).",
    ),
]


def _take_policy(context: typer.Context, param: typer.CallbackParam, path: str) -> str:
    source = context.get_parameter_source(str(param.name))
    if source is not None and source.name == "COMMANDLINE" and not context.resilient_parsing:
        from kdiff.analysis.policy_file import take  # what it needs is slow to import

        take(context, path)
    return path


PolicyOption = Annotated[
    str,
    typer.Option(
        "--policy",
        metavar="FILE",
        is_eager=True,
        callback=_take_policy,
        help="TOML file of options, and of tables [[kernel]] with match and tolerance.",
    ),
]
UndecidedOption = Annotated[
    Undecided | None, typer.Option("--on-undecided", help="Exit 0 or 1 where 3 would say undecided.")
]
UnpairedOption = Annotated[
    Unpaired, typer.Option("--unpaired", help="What a kernel gone and another new make of the run.")
]
MaxLossOption = Annotated[
    str, typer.Option("--max-loss", metavar="SHARE", help="Loss above which a window gets no verdict.")
]
MaxUnjudgedOption = Annotated[
    str,
    typer.Option("--max-unjudged", metavar="SHARE", help="Share that kernels too rare to judge may hold together."),
]
OneGpuModelOption = Annotated[
    bool, typer.Option("--one-gpu-model", help="One host's GPUs calibrate another's completions.")
]
WarmUpOption = Annotated[
    str, typer.Option("--warm-up", metavar="LENGTH", help="What is left out of a process that starts; 0: nothing.")
]
NoStrataOption = Annotated[
    bool, typer.Option("--no-strata", help="Judge all launches of a kernel together, whatever their shapes.")
]
NoCleaningOption = Annotated[
    bool, typer.Option("--no-cleaning", help="Judge warm-up, autotuning and stretches that lost events, too.")
]
