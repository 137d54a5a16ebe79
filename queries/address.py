"""The address of a ClickHouse server, as users write it: clickhouse://user@host:8123/kdiff?cluster=NAME

The password never is a part of it: an address shows in process lists, in logs and in shell histories.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, quote, unquote

from kdiff.queries.errors import StoreError
from kdiff.queries.printable import printable

PASSWORD_VARIABLE: Final = "KDIFF_CLICKHOUSE_PASSWORD"
PASSWORD_FILE_VARIABLE: Final = "KDIFF_CLICKHOUSE_PASSWORD_FILE"
DEFAULT_DATABASE: Final = "kdiff"
DEFAULT_TIMEOUT_S: Final = 300
EXAMPLE: Final = "clickhouse://user@host:8123/kdiff"

_PORTS: Final = {"clickhouse": 8123, "clickhouses": 8443}
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_HOST: Final = re.compile(r"(?:\[([0-9A-Fa-f:.%]+)\]|([^\[\]:\s]+))(?::(\d*))?")
# Up to the last @: a password may hold any character. Or an option that is called so.
_PASSWORD: Final = re.compile(r"//[^@:]*:.*@|[?&]pass\w*=.*", re.IGNORECASE | re.DOTALL)
_BEFORE_SECRETS: Final = re.compile(r"[^:]*:(?://)?")
_SECRET: Final = re.compile(r":.*@", re.DOTALL)
_OPTION_NAME: Final = re.compile(r"[A-Za-z_]{1,20}")
_OPTIONS: Final = ("cluster", "ca", "cert", "key", "timeout")


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server is and as whom it is asked. str() is fit to print; no form of it shows the password."""

    hosts: tuple[tuple[str, int], ...]
    """(name, port) of equivalent servers, tried in this order."""
    database: str = DEFAULT_DATABASE
    user: str = "default"
    password: str = field(default="", repr=False)
    tls: bool = False
    cluster: str = ""
    """The cluster that `kdiff migrate` creates tables on; '' is a single server."""
    ca: str = ""
    """A file of certificates to trust instead of the system's; '' is the system's."""
    cert: str = ""
    key: str = ""
    timeout_s: int = DEFAULT_TIMEOUT_S
    """How long one query may take."""

    @classmethod
    def parse(cls, text: str, environ: Mapping[str, str]) -> Address:
        """The address in `text` with the password from `environ`. Raises StoreError."""
        scheme = _SCHEME.match(text)
        if scheme is None or scheme[1].lower() not in _PORTS:
            raise StoreError(f"{masked(text)} is no address of a server: write {EXAMPLE}, or clickhouses:// for TLS")
        if _PASSWORD.search(text):
            raise StoreError(
                f"the address {masked(text)} holds a password, which every user of this host could read: put it "
                f"into {PASSWORD_VARIABLE} or into a file named by {PASSWORD_FILE_VARIABLE}"
            )
        place, _, query = text[scheme.end() :].partition("?")
        authority, _, path = place.partition("/")
        userinfo, at, hosts = authority.rpartition("@")
        user = unquote(userinfo) if at else "default"
        if not user or ":" in user:
            raise StoreError(f"the address {masked(text)} has no valid user before the @: write {EXAMPLE}")
        options = _options(query, text)
        if ("cert" in options) != ("key" in options):
            raise StoreError(f"the address {masked(text)} needs both cert=PATH and key=PATH, or neither")
        tls = scheme[1].lower() == "clickhouses"
        for name in ("ca", "cert"):
            if name in options and not tls:
                raise StoreError(f"{name}= is for TLS: write clickhouses:// in the address {masked(text)}")
        return cls(
            hosts=tuple(_host(part, _PORTS[scheme[1].lower()], text) for part in hosts.split(",")),
            database=_database(path, text),
            user=user,
            password=_password(environ),
            tls=tls,
            timeout_s=_timeout(options.pop("timeout", ""), text),
            **options,
        )

    def __str__(self) -> str:
        scheme = "clickhouses" if self.tls else "clickhouse"
        hosts = ",".join(host_text(*host) for host in self.hosts)
        return printable(f"{scheme}://{quote(self.user)}@{hosts}/{quote(self.database)}")


