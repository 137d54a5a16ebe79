"""What every test shares."""

from __future__ import annotations

import os

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests with real probes need root; where it is missing they are skipped, never where it is there."""
    if os.geteuid() == 0:
        return
    for item in items:
        if item.get_closest_marker("ebpf"):
            item.add_marker(pytest.mark.skip(reason="attaches real probes: run as root"))
