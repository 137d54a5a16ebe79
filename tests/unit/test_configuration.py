"""What a verdict says of how a kernel is launched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import captures
from captures import AFTER, BEFORE, TwoWindows, only
from kdiff.analysis.configuration import Configuration, configuration_reason
from kdiff.analysis.verdict import Verdict

pytestmark = pytest.mark.usefixtures("engine")

COUNT = 3_001
OLD: dict[str, Any] = dict.fromkeys(("grid_y", "grid_z", "block_y", "block_z"), 1) | {
    "grid_x": 64,
    "block_x": 256,
    "registers": 40,
    "static_shared": 1024,
}


def capture(root: Path, old: int, new: int, after: dict[str, Any]) -> TwoWindows:
    """`gelu` of `old` ns before and `new` ns after, with OLD's configuration and OLD's changed by `after`."""
    made = TwoWindows(root)
    for window, length, changes in ((BEFORE, old, {}), (AFTER, new, after)):
        times = captures.spread(window.from_ns, window.to_ns, COUNT)
        made.add("device_windows", captures.device_windows([window.from_ns], window.length_ns, executions=COUNT))
        made.add("kernel_executions", captures.executions("gelu", times, length, **(OLD | changes)))
        made.add("cuda_events", captures.launches("gelu", times - 5_000, batch_launches=24))
    return made


def reasons(root: Path, old: int, new: int, after: dict[str, Any]) -> tuple[Verdict, list[str]]:
    row = only(capture(root, old, new, after).compare())
    return row.verdict, [reason for reason in row.reasons if reason.startswith("Its usual launch")]


def test_a_slower_kernel_that_is_launched_otherwise(tmp_path: Path) -> None:
    wide = {"grid_x": 132, "grid_y": 2, "registers": 168, "dynamic_shared": 200_000, "local_bytes": 48}
    assert reasons(tmp_path, 40_000, 52_000, wide) == (
        Verdict.REGRESSED,
        [
            "Its usual launch changed: blocks 64 -> 264 (132 x 2 x 1), registers a thread 40 -> 168, shared memory a "
            "block, bytes, 1,024 -> 201,024, local memory a thread, bytes, 0 -> 48. "
            "A block now fills a multiprocessor and leaves no room for another."
        ],
    )


def test_a_slower_kernel_that_is_launched_as_before(tmp_path: Path) -> None:
    assert reasons(tmp_path, 40_000, 52_000, {}) == (Verdict.REGRESSED, [])


def test_a_kernel_that_passes_is_not_explained(tmp_path: Path) -> None:
    assert reasons(tmp_path, 40_000, 40_000, {"registers": 41}) == (Verdict.PASS, [])


def test_what_fewer_than_half_of_the_launches_have_is_not_usual(tmp_path: Path) -> None:
    mixed = np.where(np.arange(COUNT) % 5 < 2, 40, np.where(np.arange(COUNT) % 5 < 4, 168, 90))
    assert reasons(tmp_path, 40_000, 52_000, {"registers": mixed})[1] == []
    most = np.where(np.arange(COUNT) % 5 < 3, 168, 40)
    told = reasons(tmp_path / "most", 40_000, 52_000, {"registers": most})[1]
    assert told[0].startswith("Its usual launch changed: registers a thread 40 -> 168.")


configurations = st.builds(
    Configuration,
    *[st.tuples(*[st.integers(1, 65_535)] * 3)] * 2,
    *[st.integers(0, 255), st.integers(0, 228 << 10), st.integers(0, 1 << 20)],
)


@given(configurations, configurations)
def test_nothing_is_said_where_nothing_changed(one: Configuration, other: Configuration) -> None:
    assert configuration_reason(one, one) == ""
    assert (configuration_reason(one, other) == "") == (one == other)


def test_what_leaves_no_room() -> None:
    def fills(threads: int, registers: int, shared: int) -> bool:
        return Configuration((1, 1, 1), (threads, 1, 1), registers, shared, 0).fills_a_multiprocessor

    assert not fills(1024, 32, 0)
    assert fills(1024, 33, 0)
    assert not fills(128, 255, 116_736)
    assert fills(32, 16, 116_737)
