"""Which kernels are in the table `kernels` already, of a recording that may go on for months.

At most MOST pairs of kernel and service are remembered, those that were used last. One that fell out is announced again
when it is used again, so that every row's kernel has been announced; `kernels` has it twice then, as it has those of
two recordings.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

import pyarrow as pa

from kdiff.agent.names import Kernel
from kdiff.agent.rows import kernel_rows

MOST: Final = 20_000
"""Pairs of a kernel and a service: with names of 1 kB, 40 MB."""

_Pair = tuple[int, str]  # a kernel's id, and a service


class Announced:
    """The kernels of a host that were announced, each with the services that launched it."""

    def __init__(self, host: str, most: int = MOST) -> None:
        """Nothing is announced yet."""
        self._host = host
        self._most = most
        self._known: OrderedDict[_Pair, tuple[Kernel, int]] = OrderedDict()  # and when, Unix ns; the last used last

    @property
    def kernels(self) -> int:
        """How many different ones are remembered."""
        return len({ident for ident, _ in self._known})

    def fresh(self, used: Iterable[tuple[Kernel, str]], now_ns: int) -> pa.Table | None:
        """Rows of `kernels` for those of the pairs that are to be announced now (Unix); None where there are none."""
        fresh: dict[_Pair, tuple[Kernel, str]] = {}
        for kernel, service in used:
            pair = kernel.id, service
            if pair in self._known:
                self._known.move_to_end(pair)
            else:
                fresh[pair] = kernel, service
                self._known[pair] = kernel, now_ns
        while len(self._known) > self._most:
            self._known.popitem(last=False)
        return kernel_rows(fresh.values(), now_ns, self._host) if fresh else None

    def again(self) -> list[pa.Table]:
        """Rows of `kernels` for all that is remembered, each first seen when it was announced."""
        by_time: dict[int, list[tuple[Kernel, str]]] = {}
        for (_, service), (kernel, at_ns) in self._known.items():
            by_time.setdefault(at_ns, []).append((kernel, service))
        tables = [kernel_rows(pairs, at_ns, self._host) for at_ns, pairs in sorted(by_time.items())]
        return (
            [pa.concat_tables(tables, promote_options="none").unify_dictionaries().combine_chunks()] if tables else []
        )
