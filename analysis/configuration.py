"""How a kernel is launched, and what of it changed: a reason where a verdict needs one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from kdiff.analysis.at_once import of_both
from kdiff.analysis.evidence import Evidence
from kdiff.analysis.measure import Plan, keys_of
from kdiff.analysis.queueing import LEAST_SHARE
from kdiff.analysis.report import KernelReport
from kdiff.analysis.verdict import Verdict

_USUAL: Final = 0.5  # of a kernel's executions: below that no configuration stands for it
_REGISTERS: Final = 65_536
"""32-bit registers of a multiprocessor: CUDA C++ Programming Guide, compute capabilities, every one since 3.0."""
_SHARED_BYTES: Final = 228 << 10
"""The most shared memory that a multiprocessor of any GPU has (compute capability 9.0 and 10.0)."""
_UNEXPLAINED: Final = (Verdict.REGRESSED, Verdict.IMPROVED, Verdict.INCONCLUSIVE)


@dataclass(frozen=True, slots=True)
class Configuration:
    """A launch configuration: blocks, threads a block, registers and local memory a thread, shared memory a block.

    Memory in bytes, static and dynamic together.
    """

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    registers: int
    shared_bytes: int
    local_bytes: int

    @property
    def threads(self) -> int:
        """Of a block."""
        return math.prod(self.block)

    @property
    def fills_a_multiprocessor(self) -> bool:
        """Whether no GPU has room for a second block beside one on the same multiprocessor."""
        return 2 * self.registers * self.threads > _REGISTERS or 2 * self.shared_bytes > _SHARED_BYTES


def explain_launches(
    before: Evidence, after: Evidence, plans: Sequence[Plan], rows: Sequence[KernelReport]
) -> list[KernelReport]:
    """Add to each row that asks why, that of the plan at its place, what of its launches changed. Raises StoreError."""
    asked = {
        index
        for index, (plan, row) in enumerate(zip(plans, rows, strict=True))
        if plan.in_both and (row.verdict in _UNEXPLAINED or _lost_overlap(row))
    }
    if not asked or before.hourly or after.hourly or not before.timed or not after.timed:
        return list(rows)

    kernels = {index: plans[index] for index in asked}
    usual = of_both(before, after, lambda evidence, side: read_configurations(evidence, keys_of(kernels, side)))
    told = list(rows)
    for index in asked:
        one, other = usual[0].get(index), usual[1].get(index)
        reason = configuration_reason(one, other) if one and other else ""
        if reason:
            told[index] = replace(rows[index], reasons=(*rows[index].reasons, reason))
    return told


def read_configurations(evidence: Evidence, keys: Mapping[int, int]) -> dict[int, Configuration]:
    """By index, the configuration of most executions of the kernels in `keys` (kernel_key -> index).

    Kernels without one that most had are left out. Raises StoreError.
    """
    found: dict[int, tuple[int, Configuration]] = {}
    executions: dict[int, int] = {}
    for row in evidence.query("configurations", {"keys": sorted(keys)}).to_pylist():
        index = keys[row["kernel_key"]]
        executions[index] = executions.get(index, 0) + row["executions"]
        values = [int(value) for value in row["usual"].values()]
        usual = Configuration((values[0], values[1], values[2]), (values[3], values[4], values[5]), *values[6:])
        if index not in found or row["most"] > found[index][0]:
            found[index] = row["most"], usual
    return {index: usual for index, (most, usual) in found.items() if most > _USUAL * executions[index]}


def configuration_reason(before: Configuration, after: Configuration) -> str:
    """One or two sentences on what changed between the usual launches of two windows; '' where nothing did."""
    parts = [
        f"{what} {_number(one)} -> {_number(other)}"
        for what, one, other in (
            ("blocks", before.grid, after.grid),
            ("threads a block", before.block, after.block),
            ("registers a thread", before.registers, after.registers),
            ("shared memory a block, bytes,", before.shared_bytes, after.shared_bytes),
            ("local memory a thread, bytes,", before.local_bytes, after.local_bytes),
        )
        if one != other
    ]
    if not parts:
        return ""
    text = f"Its usual launch changed: {', '.join(parts)}."
    if after.fills_a_multiprocessor and not before.fills_a_multiprocessor:
        text += " A block now fills a multiprocessor and leaves no room for another."
    return text


def _lost_overlap(row: KernelReport) -> bool:
    if row.queue_before is None or row.queue_after is None:
        return False
    return row.queue_before.overlap - row.queue_after.overlap >= LEAST_SHARE


def _number(value: int | tuple[int, int, int]) -> str:
    """1,024; of three dimensions their product, and what they are where more than one is used."""
    if isinstance(value, int):
        return f"{value:,}"
    used = [size for size in value if size > 1]
    shape = f" ({' x '.join(map(str, value))})" if len(used) > 1 else ""
    return f"{math.prod(value):,}{shape}"
