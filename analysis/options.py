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
ExactOption = Annotated[
    bool, typer.Option("--exact", help="Read each row, where windows of two hours or more are read from roll-ups.")
]
ToleranceOption = Annotated[str, typer.Option("--tolerance", metavar="SHARE", help="Slowdown that is accepted.")]
QuantileOption = Annotated[str, typer.Option("--quantile", metavar="Q", help="Quantile that is judged.")]
KernelOption = Annotated[
    list[str] | None,
    typer.Option("--kernel", metavar="PATTERN", help="Only kernels whose name holds or matches it (repeat)."),
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
