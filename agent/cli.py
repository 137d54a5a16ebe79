"""The `kdiff-agent` command."""

from __future__ import annotations

import os
import shutil
import sys
from enum import StrEnum
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Final

import typer

from kdiff.agent.command_config import config_command
from kdiff.agent.command_run import run_command, size
from kdiff.agent.command_ship import STORE_VARIABLE, ship_command
from kdiff.agent.errors import AgentError
from kdiff.agent.options import (
    STATE,
    ExcludeOption,
    GpuSamplesOption,
    IncludeOption,
    LayerOption,
    NoReturnOption,
    Scheduling,
    SchedulingOption,
    StateOption,
    tracing_of,
)
from kdiff.agent.paths import named_path
from kdiff.agent.settings import FILE, PREFIX, setting
from kdiff.agent.terminal import RecordingProgress, tell
from kdiff.probes.program import Layers
from kdiff.queries.address import is_address, refuse_passwords
from kdiff.queries.errors import KdiffError

DEFAULT_DIRECTORY: Final = Path("kdiff-capture")


class DoctorFormat(StrEnum):
    """How `doctor` prints."""

    TEXT = "text"
    JSON = "json"


app = typer.Typer(
    help="Records what CUDA kernels do on this host, with eBPF.",
    add_completion=False,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"kdiff-agent {version('kdiff')}")
        raise typer.Exit


@app.callback()
def _root(
    _: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


@app.command(
    context_settings={"ignore_unknown_options": False},
    epilog="Example: kdiff-agent record -o before -- python serve.py",
)
def record(
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- COMMAND...", help="Start this and record it; its exit status is passed on."),
    ] = None,
    output: Annotated[
        Path,
        typer.Option(
            "-o",
            "--output",
            parser=named_path,
            metavar="PATH",
            help="The capture directory; a further recording adds to it.",
        ),
    ] = DEFAULT_DIRECTORY,
    duration: Annotated[
        float | None, typer.Option(min=0.0, help="Stop recording after this many seconds; a command runs on.")
    ] = None,
    pid: Annotated[
        list[int] | None, typer.Option("--pid", min=1, help="Record this running process and its descendants.")
    ] = None,
    service: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="What to call all of it in the store; unless given a command by its name, each other process by its "
            "service.",
        ),
    ] = "",
    layer: LayerOption = Layers.BOTH,
    no_return: NoReturnOption = False,
    device_time: Annotated[
        str,
        typer.Option(
            metavar="off|on|always|WINDOW/PERIOD",
            help="Time kernels on the device in windows of the command (1s/10s, say); off: of no process.",
        ),
    ] = "",
    state: StateOption = STATE,
    include: IncludeOption = None,
    exclude: ExcludeOption = None,
    gpu_samples: GpuSamplesOption = True,
    scheduling: SchedulingOption = Scheduling.OFF,
) -> None:
    """Record launches and syncs of a command, of running processes, or of every process of the host."""
    from kdiff.agent.device_option import DeviceOption
    from kdiff.agent.recorder import Recorder
    from kdiff.agent.recording import Options
    from kdiff.agent.selection import Selection

    if command and pid:
        raise typer.BadParameter("give --pid or a command, not both")
    try:
        device = DeviceOption.parse(device_time)
    except ValueError as error:
        raise typer.BadParameter(f"--device-time {error}") from error
    if device.setting and not command:
        raise typer.BadParameter(
            f"--device-time {device_time} sets a command's windows; those of a process that runs are set by "
            "KDIFF_DEVICE_TIME in its own environment: give on, or nothing"
        )
    selection = Selection.parse(include or (), exclude or ())
    if selection and (command or pid):
        raise AgentError("--include and --exclude choose among all processes: leave --pid and the command out")
    tracing = tracing_of(layer, no_return, device.listen, scheduling)
    options = Options(
        output,
        tuple(command or ()),
        frozenset(pid or ()),
        duration,
        service,
        tracing,
        state,
        device,
        selection,
        gpu_samples,
    )
    progress = RecordingProgress()
    summary = Recorder(options, progress.show, progress.announce).run()
    progress.end(summary, output)
    raise typer.Exit(summary.status)


app.command("ship", epilog="Example: kdiff-agent ship before --store clickhouse://writer@ch.example:8123/kdiff")(
    ship_command
)


app.command(
    "run",
    context_settings={"auto_envvar_prefix": PREFIX},
    epilog="Example: kdiff-agent run --store clickhouse://writer@ch.example:8123/kdiff",
)(run_command)

app.command("config", epilog="Example: kdiff-agent config --config agent.toml")(config_command)


@app.command(epilog="Example: kdiff-agent doctor --pid 4242")
def doctor(
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- COMMAND...", help="Look at what this would load; it is not started."),
    ] = None,
    output: Annotated[
        Path,
        typer.Option("-o", "--output", parser=named_path, metavar="PATH", help="Where captures would be written."),
    ] = DEFAULT_DIRECTORY,
    pid: Annotated[list[int] | None, typer.Option("--pid", min=1, help="Look at this running process too.")] = None,
    form: Annotated[DoctorFormat, typer.Option("--format", help="How to print it.")] = DoctorFormat.TEXT,
    state: Annotated[
        Path, typer.Option(parser=named_path, metavar="PATH", help="What `record --state` would be given.")
    ] = STATE,
    store: Annotated[
        str,
        typer.Option(metavar="ADDRESS", help=f"What `run --store` would be given; from {FILE}, else {STORE_VARIABLE}."),
    ] = "",
    max_bytes: Annotated[str, typer.Option(metavar="SIZE", help="What `run --max-bytes` would be given.")] = "",
) -> None:
    """Say whether recording would work here, shipping and device time, and why not. Nothing on the host is changed."""
    from kdiff.agent.doctor import Question, examine, render

    unread = ""
    try:
        store = store or setting("store", os.environ)
    except AgentError as error:
        unread = str(error)
    inherited = os.environ.get(STORE_VARIABLE, "")
    store = store or (inherited if is_address(inherited) else "")
    bound = size(max_bytes) if max_bytes else None
    report = examine(Question(output, state, tuple(pid or ()), tuple(command or ()), store, bound, unread=unread))
    live = sys.stdout.isatty()
    width = min(shutil.get_terminal_size().columns, 120) if live else 100
    sys.stdout.write(render(report, form.value, width, live and not os.environ.get("NO_COLOR")))
    raise typer.Exit(report.exit_code)


@app.command("device-library", epilog="Example: kdiff-agent device-library -o image/libkdiff-device.so")
def device_library(
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            parser=named_path,
            metavar="PATH",
            help="Copy it there, for an image or a mount, and print that path.",
        ),
    ] = None,
) -> None:
    """Print where the device library is, for CUDA_INJECTION64_PATH; it is built when it is not there yet."""
    from kdiff.agent.device_option import provide_library

    print(provide_library(output))


def main() -> None:
    """Runs the command: an error is one sentence on stderr and exit code 2, unless KDIFF_DEBUG=1."""
    try:
        if sys.argv[1:2] not in (["record"], ["doctor"]):  # those have a program's own arguments
            refuse_passwords(sys.argv[2:])
        app()
    except KdiffError as error:
        _fail(str(error), error.code)
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        if os.environ.get("KDIFF_DEBUG") == "1":
            raise
        _fail(f"unexpected {type(error).__name__}: {error}; please report it, with what KDIFF_DEBUG=1 prints", 2)


def _fail(message: str, code: int) -> None:
    tell(f"kdiff-agent: {message}")
    sys.exit(code)
