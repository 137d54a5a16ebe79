"""Two windows asked at once, or one after the other where the store does one thing at a time."""

from __future__ import annotations

from threading import Barrier, BrokenBarrierError
from types import SimpleNamespace
from typing import Any

import pytest

from kdiff.analysis.at_once import of_both


def windows(concurrent: bool) -> tuple[Any, Any]:
    store = SimpleNamespace(concurrent=concurrent)
    return SimpleNamespace(store=store, name="before"), SimpleNamespace(store=store, name="after")


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
