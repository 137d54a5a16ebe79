"""What `kdiff gate` answers: verdicts for Argo Rollouts and for Flagger, each judged by a `kdiff` of its own.

A process a verdict: one that hangs is killed, one that takes the memory ends alone, and no client sees a traceback. A
request chooses windows, kernels and strictness, never a store or a file: those are the operator's.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import json
import os
import sys
import time
from base64 import b64decode
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from kdiff.analysis import arguments, selectors, timespec
from kdiff.analysis.arguments import MetricName, Undecided
from kdiff.analysis.gate_server import Answer, RefusedError, Request
from kdiff.queries.errors import KdiffError
from kdiff.queries.printable import printable, quoted, shorten

LEAST_TOKEN: Final = 16
RETRY_AFTER_S: Final = 10
_REPEATED: Final = ("kernel", "map", "swapped")
_WINDOWS: Final[tuple[timespec.Side, timespec.Side]] = ("before", "after")
_ARMS: Final = ("control", "canary", "at")
_KNOWN: Final = (
    *(*_WINDOWS, "service", *_REPEATED, "window", "metric"),
    *("tolerance", "quantile", "on_undecided", "label", *_ARMS),
)
"""What a request may say; the same as the options of `kdiff`."""
_MOST_VALUE: Final = 4096
_MOST_VALUES: Final = 64
_KILLED_AFTER_S: Final = 3.0
_PROGRAM: Final = (sys.executable, "-P", "-c", "from kdiff.analysis.cli import main; main()")
_JSON: Final = "application/json"
Values = Mapping[str, Sequence[str]]


@dataclass(frozen=True, slots=True)
class Token:
    """The secret that requests carry. Its file is read anew each time: it can be changed while the gate runs."""

    path: Path

    def read(self) -> bytes:
        """Raises KdiffError where there is none, or one that can be guessed."""
        shown = printable(str(self.path))
        try:
            token = self.path.read_bytes().strip()
        except OSError as error:
            raise KdiffError(
                f"the token file {shown} cannot be read ({error.strerror}): name one that this user may read"
            ) from error
        if len(token) < LEAST_TOKEN or not token.isascii() or len(token.split()) != 1:
            raise KdiffError(
                f"the token in {shown} is not one word of at least {LEAST_TOKEN} characters: "
                "make one with `openssl rand -hex 32`"
            )
        return token

    def allows(self, authorization: str) -> bool:
        """Whether a request's Authorization has it: as Bearer, or as the password of Basic (http://user:TOKEN@host)."""
        kind, _, given = authorization.partition(" ")
        offered = given.strip().encode("utf-8", "replace")
        if kind.lower() == "basic":
            try:
                offered = b64decode(offered, validate=True).partition(b":")[2]
            except ValueError:
                return False
        elif kind.lower() != "bearer":
            return False
        try:
            return hmac.compare_digest(offered, self.read())
        except KdiffError:
            return False


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a `kdiff` said: `told` is its Argo document, None where it failed, then `message` says why."""

    told: dict[str, Any] | None
    message: str = ""
    status: int = 200


@dataclass(slots=True)
class Gate:
    """The answers.

    Attributes:
        fixed: arguments of every `kdiff`, the operator's.
        defaults: of what a request may say, what it is where the request does not.
        token: None where everybody may ask who can reach the gate.
        concurrency: verdicts at a time; one more waits for `wait_s` and is then told to come again.
        timeout_s: how long one may take.
        log: told one line a request.
    """

    fixed: Sequence[str]
    defaults: Values
    token: Token | None
    concurrency: int = 2
    timeout_s: float = 300.0
    wait_s: float = 5.0
    log: Callable[[str], None] = print
    program: Sequence[str] = _PROGRAM
    _slots: asyncio.Semaphore = field(init=False)

    def __post_init__(self) -> None:
        """Count the places."""
        self._slots = asyncio.Semaphore(self.concurrency)

    async def answer(self, request: Request) -> Answer:
        """The answer to a request, which is logged without its query and its headers."""
        began = time.monotonic()
        word = ""
        try:
            answer, word = await self._route(request)
        except RefusedError as error:
            answer = error.answer
        except Exception as error:  # the client's business is only that there is no verdict
            self.log(f"level=error msg={_logged(f'{type(error).__name__}: {error}')}")
            answer = Answer(500, "the gate failed: see its log\n")
        except asyncio.CancelledError:
            self._access(request, 499, "", began)
            raise
        self._access(request, answer.status, word, began)
        return answer

    async def _route(self, request: Request) -> tuple[Answer, str]:
        if request.path == "/healthz":
            _only(request, "GET", "HEAD")
            return Answer(200, '{"status": "ok"}\n', _JSON), ""
        self._admit(request)
        if request.path == "/verdict":
            _only(request, "GET")
            verdict = await self._judge(self._values(request.query))
            return _argo(verdict), _word(verdict)
        if request.path == "/flagger":
            _only(request, "POST")
            verdict = await self._judge(self._values(_metadata(request.body)))
            return _flagger(verdict), _word(verdict)
        raise RefusedError(404, "there is nothing here: ask GET /verdict, POST /flagger or GET /healthz")

    def _admit(self, request: Request) -> None:
        if self.token is None:
            # A page in a browser may reach a loopback address under a name of its own.
            if not _is_local(request.headers.get("host", "")):
                raise RefusedError(403, "the Host is not this one: ask 127.0.0.1, or start the gate with a token")
        elif not self.token.allows(request.headers.get("authorization", "")):
            raise RefusedError(
                401,
                "the token is missing or wrong: send Authorization: Bearer TOKEN",
                {"WWW-Authenticate": 'Bearer realm="kdiff"'},
            )

    def _values(self, given: Iterable[tuple[str, str]]) -> dict[str, Sequence[str]]:
        """What is asked, checked as far as it can be without the store. Raises RefusedError."""
        asked: dict[str, list[str]] = {}
        for name, value in given:
            if name not in _KNOWN:
                raise RefusedError(400, f"there is no parameter {quoted(name)}: known are {', '.join(_KNOWN)}")
            values = value.split("\n") if name in _REPEATED else [value]
            asked.setdefault(name, []).extend(one for one in values if one or name not in _REPEATED)
        for name, values in asked.items():
            if len(values) > (_MOST_VALUES if name in _REPEATED else 1):
                raise RefusedError(400, f"{name} is given {len(values)} times: give it once")
            for value in values:
                if len(value) > _MOST_VALUE or not value.isprintable():
                    raise RefusedError(400, f"{name} holds what no name has, or over {_MOST_VALUE} characters")
        try:
            self._check(asked)
        except KdiffError as error:
            raise RefusedError(400, printable(str(error))) from error
        return {**self._beside(asked), **asked}

    def _beside(self, asked: Values) -> Values:
        """The defaults that go with what is asked: one who names arms has no windows by default, nor the reverse."""
        for named, others in ((_WINDOWS, _ARMS), (_ARMS, _WINDOWS)):
            if any(values[0] for name, values in asked.items() if name in named):
                return {name: values for name, values in self.defaults.items() if name not in others}
        return self.defaults

    def _check(self, asked: Mapping[str, Sequence[str]]) -> None:
        single = {name: values[0] for name, values in asked.items() if values}
        defaults = {name: values[0] for name, values in self._beside(asked).items()}
        window = timespec.parse_length(single.get("window", defaults["window"]))
        said = {name: single.get(name, defaults.get(name, "")) for name in (*_WINDOWS, *_ARMS)}
        try:
            arms = selectors.asked(
                (said["control"], said["canary"]),
                said["at"],
                (said["before"], said["after"]),
                time.time_ns(),
                single.get("window", defaults["window"]),
                lambda _: "at" not in single,  # the operator's own may be a directory
                prefix="",
            )
        except timespec.SpecError as error:
            raise KdiffError(
                f"{error} (a request may not name a directory)" if single.get("at") else str(error)
            ) from error
        for side in () if arms else _WINDOWS:
            if not said[side]:
                raise KdiffError(f"{side} is missing: name a window, like -15m or 2026-11-27T10:00/15m")
            if side in single:
                try:
                    timespec.parse(single[side], side, time.time_ns(), window, lambda _: False, option=side)
                except timespec.SpecError as error:
                    raise KdiffError(f"{error} (a request may not name a directory)") from error
        if "tolerance" in single:
            arguments.share("tolerance", single["tolerance"])
        if "quantile" in single:
            arguments.quantile(single["quantile"])
        for name, choices in (("metric", MetricName), ("on_undecided", Undecided)):
            if name in single and single[name] not in [*choices]:
                raise KdiffError(f"{name} {quoted(single[name])} is not one of {', '.join(choices)}")

    async def _judge(self, values: Values) -> Verdict:
        try:
            async with asyncio.timeout(self.wait_s):
                await self._slots.acquire()
        except TimeoutError:
            raise RefusedError(
                503,
                f"{self.concurrency} verdicts are being judged: ask again later",
                {"Retry-After": str(RETRY_AFTER_S)},
            ) from None
        try:
            return await self._run(values)
        finally:
            self._slots.release()

    async def _run(self, values: Values) -> Verdict:
        asked = [f"--{name.replace('_', '-')}={value}" for name, many in values.items() for value in many]
        environment = {name: value for name, value in os.environ.items() if name != "KDIFF_DEBUG"}
        process = await asyncio.create_subprocess_exec(
            *self.program,
            *self.fixed,
            *asked,
            "--format=argo",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment,
        )
        try:
            async with asyncio.timeout(self.timeout_s):
                out, told = await process.communicate()
        except TimeoutError:
            return Verdict(None, f"there was no verdict within {self.timeout_s:g} s: ask for shorter windows", 504)
        finally:
            await _end(process)
        lines = told.decode("utf-8", "replace").splitlines()
        if process.returncode in (0, 1, 3):
            with contextlib.suppress(ValueError):
                document = json.loads(out)
                for line in lines:
                    self.log(f"level=warning msg={_logged(line)}")
                return Verdict(document)
        self.log(f"level=error exit={process.returncode} msg={_logged(' '.join(lines[-3:]))}")
        if process.returncode == KdiffError.code and lines and lines[-1].startswith("kdiff: "):
            return Verdict(None, printable(lines[-1].removeprefix("kdiff: ")), 502)
        return Verdict(None, "kdiff ended without a verdict: see the gate's log", 500)

    def _access(self, request: Request, status: int, word: str, began: float) -> None:
        verdict = f" verdict={word}" if word else ""
        self.log(
            f"level=info client={request.client} method={request.method} path={_logged(request.path)} "
            f"status={status}{verdict} seconds={time.monotonic() - began:.2f}"
        )


def _argo(verdict: Verdict) -> Answer:
    if verdict.told is None:
        return Answer(verdict.status, json.dumps({"error": verdict.message}) + "\n", _JSON)
    return Answer(200, json.dumps(verdict.told, allow_nan=False) + "\n", _JSON)


def _flagger(verdict: Verdict) -> Answer:
    """200 lets the rollout go on. Flagger shows the body of any other."""
    if verdict.told is None:
        return Answer(verdict.status, f"{verdict.message}\n")
    return Answer(200 if verdict.told["go"] else 409, f"{verdict.told['sentence']}\n")


def _word(verdict: Verdict) -> str:
    return "" if verdict.told is None else str(verdict.told["verdict"])


def _metadata(body: bytes) -> list[tuple[str, str]]:
    """The parameters in what Flagger sends: {"name": ..., "namespace": ..., "phase": ..., "metadata": {...}}."""
    try:
        payload = json.loads(body)
        metadata = payload.get("metadata") or {}
        name = "/".join(str(payload[part]) for part in ("namespace", "name") if payload.get(part))
        pairs = [*({"label": name} | metadata if name else metadata).items()]
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise RefusedError(400, "the body is not what Flagger sends: a JSON object with metadata") from error
    found = []
    for name, value in pairs:
        for one in value if isinstance(value, list) else [value]:
            if not isinstance(one, str):
                raise RefusedError(400, f"the metadata {quoted(name)} is no string: put it in quotes")
            found.append((name, one))
    return found


def _only(request: Request, *methods: str) -> None:
    if request.method not in methods:
        raise RefusedError(405, f"{request.path} takes {' and '.join(methods)}", {"Allow": ", ".join(methods)})


async def _end(process: asyncio.subprocess.Process) -> None:
    """Ended in any case when it returns: asked first, so that it removes what is temporary."""
    if process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(_KILLED_AFTER_S):
            await process.wait()
    except TimeoutError:
        _kill(process)
        await process.wait()
    except asyncio.CancelledError:
        _kill(process)
        raise


def _kill(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()


def _is_local(host: str) -> bool:
    """Whether a Host header names an address, or localhost."""
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
    name = name.strip("[]")
    if name.lower() == "localhost":
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _logged(text: str) -> str:
    """A value of a line of the log."""
    return json.dumps(shorten(printable(text), 600, 0.7))
