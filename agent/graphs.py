"""What CUDA graphs hold: learned as they are captured, instantiated, cloned and updated."""

from __future__ import annotations

import hashlib
import re
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kdiff.agent.names import Kernel
from kdiff.agent.ring import Columns
from kdiff.probes.wire import Kind, WireFlags

_MOST_NODES: Final = 1_000_000  # of all graphs together, of 40 bytes: beyond it what no handle stands for is forgotten
_OVERHEAD: Final = 10  # what a graph takes beside its nodes, in nodes
_MOST_HANDLES: Final = 262_144  # beyond it no more are learned
_NAMED: Final = 3  # kernels in a graph's name
_LONGEST: Final = 32  # of a kernel's name in it
_SIMPLE: Final = re.compile(r"(?<![\w$.])([A-Za-z_$][\w$.]*)\s*(?:[<(]|$)")


@dataclass(frozen=True, slots=True)
class Node:
    """A kernel of a graph, or with `kind` GRAPH_LAUNCH a graph in it."""

    entered_ns: int
    kind: int
    generation: int
    handle: int
    shape: tuple[int, ...]  # grid and block


@dataclass(frozen=True)
class Made:
    """A graph, perhaps an executable one, got what it holds: nodes, () if not known, or what the graph `source` has."""

    at_ns: int
    pid: int
    handle: int
    source: int = 0
    nodes: tuple[Node, ...] = ()


@dataclass(frozen=True)
class Graph:
    """What a graph launch launches."""

    kernel: Kernel  # stands for the graph: its name and identity
    kernels: int
    shapes: int  # a hash of the grids and blocks


@dataclass(frozen=True, slots=True)
class _Content:
    """What graphs of one number hold, a row a node."""

    key: tuple[int, bytes]  # the pid, and a hash of both arrays
    kernels: NDArray[np.uint64]  # generation, handle
    shapes: NDArray[np.uint32]  # grid and block


