"""`kdiff calibrate`: how wrong kdiff's intervals and verdicts are on a service's own history."""

from __future__ import annotations

import time
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Annotated, Final

import typer

from kdiff.analysis import arguments, timespec
from kdiff.analysis.arguments import ListFormat, MetricName
from kdiff.analysis.options import (
    ExactOption,
    KernelOption,
    MaxLossOption,
    QuantileOption,
    ServiceOption,
    StoreOption,
    ToleranceOption,
)
from kdiff.analysis.terminal import PROGRAM, interruptible, progress, show, tell, warn
from kdiff.queries.errors import KdiffError, StoreError
from kdiff.queries.printable import printable, quoted

if TYPE_CHECKING:
    from kdiff.analysis.window import Window
    from kdiff.queries.calibrations import KeptCalibration
    from kdiff.queries.store import Store

HELP: Final = (
    "Measure on your own history how wide intervals must be and how often comparisons come out REGRESSED where nothing "
    "was swapped. It is kept in the store, and comparisons of windows of about that length use it from then on.\n\n"
    "SPEC is the history, the last 7 days of what is recorded if left out: leave out swaps with --exclude.\n\n"
    "Example:  kdiff calibrate now-14d..now --window 1h --service chat"
)


def calibrate_command(
    spec: Annotated[
        str, typer.Argument(metavar="[SPEC]", help="The history; the last 7 days recorded if left out.")
    ] = "",
    store: StoreOption = "./kdiff-capture",
    service: ServiceOption = "",
    window: Annotated[
        str, typer.Option("--window", metavar="LENGTH", help="Length of the windows that will be compared.")
    ] = "15m",
    metric: Annotated[MetricName, typer.Option("--metric", help="What will be judged.")] = MetricName.AUTO,
    quantile: QuantileOption = "0.99",
    tolerance: ToleranceOption = "5%",
    kernel: KernelOption = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option("--exclude", metavar="SPEC", help="Leave out the windows that this touches: a swap (repeat)."),
    ] = None,
    max_loss: MaxLossOption = "1%",
    exact: ExactOption = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Measure and print, but keep nothing.")] = False,
    output: Annotated[ListFormat, typer.Option("--format", help="Output format.")] = ListFormat.TABLE,
) -> None:
    """Measure kdiff's errors on a history and keep them for comparisons."""
    now_ns = time.time_ns()
    length_ns = timespec.parse_length(window)
    history = _window("SPEC", spec, now_ns, length_ns) if spec else None
    excluded = [_window("--exclude", one, now_ns, length_ns) for one in exclude or ()]
    strict = {
        "tolerance": arguments.share("--tolerance", tolerance),
        "quantile": arguments.quantile(quantile),
    }
    loss = arguments.share("--max-loss", max_loss)

    from kdiff.analysis import history_output, history_windows
    from kdiff.analysis.evidence import whole_window
    from kdiff.analysis.verdict import Policy
    from kdiff.analysis.window import Window
    from kdiff.queries.store import open_store

    options = history_windows.Options(metric.value, Policy(**strict), kernel or (), loss)
    with interruptible():
        opened = open_store(store)
        try:
            history = history or history_windows.span(opened, service, now_ns)
            # What has not happened yet is no history.
            history = Window(history.from_ns, max(history.from_ns + 1, min(history.to_ns, now_ns)))
            windows = history_windows.cut(history, length_ns, whole_window(opened, service))
            with progress("windows", len(windows)) as advance:
                seen = history_windows.read(opened, windows, excluded, service, exact, options, advance)
            found = history_output.calibration(seen, windows, service, options, now_ns)
            failed = "" if dry_run else _keep(opened, found)
        finally:
            opened.close()
    warn(opened.warnings)
    kept = not dry_run and not failed
    if output is ListFormat.JSON:
        text = history_output.as_json(opened.name, found, seen, kept)
    else:
        text = history_output.as_table(opened.name, found, seen, kept, get_terminal_size().columns)
    if failed:
        # What took minutes to measure is shown all the same.
        tell(f"{PROGRAM}: {printable(failed)}")
    show(text, KdiffError.code if failed else 0)


def _window(option: str, text: str, now_ns: int, length_ns: int) -> Window:
    parsed = timespec.parse(text, "before", now_ns, length_ns, is_directory=lambda _: False, option=option)
    if isinstance(parsed, Path):
        raise KdiffError(f"{option} {quoted(text)} is no window of time: name the capture with --store")
    return parsed


def _keep(store: Store, found: KeptCalibration) -> str:
    """Keeps it; why that failed, '' where it did not."""
    from kdiff.queries.calibrations import calibrations_of

    kept = calibrations_of(store)
    if kept is None:
        return "the calibration was not kept: this store keeps none"
    try:
        kept.keep(found)
    except StoreError as error:
        return f"the calibration was not kept: {error}"
    return ""
