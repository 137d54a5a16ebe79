"""`kdiff delete`: remove what is older than a time, from a server or a capture directory."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Final

import typer

from kdiff.analysis import arguments
from kdiff.analysis.options import StoreOption
from kdiff.analysis.terminal import confirmed, interruptible, progress, show, warn
from kdiff.analysis.window import HOUR_NS, MINUTE_NS, utc_short
from kdiff.queries.errors import KdiffError
from kdiff.queries.printable import printable

if TYPE_CHECKING:
    from kdiff.queries.deletion import Deletion, Selection

_EXAMPLE: Final = "kdiff delete --before -30d --service NAME"


def delete_command(
    before: Annotated[str, typer.Option("--before", metavar="TIME", help="Delete what is older.")] = "",
    service: Annotated[str, typer.Option("--service", metavar="NAME", help="Only of this service.")] = "",
    all_services: Annotated[bool, typer.Option("--all-services", help="Of every service.")] = False,
    store: StoreOption = "./kdiff-capture",
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Delete what is older than a time: events, executions, accounts and roll-ups, after asking."""
    if not before:
        raise KdiffError(f"--before missing: try `{_EXAMPLE}`")
    if bool(service) == all_services:
        raise KdiffError("say whose rows: give either --service NAME or --all-services")
    now_ns = time.time_ns()
    before_ns = arguments.instant("--before", before, now_ns)
    if before_ns > now_ns:
        raise KdiffError(f"--before {printable(before)} is in the future: give a time that has passed, or now")

    from kdiff.queries.address import is_address
    from kdiff.queries.deletion import Selection

    # What a server rolls up by the hour is not cut within one.
    unit = HOUR_NS if is_address(store) else MINUTE_NS
    selection = Selection(before_ns // unit * unit, None if all_services else service)
    until = utc_short(selection.before_ns)
    whose = "every service" if all_services else f"the service {service}"
    with interruptible(), _planned(store, selection) as (name, deletion):
        warn(deletion.warnings)
        if not deletion.rows:
            show(f"nothing of {printable(whose)} is older than {until} in {name}\n", 0)
        counts = ", ".join(f"{rows:,} of {table}" for table, rows in deletion.rows.items())
        if not yes:
            confirmed(f"delete from {name} all of {whose} that is older than {until}: rows {counts}?", "--yes")
        with progress("deleting", deletion.steps) as advance:
            deletion.run(advance)
        show(f"deleted from {name} what is older than {until} of {printable(whose)}: rows {counts}\n", 0)


@contextmanager
def _planned(store: str, selection: Selection) -> Iterator[tuple[str, Deletion]]:
    """The store's name, fit to print, and the deletion. Raises StoreError."""
    from kdiff.queries.address import Address, is_address

    if is_address(store):
        from kdiff.queries.deletion_server import ServerDeletion
        from kdiff.queries.server import open_client

        address = Address.parse(store, os.environ)
        with open_client(address) as client:
            yield str(address), ServerDeletion(client, address, selection)
    else:
        from kdiff.queries.deletion import CaptureDeletion
        from kdiff.queries.store import capture_path

        root = capture_path(store)
        yield printable(str(root)), CaptureDeletion(root, selection)
