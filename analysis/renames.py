"""What --map and --map-file say: which kernels of the after window stand for which of the before window."""

from __future__ import annotations

import difflib
import os
import select
import tomllib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kdiff.queries.errors import KdiffError
from kdiff.queries.printable import printable, quoted

_WRITE: Final = "write OLD=NEW, or A+B=C for a fusion, each the name of a kernel that ran"
_LIKE: Final = 256  # characters of a name that is compared with others
_MOST_LIKE: Final = 2_000  # names that it is compared with
MOST_BYTES: Final = 1 << 20
_WAIT_S: Final = 10.0  # for what writes into a pipe
_TOLD: Final = 3  # entries of files that were not used: a list of what was renamed over time has many


class PairingError(KdiffError):
    """A --map or --kernel that names nothing that ran."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a map file: names, or one pattern, on each side; `place` says where it stands."""

    old: tuple[str, ...]
    new: tuple[str, ...]
    place: str


@dataclass(frozen=True, slots=True)
class Renames:
    """What was asked for, by names that ran.

    Attributes:
        singles: new name by old; several old ones may have one new name.
        groups: names before, names after, the first of each the one whose launches are counted.
        warnings: entries of files that name nothing that ran, one sentence each.
    """

    singles: dict[str, str]
    groups: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]
    warnings: tuple[str, ...] = ()


