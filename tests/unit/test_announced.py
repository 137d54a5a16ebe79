"""Which kernels are to be announced, over months: each before its first row, and memory bounded."""

from __future__ import annotations

import gc
import tracemalloc

from kdiff.agent.announced import MOST, Announced
from kdiff.agent.names import Kernel


def kernel(number: int) -> Kernel:
    return Kernel(f"_Z{number}", f"k{number}()", "load")


def names(announced: Announced, *pairs: tuple[int, str], at_ns: int = 5) -> list[tuple[str, str]]:
    rows = announced.fresh([(kernel(number), service) for number, service in pairs], at_ns)
    return [] if rows is None else [(row["kernel_name"], row["service"]) for row in rows.to_pylist()]


def test_each_kernel_is_announced_once_of_each_service() -> None:
    announced = Announced("host")
    assert names(announced, (1, "a"), (1, "b"), (2, "a"), (1, "a")) == [("k1()", "a"), ("k1()", "b"), ("k2()", "a")]
    assert names(announced, (1, "a"), (2, "a"), (2, "b")) == [("k2()", "b")]
    assert names(announced, (1, "a")) == []
    assert announced.kernels == 2
    (rows,) = announced.again()
    assert rows.num_rows == 4
    assert set(rows["host"].to_pylist()) == {"host"}
    assert Announced("host").again() == []


def test_what_was_not_used_for_longest_is_forgotten_and_announced_again() -> None:
    announced = Announced("host", most=3)
    assert len(names(announced, (1, "a"), (2, "a"), (3, "a"))) == 3
    assert names(announced, (1, "a")) == []
    assert names(announced, (4, "a"), at_ns=9) == [("k4()", "a")]  # in the place of 2
    assert announced.kernels == 3
    assert names(announced, (1, "a"), (3, "a"), (4, "a")) == []
    assert names(announced, (2, "a"), at_ns=11) == [("k2()", "a")]
    (rows,) = announced.again()
    assert sorted(zip(rows["kernel_name"].to_pylist(), rows["first_seen_ns"].to_pylist(), strict=True)) == [
        ("k2()", 11), ("k3()", 5), ("k4()", 9),
    ]  # fmt: skip


def test_more_in_one_flush_than_are_remembered_are_all_announced() -> None:
    announced = Announced("host", most=3)
    assert len(names(announced, *((number, "a") for number in range(11)))) == 11
    assert announced.kernels == 3


def test_a_years_new_names_take_no_more_memory_than_those_of_a_month() -> None:
    announced = Announced("host")

    def day(number: int) -> int:
        for at in range(0, 4_000, 500):
            ids = range(number * 4_000 + at, number * 4_000 + at + 500)
            announced.fresh([(Kernel(f"{one:0500}", f"{one:0500}", "load"), "a") for one in ids], number)
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        for number in range(6):  # 24,000 names: it is full
            full = day(number)
        assert announced.kernels == MOST
        for number in range(6, 20):
            later = day(number)
    finally:
        tracemalloc.stop()
    assert later < full * 1.05