def is_address(text: str) -> bool:
    """Whether `text` is meant as an address of a server, rather than a path.

    What looks as if it held a password is, unless a file is called so: a path is repeated in messages.
    """
    if _SCHEME.match(text) is not None:
        return True
    if text.lower().startswith(tuple(f"{scheme}:" for scheme in _PORTS)):
        return True
    return _SECRET.search(text) is not None and not _exists(text)


def refuse_passwords(arguments: Iterable[str]) -> None:
    """Raises StoreError for an address with a password among a command's arguments, before anything repeats it."""
    for argument in arguments:
        text = argument.partition("=")[2] if argument.startswith("-") else argument
        named = text.lower().startswith(tuple(f"{scheme}:" for scheme in _PORTS))
        if named and _SECRET.search(text.partition(":")[2]):
            Address.parse(text, os.environ)


def masked(text: str) -> str:
    """`text` fit to print, without what is or could be a password: anything from a colon to an @, and options."""
    head, at, rest = text.rpartition("@")
    before = _BEFORE_SECRETS.match(head) if at else None
    return printable((f"{before[0]}***@{rest}" if before else text).partition("?")[0])


def host_text(host: str, port: int) -> str:
    """host:port, an IPv6 address in brackets, fit to print."""
    return printable(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")


def _exists(path: str) -> bool:
    try:
        return os.path.lexists(path)
    except ValueError:  # a character that no path has
        return False


def _host(part: str, port: int, text: str) -> tuple[str, int]:
    found = _HOST.fullmatch(part)
    if found is None:
        raise StoreError(f"the address {masked(text)} names no host, or none that can be read: write {EXAMPLE}")
    if found[3]:
        port = int(found[3]) if len(found[3]) <= 5 else 0
    if not 0 < port < 65536:
        raise StoreError(f"the address {masked(text)} has the port {found[3][:9]}: a port is 1 to 65535")
    return found[1] or found[2], port


def _database(path: str, text: str) -> str:
    name = unquote(path.rstrip("/"))
    if "/" in name or "\0" in name or "#" in name:
        raise StoreError(f"the address {masked(text)} has more than a database after the host: write {EXAMPLE}")
    return name or DEFAULT_DATABASE


def _options(query: str, text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in _OPTIONS:
            known = ", ".join(f"{option}=" for option in _OPTIONS)
            # What stands before an @ may be a part of a password.
            shown = f" {name}" if "@" not in query and _OPTION_NAME.fullmatch(name) else ""
            raise StoreError(f"the address {masked(text)} has the unknown option{shown}: known are {known}")
        if not value or name in found:
            raise StoreError(f"the address {masked(text)} must give {name}= one value")
        found[name] = value
    return found


def _timeout(value: str, text: str) -> int:
    if not value:
        return DEFAULT_TIMEOUT_S
    if not value.isdecimal() or len(value) > 5 or not 0 < int(value) <= 86_400:
        raise StoreError(f"the address {masked(text)} has a timeout that is not 1 to 86400 seconds")
    return int(value)


def _password(environ: Mapping[str, str]) -> str:
    given, path = environ.get(PASSWORD_VARIABLE), environ.get(PASSWORD_FILE_VARIABLE)
    if given is not None and path:
        raise StoreError(f"{PASSWORD_VARIABLE} and {PASSWORD_FILE_VARIABLE} are both set: unset one")
    if not path:
        return given or ""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise StoreError(
            f"the file {printable(path)} that {PASSWORD_FILE_VARIABLE} names cannot be read ({reason}): "
            "name a file that holds the password alone, and that this user may read"
        ) from error
    return text.rstrip("\r\n")
