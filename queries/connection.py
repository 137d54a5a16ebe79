"""Connections to a ClickHouse server, and why one fails, in one sentence that names the mend."""

from __future__ import annotations

import os
import re
import socket
import ssl
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import quote, quote_plus

from kdiff.queries.address import PASSWORD_FILE_VARIABLE, PASSWORD_VARIABLE, Address, host_text
from kdiff.queries.errors import StoreError
from kdiff.queries.printable import printable

CONNECT_TIMEOUT_S: Final = 5  # the library tries twice
FIRST_ANSWER_S: Final = 15
"""How long a server may take to say its version: one that is stalled must not hold a command for a query's time."""
_SLACK_S: Final = 10  # the server ends a query that takes too long itself, and says so
_NATIVE_PORTS: Final = (9000, 9440)
_USERINFO: Final = re.compile(r"://[^\s/@]*:\S*@")
_HTML: Final = re.compile(r"<!doctype html|<html|<head>|<body", re.IGNORECASE)


def connect(
    address: Address,
    *,
    database: str | None = None,
    settings: Mapping[str, object] | None = None,
    timeout_s: int | None = None,
    connect_timeout_s: int = CONNECT_TIMEOUT_S,
    compress: bool | str = True,
) -> Any:
    """A client of clickhouse-connect, of the first host of `address` that answers.

    `database` other than the address's: '' is the user's default one, for what must work before kdiff's exists.
    Only a host that cannot be reached gives way to the next: a wrong password is wrong on all of them.
    Raises StoreError.
    """
    for path in filter(None, (address.ca, address.cert, address.key)):
        if not os.access(path, os.R_OK):
            raise StoreError(f"the file {printable(path)} cannot be read: correct the path in the address")
    failure: StoreError | None = None
    for host, port in address.hosts:
        try:
            return _client(address, host, port, database, settings, timeout_s, connect_timeout_s, compress)
        except ImportError as error:
            raise StoreError(f"a part of clickhouse-connect is missing ({error}): pip install kdiff again") from error
        except Exception as error:
            failure = explain(error, address, (host, port))
            failure.__cause__ = error  # whether it may pass, a shipper asks of that
            if not is_passing(error):
                raise failure from error
    if failure is not None and len(address.hosts) > 1:
        raise StoreError(f"none of the servers of {address} can be used; the last: {failure}") from failure
    raise failure or StoreError(f"{address} names no host")


def known_settings(client: Any, wanted: Mapping[str, object]) -> dict[str, object]:
    """The settings of an insert, as far as the server knows them: one that is older lacks some."""
    return {
        name: value
        for name, value in wanted.items()
        if name in client.server_settings or name in client.valid_transport_settings
    }


def _client(
    address: Address,
    host: str,
    port: int,
    database: str | None,
    settings: Mapping[str, object] | None,
    timeout_s: int | None,
    connect_timeout_s: int,
    compress: bool | str,
) -> Any:
    import logging

    import clickhouse_connect
    from urllib3 import Timeout

    # What fails is told by `explain`; the libraries' own warnings would come before it.
    for library in ("clickhouse_connect", "urllib3"):
        logging.getLogger(library).setLevel(logging.CRITICAL)
    named = address.database if database is None else database
    allowed_s = timeout_s or address.timeout_s
    tls: dict[str, Any] = {}
    if address.ca:
        tls["ca_cert"] = address.ca
    if address.cert:
        # The certificate is for the transport, the password for ClickHouse.
        tls |= {"client_cert": address.cert, "client_cert_key": address.key, "tls_mode": "proxy"}
    client: Any = clickhouse_connect.get_client(
        host=host,
        port=port,
        username=address.user,
        password=address.password,
        database=named or "__default__",
        interface="https" if address.tls else "http",
        compress=compress,
        connect_timeout=connect_timeout_s,
        send_receive_timeout=min(FIRST_ANSWER_S, allowed_s),
        client_name="kdiff",
        settings=dict(settings or {}),
        autogenerate_session_id=False,  # sessions tie queries to one server, and to one at a time
        dedicated_pool=True,
        **tls,
    )
    client.timeout = Timeout(connect=connect_timeout_s, read=allowed_s + _SLACK_S)
    return client


