"""The `kdiff-agent` command."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from enum import StrEnum
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from kdiff.probes.program import Layers, Tracing
from kdiff.queries.errors import KdiffError

if TYPE_CHECKING:
    from kdiff.agent.device import DeviceSummary
    from kdiff.agent.recording import Summary

DEFAULT_DIRECTORY: Final = Path("kdiff-capture")
_STATE: Final = Path("/var/lib/kdiff/drivers.json")


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
        Path, typer.Option("-o", "--output", help="The capture directory; a further recording adds to it.")
    ] = DEFAULT_DIRECTORY,
    duration: Annotated[
        float | None, typer.Option(min=0.0, help="Stop recording after this many seconds; a command runs on.")
    ] = None,
    pid: Annotated[
        list[int] | None, typer.Option("--pid", min=1, help="Record this running process and its descendants.")
    ] = None,
    service: Annotated[str, typer.Option(help="What to call it in the store; the program's name unless given.")] = "",
    layer: Annotated[Layers, typer.Option(help="Which calls to probe; driver costs two traps a launch.")] = Layers.BOTH,
    no_return: Annotated[
        bool, typer.Option("--no-return", help="One trap less a launch: no call duration and no status.")
    ] = False,
    device_time: Annotated[
        str,
        typer.Option(
            metavar="off|on|always|WINDOW/PERIOD",
            help="Time kernels on the device in windows of the command (1s/10s, say); off: of no process.",
        ),
    ] = "",
    state: Annotated[
        Path, typer.Option(help="Where this host keeps what it has confirmed of its CUDA drivers.")
    ] = _STATE,
) -> None:
    """Record launches and syncs of a command, of running processes, or of every process of the host."""
    from kdiff.agent.device_option import DeviceOption
    from kdiff.agent.recorder import Recorder
    from kdiff.agent.recording import Options
    from kdiff.agent.targets import returns_may_kill

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
    any_returns = not (no_return and returns_may_kill())
    tracing = Tracing(
        layer, launch_returns=not no_return, any_returns=any_returns, device_pages=4096 if device.listen else 1
    )
    options = Options(output, tuple(command or ()), frozenset(pid or ()), duration, service, tracing, state, device)
    progress = _Progress()
    summary = Recorder(options, progress.show, progress.announce).run()
    progress.end(summary, output)
    raise typer.Exit(summary.status)


class _Progress:
    """One line on a terminal while it records, and a summary at the end, on stderr."""

    def __init__(self) -> None:
        self._live = sys.stderr is not None and sys.stderr.isatty()

    def show(self, summary: Summary) -> None:
        if self._live:
            line = f"recording {summary.elapsed_s:4.0f} s · {_figures(summary)}"
            _tell(f"\r\x1b[K{line[: os.get_terminal_size(2).columns - 1]}", end="")

    def announce(self, line: str) -> None:
        self._clear()
        _tell(f"kdiff-agent: {line}")

    def end(self, summary: Summary, directory: Path) -> None:
        self._clear()
        _tell(f"recorded {summary.elapsed_s:.1f} s · {_figures(summary)}")
        if summary.device.heard:
            _tell(_device_figures(summary.device))
        if summary.unresolved_launches:
            share = summary.unresolved_launches / summary.launches
            _tell(f"unresolved: {summary.unresolved_launches:,} launches ({share:.2%})")
        _tell(f"wrote {directory} ({summary.bytes_written:,} bytes, {summary.segments} segments)")
        if not summary.events:
            _tell("no CUDA call was seen: does the program use CUDA, and did it while this recorded?")

    def _clear(self) -> None:
        if self._live:
            _tell("\r\x1b[K", end="")


def _figures(summary: Summary) -> str:
    share = summary.cpu_s / summary.elapsed_s if summary.elapsed_s else 0.0
    lost = summary.lost.total + summary.dropped
    return (
        f"{summary.events:,} events · {summary.kernels} kernel{'s' * (summary.kernels != 1)} · {lost:,} lost · "
        f"agent CPU {summary.cpu_s:.2f} s ({share:.1%})"
    )


@app.command(epilog="Example: kdiff-agent doctor --pid 4242")
def doctor(
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- COMMAND...", help="Look at what this would load; it is not started."),
    ] = None,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Where captures would be written.")
    ] = DEFAULT_DIRECTORY,
    pid: Annotated[list[int] | None, typer.Option("--pid", min=1, help="Look at this running process too.")] = None,
    form: Annotated[DoctorFormat, typer.Option("--format", help="How to print it.")] = DoctorFormat.TEXT,
    state: Annotated[Path, typer.Option(help="What `record --state` would be given.")] = _STATE,
) -> None:
    """Say whether recording would work here, and device time, and why not. Nothing on the host is changed."""
    from kdiff.agent.doctor import Question, examine, render

    report = examine(Question(output, state, tuple(pid or ()), tuple(command or ())))
    live = sys.stdout.isatty()
    width = min(shutil.get_terminal_size().columns, 120) if live else 100
    sys.stdout.write(render(report, form.value, width, live and not os.environ.get("NO_COLOR")))
    raise typer.Exit(report.exit_code)


@app.command("device-library", epilog="Example: kdiff-agent device-library -o image/libkdiff-device.so")
def device_library(
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Copy it there, for an image or a mount, and print that path.")
    ] = None,
) -> None:
    """Print where the device library is, for CUDA_INJECTION64_PATH; it is built when it is not there yet."""
    from kdiff.agent.device_option import provide_library

    print(provide_library(output))


def _device_figures(device: DeviceSummary) -> str:
    return (
        f"device time: {device.executions:,} executions in {device.windows:,} windows · {device.skipped:,} skipped · "
        f"{device.lost:,} lost"
    )


def main() -> None:
    """Runs the command: an error is one sentence on stderr and exit code 2, unless KDIFF_DEBUG=1."""
    try:
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
    _tell(f"kdiff-agent: {message}")
    sys.exit(code)


def _tell(line: str, end: str = "\n") -> None:
    """To stderr, if anybody reads it: a recording does not end because nobody does."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        print(line, end=end, file=sys.stderr, flush=True)
