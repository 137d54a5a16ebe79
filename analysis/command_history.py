"""`kdiff history`: what was said of a kernel before."""

from __future__ import annotations

import time
from fnmatch import fnmatchcase
from shutil import get_terminal_size
from typing import Annotated, Final

import typer

from kdiff.analysis import arguments
from kdiff.analysis.arguments import ListFormat
from kdiff.analysis.options import StoreOption
from kdiff.analysis.terminal import interruptible, show, warn
from kdiff.queries.errors import KdiffError
from kdiff.queries.printable import printable

_EXAMPLE: Final = "kdiff history fused_gelu --since -7d"
_MOST: Final = 100_000


def history_command(
    kernel: Annotated[
        str, typer.Argument(metavar="KERNEL", help="Part of the name, or a shell pattern for all of it.")
    ] = "",
    store: StoreOption = "./kdiff-capture",
    service: Annotated[
        str | None, typer.Option("--service", metavar="NAME", help="Only runs that asked for this service.")
    ] = None,
    since: Annotated[str, typer.Option("--since", metavar="TIME", help="Only what was judged since then.")] = "",
    limit: Annotated[int, typer.Option("--limit", metavar="N", help="At most the newest N.")] = 20,
    output: Annotated[ListFormat, typer.Option("--format", help="Output format.")] = ListFormat.TABLE,
) -> None:
    """Show the verdicts on a kernel that were kept (kdiff --keep, kdiff gate), the newest first.

    Example:  kdiff history fused_gelu --since -7d
    """
    if not kernel:
        raise KdiffError(f"the kernel is missing: try `{_EXAMPLE}`, or '*' for all")
    if not 1 <= limit <= _MOST:
        raise KdiffError(f"--limit {limit} is not between 1 and {_MOST}")
    since_ns = arguments.instant("--since", since, time.time_ns()) if since else 0

    from kdiff.analysis import history
    from kdiff.queries.verdicts import Wanted, open_log

    def matches(name: str) -> bool:
        return kernel in name or fnmatchcase(name, kernel)

    with interruptible():
        log = open_log(store)
        found = log.read(Wanted(matches, service, since_ns, limit))
    warn(found.warnings)
    if output is ListFormat.JSON:
        show(history.as_json(log.name, found.verdicts), 0)
    if not found.verdicts:
        of_service = f" and the service {printable(service)}" if service else ""
        show(
            f"no verdict on {printable(kernel)}{of_service} is kept in {log.name}: judge with `kdiff --keep`, "
            "or let `kdiff gate` do so\n",
            0,
        )
    show(history.as_table(log.name, found.verdicts, get_terminal_size().columns), 0)
