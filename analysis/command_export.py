"""`kdiff export`: a window of a server as a capture directory, to keep, to take along or to compare."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from typing import Annotated, Final

import typer

from kdiff.analysis import timespec
from kdiff.analysis.options import ServiceOption, StoreOption, WindowOption
from kdiff.analysis.terminal import interruptible, progress, show, warn
from kdiff.queries.errors import KdiffError
from kdiff.queries.printable import printable

_EXAMPLE: Final = "kdiff export 2026-11-27T10:00/15m -o DIR"


def export_command(
    spec: Annotated[str, typer.Argument(metavar="SPEC", help="The window.")] = "",
    output: Annotated[str, typer.Option("--output", "-o", metavar="DIR", help="The capture directory to make.")] = "",
    store: StoreOption = "./kdiff-capture",
    service: ServiceOption = "",
    window: WindowOption = "15m",
) -> None:
    """Write a window as a capture directory: events, executions, kernels and what agents lost."""
    if not spec or not output:
        raise KdiffError(f"a window and -o DIR are needed: try `{_EXAMPLE}`")
    length_ns = timespec.parse_length(window)
    parsed = timespec.parse(spec, "before", time.time_ns(), length_ns, option="SPEC")
    if isinstance(parsed, Path):
        raise KdiffError(f"{printable(spec)} is a capture directory already: copy it, or name a window")

    from kdiff.analysis.evidence import Evidence
    from kdiff.queries.export import require_free, slices, write_capture
    from kdiff.queries.store import capture_path, open_store

    root = capture_path(output)
    require_free(root)
    with interruptible(), closing(open_store(store)) as opened:
        if gone := Evidence(opened, parsed, service).missing_rows:
            raise KdiffError(
                f"of the window {parsed.brief()} {gone:,} launches and executions are kept in roll-ups only, which a "
                "capture does not hold: choose a later window"
            )
        pieces = slices(opened, parsed.from_ns, parsed.to_ns, service)
        with progress("exporting rows", sum(piece.rows for piece in pieces)) as advance:
            counts = write_capture(opened, service, (parsed.from_ns, parsed.to_ns), pieces, root, advance)
        warn(opened.warnings)
    told = ", ".join(f"{rows:,} of {table}" for table, rows in counts.items())
    show(f"wrote {printable(str(root))}: {parsed.brief()}, rows {told}\n", 0)
