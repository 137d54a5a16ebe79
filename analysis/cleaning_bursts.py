"""Autotuning: a process that tries several configurations of one kernel, each some times in a row, to keep the fastest.

What gives it away is not that a kernel has several configurations, which any kernel has whose grid follows its input,
but that all of this is true: they differ in what no input decides (the block; on the device also registers and static
shared memory), each is launched at least LEAST times in a row and is rare otherwise, none comes again before all were
tried, and the process does next to nothing else meanwhile. Where one of these fails the launches are kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kdiff.analysis.columns import column
from kdiff.analysis.coverage import hosts_of
from kdiff.analysis.evidence import Evidence
from kdiff.analysis.scope import Cut
from kdiff.analysis.values import by_index
from kdiff.analysis.window import NS

LEAST: Final = 5
"""Launches in a row; Triton's do_bench makes eight at the very least."""
VARIANTS: Final = 3
"""Configurations in a burst, at least."""
GAP_NS: Final = 30 * NS
"""The next configuration is compiled before it is tried."""
PAD_NS: Final = NS // 10
"""Around a burst: executions begin after their launches, and times of the two have different clocks."""
MOST_LAUNCHES: Final = 2_000
"""Of one configuration, in all bursts of a window."""
_MOST_ROWS: Final = 200_000
_MOST_VARIANTS: Final = 4_000
_MOST_BURSTS: Final = 100
_BESIDE: Final = 2  # other kernels, of which one clears the cache between two launches
_BESIDE_SHARE: Final = 1.25  # of their launches by those of the kernel
_OWN_SHARE: Final = 2.0  # of the kernel's launches by those of the burst: the configuration that wins is not rare


@dataclass(frozen=True, slots=True)
class Burst:
    """A kernel of one process whose configurations were tried one after the other, Unix ns; `launches` of them."""

    host: str
    pid: int
    kernel_key: int
    from_ns: int
    to_ns: int
    variants: int
    launches: int

    @property
    def cut(self) -> Cut:
        """What to leave out."""
        return Cut(self.host, self.pid, max(self.from_ns - PAD_NS, 0), self.to_ns + PAD_NS, "autotuning")


def read(evidence: Evidence, of_calls: bool = False) -> list[Cut]:
    """The bursts of autotuning in a window; none where it is read from roll-ups, which do not tell. Raises StoreError.

    They are looked for in executions, which tell more of a configuration, and if `of_calls` in launches. One query
    where no kernel has two configurations that no input decides.
    """
    if evidence.rolled:
        return []
    found: list[tuple[str, Burst]] = []
    for source in [name for name, asked in (("device", evidence.timed), ("launch", of_calls)) if asked]:
        keys = sorted(row["kernel_key"] for row in evidence.query("varied", {"source": source}).to_pylist())
        if keys:
            suspects = evidence.query("variants", {"source": source, "most": MOST_LAUNCHES, "keys": keys}).to_pylist()
            found += [(source, burst) for burst in _bursts(evidence, source, suspects)]
    # The largest first: each is asked about.
    found.sort(key=lambda one: (-one[1].launches, one[1].from_ns))
    return [burst.cut for source, burst in found[:_MOST_BURSTS] if _alone(evidence, source, burst)]


def _bursts(evidence: Evidence, source: str, suspects: Sequence[Mapping[str, Any]]) -> list[Burst]:
    chosen = _few(suspects)
    if not chosen:
        return []
    wanted = {(row["host"], row["pid"], row["kernel_key"]): set(row["variants"]) for row in chosen}
    variants = sorted({variant for its in wanted.values() for variant in its})
    keys = sorted({key for _, _, key in wanted})
    rows = evidence.query("variant_launches", {"source": source, "keys": keys, "variants": variants})
    found = []
    for (host, pid, key), its in _by_kernel(rows):
        if (rare := wanted.get((host, pid, key))) is not None:
            which = np.isin(its["variant"], np.array(sorted(rare), np.uint64))
            found += bursts(host, pid, key, its["timestamp_ns"][which], its["variant"][which], its["code"][which])
    return found