def read_file(path: str) -> tuple[Entry, ...]:
    """The entries of a TOML file: tables [[map]] with `old` and `new`, each a name or a list of names.

    Raises PairingError, one sentence, if it cannot be read or says something else.
    """
    where = f"--map-file {show(path)}"
    form = 'write tables [[map]] with old = "..." and new = "...", each a name or a list of names'
    try:
        raw = read_bytes(path)
        if len(raw) > MOST_BYTES:
            raise PairingError(f"{where} has more than 1 MiB: {form}")
        found = tomllib.loads(raw.decode("utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        why = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
        raise PairingError(f"{where} cannot be read ({printable(why or 'error')[:160]}): {form}") from error
    tables = found.get("map")
    if set(found) != {"map"} or not isinstance(tables, list):
        raise PairingError(f"{where}: {form}")
    entries = []
    for number, table in enumerate(tables, start=1):
        place = f"{where}, entry {number}"
        if not isinstance(table, dict) or set(table) != {"old", "new"}:
            raise PairingError(f"{place}: {form}")
        sides = _names(table["old"]), _names(table["new"])
        if not all(sides):
            raise PairingError(f"{place}: {form}")
        if any(len(side) > 1 for side in sides) and any("*" in n for side in sides for n in side):
            # A name of C++ may hold one: it is then a name that ran, or nothing.
            place += " (a group: names are taken as they are)"
        entries.append(Entry(*sides, place))
    return tuple(entries)


def resolve(texts: Sequence[str], entries: Sequence[Entry], before: Collection[str], after: Collection[str]) -> Renames:
    """What `texts` (of --map) and `entries` (of files) say of the names that ran. Raises PairingError.

    Names that ran go before patterns, and the first entry of an old name before the later ones of a pattern.
    A text must name something; an entry of a file that does not is warned of: files list what was renamed over time.
    """
    exact: dict[str, str] = {}
    matched: dict[str, str] = {}
    groups: list[tuple[tuple[str, ...], tuple[str, ...]]] = []

    def take(old: tuple[str, ...], new: tuple[str, ...], place: str) -> bool:
        if not (all(name in before for name in old) and all(name in after for name in new)):
            return False
        for side in (old, new):
            if len(set(side)) < len(side):
                raise PairingError(f"{place} names a kernel twice: name each once")
        if len(old) > 1 or len(new) > 1:
            if (old, new) not in groups:
                groups.append((old, new))
        elif exact.setdefault(old[0], new[0]) != new[0]:
            raise PairingError(
                f"{place}: {show(old[0])} is mapped to {show(exact[old[0]])} already; for a split write A=B+C"
            )
        return True

    def match(old: str, new: str, place: str) -> bool:
        found = _substitute(old, new, before, after, place)
        for name, target in found.items():
            matched.setdefault(name, target)
        return bool(found)

    for text in texts:
        place = f"--map {show(text)}"
        splits = _splits(text)
        if not splits:
            raise PairingError(f"{place}: {_WRITE}")
        fits = [(old, new) for old, new in splits if old in before and new in after]
        if len(fits) > 1:
            raise PairingError(f"{place} can be read in {len(fits)} ways: name both in a file for --map-file")
        if any(take((old,), (new,), place) for old, new in fits):
            continue
        if any(take(_parts(old, before), _parts(new, after), place) for old, new in splits):
            continue
        if not any("*" in old and match(old, new, place) for old, new in splits):
            raise PairingError(_nothing(splits[0], place, before, after))
    unused = []
    for entry in entries:
        if take(entry.old, entry.new, entry.place):
            continue
        single = len(entry.old) == len(entry.new) == 1
        if not (single and "*" in entry.old[0] and match(entry.old[0], entry.new[0], entry.place)):
            unused.append(f"{entry.place} was not used: what it names did not run in these windows")
    warnings = unused[:_TOLD]
    if len(unused) > _TOLD:
        warnings.append(f"{len(unused) - _TOLD:,} more entries of map files were not used")
    said = {**matched, **exact}
    # What a pattern makes of itself is said of it only where others become it too.
    shared = {new for old, new in said.items() if old != new}
    singles = {old: new for old, new in said.items() if old != new or old in exact or new in shared}
    _apart(singles, groups)
    return Renames(singles, tuple(groups), tuple(warnings))


def wildcard(pattern: str, name: str) -> tuple[str, ...] | None:
    """What each `*` of the pattern stands for in `name`, as short as can be from the left; None where it does not fit.

    Linear in the length of the name times the stars.
    """
    first, *others = pattern.split("*")
    if not others:
        return () if name == pattern else None
    last = others.pop()
    if not name.startswith(first) or len(name) < len(first) + len(last) or not name.endswith(last):
        return None
    at, end = len(first), len(name) - len(last)
    found = []
    for part in others:
        place = name.find(part, at, end)
        if place < 0:
            return None
        found.append(name[at:place])
        at = place + len(part)
    return (*found, name[at:end])


def show(name: str) -> str:
    """A name from outside, fit to print inside a sentence."""
    return quoted(name)


def read_bytes(path: str) -> bytes:
    """Up to MOST_BYTES and one more, of a pipe too. Raises OSError, also where nothing writes into it for _WAIT_S."""
    parts, length = [], 0
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        while length <= MOST_BYTES:
            if not select.select([file], [], [], _WAIT_S)[0]:
                raise TimeoutError(f"nothing was written into it for {_WAIT_S:.0f} s")
            try:
                part = os.read(file, MOST_BYTES + 1 - length)
            except BlockingIOError:
                continue
            if not part:
                break
            parts.append(part)
            length += len(part)
    finally:
        os.close(file)
    return b"".join(parts)


def _substitute(old: str, new: str, before: Collection[str], after: Collection[str], place: str) -> dict[str, str]:
    """New name by old of the pattern's kernels that ran, with each `*` of `new` as that of `old` at its place."""
    pieces = new.split("*")
    if len(pieces) > 1 and len(pieces) != len(old.split("*")):
        raise PairingError(f"{place}: write as many * in the new name as in the old one, or none")
    found = {}
    for name in sorted(before):
        texts = wildcard(old, name)
        if texts is None:
            continue
        target = pieces[0] + "".join(t + p for t, p in zip(texts, pieces[1:], strict=False))
        if target in after:
            found[name] = target
    return found


def _splits(text: str) -> list[tuple[str, str]]:
    """Each way to read OLD=NEW: names of kernels may hold "=" too."""
    splits = [(text[:i].strip(), text[i + 1 :].strip()) for i, c in enumerate(text) if c == "="]
    return [(old, new) for old, new in splits if old and new]


def _parts(side: str, ran: Collection[str]) -> tuple[str, ...]:
    """The names of a group A+B; one that ran may hold "+" itself."""
    return (side,) if side in ran else tuple(part.strip() for part in side.split("+"))


def _names(value: Any) -> tuple[str, ...]:
    """A name or a list of names; () for anything else."""
    names = value if isinstance(value, list) else [value]
    return tuple(names) if all(isinstance(name, str) and name for name in names) else ()


def _apart(singles: dict[str, str], groups: Sequence[tuple[tuple[str, ...], tuple[str, ...]]]) -> None:
    """Raises PairingError if a kernel stands in a group and elsewhere, on one side."""
    sides: tuple[Iterable[str], Iterable[str]] = (singles.keys(), set(singles.values()))
    for side, names in enumerate(sides):
        seen = set(names)
        for group in groups:
            if twice := [name for name in group[side] if name in seen]:
                raise PairingError(f"--map names {show(twice[0])} in a group and elsewhere: name it once")
            seen.update(group[side])


def _nothing(split: tuple[str, str], place: str, before: Collection[str], after: Collection[str]) -> str:
    """The sentence on a --map that fits nothing that ran."""
    old, new = split
    if "*" in old and not any(wildcard(old, name) is not None for name in before):
        return f"{place}: no kernel that ran in the before window matches {show(old)}"
    if "*" in old:
        return f"{place}: what {show(new)} makes of the kernels that match {show(old)} did not run in the after window"
    for side, window, ran in ((old, "before", before), (new, "after", after)):
        for name in _parts(side, ran):
            if name not in ran:
                some = sorted(ran)[:_MOST_LIKE]
                short = {n[:_LIKE]: n for n in reversed(some)}
                near = difflib.get_close_matches(name[:_LIKE], short, n=3, cutoff=0.3)
                names = [short[n] for n in near] or some[:3]
                hint = f": did you mean {' or '.join(map(show, names))}?" if names else ""
                return f"--map: no kernel named {show(name)} ran in the {window} window{hint}"
    return f"{place}: {_WRITE}"
