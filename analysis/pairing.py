"""Which kernel of the before window is compared with which of the after window."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Final, Literal

from kdiff.analysis.canonical import canonical, is_kernel
from kdiff.analysis.counts import Counts, is_graph
from kdiff.analysis.renames import Entry, PairingError, resolve, show

__all__ = ["Group", "Pair", "Pairing", "PairingError", "pair_kernels", "pairing_reason", "show"]

NONE: Final = Counts()
MOST_APART: Final = 2.0
"""Kernels whose shares of the launches differ by more than this factor are not paired by their canonical name."""

PairedBy = Literal["name", "map", "canonical", "group"]


@dataclass(frozen=True, slots=True)
class Pair:
    """One kernel in both windows; a side where it did not run has no launches.

    `kernel` is its name in the after window, `old` those in the before window where they are others. Of a group both
    are the names of its kernels with " + " between them.
    """

    kernel: str
    before: Counts
    after: Counts
    old: tuple[str, ...] = ()
    by: PairedBy = "name"

    @property
    def in_before(self) -> bool:
        """Whether it was launched, or ran, in the before window."""
        return bool(self.before.launches or self.before.executions)

    @property
    def in_after(self) -> bool:
        """Whether it was launched, or ran, in the after window."""
        return bool(self.after.launches or self.after.executions)


@dataclass(frozen=True, slots=True)
class Group:
    """Kernels that are compared together: the names and counts of each window, the first kernel's first.

    `pair` has the sums, without keys: its values are no sample of one kernel.
    """

    pair: Pair
    before: tuple[tuple[str, Counts], ...]
    after: tuple[tuple[str, Counts], ...]


@dataclass(frozen=True, slots=True)
class Pairing:
    """The pairs, the groups, which of either the user named, and warnings, one sentence each.

    `beside` are all pairs, those that no pattern chose too.
    """

    pairs: tuple[Pair, ...]
    named: frozenset[str]
    warnings: tuple[str, ...]
    groups: tuple[Group, ...] = ()
    beside: tuple[Pair, ...] = ()


def pair_kernels(
    before: Mapping[str, Counts],
    after: Mapping[str, Counts],
    renames: Sequence[str] = (),
    patterns: Sequence[str] = (),
    entries: Sequence[Entry] = (),
    by_canonical: bool = True,
) -> Pairing:
    """Pair by `renames` (of --map) and `entries` (of its files), then by exact name, then by canonical name.

    With `patterns` only the kernels that match one of them. Raises PairingError.
    """
    asked = resolve(renames, entries, before, after)
    warnings = list(asked.warnings)
    left_before, left_after = dict(before), dict(after)
    groups = [_group(old, new, before, after) for old, new in asked.groups]
    for old, new in asked.groups:
        # In a partial rollout either side runs what the other is compared by: a group is what it was named.
        for group, left, other, window in ((old, left_after, new, "after"), (new, left_before, old, "before")):
            for name in group:
                if name in left and name not in other and name not in asked.singles.values():
                    warnings.append(_left_out(name, left.pop(name), window))
        for name in old:
            left_before.pop(name, None)
        for name in new:
            left_after.pop(name, None)
    mapping = asked.singles
    for name in sorted({new for new in mapping.values() if new not in mapping and new in left_before}):
        # A canary's launches of the new kernel would be what it is compared with.
        warnings.append(_left_out(name, left_before.pop(name), "before"))
    renamed: dict[str, Counts] = {}
    names: dict[str, list[str]] = {}
    for name, counts in left_before.items():
        target = mapping.get(name, name)
        renamed[target] = renamed[target] + counts if target in renamed else counts
        names.setdefault(target, []).append(name)
    for old_name in mapping:
        if old_name in left_after and old_name not in mapping.values():
            warnings.append(_left_out(old_name, left_after.pop(old_name), "after"))
    if by_canonical:
        for old_name, new_name in _recompiled(renamed, left_after, before, after):
            renamed[new_name] = renamed.pop(old_name)
            names[new_name] = names.pop(old_name)
    mapped = set(mapping.values())
    pairs = []
    for name in sorted(renamed.keys() | left_after.keys()):
        old_names = tuple(n for n in names.get(name, ()) if names[name] != [name])
        by: PairedBy = "map" if name in mapped else "canonical" if old_names else "name"
        pairs.append(Pair(name, renamed.get(name, NONE), left_after.get(name, NONE), old_names, by))
    if patterns:
        chosen = [p for p in pairs if any(matches(name, patterns) for name in (p.kernel, *p.old))]
        grouped = [g for g in groups if any(matches(name, patterns) for name, _ in (*g.before, *g.after))]
        if (pairs or groups) and not chosen and not grouped:
            ran = _examples(p.kernel for p in [*pairs, *(g.pair for g in groups)])
            raise PairingError(f"no kernel matches {' or '.join(map(show, patterns))}: these ran: {ran}")
        named = [p.kernel for p in [*chosen, *(g.pair for g in grouped)]]
        return Pairing(tuple(chosen), frozenset(named), tuple(warnings), tuple(grouped), tuple(pairs))
    named = [*mapped, *(g.pair.kernel for g in groups)]
    return Pairing(tuple(pairs), frozenset(named), tuple(warnings), tuple(groups), tuple(pairs))


def pairing_reason(pair: Pair) -> list[str]:
    """What a reader must know of how a pair was made: a sentence, or none."""
    if pair.by != "canonical":
        return []
    return [
        f"Paired by canonical name with {' and '.join(map(show, pair.old))} before, as the same kernel compiled anew: "
        "--exact-names keeps them apart."
    ]


def _recompiled(
    before: Mapping[str, Counts],
    after: Mapping[str, Counts],
    all_before: Iterable[str],
    all_after: Iterable[str],
) -> list[tuple[str, str]]:
    """(old, new) of kernels that are gone and new and share a canonical name with nothing else in either window."""
    gone = {name for name in before if name not in after and is_kernel(name)}
    new = {name for name in after if name not in before and is_kernel(name)}
    if not gone or not new:
        return []
    olds, news = _by_canonical(all_before), _by_canonical(all_after)
    runs = [max(1.0, sum(c.runs for c in window.values())) for window in (before, after)]
    found = []
    for name in sorted(gone):
        kept = canonical(name)
        alike, others = olds[kept], news.get(kept, [])
        if len(alike) != 1 or len(others) != 1 or others[0] not in new:
            continue
        shares = sorted((before[name].runs / runs[0], after[others[0]].runs / runs[1]))
        if shares[1] <= MOST_APART * shares[0]:
            found.append((name, others[0]))
    return found


def _by_canonical(names: Iterable[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name in names:
        if is_kernel(name):
            found.setdefault(canonical(name), []).append(name)
    return found


def _group(
    old: tuple[str, ...], new: tuple[str, ...], before: Mapping[str, Counts], after: Mapping[str, Counts]
) -> Group:
    sides = [tuple((name, window[name]) for name in names) for names, window in ((old, before), (new, after))]
    sums = [replace(sum((counts for _, counts in side), NONE), keys=()) for side in sides]
    return Group(Pair(" + ".join(new), sums[0], sums[1], (" + ".join(old),), "group"), *sides)


def _left_out(name: str, counts: Counts, window: str) -> str:
    ran = f"{'still ' if window == 'after' else ''}ran in the {window} window"
    return f"{show(name)} {ran} ({counts.ran:,} launches): these are left out"


def matches(name: str, patterns: Sequence[str]) -> bool:
    """A graph, whose name has those of kernels in it, only where the pattern begins as such names do."""
    if is_graph(name):
        patterns = [pattern for pattern in patterns if pattern.startswith("(graph")]
    return any(pattern in name or fnmatchcase(name, pattern) for pattern in patterns)


def _examples(names: Iterable[str]) -> str:
    some = sorted(names)
    more = f" and {len(some) - 3} more" if len(some) > 3 else ""
    return ", ".join(show(name) for name in some[:3]) + more
