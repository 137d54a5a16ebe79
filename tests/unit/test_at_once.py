"""Two windows asked at once, or one after the other where the store does one thing at a time."""

from __future__ import annotations

from threading import Barrier, BrokenBarrierError, Event
from types import SimpleNamespace
from typing import Any

import pytest

from kdiff.analysis.at_once import ahead, of_both


def windows(concurrent: bool, rolled: bool = False) -> tuple[Any, Any]:
    store = SimpleNamespace(concurrent=concurrent)
    before, after = (SimpleNamespace(store=store, rolled=rolled, name=side) for side in ("before", "after"))
    return before, after


def test_a_store_that_can_is_asked_twice_at_once() -> None:
    both = Barrier(2, timeout=20)

    def ask(window: Any, side: str) -> str:
        both.wait()
        assert side == window.name
        return side

    assert of_both(*windows(True), ask) == ("before", "after")


def test_a_store_that_cannot_is_asked_once_at_a_time() -> None:
    both = Barrier(2, timeout=0.05)

    def ask(window: Any, side: str) -> str:
        with pytest.raises(BrokenBarrierError):
            both.wait()
        assert side == window.name
        return side

    assert of_both(*windows(False), ask) == ("before", "after")


@pytest.mark.parametrize("concurrent", [True, False])
@pytest.mark.parametrize("failing", [("before",), ("after",), ("before", "after")])
def test_what_one_raises_is_raised(concurrent: bool, failing: tuple[str, ...]) -> None:
    def ask(window: Any, side: str) -> str:
        if window.name in failing:
            raise ValueError(window.name)
        assert side == window.name
        return side

    with pytest.raises(ValueError, match=failing[0]):
        of_both(*windows(concurrent), ask)


def test_questions_are_asked_ahead_in_order_while_other_work_is_done() -> None:
    begun, done = Event(), Event()
    asked: dict[str, list[int]] = {"before": [], "after": []}

    def question(number: int) -> Any:
        def ask(window: Any, side: str) -> tuple[str, int]:
            if number == 0:
                begun.set()
                assert done.wait(20)
            asked[side].append(number)
            return window.name, number

        return ask

    answers = ahead(*windows(True, rolled=True), [question(number) for number in range(3)])
    assert begun.wait(20)
    done.set()
    assert [answer() for answer in reversed(answers)] == [(("before", n), ("after", n)) for n in (2, 1, 0)]
    assert asked == {"before": [0, 1, 2], "after": [0, 1, 2]}


@pytest.mark.parametrize(("concurrent", "rolled"), [(False, True), (True, False)])
def test_rows_are_not_read_before_they_are_needed(concurrent: bool, rolled: bool) -> None:
    asked = []

    def ask(window: Any, side: str) -> str:
        assert side == window.name
        asked.append(side)
        return side

    first, second = ahead(*windows(concurrent, rolled), [ask, ask])
    assert asked == []
    assert first() == ("before", "after")
    assert sorted(asked) == ["after", "before"]
    assert second() == ("before", "after")


def test_what_is_raised_ahead_is_raised_where_the_answer_is_waited_for() -> None:
    def fails(window: Any, side: str) -> str:
        raise ValueError(f"{window.name} {side}")

    wrong, right = ahead(*windows(True, rolled=True), [fails, lambda window, side: side])
    assert right() == ("before", "after")
    with pytest.raises(ValueError, match="before before"):
        wrong()
