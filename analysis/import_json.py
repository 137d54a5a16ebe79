"""The events of a trace in Chrome's format, one after the other, in memory bounded by the largest event.

The standard library's decoder is used on a buffer that is filled as it empties: twice as fast as ijson, the
streaming parser (tests/bench/bench_import.py), and it bears what profilers do write: control characters inside strings,
bytes that are no UTF-8, a comma too many.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from kdiff.analysis.import_source import TraceError, shown

_CHUNK: Final = 4 << 20
_MOST: Final = 32 << 20
"""Characters of one event, or of another value beside the events: of empty lists they take 20 bytes each."""
_BETWEEN: Final = re.compile(r"[\s,]*")
_SPACE: Final = re.compile(r"\s*")
_DELIMITERS: Final = frozenset(" \t\r\n,]}:")
_CUT: Final = 8  # a literal or an escape that was cut off is no longer
_DEEP: Final = "nested too deep"
_LONG: Final = "or one value is too long"


class Events:
    """Iterates over the members of `traceEvents`, or of the list that the file is; other members are in `header`."""

    def __init__(self, path: Path, read: Callable[[int], bytes], wanted: frozenset[str]) -> None:
        """`read(n)`: the next n bytes or fewer, b'' at the end. `wanted`: the members that `header` keeps."""
        self.header: dict[str, Any] = {}
        self._path = path
        self._read = read
        self._wanted = wanted
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        # Numbers with a fraction stay text: times since 1970 in us have more digits than a double.
        scanner: Any = json.JSONDecoder(strict=False, parse_float=str)
        self._scan = scanner.scan_once
        self._text = ""
        self._at = 0
        self._before = 0  # characters that were dropped from the buffer
        self._ended = False
        self.events = 0

    def __iter__(self) -> Iterator[Any]:
        """Raises TraceError: not JSON, cut off, or without events. Numbers with a fraction are strings."""
        self._more(_CHUNK)
        self._text = self._text.removeprefix("\ufeff")
        first = self._next()
        if first == "[":
            yield from self._list()
        elif first == "{":
            yield from self._members()
        else:
            raise self._wrong()
        if self._skip(_SPACE) or not self._ended:
            raise self._wrong()

    def _members(self) -> Iterator[Any]:
        self._at += 1
        found = False
        while self._next(_BETWEEN) != "}":
            key = self._value()
            if not isinstance(key, str) or self._next() != ":":
                raise self._wrong()
            self._at += 1
            if self._next() == "[" and key == "traceEvents":
                found = True
                yield from self._list()
                continue
            value = self._value()
            if key in self._wanted:
                self.header[key] = value
        self._at += 1
        if not found:
            raise TraceError(f"{shown(self._path)} holds no traceEvents: give a trace of the PyTorch profiler")

    def _list(self) -> Iterator[Any]:
        self._at += 1
        scan, between = self._scan, _BETWEEN.match
        text, at = self._text, self._at
        while True:
            at = between(text, at).end()  # type: ignore[union-attr]  # it matches everywhere
            if at < len(text):
                if text[at] == "]":
                    self._at = at + 1
                    return
                try:
                    value, end = scan(text, at)
                except (StopIteration, ValueError, RecursionError):
                    value = None
                if type(value) is dict:
                    at = end
                else:  # not whole yet; or no event, as a number that may go on
                    self._at = at
                    value = self._value()
                    text, at = self._text, self._at
                self.events += 1
                yield value
            else:
                self._at = at
                if self._ended:
                    raise self._torn()
                self._more(_CHUNK)
                text, at = self._text, self._at

    def _value(self) -> Any:
        """The value that begins here, whole."""
        more = _CHUNK
        while True:
            try:
                value, end = self._scan(self._text, self._at)
                # A number may go on behind what was read.
                if isinstance(value, (dict, list)) or self._ended or self._text[end : end + 1] in _DELIMITERS:
                    self._at = end
                    return value
            except RecursionError as error:
                raise self._wrong(_DEEP) from error
            except (StopIteration, ValueError) as error:
                if self._ended:
                    raise self._why(error) from error
                if len(self._text) - self._at > _MOST:
                    raise self._wrong(_LONG) from error
            self._more(more)
            more = min(2 * more, _MOST // 4)

    def _next(self, between: re.Pattern[str] = _SPACE) -> str:
        """The character that follows what is skipped. Raises TraceError at the end."""
        if not self._skip(between):
            raise self._torn()
        return self._text[self._at]

    def _skip(self, between: re.Pattern[str]) -> bool:
        while True:
            self._at = between.match(self._text, self._at).end()  # type: ignore[union-attr]  # it matches everywhere
            if self._at < len(self._text):
                return True
            if self._ended:
                return False
            self._more(_CHUNK)

    def _more(self, count: int) -> None:
        self._before += self._at
        parts, held = [self._text[self._at :]], 0
        while held < count and not self._ended:
            raw = self._read(_CHUNK)
            self._ended = not raw
            parts.append(self._decoder.decode(raw, final=self._ended))
            held += len(parts[-1])
        self._text, self._at = "".join(parts), 0

    def _why(self, error: Exception) -> TraceError:
        """Whether the file ends too early or is wrong in the middle."""
        place = getattr(error, "pos", None)
        if isinstance(error, StopIteration):
            place = error.value
        end = len(self._text.rstrip())
        if str(error).startswith("Unterminated") or (isinstance(place, int) and place >= end - _CUT):
            return self._torn()
        return self._wrong("", place if isinstance(place, int) else self._at)

    def _torn(self) -> TraceError:
        return TraceError(
            f"{shown(self._path)} ends in the middle, after {self.events:,} whole events: its profiler was ended while "
            "it wrote or the copy is not complete; as events are not in order of time what is there is no period to "
            "judge, so nothing was imported: record or copy it again"
        )

    def _wrong(self, why: str = "", place: int | None = None) -> TraceError:
        at = self._before + (self._at if place is None else place)
        why = f" ({why})" if why else ""
        return TraceError(f"{shown(self._path)} is not valid JSON at character {at:,}{why}: export it again")