def is_passing(error: BaseException) -> bool:
    """Whether the same request may succeed later or on another host: a network's fault, or an overloaded server's."""
    code = getattr(error, "code", None)
    if isinstance(code, int):
        return code in _PASSING
    if _cause(error, ssl.SSLCertVerificationError) is not None:
        return False
    status = re.search(r"HTTP status (\d+)", str(error))
    if status:
        return status[1] in ("429", "500", "502", "503", "504")
    return any(True for _ in _chain(error, OSError)) or "executing HTTP request" in str(error)


def is_lost(error: BaseException) -> bool:
    """Whether the way to the server broke: then the same query may be asked again, of another host or after a restart.

    Not one that ran into a timeout: what took long takes long again.
    """
    if isinstance(getattr(error, "code", None), int) or "timed out" in str(error).lower():
        return False
    return is_passing(error)


# ClickHouse's error codes of states that pass: too many queries, memory, timeouts, parts, no ZooKeeper, read-only
# replica, unknown status of an insert, quorum, shutdown.
_PASSING: Final = frozenset(
    {159, 160, 201, 202, 203, 209, 210, 225, 236, 241, 242, 243, 252, 254, 265, 279, 285, 286, 289, 319, 321, 364, 394}
    | {415, 416, 425, 439, 574, 594, 722, 745, 999}
)


def explain(error: BaseException, address: Address, host: tuple[str, int] | None = None) -> StoreError:
    """`error` as one sentence that names the mend and never the password. A StoreError stays what it is."""
    if isinstance(error, StoreError):
        return error
    named = re.search(r"https?://([^\s/()]+)", str(error))  # by the library: which of the hosts it was
    at = host_text(*host) if host else printable(named[1].rpartition("@")[2]) if named else host_text(*address.hosts[0])
    return StoreError(_without(address.password, _sentence(error, address, at)))


def _sentence(error: BaseException, address: Address, at: str) -> str:
    code = getattr(error, "code", None)
    told = _reason(str(error))
    if isinstance(code, int):
        return _of_code(code, told, address, at)
    text = str(error)
    page = _HTML.search(text)
    status = re.search(r"HTTP status (\d+)", text)
    transport = "executing HTTP request" in text or _cause(error, OSError) is not None
    if page or status or not transport or "BadStatusLine" in text:
        if "client program" in text or _native(at):
            return _wrong_port(at, address)
        what = "with a web page" if page else f"with HTTP status {status[1]}" if status else "as no ClickHouse does"
        return (
            f"{at} answers {what}: it is no ClickHouse server, or a proxy stands before it; "
            "check host and port, and http_proxy and no_proxy in the environment"
        )
    return _of_transport(error, text, told, address, at)


def _of_code(code: int, told: str, address: Address, at: str) -> str:
    if code in (192, 193, 194, 516):
        return (
            f"{at} refuses the user {printable(address.user)}: wrong password, or no such user; "
            f"set {PASSWORD_VARIABLE} or {PASSWORD_FILE_VARIABLE}, and write the user as clickhouse://USER@HOST"
        )
    if code == 81:
        return (
            f"there is no database {printable(address.database)} on {at}: create it with `kdiff migrate`, "
            "or name another after the host"
        )
    if code == 497:
        grant = re.search(r"have the grants? (.+?)(?:\.$|$)", told)
        return (
            f"the user {printable(address.user)} lacks a right on {at}: "
            f"ask its administrator for GRANT {grant[1] if grant else 'SELECT'}"
        )
    if code in (60, 47, 16):
        return f"{at} has no such table or column ({told}): bring its schema up to date with `kdiff migrate`"
    if code == 164:
        return f"the user {printable(address.user)} may only read on {at} ({told}): use one that may write"
    if code in (159, 160, 307, 158):
        return f"{at} gave up a query ({told}): ask for a shorter window, or add ?timeout=SECONDS to the address"
    if code == 241:
        return f"{at} lacks memory for a query ({told}): ask for a shorter window or one service"
    if code in (201, 202):
        return f"{at} has too much to do ({told}): try again later"
    return f"{at} answers: {told}"


