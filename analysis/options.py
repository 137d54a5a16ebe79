"""Options that more than one command has."""

from __future__ import annotations

from typing import Annotated

import typer

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
