"""A query of queries/sql, narrowed to some hosts and without some stretches of time of processes.

The files say themselves where: each marker is a comment, so that a query that is not narrowed is the file as it stands.

    /* AND scope(host, pid, time) */    rows of these hosts that begin outside of the cuts; scope(host): of these hosts;
                                        scope(host?): of these, and what may be of any
    table /* in scope: other */         the table that tells hosts and processes
    /* by host: host */ X AS bucket     the place of the row's host among the hosts, instead of X
    /* , stratum */                     a further column, stratum: that of the row as a number, see `Strata`
    /* stratum */ toUInt64(0)           that number, instead of 0; stratum(graph_id): of a table that has the column

Names of hosts reach the engine as parameters only. A cut is found by a binary search: a row's process and time are one
number, that of the last start or end of a cut before it tells whether the row is cut.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

Values = int | str | list[int] | list[str]
Stretch = tuple[int, int]
Expression = Callable[[str, str, str], str]

_MOST: Final = 2_000
"""Cuts, or hosts, in one parameter: a server takes 128 KiB."""
_FAR_NS: Final = 30 * 86_400 * 10**9
"""A cut that ends, or begins, so far from the window has no end there: fewer bits tell the others apart."""
_SCOPE: Final = re.compile(r"/\* AND scope\(([\w.?, ]+)\) \*/")
_TABLE: Final = re.compile(r"\w+ /\* in scope: (\w+) \*/")
_PLACE: Final = re.compile(r"/\* by host: ([\w.]+) \*/ .*? AS bucket")
_MINUTE: Final = "minute"
_MINUTE_NS: Final = 60 * 10**9
_STRATUM: Final = re.compile(r"/\* (, )?stratum(\(graph_id\))? \*/( toUInt64\(0\))?")
_FREE: Final = frozenset({"hours_since", "gpu_models"})
"""Queries that read nothing of hosts."""


class NotNarrowedError(ValueError):
    """A query that would read beyond the hosts or within the cuts."""


@dataclass(frozen=True)
class Strata:
    """How rows are told apart: by grid and block (powers of two), whether in a graph, and the model of the GPU.

    A stratum as a number: ((model * 2 + in a graph) * 128 + grid + 1) * 128 + block + 1; 0 for what is not known.

    Attributes:
        models: the number of the model of each GPU by its UUID, 1 and more.
        graphs: whether launches in graphs are told from others where the rows say it.
    """

    models: Mapping[str, int]
    graphs: bool

    @cached_property
    def params(self) -> dict[str, Values]:
        """For `sql`."""
        found: dict[str, Values] = {}
        for number, part in enumerate(_parts(sorted(self.models))):
            found |= {f"gpus_{number}": part, f"models_{number}": [self.models[gpu] for gpu in part]}
        return found

    def sql(self, has_graphs: str | None) -> str:
        """The expression, UInt64; `has_graphs`: whether the table has a column graph_id."""
        model = "toUInt64(0)"
        for number in range(len(_parts(sorted(self.models)))):
            names = f"{{gpus_{number}:Array(String)}}, {{models_{number}:Array(UInt64)}}"
            model = f"toUInt64(transform(gpu_uuid, {names}, {model}))"
        graph = "toUInt64(graph_id != 0)" if self.graphs and has_graphs else "toUInt64(0)"
        grid, block = (_log2("_".join((what, "{}"))) for what in ("grid", "block"))
        return f"(({model} * 2 + {graph}) * 128 + {grid}) * 128 + {block}"


def _log2(column: str) -> str:
    """1 + ceil(log2) of the product of three columns; 0 where it is 0. No floating point: powers of two are met."""
    product = " * ".join(f"toUInt64({column.format(axis)})" for axis in "xyz")
    floor = f"roundToExp2({product})"
    return f"if({product} = 0, 0, bitCount({floor} - 1) + ({floor} != {product}) + 1)"


@dataclass(frozen=True)
class Narrowing:
    """What of a store is read.

    Attributes:
        hosts: only these; none: all.
        cuts: (host, pid, from_ns, to_ns): without what begins in these; host '': of all hosts, pid 0: all processes.
        around: the window that is read, Unix ns.
        by_host: stretches of samples are the hosts.
        inverse: what the cuts take away is read, and nothing else.
        strata: how samples are told apart; None: they are not.
    """

    hosts: tuple[str, ...] = ()
    cuts: tuple[tuple[str, int, int, int], ...] = ()
    around: Stretch = (0, 0)
    by_host: bool = False
    strata: Strata | None = None
    inverse: bool = False

    def narrow(self, name: str, sql: str) -> tuple[str, dict[str, Values]]:
        """The text of the query `name`, narrowed, and the parameters that it needs beside its own.

        Raises NotNarrowedError.
        """
        narrowed, places = _SCOPE.subn(self._condition, _TABLE.sub(r"\1", sql))
        if not places and name not in _FREE and (self.hosts or self.cuts):
            raise NotNarrowedError(f"the query {name} does not say what hosts and processes it reads")
        if self.by_host:
            narrowed = _PLACE.sub(lambda found: f"{self._place(found[1])} AS bucket", narrowed)
        if self.strata is not None:
            strata = self.strata
            narrowed = _STRATUM.sub(
                lambda found: f", {strata.sql(found[2])} AS stratum" if found[1] else strata.sql(found[2]), narrowed
            )
        return narrowed, {name: value for name, value in self.params.items() if f"{{{name}:" in narrowed}

    @cached_property
    def params(self) -> dict[str, Values]:
        """All that any query may need."""
        found: dict[str, Values] = {}
        for number, part in enumerate(_parts(self.hosts)):
            start = number * _MOST
            found |= {f"hosts_{number}": part, f"places_{number}": list(range(start, start + len(part)))}
        found |= self._cut[1]
        if self.inverse and self._cut_minutes:
            found["cut_minutes"] = self._cut_minutes
        return found if self.strata is None else found | self.strata.params

    def _condition(self, found: re.Match[str]) -> str:
        host, *process = (column.strip() for column in found[1].split(","))
        conditions = []
        if self.hosts:
            of = [f"{host.rstrip('?')} IN {{hosts_{n}:Array(String)}}" for n in range(len(_parts(self.hosts)))]
            if host.endswith("?"):
                of.append(f"{host[:-1]} = ''")
            conditions.append(f"({' OR '.join(of)})")
        if process:
            pid, time = process
            as_ns = f"toInt64(toUnixTimestamp({time})) * 1000000000" if time == _MINUTE else time
            cut = [is_cut(host, pid, as_ns) for is_cut in self._cut[0]]
            if self.inverse:
                conditions.append(f"({' OR '.join(cut) or '0'}){self._reach(time)}")
            else:
                conditions += [f"NOT ({one})" for one in cut]
        return "".join(f" AND {condition}" for condition in conditions)

    def _reach(self, time: str) -> str:
        """That a row is of a minute with a cut: tables are in the order of minutes, most of them are not looked at."""
        if time != _MINUTE:
            return ""
        if self._cut_minutes is None:
            return ""
        return f" AND {time} IN {{cut_minutes:Array(UInt32)}}" if self._cut_minutes else " AND 0"

    @cached_property
    def _cut_minutes(self) -> list[int] | None:
        """The minutes of the window that a cut touches, Unix s; None: too many to name them."""
        found: set[int] = set()
        for start, end in _joined([(start, end) for _, _, start, end in self.cuts]):
            first, last = max(start, self.around[0]) // _MINUTE_NS, min(end, self.around[1]) // _MINUTE_NS
            if last - first > _MOST:
                return None
            found.update(range(first, last + 1))
        return [60 * minute for minute in sorted(found)] if len(found) <= 2 * _MOST else None

    def _place(self, host: str) -> str:
        place = "-1"
        for number in range(len(_parts(self.hosts))):
            place = f"transform({host}, {{hosts_{number}:Array(String)}}, {{places_{number}:Array(Int32)}}, {place})"
        return f"toInt32({place})"

    @cached_property
    def _cut(self) -> tuple[list[Expression], dict[str, Values]]:
        """Expressions of host, pid and time, each true of some cut rows, and their parameters."""
        of: dict[tuple[str, int], list[Stretch]] = {}
        base = self.around[0] - _FAR_NS
        span = self.around[1] + _FAR_NS - base
        for host, pid, start, end in self.cuts:
            its = max(0, start - base), min(span, end - base)
            if its[1] > its[0]:
                of.setdefault((host, pid), []).append(its)
        expressions: list[Expression] = []
        params: dict[str, Values] = {}
        for named, single in ((False, False), (True, False), (False, True), (True, True)):
            whose = sorted(process for process in of if (bool(process[0]), bool(process[1])) == (named, single))
            pieces = [(process, piece) for process in whose for piece in _joined(of[process])]
            fits = min(_MOST, (2**63 - 1) // span - 1)
            for at in range(0, len(pieces), fits):
                number = len(expressions)
                part = pieces[at : at + fits]
                expressions.append(_Search(number, base, span, named, single).expression)
                params |= _search_params(number, part, span, named, single)
        return expressions, params


@dataclass(frozen=True, slots=True)
class _Search:
    """Whether a row is cut, by one chunk of the cuts. Code 0: of a process without any."""

    number: int
    base: int
    span: int
    named: bool
    single: bool

    def expression(self, host: str, pid: str, time: str) -> str:
        """Of the columns of a row."""
        n = self.number
        code = "toUInt64(1)"
        if self.named:
            of = f"{{cut_hosts_{n}:Array(String)}}, {{cut_codes_{n}:Array(UInt64)}}"
            code = f"toUInt64(transform({host}, {of}, toUInt64(0)))"
        if self.single:
            process = f"{code} * 4294967296 + {pid}" if self.named else f"toUInt64({pid})"
            of = f"{{cut_processes_{n}:Array(UInt64)}}, {{cut_numbers_{n}:Array(UInt64)}}"
            code = f"transform({process}, {of}, toUInt64(0))"
        since = f"toUInt64(least(greatest({time} - {self.base}, 0), {self.span - 1}))"
        edges, starts = f"{{cut_edges_{n}:Array(UInt64)}}", f"{{cut_starts_{n}:Array(UInt64)}}"
        return f"roundDown({code} * {self.span} + {since}, {edges}) IN {starts}"


def _search_params(
    n: int, pieces: Sequence[tuple[tuple[str, int], Stretch]], span: int, named: bool, single: bool
) -> dict[str, Values]:
    hosts = {host: code for code, host in enumerate(sorted({host for (host, _), _ in pieces}), 1)}
    processes = sorted({process for process, _ in pieces})
    codes = {(host, pid): hosts[host] if named else 1 for host, pid in processes}
    params: dict[str, Values] = {}
    if named:
        params |= {f"cut_hosts_{n}": list(hosts), f"cut_codes_{n}": list(hosts.values())}
    if single:
        codes = {process: code for code, process in enumerate(processes, 1)}
        params[f"cut_processes_{n}"] = [(hosts[host] << 32 if named else 0) + pid for host, pid in processes]
        params[f"cut_numbers_{n}"] = list(codes.values())
    starts = [codes[process] * span + start for process, (start, _) in pieces]
    ends = [codes[process] * span + end for process, (_, end) in pieces]
    return params | {f"cut_edges_{n}": sorted({0, *starts, *ends}), f"cut_starts_{n}": sorted(starts)}


def _joined(stretches: Sequence[Stretch]) -> list[Stretch]:
    """As disjoint ones that do not touch, ascending."""
    found: list[Stretch] = []
    for start, end in sorted(stretches):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((start, end))
    return found


def _parts(values: Sequence[str]) -> list[list[str]]:
    return [list(values[at : at + _MOST]) for at in range(0, len(values), _MOST)]
