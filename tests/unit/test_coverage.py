"""What the roll-ups lack of what agents counted, against a look at each minute."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from kdiff.analysis.coverage import unrolled
from kdiff.analysis.window import MINUTE_NS, NS, Window

WINDOW = Window(100 * MINUTE_NS, 220 * MINUTE_NS)
Account = tuple[str, int, int, int]  # host, from_ns, to_ns, events
HOSTS = st.sampled_from(["a", "b", ""])


def accounts(rows: list[Account]) -> pa.Table:
    columns = {"host": pa.string(), "from_ns": pa.int64(), "to_ns": pa.int64(), "events": pa.uint64()}
    return pa.table({name: pa.array([row[i] for row in rows], t) for i, (name, t) in enumerate(columns.items())})


def minutes(rows: list[tuple[str, int]]) -> pa.Table:
    return pa.table(
        {
            "host": pa.array([host for host, _ in rows], pa.string()),
            "minute_s": pa.array([minute * (MINUTE_NS // NS) for _, minute in rows], pa.int64()),
        }
    )


@given(
    st.lists(
        st.builds(
            lambda host, start, length, events: (host, start, start + length, events),
            HOSTS,
            st.integers(95 * MINUTE_NS, 220 * MINUTE_NS - 1),
            st.integers(5 * MINUTE_NS, 12 * MINUTE_NS),
            st.integers(0, 2),
        ),
        min_size=1,
        max_size=8,
    ),
    st.lists(st.tuples(HOSTS | st.just("c"), st.integers(90, 230)), max_size=60),
)
@settings(max_examples=300, deadline=None)
def test_stretches_without_roll_ups(told: list[Account], rolled: list[tuple[str, int]]) -> None:
    told = [account for account in told if account[2] > WINDOW.from_ns]
    bare = []
    for host, start, end, events in told:
        first, last = max(start, WINDOW.from_ns) // MINUTE_NS, (min(end, WINDOW.to_ns) - 1) // MINUTE_NS
        if events and not any((host, minute) in rolled for minute in range(first, last + 1)):
            bare.append((first, last))
    wanted = (min(a for a, _ in bare) * MINUTE_NS, (max(b for _, b in bare) + 1) * MINUTE_NS) if bare else None
    assert unrolled(WINDOW, accounts(told), minutes(rolled)) == wanted


def test_a_clock_that_was_off_takes_no_memory() -> None:
    """A window of two centuries and a thousand hosts: minutes are held only where there are any."""
    window = Window(0, 2**63 // MINUTE_NS * MINUTE_NS - MINUTE_NS)
    hosts = [f"h{i}" for i in range(1_000)]
    told = accounts([(host, at, at + NS, 1) for host in hosts for at in (0, 29_000_000 * MINUTE_NS)])
    present = [(host, at) for host in hosts for at in (0, 29_000_000)]
    assert unrolled(window, told, minutes(present)) is None
    assert unrolled(window, told, minutes(present[:-1])) == (29_000_000 * MINUTE_NS, 29_000_001 * MINUTE_NS)
