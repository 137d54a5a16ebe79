"""Both windows are asked at once where their stores can: a server answers one query while it works on another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from threading import Thread
from typing import Literal, TypeVar

from kdiff.analysis.evidence import Evidence

T = TypeVar("T")
Side = Literal["before", "after"]
Ask = Callable[[Evidence, Side], T]
Answer = Callable[[], tuple[T, T]]


def of_both(before: Evidence, after: Evidence, ask: Ask[T]) -> tuple[T, T]:
    """What `ask` says of either window. Raises what it raises, that of `before` first."""
    if not _concurrent(before, after):
        return ask(before, "before"), ask(after, "after")
    other = _begin(after, "after", [ask])[0]
    return ask(before, "before"), other.result()


def ahead(before: Evidence, after: Evidence, questions: Sequence[Ask[T]]) -> list[Answer[T]]:
    """The same of each of the `questions`, asked one after the other while other work is done: what is returned of one
    waits for its answer, or raises.

    It asks only then where a store does one thing at a time, or where rows are read, too many to hold all at once.
    """
    if not (_concurrent(before, after) and before.rolled and after.rolled):
        return [partial(of_both, before, after, ask) for ask in questions]
    begun = _begin(before, "before", questions), _begin(after, "after", questions)
    return [partial(_answers, *both) for both in zip(*begun, strict=True)]


def _answers(before: Future[T], after: Future[T]) -> tuple[T, T]:
    return before.result(), after.result()


def _concurrent(before: Evidence, after: Evidence) -> bool:
    return before.store.concurrent and after.store.concurrent


def _begin(evidence: Evidence, side: Side, questions: Sequence[Ask[T]]) -> list[Future[T]]:
    """The answers of one window, that a thread asks for."""
    answers: list[Future[T]] = [Future() for _ in questions]

    def run() -> None:
        for ask, answer in zip(questions, answers, strict=True):
            try:
                answer.set_result(ask(evidence, side))
            except BaseException as error:
                answer.set_exception(error)

    # A daemon: who interrupts the command does not wait for a query.
    Thread(target=run, daemon=True).start()
    return answers
