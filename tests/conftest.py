"""What every test shares."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
import schemas

import captures
from kdiff.queries.store import CaptureStore

pytest_plugins = ["server", "shipped", "gates"]


def pytest_configure() -> None:
    """Programs that tests start can be interrupted, also where a shell started the tests in the background."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests with real probes need root; where it is missing they are skipped, never where it is there."""
    if os.geteuid() == 0:
        return
    for item in items:
        if item.get_closest_marker("ebpf"):
            item.add_marker(pytest.mark.skip(reason="attaches real probes: run as root"))


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keeps the embedded engine running for a module: starting it takes longer than most tests."""
    root = tmp_path_factory.mktemp("engine")
    captures.write(root, "agent_health", captures.health(captures.T0, captures.T0 + captures.MINUTE))
    with CaptureStore(root):
        yield


@pytest.fixture(scope="session", autouse=True)
def _documents_keep_to_their_schema() -> Iterator[None]:
    """Whatever JSON a test makes kdiff print in this process is held to the schema that is shipped."""
    with schemas.held():
        yield


@pytest.fixture(autouse=True)
def _signals_stay() -> Iterator[None]:
    """A test that leaves signals ignored would have them ignored in programs that later tests start."""
    before = _ignored()
    yield
    assert _ignored() <= before


def _ignored() -> set[signal.Signals]:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    return {number for number in numbers if signal.getsignal(number) is signal.SIG_IGN}
