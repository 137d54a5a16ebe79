"""`kdiff import`: traces that other tools recorded as a capture directory, to be compared like any other."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, cast

import typer

from kdiff.analysis import arguments
from kdiff.analysis.terminal import Advance, interruptible, progress, show, warn
from kdiff.analysis.window import Window
from kdiff.queries.errors import KdiffError
from kdiff.queries.printable import printable

if TYPE_CHECKING:
    from kdiff.analysis.import_source import Format

_EXAMPLE: Final = "kdiff import trace.json.gz -o DIR"
_MB: Final = 1_000_000
HELP: Final = (
    "Make a capture directory of traces: an SQLite export of Nsight Systems (`nsys export --type sqlite`), a trace of "
    "the PyTorch profiler (.json, .json.gz), or a CSV of kernels (`nsys stats --report cuda_gpu_trace --format "
    "csv`).\n\n"
    "Several FILEs are one period of one service, as of several ranks. No agent and no GPU is needed.\n\n"
    "Example:  kdiff import old/rank*.json.gz -o before  &&  kdiff import new/rank*.json.gz -o after  &&  "
    "kdiff --before ./before --after ./after"
)


class TraceFormat(StrEnum):
    """What wrote the files."""

    AUTO = "auto"
    NSYS = "nsys"
    KINETO = "kineto"
    CSV = "csv"

    def of(self, path: Path) -> Format:
        """The format of a file. Raises TraceError."""
        from kdiff.analysis.import_source import format_of

        return format_of(path) if self is TraceFormat.AUTO else cast("Format", self.value)


def import_command(
    files: Annotated[list[str] | None, typer.Argument(metavar="FILE...", help="The traces.")] = None,
    output: Annotated[str, typer.Option("--output", "-o", metavar="DIR", help="The capture directory to make.")] = "",
    service: Annotated[
        str, typer.Option("--service", metavar="NAME", help="What to call the service they are of.")
    ] = "imported",
    wrote: Annotated[
        TraceFormat, typer.Option("--format", help="What wrote the files; auto sees it from their first bytes.")
    ] = TraceFormat.AUTO,
    start: Annotated[
        str,
        typer.Option("--start", metavar="TIME", help="When the first kernel started, in place of what the files say."),
    ] = "",
) -> None:
    """Make a capture directory of traces of Nsight Systems or PyTorch, or of a CSV."""
    if not files or not output:
        raise KdiffError(f"a trace and -o DIR are needed: try `{_EXAMPLE}`")
    if not service:
        raise KdiffError("the name of the service is empty: leave --service out, or give one")
    start_ns = _start(start)

    from kdiff.analysis.import_capture import import_traces
    from kdiff.analysis.import_source import size_of
    from kdiff.queries.export import require_free
    from kdiff.queries.store import capture_path

    root = capture_path(output)
    require_free(root)
    paths = [capture_path(name) for name in files]
    for path in paths:
        size_of(path)
    sources = [(path, wrote.of(path)) for path in paths]
    with interruptible():
        found = import_traces(sources, root, service, start_ns, _progress)
    warn(found.notes)
    if found.uncollected:
        warn([f"{found.uncollected:,} kernels without times, or with such as make no sense, were left out"])
    told = ", ".join(f"{rows:,} of {table}" for table, rows in found.counts.items())
    show(f"wrote {printable(str(root))}: {Window(found.from_ns, found.to_ns).brief()}, rows {told}\n", 0)


def _start(text: str) -> int | None:
    if not text:
        return None
    now_ns = time.time_ns()
    start_ns = arguments.instant("--start", text, now_ns)
    if start_ns > now_ns:
        raise KdiffError("--start is in the future: give the time when the first kernel started")
    return start_ns


@contextmanager
def _progress(path: Path, wrote: Format) -> Iterator[Advance]:
    """A bar for one file, in MB, or in rows of a database."""
    from kdiff.analysis.import_nsys import rows_of
    from kdiff.analysis.import_source import size_of

    name = printable(path.name)
    if wrote == "nsys":
        with progress(f"{name}, kernels", rows_of(path)) as advance:
            yield advance
        return
    done = 0
    with progress(f"{name}, MB", max(1, size_of(path) // _MB)) as advance:

        def in_mb(more: int) -> None:
            nonlocal done
            advance((done + more) // _MB - done // _MB)
            done += more

        yield in_mb
