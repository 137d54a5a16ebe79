"""Samples that hold only their tail by stretch: the same estimates, also while rows go on arriving."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kdiff.analysis import bins
from kdiff.analysis.histograms import Histograms
from kdiff.analysis.interval import tail_estimate
from kdiff.analysis.sample import Sample
from kdiff.analysis.window import MINUTE_NS, Window
from kdiff.queries.store import Params

MINUTES = 120
WINDOW = Window(0, MINUTES * MINUTE_NS)
Rows = list[tuple[int, int, int, int]]  # kernel_key, minute, bin, count


@dataclass
class Fake:
    """Histograms that change from query to query."""

    states: list[Rows]
    asked: list[str] = field(default_factory=list)
    keys: list[object] = field(default_factory=list)
    window: Window = WINDOW

    def query(self, name: str, params: Params | None = None) -> pa.Table:
        raise NotImplementedError

    def query_rolled(self, name: str, params: Params | None = None) -> pa.Table:
        rows = self.states[min(len(self.asked), len(self.states) - 1)]
        self.asked.append(name)
        asked = dict(params or {})
        self.keys.append(asked["keys"])
        met: dict[tuple[int, ...], int] = {}
        for key, minute, number, count in rows:
            if key not in asked["keys"]:  # type: ignore[operator]
                continue
            if name == "bins":
                met[key, number] = met.get((key, number), 0) + count
                continue
            floor = asked["floors"][asked["keys"].index(key)]  # type: ignore[index,union-attr]
            for shown in {65_535} | ({number} if number >= floor else set()):
                met[key, minute, shown] = met.get((key, minute, shown), 0) + count
        names = ("kernel_key", "bin") if name == "bins" else ("kernel_key", "bucket", "bin")
        types = {"kernel_key": pa.uint64(), "bucket": pa.int32(), "bin": pa.uint16()}
        columns = {name: pa.array([group[i] for group in met], types[name]) for i, name in enumerate(names)}
        return pa.table(columns | {"count": pa.array(list(met.values()), pa.uint64())})


def chosen(source: Fake, q: float, keys: Mapping[int, int] | None = None) -> dict[int, Sample | None]:
    values = Histograms(source, "completion", keys or {7: 0}).values(q)
    return {index: value.choose(False) for index, value in values.items()}


def written_out(rows: Rows) -> Sample:
    """Every bin with its stretch."""
    _, minute, number, count = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    return Sample(bins.durations_ns(number), minute.astype(np.int32), MINUTES, count, tick=1, binned=True)


@given(
    st.lists(st.tuples(st.integers(0, MINUTES - 1), st.integers(0, 900), st.integers(1, 50)), min_size=1, max_size=200),
    st.sampled_from([0.001, 0.5, 0.9, 0.99, 0.9999]),
)
@settings(max_examples=150, deadline=None)
def test_what_is_not_read_by_stretch_changes_no_estimate(entries: list[tuple[int, int, int]], q: float) -> None:
    rows: Rows = [(7, *entry) for entry in entries]
    sample = chosen(Fake([rows]), q)[0]
    assert sample is not None
    folded, full = tail_estimate(sample, q), tail_estimate(written_out(rows), q)
    for name in ("value", "n", "nu", "filled", "even", "quantum", "variance"):
        assert getattr(folded, name) == pytest.approx(getattr(full, name), rel=1e-12), name
    assert (folded.ordered.values == full.ordered.values).all()
    assert (folded.ordered.counts == full.ordered.counts).all()
    assert (folded.steps == full.steps).all()
    assert folded.evidence == pytest.approx(full.evidence, rel=1e-9, abs=1e-9)
    assert folded.limits(0.05) == full.limits(0.05)


def test_the_order_of_an_answer_changes_no_bit_of_an_estimate() -> None:
    rng = np.random.default_rng(3)
    drawn = np.stack([rng.integers(0, MINUTES, 3_000), rng.integers(300, 340, 3_000), rng.integers(1, 50, 3_000)], 1)
    met = {(int(minute), int(number)): int(count) for minute, number, count in drawn}
    rows: Rows = [(7, minute, number, count) for (minute, number), count in met.items()]
    found = []
    for order in (rows, rows[::-1], sorted(rows)):
        sample = chosen(Fake([order]), 0.9)[0]
        assert sample is not None
        estimate = tail_estimate(sample, 0.9)
        found.append((estimate.variance, estimate.even, estimate.evidence.tobytes()))
    assert found[0] == found[1] == found[2]


def test_names_of_one_kernel_are_one_and_others_are_apart() -> None:
    rows: Rows = [(7, 3, 250, 90), (8, 4, 250, 9), (8, 4, 300, 1), (9, 5, 20, 4)]
    found = chosen(Fake([rows]), 0.99, {7: 1, 8: 1, 9: 0, 10: 5})
    one, other = found[1], found[0]
    assert one is not None
    assert other is not None
    assert (one.size, other.size, found[5]) == (100, 4, None)
    assert one.ordered.counts.tolist() == [99, 1]
    assert one.per_bucket is not None
    assert np.flatnonzero(one.per_bucket).tolist() == [3, 4]


def test_only_the_tail_is_read_by_stretch() -> None:
    rows: Rows = [(7, minute, 300 + number, 1) for minute in range(MINUTES) for number in range(100)]
    sample = chosen(Fake([rows]), 0.99)[0]
    assert sample is not None
    assert sample.durations_ns.size == 2 * MINUTES  # the bin of p99, one more of 0.05% below it, of each minute
    with pytest.raises(ValueError, match="told as a whole"):
        tail_estimate(sample, 0.5)


def test_what_arrives_between_the_two_queries_is_counted_once() -> None:
    first: Rows = [(7, minute, 300 + number, 10) for minute in range(MINUTES - 1) for number in range(100)]
    late: Rows = [(7, MINUTES - 1, 310, 5), (7, MINUTES - 1, 399, 1)]
    source = Fake([first, first + late])
    sample = chosen(source, 0.99)[0]
    assert source.asked == ["bins", "tails"]
    assert sample is not None
    assert sample.size == 10 * 100 * (MINUTES - 1) + 6
    assert int(sample.ordered.counts.sum()) == sample.size
    assert tail_estimate(sample, 0.99).value == tail_estimate(written_out(first + late), 0.99).value


EVEN: Rows = [(7, minute, 300 + number, 10) for minute in range(MINUTES) for number in range(100)]
SLOW: Rows = [(7, minute, 400, 1) for minute in range(MINUTES)]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(SLOW, SLOW + [(7, minute, 300, 1_000) for minute in range(MINUTES)], id="many faster ones"),
        pytest.param([(7, 3, 400, 1)], [(7, 3, 400, 1), (7, 4, 300, 1)], id="a second launch"),
        pytest.param(EVEN, [*EVEN, (7, 5, 396, 1_000)], id="from below the quantile to its lower limit"),
        pytest.param(EVEN, [row for row in EVEN if row[2] < 390], id="the slowest are gone"),
        pytest.param(EVEN, [row for row in EVEN if row[1] < 40], id="two thirds are gone"),
        pytest.param(SLOW, SLOW[:1], id="all but one are gone"),
        pytest.param([(8, 3, 250, 90)], [(8, 3, 250, 90), (7, 5, 300, 9)], id="the kernel appears"),
    ],
)
def test_what_changes_too_much_between_the_two_queries_is_as_in_the_second(first: Rows, second: Rows) -> None:
    sample = chosen(Fake([first, second]), 0.99, {7: 6, 8: 2})[6]
    assert sample is not None
    true = written_out([row for row in second if row[0] == 7])
    found, wanted = tail_estimate(sample, 0.99), tail_estimate(true, 0.99)
    assert (found.value, found.n, found.limits(0.05)) == (wanted.value, wanted.n, wanted.limits(0.05))
    assert (found.ordered.values == wanted.ordered.values).all()
    assert (found.ordered.counts == wanted.ordered.counts).all()


def test_what_changes_all_the_time_is_read_all_the_same() -> None:
    fast: Rows = [(7, minute, 300, 1_000) for minute in range(MINUTES)]
    source = Fake([SLOW, SLOW + fast, SLOW])
    sample = chosen(source, 0.99)[0]
    assert source.asked == ["bins", "tails", "tails"]
    assert sample is not None
    assert tail_estimate(sample, 0.99).value == tail_estimate(written_out(SLOW), 0.99).value


def test_a_kernel_that_is_gone_by_the_second_query_has_no_sample() -> None:
    assert chosen(Fake([EVEN, []]), 0.99) == {0: None}


def test_kernels_that_did_not_change_are_not_read_again() -> None:
    others: Rows = [(8, minute, number, count) for _, minute, number, count in EVEN]
    source = Fake([EVEN + others, [*EVEN, (8, 0, 300, 1)]])
    found = chosen(source, 0.99, {7: 0, 8: 1})
    assert source.asked == ["bins", "tails", "tails"]
    assert source.keys == [[7, 8], [7, 8], [8]]
    assert found[0] is not None
    assert found[1] is not None
    assert (found[0].durations_ns.size, found[1].size) == (2 * MINUTES, 1)


def test_a_sample_told_as_a_whole_comes_with_its_stretches() -> None:
    sample = chosen(Fake([[(7, 0, 300, 100), (7, 0, 400, 2)]]), 0.99)[0]
    assert sample is not None
    for wrong in ({"per_bucket": None}, {"durations_ns": np.ones_like(sample.durations_ns)}):
        columns = {name: getattr(sample, name) for name in Sample.__dataclass_fields__} | wrong
        with pytest.raises(ValueError, match="told as a whole"):
            Sample(**columns)
