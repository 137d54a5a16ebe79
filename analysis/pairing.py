"""Which kernel of the before window is compared with which of the after window."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from kdiff.analysis.counts import Counts, is_graph
from kdiff.queries.errors import KdiffError
from kdiff.queries.printable import printable, shorten

NONE: Final = Counts()


class PairingError(KdiffError):
    """A --map or --kernel that names nothing that ran."""


@dataclass(frozen=True, slots=True)
class Pair:
    """One kernel in both windows; a side where it did not run has no launches."""

    kernel: str
    before: Counts
    after: Counts

    @property
    def in_before(self) -> bool:
        """Whether it was launched, or ran, in the before window."""
        return bool(self.before.launches or self.before.executions)

    @property
    def in_after(self) -> bool:
        """Whether it was launched, or ran, in the after window."""
        return bool(self.after.launches or self.after.executions)


@dataclass(frozen=True, slots=True)
class Pairing:
    """The pairs, which of them the user named, and warnings, one sentence each."""

    pairs: tuple[Pair, ...]
    named: frozenset[str]
    warnings: tuple[str, ...]


def pair_kernels(
    before: Mapping[str, Counts],
    after: Mapping[str, Counts],
    renames: Sequence[str] = (),
    patterns: Sequence[str] = (),
) -> Pairing:
    """Pair by exact name, after `renames` ("old=new", each read in the before window).

    With `patterns` only the kernels that match one of them. Raises PairingError.
    """
    mapping = dict(read_rename(text, before, after) for text in renames)
    warnings = []
    renamed: dict[str, Counts] = {}
    for name, counts in before.items():
        target = mapping.get(name, name)
        renamed[target] = renamed[target] + counts if target in renamed else counts
    kept = dict(after)
    for old in mapping:
        if old in kept and old not in mapping.values():
            left = kept.pop(old)
            warnings.append(f"{show(old)} still ran in the after window ({left.ran:,} launches): these are left out")
    pairs = [Pair(n, renamed.get(n, NONE), kept.get(n, NONE)) for n in sorted(renamed.keys() | kept.keys())]
    if patterns:
        chosen = [p for p in pairs if _matches(p.kernel, patterns)]
        if pairs and not chosen:
            names = _examples(p.kernel for p in pairs)
            raise PairingError(f"no kernel matches {' or '.join(map(show, patterns))}: these ran: {names}")
        return Pairing(tuple(chosen), frozenset(p.kernel for p in chosen), tuple(warnings))
    return Pairing(tuple(pairs), frozenset(mapping.values()), tuple(warnings))


def read_rename(text: str, before: Mapping[str, Counts], after: Mapping[str, Counts]) -> tuple[str, str]:
    """(old, new) of "old=new"; kernel names may hold "=" too, so the split that names two kernels is meant.

    Raises PairingError.
    """
    splits = [(text[:i].strip(), text[i + 1 :].strip()) for i, c in enumerate(text) if c == "="]
    splits = [(old, new) for old, new in splits if old and new]
    if not splits:
        raise PairingError(f"--map {show(text)}: write old=new, two kernel names")
    for old, new in splits:
        if old in before and new in after:
            return old, new
    old, new = splits[0]
    for name, side, names in ((old, "before", before), (new, "after", after)):
        if name not in names:
            near = difflib.get_close_matches(name, names, n=3, cutoff=0.3) or sorted(names)[:3]
            hint = f": did you mean {' or '.join(show(n) for n in near)}?" if near else ""
            raise PairingError(f"--map: no kernel named {show(name)} ran in the {side} window{hint}")
    raise PairingError(f"--map {show(text)}: write old=new, two kernel names")


def show(name: str) -> str:
    """A name from outside, fit to print inside a sentence."""
    return f"'{shorten(printable(name), 80)}'"


def _matches(name: str, patterns: Sequence[str]) -> bool:
    """A graph, whose name has those of kernels in it, only where the pattern begins as such names do."""
    if is_graph(name):
        patterns = [pattern for pattern in patterns if pattern.startswith("(graph")]
    return any(pattern in name or fnmatchcase(name, pattern) for pattern in patterns)


def _examples(names: Iterable[str]) -> str:
    some = sorted(names)
    more = f" and {len(some) - 3} more" if len(some) > 3 else ""
    return ", ".join(show(name) for name in some[:3]) + more
