"""What every command says and where: data on stdout, messages and progress on stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final, NoReturn

import typer

from kdiff.queries.errors import KdiffError
from kdiff.queries.printable import printable

PROGRAM: Final = "kdiff"
INTERRUPTED: Final = 130
TERMINATED: Final = 143

Advance = Callable[[int], None]
"""Says how much more is done, in the unit of the total."""


def show(text: str, code: int) -> NoReturn:
    """Write `text` to stdout and exit with `code`. A reader that has gone away changes neither. Raises KdiffError."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        # The interpreter flushes once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        raise KdiffError(f"cannot write the output ({error.strerror}): free space, or write elsewhere") from error
    raise typer.Exit(code)


def warn(warnings: Iterable[str]) -> None:
    """Each warning once, on stderr."""
    for warning in dict.fromkeys(warnings):
        tell(f"{PROGRAM}: warning: {printable(warning)}")


def fail(message: str, code: int) -> NoReturn:
    """Say what went wrong and exit with `code`."""
    tell(f"{PROGRAM}: {printable(message)}")
    sys.exit(code)


def tell(line: str) -> None:
    """To stderr, if anybody reads it: the exit status must not depend on that."""
    try:
        print(line, file=sys.stderr, flush=True)
    except (OSError, ValueError):
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115  # what is buffered must not fail again at exit


def colour() -> bool:
    """Whether stdout wants colour."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def confirmed(question: str, otherwise: str) -> None:
    """Return where the user says yes. Raises KdiffError: no, or nobody to ask; `otherwise` then names the option."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise KdiffError(f"nothing was done, as there is no terminal to ask on: give {otherwise}")
    try:
        print(f"{printable(question)} [y/N] ", end="", file=sys.stderr, flush=True)
        answer = sys.stdin.readline()
    except OSError as error:
        raise KdiffError(f"nothing was done, as the terminal does not answer: give {otherwise}") from error
    if answer.strip().lower() not in ("y", "yes"):
        raise KdiffError(f"nothing was done: answer y, or give {otherwise}")


@contextmanager
def progress(what: str, total: int) -> Iterator[Advance]:
    """A bar on stderr while something long goes on, on terminals only."""
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield lambda _more: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(file=sys.stderr), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda more: bar.advance(task, more)


@contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C inside is exit status 130: Typer would make it 1, which says REGRESSED."""
    try:
        yield
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
