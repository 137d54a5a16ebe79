"""Executions of real recordings (tests/data), cut into windows as a verdict cuts them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from kdiff.analysis.judging import judge_all
from kdiff.analysis.mix import Mix
from kdiff.analysis.mix_words import why_not_comparable
from kdiff.analysis.sample import Sample
from kdiff.analysis.strata import Likeness, Stratum, find_support, together
from kdiff.analysis.verdict import Policy, Verdict, values_needed
from kdiff.analysis.window import NS, Window
from kdiff.queries.kernel_names import demangle

DATA: Final = Path(__file__).parent / "data"
SERVING: Final = DATA / "h200-serving"
SWAP: Final = DATA / "device-swap"
SWAPPED: Final = "fused_gelu"
TICK_NS: Final = 32

Key = tuple[str, int, int]
"""A kernel and its grid, (x, y); (0, 0) where all of its shapes are one."""


@dataclass(frozen=True, eq=False)
class Executions:
    """What ran on the device, in the order it began.

    Attributes:
        keys: the kernels, or their shapes.
        of: shape (n,), the place of each execution's kernel in `keys`.
        start_ns, duration_ns: shape (n,).
    """

    keys: tuple[Key, ...]
    of: NDArray[np.int64]
    start_ns: NDArray[np.int64]
    duration_ns: NDArray[np.int64]

    @classmethod
    def read(cls, path: Path, by_shape: bool = False) -> Executions:
        """From a Parquet file or a folder of a capture."""
        rows = pq.read_table(path).to_pandas()
        rows = rows.rename(columns={"timestamp_ns": "start_ns", "kernel_name": "name"}).sort_values("start_ns")
        names = [demangle(name) for name in rows.name.astype(str)]
        grids = zip(rows.grid_x.tolist(), rows.grid_y.tolist(), strict=True) if by_shape else [(0, 0)] * len(rows)
        each: list[Key] = [(name, *grid) for name, grid in zip(names, grids, strict=True)]
        keys = tuple(sorted(set(each)))
        place = {key: i for i, key in enumerate(keys)}
        times, durations = (rows[name].to_numpy().astype(np.int64) for name in ("start_ns", "duration_ns"))
        return cls(keys, np.array([place[key] for key in each], np.int64), times, durations)

    @property
    def whole(self) -> Window:
        """From the first to the last of them."""
        return Window(int(self.start_ns[0]), int(self.start_ns[-1]) + 1)

    def rounded(self) -> Executions:
        """The same in whole ticks: CUPTI rounds both ends of an execution, so that 31 and 33 ns occur beside 32."""
        return replace(self, duration_ns=(self.duration_ns + TICK_NS // 2) // TICK_NS * TICK_NS)

    def spread(self, rng: np.random.Generator) -> Executions:
        """The same as a timer without ticks might have read them: no two durations need be equal."""
        whole = self.rounded().duration_ns
        return replace(self, duration_ns=whole + rng.integers(0, TICK_NS, whole.size))

    def samples(self, window: Window) -> dict[Key, Sample]:
        """The durations of each kernel that ran in the window."""
        first, last = np.searchsorted(self.start_ns, [window.from_ns, window.to_ns])
        buckets, width = window.buckets()
        of, durations = self.of[first:last], self.duration_ns[first:last]
        bucket = ((self.start_ns[first:last] - window.from_ns) // width).astype(np.int32)
        order = np.argsort(of, kind="stable")
        present, starts = np.unique(of[order], return_index=True)
        return {
            self.keys[one]: Sample(durations[rows], bucket[rows], buckets)
            for one, rows in zip(present, np.split(order, starts[1:]), strict=True)
        }


def judged(before: dict[Key, Sample], after: dict[Key, Sample], policy: Policy) -> dict[Key, Verdict]:
    """The verdict on each kernel of two windows, judged together."""
    pairs = {key: (before.get(key), after.get(key)) for key in sorted({*before, *after})}
    return {key: found.verdict for key, found in judge_all(pairs, policy).items()}


def judged_by_mix(before: dict[Key, Sample], after: dict[Key, Sample], policy: Policy) -> dict[Key, Verdict]:
    """The same from samples of shapes: kernels at one mix of these, as a comparison judges them."""
    names = sorted({name for name, *_ in (*before, *after)})
    kernels: dict[Key, tuple[Sample | None, Sample | None]] = {}
    mixes: dict[Key, Mix] = {}
    for name in names:
        sides = [{stratum(key): its for key, its in side.items() if key[0] == name} for side in (before, after)]
        old, new = (together([*side.values()]) if side else None for side in sides)
        kernels[name, 0, 0] = (old, new)
        if old and new and min(old.size, new.size) >= values_needed(policy.quantile):
            support = find_support(*({one: sample.size for one, sample in side.items()} for side in sides))
            if support.likeness is Likeness.SEVERAL:
                mixes[name, 0, 0] = Mix.of(support, sides[0], sides[1], why_not_comparable(support))
    return {key: found.verdict for key, found in judge_all(kernels, policy, mixes=mixes).items()}


def stratum(key: Key) -> Stratum:
    """The stratum of a shape. Blocks are taken for alike: in these recordings they differ between kernels only."""
    return Stratum((key[1] * key[2] - 1).bit_length(), 7, "NVIDIA H200", in_graph=False)


def phases() -> dict[str, Window]:
    """Of the serving loop: A and B the same program, C with a slower fused_gelu."""
    entries = json.loads((SERVING / "phases.json").read_text())
    return {entry["phase"]: Window(entry["start_ns"], entry["end_ns"]) for entry in entries}


def slices(window: Window, seconds: float, step: float = 1.0) -> list[Window]:
    """The windows of this length inside `window` that begin a multiple of `step` s after it."""
    length = round(seconds * NS)
    starts = range(window.from_ns, window.to_ns - length + 1, round(step * NS))
    return [Window(start, start + length) for start in starts]


def apart(before: list[Window], after: list[Window]) -> Iterator[tuple[Window, Window]]:
    """All pairs that share no time."""
    return ((b, a) for b in before for a in after if not b.overlap_ns(a))
