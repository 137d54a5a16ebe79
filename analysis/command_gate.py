"""`kdiff gate`: verdicts over HTTP, for Argo Rollouts and Flagger."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import re
import signal
import socket
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from kdiff.analysis import arguments, selectors, timespec
from kdiff.analysis.arguments import MetricName, Undecided, Unpaired
from kdiff.analysis.options import (
    ExactOption,
    MaxLossOption,
    MaxUnjudgedOption,
    NoCalibrationOption,
    NoStrataOption,
    OneGpuModelOption,
    PolicyOption,
    ServiceOption,
    StoreOption,
    SwappedOption,
    UnpairedOption,
    WindowOption,
)
from kdiff.analysis.terminal import PROGRAM, tell
from kdiff.queries.errors import KdiffError
from kdiff.queries.printable import printable

if TYPE_CHECKING:
    from kdiff.analysis.gate import Gate, Token

DEFAULT_LISTEN: Final = "127.0.0.1:9465"
_PLACE: Final = re.compile(r"(?:\[([0-9A-Fa-f:]+)\]|([^\[\]:\s]+)):(\d{1,5})")
_PATIENCE_S: Final = 20.0


def gate_command(
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Serve there; beyond loopback a token is needed.")
    ] = DEFAULT_LISTEN,
    token_file: Annotated[
        str,
        typer.Option(
            "--token-file", metavar="FILE", envvar="KDIFF_GATE_TOKEN_FILE", help="Ask for the token in this file."
        ),
    ] = "",
    store: StoreOption = "./kdiff-capture",
    before: Annotated[str, typer.Option("--before", metavar="SPEC", help="Where a request does not say.")] = "",
    after: Annotated[str, typer.Option("--after", metavar="SPEC", help="Where a request does not say.")] = "",
    control: Annotated[str, typer.Option("--control", metavar="ARM", help="Where a request does not say.")] = "",
    canary: Annotated[str, typer.Option("--canary", metavar="ARM", help="Where a request does not say.")] = "",
    at: Annotated[str, typer.Option("--at", metavar="SPEC", help="Where a request does not say.")] = "",
    service: ServiceOption = "",
    window: WindowOption = "15m",
    metric: Annotated[MetricName, typer.Option("--metric", help="Where a request does not say.")] = MetricName.AUTO,
    tolerance: Annotated[
        str, typer.Option("--tolerance", metavar="SHARE", help="Where a request does not say.")
    ] = "5%",
    quantile: Annotated[str, typer.Option("--quantile", metavar="Q", help="Where a request does not say.")] = "0.99",
    policy: PolicyOption = "",
    swapped: SwappedOption = None,
    on_undecided: Annotated[
        Undecided | None, typer.Option("--on-undecided", help="Whether Flagger goes on; halts unless pass.")
    ] = None,
    unpaired: UnpairedOption = Unpaired.UNDECIDED,
    max_loss: MaxLossOption = "1%",
    max_unjudged: MaxUnjudgedOption = "5%",
    one_gpu_model: OneGpuModelOption = False,
    no_calibration: NoCalibrationOption = False,
    no_strata: NoStrataOption = False,
    exact: ExactOption = False,
    keep: Annotated[
        bool, typer.Option("--keep/--no-keep", help="Keep verdicts in the store, where it may be written.")
    ] = True,
    concurrency: Annotated[
        int, typer.Option("--concurrency", metavar="N", help="Verdicts at a time, a process each.")
    ] = 2,
    timeout: Annotated[str, typer.Option("--timeout", metavar="LENGTH", help="How long a verdict may take.")] = "5m",
) -> None:
    """Answer verdicts over HTTP: GET /verdict for Argo Rollouts, POST /flagger, GET /healthz.

    Example:  kdiff gate --store clickhouse://reader@db/kdiff --before now-1h
    """
    host, port = place(listen)
    length_ns = timespec.parse_length(window)
    timeout_s = timespec.parse_length(timeout) / 1e9
    arguments.share("--tolerance", tolerance)
    arguments.quantile(quantile)
    for name, value in (("--max-loss", max_loss), ("--max-unjudged", max_unjudged)):
        arguments.share(name, value)
    sides: tuple[tuple[timespec.Side, str], ...] = (("before", before), ("after", after))
    for side, spec in sides:
        if spec:
            timespec.parse(spec, side, time.time_ns(), length_ns)
    _check_arms(control, canary, at, before or after, length_ns)
    if not 1 <= concurrency <= 64:
        raise KdiffError(f"--concurrency {concurrency} is not between 1 and 64")
    if timeout_s > 86_400:
        raise KdiffError(f"--timeout {printable(timeout)} is over a day: give a shorter one")

    from kdiff.analysis.gate import Gate, Token

    token = Token(Path(token_file)) if token_file else None
    if token is not None:
        token.read()
    fixed = [
        f"--store={store}",
        f"--unpaired={unpaired.value}",
        f"--max-loss={max_loss}",
        f"--max-unjudged={max_unjudged}",
        *(["--one-gpu-model"] if one_gpu_model else []),
        *([f"--policy={policy}"] if policy else []),
        *(f"--swapped={pattern}" for pattern in swapped or ()),
        *(["--no-calibration"] if no_calibration else []),
        *(["--no-strata"] if no_strata else []),
        *(["--exact"] if exact else []),
        "--keep" if keep else "--no-keep",
    ]
    defaults = {
        "before": before,
        "after": after,
        "control": control,
        "canary": canary,
        "at": at,
        "service": service,
        "window": window,
        "metric": metric.value,
        "tolerance": tolerance,
        "quantile": quantile,
        "on_undecided": on_undecided.value if on_undecided else "",
    }
    gate = Gate(
        fixed,
        {name: [value] for name, value in defaults.items() if value},
        token,
        concurrency,
        timeout_s,
        log=_log,
    )
    _refuse_missing(store)
    listening = _listening(host, port, token)
    at = listening.getsockname()
    shown = f"[{at[0]}]:{at[1]}" if ":" in at[0] else f"{at[0]}:{at[1]}"
    tell(f"{PROGRAM}: the gate listens on http://{shown}")
    asyncio.run(_serve(gate, listening))


def _check_arms(control: str, canary: str, at: str, windows: str, length_ns: int) -> None:
    """Raises SpecError where a request could not be answered by these defaults, each of which may be ''."""
    named = {"--control": control, "--canary": canary}
    for name, value in named.items():
        if value:
            selectors.parse(value, name)
    if at:
        timespec.parse(at, "after", time.time_ns(), length_ns, option="--at")
    if windows and (control or canary or at):
        raise timespec.SpecError(
            "--before and --after name two windows, --control, --canary and --at two arms of one: give defaults of one "
            "kind, and let requests name the other"
        )


def place(text: str) -> tuple[str, int]:
    """(host, port) of HOST:PORT; port 0 is any that is free. Raises KdiffError."""
    found = _PLACE.fullmatch(text)
    if found is None or int(found[3]) > 65535:
        raise KdiffError(f"--listen '{printable(text)[:80]}' is not HOST:PORT: write {DEFAULT_LISTEN}")
    return found[1] or found[2], int(found[3])


def _listening(host: str, port: int, token: Token | None) -> socket.socket:
    """The socket. Raises KdiffError: it cannot be had, or others could ask without a token."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, where = found[0][0], found[0][4]
        if token is None and not ipaddress.ip_address(str(where[0]).partition("%")[0]).is_loopback:
            raise KdiffError(
                f"--listen {printable(host)} can be reached from elsewhere: give --token-file FILE, or listen on "
                "127.0.0.1"
            )
        return socket.create_server((str(where[0]), port), family=family, backlog=64)
    except OSError as error:
        resolved = not isinstance(error, socket.gaierror)
        reason = os.strerror(error.errno) if resolved and error.errno else "it does not resolve"
        raise KdiffError(
            f"cannot listen on {printable(host)}:{port} ({printable(reason)}): choose another with --listen"
        ) from error


def _refuse_missing(store: str) -> None:
    """Raises StoreError for a capture that cannot be one: a server may come and go, a path is a slip."""
    from kdiff.queries.address import Address, is_address

    if is_address(store):
        Address.parse(store, os.environ)
    elif not os.path.isdir(os.path.expanduser(store)):
        raise KdiffError(f"there is no capture at {printable(store)}: name another store with --store")


async def _serve(gate: Gate, listening: socket.socket) -> None:
    from kdiff.analysis.gate_server import Server

    server = Server(gate.answer)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.stop)
    await server.serve(listening, _PATIENCE_S)


def _log(line: str) -> None:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3]
    # A log that cannot be written, on a full disk or to a reader that is gone, must not cost a verdict.
    with contextlib.suppress(OSError, ValueError):
        print(f"time={now}Z {line}", file=sys.stderr, flush=True)
