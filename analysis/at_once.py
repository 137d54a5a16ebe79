"""Both windows are asked at once where their stores can: a server answers one query while it works on another."""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread
from typing import Literal, TypeVar

from kdiff.analysis.evidence import Evidence

T = TypeVar("T")
Side = Literal["before", "after"]


def of_both(before: Evidence, after: Evidence, ask: Callable[[Evidence, Side], T]) -> tuple[T, T]:
    """What `ask` says of either window. Raises what it raises, that of `before` first."""
    if not (before.store.concurrent and after.store.concurrent):
        return ask(before, "before"), ask(after, "after")
    said: list[T] = []
    raised: list[BaseException] = []

    def ask_after() -> None:
        try:
            said.append(ask(after, "after"))
        except BaseException as error:
            raised.append(error)

    # A daemon: who interrupts the command does not wait for a query.
    thread = Thread(target=ask_after, daemon=True)
    thread.start()
    first = ask(before, "before")
    thread.join()
    if raised:
        raise raised[0]
    return first, said[0]
