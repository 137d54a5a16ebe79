"""What a store holds in all: from when to when, of which services."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kdiff.analysis.window import HOUR_NS, Window, utc_short
from kdiff.queries.errors import KdiffError
from kdiff.queries.narrowing import Narrowing
from kdiff.queries.store import Store

_LAST_NS: Final = 2**63 // HOUR_NS * HOUR_NS


@dataclass(frozen=True, slots=True)
class Extent:
    """From when to when a store holds anything, Unix ns."""

    from_ns: int
    to_ns: int


def extent(store: Store, service: str = "", hosts: Sequence[str] = ()) -> Extent | None:
    """The stretch from the first to the last recorded call or execution; that of the agents if there is none.

    Of `hosts`, none: of all. None where the store holds nothing of them. Raises StoreError.
    """
    sources = ("extent", "minutes_extent") if store.expires else ("extent",)
    narrowing = [Narrowing(tuple(hosts))] if hosts else []
    found = (row for name in sources for row in store.query(name, {"service": service}, *narrowing).to_pylist())
    rows = {row["source"]: row for row in found}
    events = [row for source, row in rows.items() if source != "agent_health" and row["rows"]]
    if events:
        return Extent(min(r["first_ns"] for r in events), max(r["last_ns"] for r in events) + 1)
    health = rows["agent_health"]
    return Extent(health["first_ns"], health["last_ns"]) if health["rows"] else None


def whole_window(store: Store, service: str = "", hosts: Sequence[str] = ()) -> Window:
    """The whole recorded stretch, in whole minutes where it is long. Raises KdiffError where nothing was recorded."""
    found = extent(store, service, hosts)
    # A clock that was off must not hide the rest: no window reaches out of 64 bits or before 1970.
    start, end = (0, 0) if found is None else (max(found.from_ns, 0), min(found.to_ns, _LAST_NS))
    if end <= start:
        raise KdiffError(holdings(store, service))
    return Window(start, end).around()


def holdings(store: Store, service: str = "") -> str:
    """One sentence on what the store holds, for a user who asked for something else. Raises StoreError."""
    known = services(store)
    if service and service not in known:
        names = ", ".join(name for name in known[:8] if name) or "none"
        return f"the store {store.name} holds no launches of the service {service} (services: {names})"
    found = extent(store, service)
    if found is None:
        return f"the store {store.name} is empty: wait for the agent's next flush, or name another with --store"
    return f"the store {store.name} holds {utc_short(found.from_ns)}..{utc_short(found.to_ns)}: choose a window in it"


def services(store: Store) -> list[str]:
    """Those with launches, the busiest first. Raises StoreError."""
    return [row["service"] for row in store.query("services").to_pylist()]
