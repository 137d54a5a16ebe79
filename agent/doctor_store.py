"""`doctor`: whether `run` could ship to the server that is named. Nothing is written there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from kdiff.agent.doctor_check import Check, fail, ok, warn
from kdiff.queries import migrations
from kdiff.queries.address import Address
from kdiff.queries.connection import connect, explain
from kdiff.queries.errors import StoreError
from kdiff.queries.tables import TABLES

GROUP: Final = "Store"
WAITS: Final = "until then rows wait in the spool"
_ANSWER_WITHIN_S: Final = 5
_WRITTEN: Final = (*TABLES, "shipped_segments")


def store(text: str, environ: Mapping[str, str]) -> list[Check]:
    """The server at an address: reached, of this version's schema, and SELECT and INSERT on what `run` writes.

    No check shows the password.
    """
    try:
        address = Address.parse(text, environ)
    except StoreError as error:  # `run` would not start
        fact, mend = _parts(error)
        return [fail(GROUP, "address", fact, mend)]
    try:
        client = connect(address, timeout_s=_ANSWER_WITHIN_S)
    except StoreError as error:
        return [_broken("server", error)]
    try:
        checks = [ok(GROUP, "server", f"{address} answers, ClickHouse {client.server_version}")]
        checks.append(_schema(client, address))
        checks.append(_rights(client, address))
        return checks
    finally:
        client.close()


def unread(why: str) -> Check:
    """A file of settings that cannot be read by whoever asks: `run` may be able to."""
    fact, mend = _parts(why)
    return warn(GROUP, "settings", fact, f"{mend}; run doctor as the user that `run` is")


def _schema(client: Any, address: Address) -> Check:
    try:
        migrations.check(client)
    except Exception as error:  # the library's are generated classes
        return _broken("schema", explain(error, address))
    return ok(GROUP, "schema", f"version {migrations.migrations()[-1].version}, which is this kdiff's")


def _rights(client: Any, address: Address) -> Check:
    for table in _WRITTEN:
        try:
            # No rows: only what may be done is asked, of the views behind the table too.
            client.command(f"INSERT INTO {table} SELECT * FROM {table} WHERE 0")
        except Exception as error:  # as above
            return _broken("rights", explain(error, address))
    return ok(GROUP, "rights", f"{address.user} may SELECT and INSERT")


def _broken(name: str, error: StoreError) -> Check:
    fact, mend = _parts(error)
    return warn(GROUP, name, fact, f"{mend}; {WAITS}" if mend else WAITS)


def _parts(error: StoreError | str) -> tuple[str, str]:
    """What is wrong, and the mend that the sentence names behind it."""
    fact, _, mend = str(error).partition(": ")
    return fact, mend