def _of_transport(error: BaseException, text: str, told: str, address: Address, at: str) -> str:
    certificate = _cause(error, ssl.SSLCertVerificationError)
    if certificate is not None or "CERTIFICATE_VERIFY_FAILED" in text:
        reason = printable(getattr(certificate, "verify_message", "") or "not trusted")
        return (
            f"the certificate of {at} is not accepted ({reason}): "
            "add ?ca=PATH to the address, or name the host as in its certificate"
        )
    if _cause(error, socket.gaierror) is not None or "NameResolutionError" in text or "Failed to resolve" in text:
        return f"the name of {at} does not resolve: check the address {address}"
    if address.tls and (_cause(error, ssl.SSLError) is not None or "SSLError" in text or "SSL:" in text):
        if "WRONG_VERSION_NUMBER" in text or "RECORD_LAYER" in text.upper() or "UNEXPECTED_EOF" in text:
            return f"{at} does not speak TLS: write clickhouse:// for it, or name its TLS port (8443 by default)"
        return f"TLS with {at} fails ({told}): check certificates and the port (8443 by default)"
    if "timed out" in text.lower() or _cause(error, TimeoutError) is not None:
        if "connect" in text.lower() and "read timed out" not in text.lower():
            return f"{at} does not answer: check that the server runs, and that no firewall stands between"
        return f"{at} took the connection but does not answer in time: see whether the server is stalled or overloaded"
    if _cause(error, ConnectionRefusedError) is not None or "refused" in text:
        return f"nothing listens on {at}: check host and port, and that the server runs"
    unreachable = re.search(r"Failed to establish a new connection: (?:\[Errno \d+\] )?([\w ]+)", text)
    if unreachable:
        return f"{at} cannot be reached ({printable(unreachable[1])}): check host, network and firewall"
    if not address.tls and _tls_port(at):
        return f"{at} closes plain connections: write clickhouses:// for TLS, or name its plain port (8123 by default)"
    if _native(at):
        return _wrong_port(at, address)
    if any(True for _ in _chain(error, OSError)) or "Connection" in text or "IncompleteRead" in text:
        tls = "" if address.tls else ", or it speaks TLS: then write clickhouses://"
        return f"{at} closed the connection without an answer: the server went away{tls}"
    return f"{at} cannot be used ({told}): check the address {address}"


def _wrong_port(at: str, address: Address) -> str:
    return (
        f"{at} is the port of ClickHouse's own protocol: kdiff speaks HTTP; "
        f"name its port, {8443 if address.tls else 8123} by default"
    )


def _native(at: str) -> bool:
    return int(at.rpartition(":")[2]) in _NATIVE_PORTS


def _tls_port(at: str) -> bool:
    return at.endswith((":8443", ":443", ":9440"))


def _chain(error: BaseException | None, kind: type[BaseException]) -> Iterator[BaseException]:
    """The exceptions of one kind behind `error`; urllib3 keeps some as `reason`."""
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        one = waiting.pop()
        if not isinstance(one, BaseException) or id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, kind):
            yield one
        waiting += [one.__cause__, one.__context__, getattr(one, "reason", None), *one.args[:2]]


def _cause(error: BaseException, kind: type[BaseException]) -> BaseException | None:
    return next(_chain(error, kind), None)


def _reason(message: str) -> str:
    """The server's complaint without code, version and URL, on one line."""
    first = " ".join(message.split())
    first = re.sub(r"^.*?(?:Code: \d+\. )?DB::Exception: ", "", first)
    first = re.sub(r" \(for url .*$", "", first)
    first = re.sub(r"(?: \([A-Z][A-Z0-9_]+\))?(?: \(version .*)?$", "", first)
    return printable(first)[:300]


def _without(password: str, text: str) -> str:
    """In any form in which a server or a library may have repeated it; a proxy's as well."""
    if len(password) > 2:
        for form in {password, printable(password), quote(password), quote(password, safe=""), quote_plus(password)}:
            text = text.replace(form, "***")
    return _USERINFO.sub("://***@", text)