def bursts(
    host: str,
    pid: int,
    kernel_key: int,
    times: NDArray[np.int64],
    variants: NDArray[np.uint64],
    codes: NDArray[np.uint64],
) -> list[Burst]:
    """The bursts among the launches of the rare configurations of one kernel in one process, each in any order.

    Args:
        host: of the process.
        pid: of it.
        kernel_key: stands for the kernel.
        times: Unix ns, shape (n,).
        variants: the configuration of each launch, shape (n,).
        codes: what of it no input of the kernel decides, shape (n,).
    """
    if not len(times):
        return []
    order = np.argsort(times, kind="stable")
    times, variants, codes = times[order], variants[order], codes[order]
    first = np.flatnonzero(np.concatenate([[True], variants[1:] != variants[:-1]]))
    last = np.append(first[1:], len(times)) - 1
    found: list[Burst] = []
    runs: list[int] = []
    tried: set[int] = set()

    def close() -> None:
        if len(runs) >= VARIANTS and len({int(codes[first[run]]) for run in runs}) > 1:
            begin, end = first[runs[0]], last[runs[-1]]
            span = int(times[begin]), int(times[end]) + 1
            found.append(Burst(host, pid, kernel_key, *span, len(runs), int(end - begin) + 1))
        runs.clear()
        tried.clear()

    for run in range(len(first)):
        variant = int(variants[first[run]])
        if runs and (variant in tried or times[first[run]] - times[last[runs[-1]]] > GAP_NS):
            close()
        if last[run] - first[run] + 1 < LEAST or times[last[run]] - times[first[run]] > GAP_NS:
            close()
            continue
        runs.append(run)
        tried.add(variant)
    close()
    return found


def _alone(evidence: Evidence, source: str, burst: Burst) -> bool:
    """Whether its process did next to nothing else meanwhile."""
    asked: dict[str, int | str] = {
        "source": source,
        "host": burst.host,
        "pid": burst.pid,
        "kernel_key": burst.kernel_key,
        "from_ns": burst.from_ns,
        "to_ns": burst.to_ns,
    }
    (row,) = evidence.query("launched_beside", asked).to_pylist()
    return bool(
        row["kernels"] <= _BESIDE
        and row["launches"] <= _BESIDE_SHARE * row["own"]
        and row["own"] <= _OWN_SHARE * burst.launches
    )


def _few(suspects: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """As many of them as have _MOST_ROWS launches together, and can be asked about at once: those with the fewest."""
    suspects = sorted(suspects, key=lambda row: row["launches"])
    held = zip(
        suspects,
        np.cumsum([row["launches"] for row in suspects]),
        np.cumsum([len(row["variants"]) for row in suspects]),
        strict=True,
    )
    return [row for row, launches, variants in held if launches <= _MOST_ROWS and variants <= _MOST_VARIANTS]


def _by_kernel(rows: pa.Table) -> Iterator[tuple[tuple[str, int, int], dict[str, NDArray[Any]]]]:
    """The rows of each kernel of each process."""
    if not rows.num_rows:
        return
    columns: dict[str, NDArray[Any]] = {
        name: column(rows, name, np.uint64) for name in ("kernel_key", "variant", "code")
    }
    columns["timestamp_ns"] = column(rows, "timestamp_ns", np.int64)
    names, host = hosts_of(rows)
    of = np.stack([host.astype(np.uint64), column(rows, "pid", np.uint64), columns["kernel_key"]], axis=1)
    each, place = np.unique(of, axis=0, return_inverse=True)
    for number, its in by_index(place.reshape(-1)):
        which, pid, key = each[number].tolist()
        yield (names[which], pid, key), {name: values[its] for name, values in columns.items()}
