"""The `kdiff` command. Data goes to stdout, messages to stderr; what is slow to import is imported when used."""

from __future__ import annotations

import io
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Annotated, Final

import typer

from kdiff.analysis import arguments, selectors, timespec
from kdiff.analysis.arguments import FormatName, ListFormat, MetricName, Unpaired
from kdiff.analysis.command_calibrate import HELP as CALIBRATE_HELP
from kdiff.analysis.command_calibrate import calibrate_command
from kdiff.analysis.command_delete import delete_command
from kdiff.analysis.command_export import export_command
from kdiff.analysis.command_gate import gate_command
from kdiff.analysis.command_history import history_command
from kdiff.analysis.command_import import HELP as IMPORT_HELP
from kdiff.analysis.command_import import import_command
from kdiff.analysis.command_migrate import migrate_command
from kdiff.analysis.command_schema import schema_command
from kdiff.analysis.command_watch import watch_command
from kdiff.analysis.options import (
    AtOption,
    CanaryOption,
    ControlOption,
    ExactOption,
    KernelOption,
    MaxLossOption,
    MaxUnjudgedOption,
    NoCalibrationOption,
    NoCleaningOption,
    NoStrataOption,
    OneGpuModelOption,
    PolicyOption,
    QuantileOption,
    ServiceOption,
    StoreOption,
    SwappedOption,
    ToleranceOption,
    UndecidedOption,
    UnpairedOption,
    WarmUpOption,
    WindowOption,
)
from kdiff.analysis.terminal import INTERRUPTED, PROGRAM, TERMINATED, colour, fail, interruptible, show, warn
from kdiff.queries.address import refuse_passwords
from kdiff.queries.errors import KdiffError
from kdiff.queries.printable import printable

if TYPE_CHECKING:
    from types import FrameType

    from kdiff.analysis.evidence import Evidence
    from kdiff.analysis.window import Window
    from kdiff.queries.store import Store

EXAMPLE: Final = "kdiff --before now-1h --after -15m"
ISSUES: Final = "please report it with the output of the same command under KDIFF_DEBUG=1"