class Graphs:
    """Graphs by handle, numbered by what they hold; 0 is a graph of which nothing is known."""

    def __init__(self) -> None:
        self._number: dict[tuple[int, int], tuple[int, int]] = {}  # by pid and handle; and since when, monotonic ns
        self._held: dict[int, _Content] = {}  # by number, the oldest first
        self._known: dict[tuple[int, bytes], int] = {}
        self._last_number = 0
        self._size = 0  # of all that is held, in nodes
        self._graphs: dict[int, Graph] = {}

    def feed(self, event: Columns, entered: NDArray[np.int64], captured: Sequence[Made]) -> NDArray[np.uint64]:
        """Takes the columns of EVENT records and the captures that ended among them. Returns each row's graph."""
        launched = np.flatnonzero(event["kind"] == Kind.GRAPH_LAUNCH)
        numbers = np.zeros(len(entered), np.uint64)
        made = [*_ended(event, entered), *captured, *_made(event, entered)]
        launched = launched[np.argsort(entered[launched], kind="stable")]
        when = entered[launched]
        begin = 0
        for one in sorted(made, key=lambda m: m.at_ns):
            end = int(np.searchsorted(when, one.at_ns))
            self._number_of(event, launched[begin:end], numbers)
            self._learn(one)
            begin = end
        self._number_of(event, launched[begin:], numbers)
        return numbers

    def of(self, number: int, kernel: Callable[[int, int, int], Kernel]) -> Graph | None:
        """The graph of a number; None where one of its kernels has no name, or where it was forgotten for lack of room.

        `kernel(pid, generation, handle)` names them. Two graphs of the same kernels in the same order are one, whatever
        their grids are.
        """
        if number not in self._graphs:
            content = self._held.get(number)
            if content is None:
                return None
            nodes = [(generation, handle) for generation, handle in content.kernels.tolist()]
            kernels: dict[tuple[int, int], Kernel] = {}
            for node in dict.fromkeys(nodes):
                kernels[node] = kernel(content.key[0], *node)
                if not kernels[node].resolved:
                    return None
            mangled = "\n".join(kernels[node].mangled for node in nodes)
            digest = hashlib.blake2b(mangled.encode(), digest_size=8).hexdigest()
            counts: Counter[str] = Counter()
            for node, count in Counter(nodes).items():
                counts[_simple(kernels[node].name)] += count
            most = [f"{count} x {name}" for name, count in sorted(counts.items(), key=lambda i: (-i[1], i[0]))[:_NAMED]]
            more = [f"{len(counts) - _NAMED} more"] if len(counts) > _NAMED else []
            name = f"(graph {digest[:8]}: {', '.join(most + more)})"
            shapes = zlib.crc32(content.shapes.tobytes())
            self._graphs[number] = Graph(Kernel(f"graph:{digest}", name, "capture"), len(nodes), shapes)
        return self._graphs[number]

    def forget(self, pid: int) -> None:
        """Forgets the handles of a process, 0: of any; what they held may still be asked for."""
        for key in [key for key in self._number if pid in (0, key[0])]:
            del self._number[key]

    def _number_of(self, event: Columns, rows: NDArray[np.int64], numbers: NDArray[np.uint64]) -> None:
        if not len(rows) or not self._number:
            return
        for pid in np.unique(event["pid"][rows]):
            its = rows[event["pid"][rows] == pid]
            handles, which = np.unique(event["handle"][its], return_inverse=True)
            found = [self._number.get((int(pid), int(handle)), (0, 0))[0] for handle in handles]
            numbers[its] = np.array(found, np.uint64)[which]

    def _learn(self, made: Made) -> None:
        key = (made.pid, made.handle)
        self._number.pop(key, None)
        if made.source:
            number = self._number.get((made.pid, made.source), (0, 0))[0]
        else:
            content = self._content(made)
            number = self._numbered(content) if content else 0
        if number and len(self._number) < _MOST_HANDLES:
            self._number[key] = number, made.at_ns

    def _content(self, made: Made) -> _Content | None:
        """What was captured; None where that is nothing, or is not known."""
        kernels: list[NDArray[np.uint64]] = []
        shapes: list[NDArray[np.uint32]] = []
        for kind, run in groupby(made.nodes, lambda node: node.kind):
            nodes = list(run)
            if kind == Kind.LAUNCH:
                kernels.append(np.array([(node.generation, node.handle) for node in nodes], np.uint64))
                shapes.append(np.array([node.shape for node in nodes], np.uint32))
                continue
            for node in nodes:
                number, since = self._number.get((made.pid, node.handle), (0, 0))
                if not number or since > node.entered_ns:  # it has come to hold something else
                    return None
                kernels.append(self._held[number].kernels)
                shapes.append(self._held[number].shapes)
        if not kernels or sum(map(len, kernels)) > _MOST_NODES:
            return None
        every, each = np.concatenate(kernels), np.concatenate(shapes)
        digest = hashlib.blake2b(every.tobytes() + each.tobytes(), digest_size=16).digest()
        return _Content((made.pid, digest), every, each)

    def _numbered(self, content: _Content) -> int:
        """The number of that content; 0 where there is no room for it."""
        if number := self._known.get(content.key):
            return number
        size = len(content.kernels) + _OVERHEAD
        if self._size + size > _MOST_NODES:
            self._make_room()
        if self._size + size > _MOST_NODES:
            return 0
        self._last_number += 1
        self._known[content.key] = self._last_number
        self._held[self._last_number] = content
        self._size += size
        return self._last_number

    def _make_room(self) -> None:
        """Forgets half of all that is held, the oldest first, but nothing that a handle stands for."""
        needed = {number for number, _ in self._number.values()}
        for number in [number for number in self._held if number not in needed]:
            if self._size <= _MOST_NODES // 2:
                return
            content = self._held.pop(number)
            del self._known[content.key]
            self._graphs.pop(number, None)
            self._size -= len(content.kernels) + _OVERHEAD


def _ended(event: Columns, entered: NDArray[np.int64]) -> list[Made]:
    """The graphs of captures, of which nothing is known yet: what was known of their handles was of others."""
    rows = np.flatnonzero((event["kind"] == Kind.CAPTURE_END) & (event["status"] == 0))
    left = entered[rows] + event["duration_ns"][rows].view(np.int64)
    return [
        Made(int(at), int(event["pid"][row]), int(event["handle"][row])) for row, at in zip(rows, left, strict=True)
    ]


def _made(event: Columns, entered: NDArray[np.int64]) -> list[Made]:
    good = (event["status"] == 0) & (event["flags"] & WireFlags.NO_RETURN == 0)
    return [
        Made(int(entered[row]), int(event["pid"][row]), int(event["handle"][row]), int(event["stream"][row]))
        for row in np.flatnonzero((event["kind"] == Kind.GRAPH_MADE) & good)
    ]


def _simple(name: str) -> str:
    """A kernel's own name, without return type, namespaces, template arguments and parameters."""
    bare = name.replace("(anonymous namespace)", "")
    found = _SIMPLE.search(bare[bare.rfind("::", 0, _end(bare)) + 2 :] if "::" in bare[: _end(bare)] else bare)
    simple = found.group(1) if found else bare
    return simple if len(simple) <= _LONGEST else simple[: _LONGEST - 1] + "…"


def _end(name: str) -> int:
    """Where template arguments or parameters begin."""
    ends = [at for at in (name.find("<"), name.find("(")) if at > 0]
    return min(ends, default=len(name))
