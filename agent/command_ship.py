"""`kdiff-agent ship`: a capture to a ClickHouse server, safe to repeat."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Final

import typer

from kdiff.agent.paths import named_path
from kdiff.agent.terminal import announce, shipping_progress, tell
from kdiff.queries.address import EXAMPLE, Address, is_address, masked
from kdiff.queries.errors import StoreError
from kdiff.queries.printable import printable

if TYPE_CHECKING:
    from kdiff.agent.segment_files import SegmentFile
    from kdiff.agent.shipping import Tally

STORE_VARIABLE: Final = "KDIFF_STORE"
_LOOK_EVERY_S: Final = 1.0
_NAMED_AT_MOST: Final = 5


def _take_more(context: typer.Context, given: str) -> str:
    context.allow_extra_args = True
    return given


StoreOption = Annotated[
    str,
    typer.Option(
        metavar="ADDRESS",
        help=f"The server, like {EXAMPLE}; from {STORE_VARIABLE} unless given.",
        callback=_take_more,
    ),
]
"""The command that has it calls `refuse_more`."""


def refuse_more(context: typer.Context) -> None:
    """Raises StoreError for arguments that there is no use for: the parser would repeat a password in one."""
    if context.args:
        raise StoreError(f"there is no use for {' '.join(map(masked, context.args))}: see --help for what there is")


def store_address(given: str) -> str:
    """The address that `given` or the environment names, '' if neither does. Raises StoreError."""
    if given:
        Address.parse(given, os.environ)
        return given
    inherited = os.environ.get(STORE_VARIABLE, "")
    if not is_address(inherited):  # a directory, which kdiff reads
        return ""
    Address.parse(inherited, os.environ)
    return inherited


def require_directory(named: Path) -> None:
    """Raises StoreError for an address in a directory's place: the name of a directory is repeated in messages."""
    if is_address(str(named)):
        raise StoreError(f"{masked(str(named))} is no directory: name a server with --store, like {EXAMPLE}")


def ship_command(
    context: typer.Context,
    directory: Annotated[Path, typer.Argument(parser=named_path, metavar="DIR", help="The capture directory.")],
    store: StoreOption = "",
    delete: Annotated[
        bool, typer.Option("--delete", help="Remove each segment once the server has confirmed it.")
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on as new segments appear, until Ctrl-C or SIGTERM.")
    ] = False,
    retry_for: Annotated[
        float, typer.Option(min=0.0, metavar="SECONDS", help="How long to try again without a success.")
    ] = 300.0,
) -> None:
    """Send a capture to a ClickHouse server. What the server has already is not sent again."""
    from kdiff.agent.following import Follower
    from kdiff.agent.journal import Journal, server_id
    from kdiff.agent.redo import RedoLog
    from kdiff.agent.segment_files import Listing
    from kdiff.agent.shipping import EndedError, Hooks, Shipper
    from kdiff.queries.segments_read import scan

    refuse_more(context)
    require_directory(directory)
    address = store_address(store)
    if not address:
        raise StoreError(f"no server is named: give --store {EXAMPLE}, or set {STORE_VARIABLE}")
    if not follow and not Listing(directory, lambda _: None).read():
        scan(directory)  # says why there is none
    ending = threading.Event()
    hooks = Hooks(note=announce)
    retry_for = float("inf") if follow else retry_for
    shipper = Shipper(lambda: Address.parse(address, os.environ), hooks, retry_for_s=retry_for, ending=ending)
    follower = Follower(Listing(directory, lambda line: hooks.note(line)), shipper)
    # Another `run` may bound this directory: it is to know what a server has.
    journal = Journal(directory, server=server_id(Address.parse(address, {})), of_run=False)
    log = RedoLog(directory)
    said: set[str] = set()
    began = time.monotonic()
    with _endable(ending):
        try:
            follower.look()
            with shipping_progress(0 if follow else follower.waiting_bytes) as (advance, say):

                def begun(file: SegmentFile) -> None:
                    shipper.end_if_told()
                    journal.begun(file.key)

                def confirmed(file: SegmentFile) -> None:
                    advance(file.size)
                    journal.confirmed(file.key)
                    if delete and file.key not in shipper.tally.outlived:
                        _remove(file.path, said, hooks.note)

                def ship() -> None:
                    with contextlib.suppress(OSError):  # then what it gives up is left
                        log.finish_for_another()
                    follower.round()

                hooks.note, hooks.begun, hooks.confirmed = say, begun, confirmed
                hooks.withdrawn = lambda file: journal.withdrawn(file.key)
                hooks.given_up = lambda file: file.key in log.victims()
                ship()
                while follow and not ending.wait(_LOOK_EVERY_S):
                    ship()
        except EndedError:
            pass
        finally:
            shipper.close()
            journal.close()
            tell(_summary(shipper.tally, time.monotonic() - began))
            _tell_left(shipper.tally, follower.waiting)
    raise typer.Exit(2 if follower.waiting else 0)


def _remove(path: Path, said: set[str], note: Callable[[str], None]) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        reason = error.strerror or "unknown"
        if reason not in said:
            said.add(reason)
            note(f"{printable(str(path))} cannot be removed ({reason}): what the server has stays there too")


@contextlib.contextmanager
def _endable(ending: threading.Event) -> Iterator[None]:
    """The first signal lets what is being sent end, the second does not."""

    def on_signal(number: int, _: FrameType | None) -> None:
        if ending.is_set():
            raise KeyboardInterrupt
        ending.set()

    previous = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _summary(tally: Tally, seconds: float) -> str:
    parts = [
        f"shipped {tally.segments:,} segment{'s' * (tally.segments != 1)}",
        f"{tally.rows:,} rows",
        f"{tally.bytes:,} bytes in {seconds:.1f} s ({tally.rows / max(seconds, 1e-3):,.0f} rows/s)",
    ]
    if tally.known:
        parts.append(f"{tally.known:,} {'was' if tally.known == 1 else 'were'} there already")
    if tally.retries:
        parts.append(f"{tally.retries:,} {'retry' if tally.retries == 1 else 'retries'}")
    return " · ".join(parts)


def _tell_left(tally: Tally, waiting: int) -> None:
    if not waiting:
        return
    named = sorted(tally.left)[:_NAMED_AT_MOST]
    told = f": {', '.join(printable(key) for key in named)}" if named else ""
    more = " and others" if named and waiting > len(named) else ""
    tell(f"left: {waiting:,} segment{'s' * (waiting != 1)}{told}{more}")
