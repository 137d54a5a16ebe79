"""Arrow columns as numpy arrays, and their distinct values."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

from kdiff.analysis.columns import codes
from kdiff.queries.errors import StoreError


@pytest.mark.parametrize("cuts", [(0, 500), (0, 120, 121, 500), (0, 0, 500)])
def test_codes_are_those_of_unique(cuts: tuple[int, ...]) -> None:
    values = np.random.default_rng(1).integers(0, 2**64 - 1, 40, np.uint64, endpoint=True)
    column = values[np.random.default_rng(2).integers(0, 40, 500)]
    table = pa.table({"key": pa.chunked_array([column[a:b] for a, b in pairwise(cuts)])})
    found, code = codes(table, "key", np.uint64)
    distinct, inverse = np.unique(column, return_inverse=True)
    assert found.tolist() == distinct.tolist()
    assert code.tolist() == inverse.tolist()


def test_nothing_has_no_codes() -> None:
    for column in (pa.chunked_array([], pa.uint64()), pa.chunked_array([pa.array([], pa.uint64())])):
        found, code = codes(pa.table({"key": column}), "key", np.uint64)
        assert (found.size, code.size) == (0, 0)


def test_what_kdiff_does_not_write_is_refused() -> None:
    with pytest.raises(StoreError, match="the column key lacks values"):
        codes(pa.table({"key": pa.array([1, None, 1], pa.uint64())}), "key", np.uint64)
    with pytest.raises(StoreError, match="the column key is not what kdiff writes"):
        codes(pa.table({"key": ["a", "b"]}), "key", np.uint64)
