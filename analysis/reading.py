"""How a window of a store is asked: by rows or roll-ups, of which hosts, and without what is cut out."""

from __future__ import annotations

from functools import cached_property
from typing import Final, Self

import pyarrow as pa

from kdiff.analysis.columns import difference
from kdiff.analysis.scope import Cutting, Scope
from kdiff.analysis.window import HOUR_NS, Window
from kdiff.queries.narrowing import Narrowing, Strata
from kdiff.queries.store import Params, Store

_MOST_KEYS: Final = 5_000
_BY_HOUR: Final = ("census", "graphs_timed", "processes", "bins", "tails")
"""The queries of roll-ups that those of hours answer as well."""
_IN_SCOPE: Final = {"bins": "scoped_bins", "tails": "scoped_tails"}
"""The queries of roll-ups that a part of the hosts or processes has of its own."""
_SUMS: Final = {
    "census": ("kind", "kernel_name", "kernel_key"),
    "bins": ("kernel_key", "bin"),
    "tails": ("kernel_key", "bucket", "bin"),
}
"""Of queries whose numbers add up: what their rows are of."""
ALL: Final = Scope()


class Reading:
    """One window of one store, optionally of one service ('' is all), as far as it is in a scope.

    A window of two hours or more is narrowed to whole UTC minutes, one of five days or more to whole hours, and read
    from the roll-ups, unless `exact`. Of their durations only those from about the `quantile` on are read stretch by
    stretch: what a verdict about it needs.

    A scope that leaves something out is read from rows, or from the roll-ups of minutes, which tell hosts and
    processes: of all hosts what is cut is read from these, and taken off what all of the window holds. Where roll-ups
    are read cuts are widened to whole minutes, on captures too.
    """

    def __init__(
        self,
        store: Store,
        window: Window,
        service: str = "",
        exact: bool = False,
        quantile: float = 0.99,
        scope: Scope = ALL,
    ) -> None:
        """Nothing is read yet."""
        self.store = store
        self.window = window = window.whole()
        self.exact = exact
        self.rolled = bool(window.unit_ns) and not exact
        self.service = service
        self.quantile = quantile
        self.scope = scope
        self.cutting = Cutting(scope, whole_minutes=self.rolled)
        self._params: dict[str, int | str] = {"from_ns": window.from_ns, "to_ns": window.to_ns, "service": service}
        self._narrowing = self.cutting.narrowing(window)
        # What of rows a roll-up of minutes holds, also where the window itself is judged by rows.
        self._minutes = self._narrowing if self.rolled else Cutting(scope, whole_minutes=True).narrowing(window)

    def at(self, quantile: float) -> Self:
        """The same, to judge another quantile; nothing is read yet."""
        return type(self)(self.store, self.window, self.service, self.exact, quantile, self.scope)

    def scoped(self, scope: Scope) -> Self:
        """The same window, of another scope; nothing is read yet."""
        return type(self)(self.store, self.window, self.service, self.exact, self.quantile, scope)

    def query(self, name: str, params: Params | None = None, strata: Strata | None = None) -> pa.Table:
        """Run queries/sql/`name`.sql for this window, service and scope; `params` add to these. Raises StoreError.

        `strata`: queries of samples tell them by these too.
        """
        if strata is not None:
            return self._ask(name, params, self.cutting.narrowing(self.window, strata))
        if not self.scope:
            return self._ask(name, params)
        return self._ask(name, params, self._minutes if name.startswith("minutes_") else self._narrowing)

    def query_rolled(self, name: str, params: Params | None = None, strata: Strata | None = None) -> pa.Table:
        """A query that the roll-ups answer as well, from these where they are used and kept. Raises StoreError.

        Over a capture reading the rows is the shorter way: there its roll-ups would be made for each query.
        """
        if not (self.rolled and self.store.expires):
            return self.query(name, params, strata)
        if self.by_hours and name in _BY_HOUR:
            return self.query(f"hours_{name}", params, strata)
        named = _IN_SCOPE.get(name, f"minutes_{name}") if self.scope else f"minutes_{name}"
        if not self.scope or self.scope.hosts or name not in _SUMS:
            return self.query(named, params, strata)
        # By process and shape roll-ups are a hundred times as long, and what is cut is little beside all.
        cut = self.cutting.narrowing(self.window, inverse=True)
        return difference(self._whole.query_rolled(name, params), self._ask(named, params, cut), _SUMS[name])

    @cached_property
    def hourly(self) -> bool:
        """Whether it is so long that no rows are looked at beside roll-ups. Raises StoreError."""
        if not (self.rolled and self.store.expires and self.window.unit_ns == HOUR_NS):
            return False
        if self.scope:
            return True
        since = self.query("hours_since").to_pylist()[0]["since_ns"]
        return since is not None and int(since) <= self.window.from_ns

    @property
    def by_hours(self) -> bool:
        """Whether it is read from roll-ups of hours, which do not tell who launched what. Raises StoreError."""
        return not self.scope and self.hourly

    @cached_property
    def _whole(self) -> Self:
        return self.scoped(ALL)

    def _ask(self, name: str, params: Params | None, *narrowing: Narrowing) -> pa.Table:
        """Long lists, which belong together place by place, in parts: a server takes 128 KiB a parameter."""
        asked: dict[str, int | str | list[int]] = {**self._params, **(params or {})}
        lists = {key: value for key, value in asked.items() if isinstance(value, list)}
        places = range(0, max(map(len, lists.values()), default=0), _MOST_KEYS)
        if len(places) < 2:
            return self.store.query(name, asked, *narrowing)
        return pa.concat_tables(
            self.store.query(
                name, asked | {key: value[at : at + _MOST_KEYS] for key, value in lists.items()}, *narrowing
            )
            for at in places
        )