app = typer.Typer(
    name=PROGRAM,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(
    invoke_without_command=True,
    help="Did a kernel get slower? Compare two windows of recorded production traffic, kernel by kernel.\n\n"
    "SPEC is START/LENGTH (2026-11-27T10:00/15m), A..B, an instant (2026-11-27T10:00, -2h, now-30m, Unix time) or a "
    "capture directory. Times without a zone are UTC. An instant is the end of the before window and the start of "
    "the after window.\n\n"
    f"Example:  {EXAMPLE}\n\n"
    "Exit status: 0 no regression, 1 regression, 2 usage or operational error, 3 undecided.",
)
def compare_command(
    context: typer.Context,
    before: Annotated[str, typer.Option("--before", metavar="SPEC", help="The window to compare with.")] = "",
    after: Annotated[str, typer.Option("--after", metavar="SPEC", help="The window to judge.")] = "",
    control: ControlOption = "",
    canary: CanaryOption = "",
    at: AtOption = "",
    store: StoreOption = "./kdiff-capture",
    metric: Annotated[
        MetricName, typer.Option("--metric", help="What to judge; auto is the best that both windows have.")
    ] = MetricName.AUTO,
    tolerance: ToleranceOption = "5%",
    quantile: QuantileOption = "0.99",
    policy: PolicyOption = "",
    service: ServiceOption = "",
    kernel: KernelOption = None,
    swapped: SwappedOption = None,
    window: WindowOption = "15m",
    renames: Annotated[
        list[str] | None,
        typer.Option(
            "--map",
            metavar="OLD=NEW",
            help="Compare OLD before with NEW after; * is any text, A+B=C a fusion, A=B+C a split (repeat).",
        ),
    ] = None,
    map_files: Annotated[
        list[str] | None,
        typer.Option("--map-file", metavar="FILE", help="TOML file with tables [[map]] of old and new (repeat)."),
    ] = None,
    exact_names: Annotated[
        bool, typer.Option("--exact-names", help="Do not pair kernels that were only compiled anew under another name.")
    ] = False,
    output: Annotated[FormatName, typer.Option("--format", help="Output format.")] = FormatName.TABLE,
    all_metrics: Annotated[
        bool,
        typer.Option("--all-metrics", help="Show what is not judged of kernels that pass, too."),
    ] = False,
    on_undecided: UndecidedOption = None,
    unpaired: UnpairedOption = Unpaired.UNDECIDED,
    max_loss: MaxLossOption = "1%",
    max_unjudged: MaxUnjudgedOption = "5%",
    one_gpu_model: OneGpuModelOption = False,
    no_calibration: NoCalibrationOption = False,
    warm_up: WarmUpOption = "60s",
    no_cleaning: NoCleaningOption = False,
    no_strata: NoStrataOption = False,
    exact: ExactOption = False,
    keep: Annotated[
        bool,
        typer.Option("--keep/--no-keep", envvar="KDIFF_KEEP", help="Keep the verdicts in the store: kdiff history."),
    ] = False,
    label: Annotated[
        str, typer.Option("--label", metavar="TEXT", help="What kept verdicts are called: a version, a swap.")
    ] = "",
    show_version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Compare two windows (the command without a subcommand)."""
    if context.invoked_subcommand is not None:
        return
    if show_version:
        show(f"{PROGRAM} {_version()}\n", 0)
    now_ns = time.time_ns()
    arms = selectors.asked((control, canary), at, (before, after), now_ns, window)
    missing = [name for name, value in (("--before", before), ("--after", after)) if not (value or arms)]
    if missing:
        raise KdiffError(f"{' and '.join(missing)} missing: try `{EXAMPLE}`, or `{PROGRAM} --help`")
    strict = {
        "tolerance": arguments.share("--tolerance", tolerance),
        "quantile": arguments.quantile(quantile),
    }
    losses = arguments.share("--max-loss", max_loss), arguments.share("--max-unjudged", max_unjudged)
    length_ns = timespec.parse_length(window)
    sides: dict[timespec.Side, str] = {} if arms else {"before": before, "after": after}
    specs = {side: timespec.parse(spec, side, now_ns, length_ns) for side, spec in sides.items()}

    from kdiff.analysis.compare import Options, compare
    from kdiff.analysis.output import output_format
    from kdiff.analysis.policy_file import tolerances
    from kdiff.analysis.renames import read_file
    from kdiff.analysis.verdict import Policy

    options = Options(
        metric=metric.value,
        policy=Policy(**strict),
        patterns=kernel or (),
        renames=renames or (),
        mapped=[entry for path in map_files or () for entry in read_file(path)],
        by_canonical=not exact_names,
        on_undecided=on_undecided.value if on_undecided else None,
        unpaired=unpaired.value,
        one_gpu_model=one_gpu_model,
        history=not no_calibration,
        cleaning=not no_cleaning,
        strata=not no_strata,
        warm_up_ns=arguments.warm_up(warm_up),
        all_metrics=all_metrics or output is FormatName.JSON,
        max_loss=losses[0],
        max_unjudged=losses[1],
        swapped=swapped or (),
        tolerances=tolerances(context) if policy else (),
    )
    with _stores() as open_once:
        if arms:
            from kdiff.analysis.arms import compare_arms, resolve

            at_once = _evidence(arms.at, store, service, exact, open_once)
            both = resolve(at_once.store, at_once.window, arms.selectors, service, exact)
            pair_warnings = arms.warnings(now_ns)
            report, judged, service = compare_arms(both, options), both.canary, both.canary.service
        else:
            evidence = {side: _evidence(spec, store, service, exact, open_once) for side, spec in specs.items()}
            same = evidence["before"].store is evidence["after"].store
            pair_warnings = timespec.check_pair(evidence["before"].window, evidence["after"].window, now_ns, same)
            report, judged = compare(evidence["before"], evidence["after"], options), evidence["after"]
        not_kept = []
        if keep:
            from kdiff.analysis.kept import keep as keep_verdicts

            not_kept = keep_verdicts(judged.store, report, service, label, now_ns)
    warn([*pair_warnings, *report.warnings, *not_kept])
    text = output_format(output.value).render(report, get_terminal_size().columns, colour())
    show(text, report.exit_code)


@app.command("kernels")
def kernels_command(
    spec: Annotated[str, typer.Argument(metavar="[SPEC]", help="Window; the whole recorded stretch if left out.")] = "",
    store: StoreOption = "./kdiff-capture",
    service: ServiceOption = "",
    window: WindowOption = "15m",
    exact: ExactOption = False,
    output: Annotated[ListFormat, typer.Option("--format", help="Output format.")] = ListFormat.TABLE,
) -> None:
    """List the kernels that ran: launches, average and p99 of each, since when, and what was lost."""
    now_ns = time.time_ns()
    length_ns = timespec.parse_length(window)
    parsed = timespec.parse(spec, "before", now_ns, length_ns, option="SPEC") if spec else None

    from kdiff.analysis import listing

    with _stores() as open_once:
        evidence = _evidence(parsed, store, service, exact, open_once)
        found = listing.read(evidence)
        warnings = [*evidence.store.warnings, *found.warnings]
    warn(warnings)
    if output is ListFormat.JSON:
        show(listing.as_json(found), 0)
    show(listing.as_table(found, get_terminal_size().columns), 0)


app.command("calibrate", help=CALIBRATE_HELP)(calibrate_command)
app.command("export")(export_command)
app.command("import", help=IMPORT_HELP)(import_command)
app.command("delete")(delete_command)
app.command("migrate")(migrate_command)
app.command("history")(history_command)
app.command("gate")(gate_command)
app.command("schema")(schema_command)
app.command("watch")(watch_command)


def main() -> None:
    """Run the command line and exit: 0, 1, 2 or 3 as documented, 130 when interrupted."""
    for stream in (sys.stdout, sys.stderr):
        # A name that the terminal cannot show must not be a traceback.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    signal.signal(signal.SIGTERM, _terminate)  # leave through the context managers: they remove what is temporary
    try:
        refuse_passwords(sys.argv[1:])
        app(prog_name=PROGRAM)
    except KdiffError as error:
        fail(str(error), error.code)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Exception as error:
        if os.environ.get("KDIFF_DEBUG"):
            raise
        kind = type(error).__name__
        fail(f"unexpected {kind}: {printable(str(error).partition(chr(10))[0])[:300]}; {ISSUES}", 2)


Opener = Callable[[str], "Store"]


@contextmanager
def _stores() -> Iterator[Opener]:
    """Yield a function that opens each capture once, and close them all."""
    opened: dict[str, Store] = {}

    def open_once(name: str) -> Store:
        from kdiff.queries.address import is_address
        from kdiff.queries.store import open_store

        key = name
        if not is_address(name):
            # A name that has no real path fails in open_store, with a sentence.
            with suppress(ValueError, OSError):
                key = os.path.realpath(os.path.expanduser(name))
        if key not in opened:
            opened[key] = open_store(name)
        return opened[key]

    try:
        with interruptible():
            yield open_once
    finally:
        for store in opened.values():
            store.close()


def _evidence(spec: Window | Path | None, store: str, service: str, exact: bool, open_once: Opener) -> Evidence:
    from kdiff.analysis.evidence import Evidence, whole_window

    if spec is None or isinstance(spec, Path):
        capture = open_once(store if spec is None else str(spec))
        return Evidence(capture, whole_window(capture, service), service, exact)
    return Evidence(open_once(store), spec, service, exact)


def _version() -> str:
    try:
        return version("kdiff")
    except PackageNotFoundError:
        return "unknown (not installed)"


def _terminate(_number: int, _frame: FrameType | None) -> None:
    raise SystemExit(TERMINATED)
