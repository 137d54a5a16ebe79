"""Arrow columns as numpy arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kdiff.queries.errors import StoreError
from kdiff.queries.printable import printable

T = TypeVar("T", bound=np.generic)


def codes(table: pa.Table, name: str, dtype: type[T]) -> tuple[NDArray[T], NDArray[np.int64]]:
    """The distinct values of a column, ascending, and for each row which of them it has, shape (rows,).

    As numpy.unique, which sorts: hashing takes a tenth of the time. Raises StoreError as `column`.
    """
    encoded = pc.dictionary_encode(table[name].combine_chunks())
    found = column(pa.table({name: encoded.dictionary}), name, dtype)
    order = np.argsort(found)
    place = np.empty(len(found), np.int64)
    place[order] = np.arange(len(found))
    return found[order], place[column(pa.table({name: encoded.indices}), name, np.int32)]


def column(table: pa.Table, name: str, dtype: type[T]) -> NDArray[T]:
    """A column of numbers without nulls, shape (rows,). pyarrow's own to_numpy would import pandas, 0.3 s.

    Raises StoreError where it holds something else: the tables of a server may have been altered.
    """
    values = table[name]
    expected = pa.from_numpy_dtype(np.dtype(dtype))
    try:
        values = values if values.type == expected else values.cast(expected)
    except pa.ArrowException as error:
        raise StoreError(f"the column {name} is not what kdiff writes ({printable(str(error))[:200]})") from error
    if values.null_count:
        raise StoreError(f"the column {name} lacks values, which kdiff never writes: see whether its table was altered")
    chunks = [
        np.frombuffer(chunk.buffers()[1], dtype, count=len(chunk), offset=chunk.offset * np.dtype(dtype).itemsize)
        for chunk in values.chunks
        if len(chunk)
    ]
    return np.concatenate(chunks) if chunks else np.empty(0, dtype)


def difference(whole: pa.Table, part: pa.Table, groups: Sequence[str]) -> pa.Table:
    """The sums of `whole` without those of `part`, both with one row a group, in the order of the groups.

    `groups`: the columns that tell them; all others are sums. A group without anything left is left out, and so is one
    that `part` alone has: it came between the two queries. Raises StoreError as `column`.
    """
    if not part.num_rows or not whole.num_rows:
        return whole
    groups_of = {name: pa.chunked_array([*_text(whole[name]).chunks, *_text(part[name]).chunks]) for name in groups}
    place = np.zeros(whole.num_rows + part.num_rows, np.int64)
    for values in groups_of.values():
        size, its = _places(values)
        place = place * size + its
    order = np.argsort(place, kind="stable")
    starts = np.flatnonzero(np.diff(place[order], prepend=-1))
    columns, left = {}, np.zeros(starts.size, np.bool_)
    for name in (name for name in whole.column_names if name not in groups):
        wide = np.float64 if pa.types.is_floating(whole[name].type) else np.int64
        each = np.concatenate([column(whole, name, wide), -column(part, name, wide)])
        columns[name] = np.maximum(np.add.reduceat(each[order], starts), 0)
        if wide is np.int64:  # a sum of time as a float may leave a rest
            left |= columns[name] > 0
    first = as_column(order[starts[left]])
    return pa.table(
        {
            name: as_column(columns[name][left]).cast(whole[name].type)
            if name in columns
            else groups_of[name].take(first)
            for name in whole.column_names
        }
    )


def _places(values: pa.ChunkedArray) -> tuple[int, NDArray[np.int64]]:
    """How many distinct values there are, and for each row the place of its value among them in order."""
    encoded = pc.dictionary_encode(values.combine_chunks())
    ordered = pc.array_sort_indices(encoded.dictionary)
    place = np.empty(len(ordered), np.int64)
    place[column(pa.table({"at": ordered}), "at", np.uint64)] = np.arange(len(ordered))
    return len(ordered), place[column(pa.table({"at": encoded.indices}), "at", np.int32)]


def as_column(values: NDArray[Any]) -> pa.Array:
    """Numbers, shape (n,), as Arrow has them. pyarrow's own conversion would import pandas, 0.3 s."""
    kind = pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(kind, values.size, [None, pa.py_buffer(np.ascontiguousarray(values))])


def _text(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Text as text, whether or not the engine hands it over as a dictionary."""
    return values.cast(pa.string()) if pa.types.is_dictionary(values.type) else values
