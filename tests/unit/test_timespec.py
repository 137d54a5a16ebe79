from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdiff.analysis.arguments import quantile, share
from kdiff.analysis.coverage import covered_ns
from kdiff.analysis.interval import RECOMMENDED_BUCKETS
from kdiff.analysis.timespec import SpecError, check_pair, parse, parse_instant, parse_length
from kdiff.analysis.window import BUCKETS, NS, Window, length_text, utc

NOW = 1_795_860_000 * NS  # 2026-11-28T10:00:00Z
TEN = 1_795_773_600 * NS  # 2026-11-27T10:00:00Z
MINUTE = 60 * NS
HOUR = 60 * MINUTE
Side = Literal["before", "after"]


def window(text: str, side: Side = "after", window_ns: int = 15 * MINUTE) -> Window:
    found = parse(text, side, NOW, window_ns, is_directory=lambda _: False)
    assert isinstance(found, Window)
    return found


@pytest.mark.parametrize(
    ("text", "from_ns", "to_ns"),
    [
        ("2026-11-27T10:00/15m", TEN, TEN + 15 * MINUTE),
        ("2026-11-27T10:00Z/90s", TEN, TEN + 90 * NS),
        ("2026-11-27 10:00/1h30m", TEN, TEN + 90 * MINUTE),
        ("2026-11-27T10:00..2026-11-27T11:00", TEN, TEN + HOUR),
        ("2026-11-27T11:00+01:00..2026-11-27T11:00", TEN, TEN + HOUR),
        ("2026-11-27T11:00[Europe/Berlin]/15m", TEN, TEN + 15 * MINUTE),
        ("2026-11-27T15:30+0530/15m", TEN, TEN + 15 * MINUTE),
        ("2026-11-27T10:00:00.000000001Z/1ns", TEN + 1, TEN + 2),
        ("1795773600/15m", TEN, TEN + 15 * MINUTE),
        ("1795773600.5/15m", TEN + NS // 2, TEN + NS // 2 + 15 * MINUTE),
        ("1795773600000/15m", TEN, TEN + 15 * MINUTE),
        ("1795773600000000/15m", TEN, TEN + 15 * MINUTE),
        ("1795773600000000001/15m", TEN + 1, TEN + 1 + 15 * MINUTE),
        ("-2h..-1h", NOW - 2 * HOUR, NOW - HOUR),
        ("-2h..now", NOW - 2 * HOUR, NOW),
        ("now-30m/10m", NOW - 30 * MINUTE, NOW - 20 * MINUTE),
        ("-1.5h/10m", NOW - 90 * MINUTE, NOW - 80 * MINUTE),
        # The clock goes back at 03:00 on 2026-10-25: the offset says which 02:30 is meant.
        ("2026-10-25T02:30+02:00[Europe/Berlin]/1h", 1_792_888_200 * NS, 1_792_891_800 * NS),
    ],
)
def test_windows(text: str, from_ns: int, to_ns: int) -> None:
    assert window(text) == Window(from_ns, to_ns)


@pytest.mark.parametrize("text", ["2026-11-27T10:00", "1795773600", "-24h", "now-1d", "2026-11-27T11:00+01"])
def test_an_instant_ends_the_before_window_and_starts_the_after_window(text: str) -> None:
    assert window(text, "before", 5 * MINUTE) == Window(TEN - 5 * MINUTE, TEN)
    assert window(text, "after", 5 * MINUTE) == Window(TEN, TEN + 5 * MINUTE)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("  ", "is empty"),
        ("@deploy", "no mark named 'deploy'"),
        ("2026-11-27T11:00..2026-11-27T10:00", "reversed"),
        ("2026-11-27T10:00..2026-11-27T10:00", "the window is empty"),
        ("2026-11-27T10:00/0m", "is empty"),
        ("2026-11-27T10:00/15", "not a length of time"),
        ("2026-11-27T10:00/", "not a length of time"),
        ("2026-11-27T10:00/-5m", "not a length of time"),
        ("2030-01-01/15m", "in the future"),
        ("now", "in the future"),
        ("2026-13-01", "not in the calendar"),
        ("2026-02-29", "not in the calendar"),
        ("2026-11-27T24:00", "not in the calendar"),
        ("2026-11-27T10:00[Mars/Olympus]", "no time zone 'Mars/Olympus'"),
        ("2026-11-27T10:00[../../etc/passwd]", "no time zone"),
        ("2026-11-27T10:00[Europe]", "no time zone"),
        ("2026-11-27T10:00[]", "no time zone"),
        ("2026-11-27T10:00+25:00", "which no clock has"),
        ("2026-10-25T02:30[Europe/Berlin]", "twice: add the offset (+02:00 or +01:00)"),
        ("2026-03-29T02:30[Europe/Berlin]", "skip"),
        ("2026-11-27T10:00+05:00[Europe/Berlin]", "not at that offset"),
        ("20261127", "too small to be a Unix time"),
        ("99999999999999999999", "neither a time nor a capture directory"),
        ("9999999999999999999", "outside the years"),
        ("1960-01-01", "outside the years"),
        ("-99999999999d", "over a century"),
        ("٢٠٢٦-11-27T10:00", "neither a time nor"),
        ("a\0b", "neither a time nor"),
        ("\x1b[31m", "neither a time nor"),
        ("no-such-directory", "neither a time nor"),
        ("/no/such", "neither a time nor"),
        ("~nobody-here/x", "neither a time nor"),
    ],
)
def test_what_makes_no_window_is_one_sentence(text: str, words: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse(text, "after", NOW, is_directory=lambda _: False)
    message = str(caught.value)
    assert words in message
    assert "--after" in message
    assert message.isprintable()


def test_a_time_goes_before_a_path_and_dot_slash_before_a_time() -> None:
    def everything(_: str) -> bool:
        return True

    assert isinstance(parse("2026-11-27", "after", NOW, is_directory=everything), Window)
    assert isinstance(parse("1795773600", "after", NOW, is_directory=everything), Window)
    assert parse("./2026-11-27", "after", NOW, is_directory=everything) == Path("2026-11-27")
    assert parse("../a..b", "after", NOW, is_directory=everything) == Path("../a..b")
    assert parse("tuesday", "after", NOW, is_directory=everything) == Path("tuesday")
    assert parse("/x/2026-11-27T10:00/15m", "after", NOW, is_directory=everything) == Path("/x/2026-11-27T10:00/15m")


def outcome(text: str, side: Side, now_ns: int) -> Window | str:
    try:
        found = parse(text, side, now_ns, is_directory=lambda _: False)
    except SpecError as error:
        return str(error)
    assert isinstance(found, Window)
    return found


@given(st.text(max_size=60), st.sampled_from(["before", "after"]), st.integers(0, 2**62))
def test_any_text_is_a_window_or_a_sentence(text: str, side: Side, now_ns: int) -> None:
    found = outcome(text, side, now_ns)
    assert isinstance(found, Window) or found.isprintable()


SPECISH = st.lists(
    st.sampled_from(
        [
            *"0123456789-+:.TZ/[] @~",
            "..",
            "now",
            "2026-11-27",
            "T10:00",
            "Europe/Berlin",
            "15m",
            "h",
            "w",
            "\0",
            "9" * 12,
        ]
    ),
    max_size=12,
).map("".join)


@given(SPECISH, st.sampled_from(["before", "after"]))
def test_text_that_looks_like_a_spec_never_breaks(text: str, side: Side) -> None:
    found = outcome(text, side, NOW)
    if isinstance(found, Window):
        assert 0 <= found.from_ns < found.to_ns < 2**63
    else:
        assert found.isprintable()


TIMES = st.integers(0, NOW - 1)


@given(TIMES, st.integers(1, 10**18))
def test_a_printed_window_reads_back(from_ns: int, length: int) -> None:
    original = Window(from_ns, from_ns + length)
    assert window(str(original)) == original


@given(TIMES)
def test_a_printed_time_reads_back(time_ns: int) -> None:
    assert parse_instant(utc(time_ns), NOW) == time_ns


@given(st.integers(10**17, NOW))
def test_unix_nanoseconds_read_back(time_ns: int) -> None:
    assert parse_instant(str(time_ns), NOW) == time_ns
    assert parse_instant(f"{time_ns // NS}.{time_ns % NS:09d}", NOW) == time_ns


@given(st.integers(1, 10**15))
def test_lengths_read_back(ns: int) -> None:
    assert parse_length(f"{ns}ns") == ns
    assert parse_length(f"{ns // NS}s{ns % NS}ns") == ns


@given(st.integers(1, 10**17))
def test_length_text_is_short_and_never_zero(ns: int) -> None:
    text = length_text(ns)
    assert len(text) <= 12
    assert parse_length(text) == pytest.approx(ns, rel=0.05)


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (20 * 60 * NS - 14_000_000, "20m"),
        (154 * NS, "2m34s"),
        (22_500_000_000, "22.5s"),
        (90 * 60 * NS, "1h30m"),
        (26 * HOUR, "1d2h"),
        (500_000_000, "500ms"),
        (999_500, "1ms"),
        (999_499, "999us"),
        (999_500_000, "1s"),
        (1, "1ns"),
    ],
)
def test_length_text(ns: int, text: str) -> None:
    assert length_text(ns) == text


@given(TIMES, st.integers(1, 400 * 24 * HOUR), st.floats(0, 1, exclude_max=True))
def test_buckets_tile_the_window(from_ns: int, length: int, place: float) -> None:
    its = Window(from_ns, from_ns + length)
    count, width = its.buckets()
    moment = from_ns + int(place * length)
    assert 0 <= (moment - from_ns) // width < count
    assert (its.to_ns - 1 - from_ns) // width < count
    assert count * width < length + count


def test_a_minute_a_bucket_in_long_windows_else_as_many_as_the_statistics_want() -> None:
    assert BUCKETS == RECOMMENDED_BUCKETS
    assert Window(0, 180 * MINUTE).buckets() == (180, MINUTE)
    assert Window(0, 60 * MINUTE).buckets() == (120, MINUTE // 2)
    assert Window(0, 12 * NS).buckets() == (120, NS // 10)
    assert Window(0, 120 * HOUR).buckets() == (120, HOUR)
    assert Window(0, 480 * HOUR).buckets() == (480, HOUR)
    assert Window(0, 481 * HOUR).buckets() == (241, 2 * HOUR)
    assert Window(0, 120 * HOUR - MINUTE).buckets() == (480, 15 * MINUTE)
    assert Window(MINUTE, 120 * HOUR + MINUTE).buckets() == (480, 15 * MINUTE)


@pytest.mark.parametrize(
    ("start", "end", "narrow", "wide"),
    [
        (1, 120 * MINUTE, (1, 120 * MINUTE), (1, 120 * MINUTE)),
        (1, 121 * MINUTE + 1, (MINUTE, 121 * MINUTE), (0, 122 * MINUTE)),
        (1, 121 * HOUR - 1, (MINUTE, 121 * HOUR - MINUTE), (0, 121 * HOUR)),
        (1, 121 * HOUR, (HOUR, 121 * HOUR), (0, 121 * HOUR)),
        (HOUR - 1, 130 * HOUR + 1, (HOUR, 130 * HOUR), (0, 131 * HOUR)),
    ],
)
def test_long_windows_are_whole_hours_or_minutes(
    start: int, end: int, narrow: tuple[int, int], wide: tuple[int, int]
) -> None:
    window = Window(start, end)
    assert window.whole() == Window(*narrow)
    assert window.around() == Window(*wide)
    assert window.whole().whole() == window.whole()


def test_overlap_is_refused_in_one_store_only() -> None:
    before, after = Window(TEN, TEN + 15 * MINUTE), Window(TEN + 10 * MINUTE, TEN + 25 * MINUTE)
    with pytest.raises(SpecError, match="overlap by 5m"):
        check_pair(before, after, NOW, same_store=True)
    assert check_pair(before, after, NOW, same_store=False) == []
    assert check_pair(before, Window(before.to_ns, NOW), NOW, same_store=True) == []


def test_windows_worth_a_warning() -> None:
    past, late = Window(TEN, TEN + MINUTE), Window(NOW - 10 * MINUTE, NOW + 5 * MINUTE)
    (warning,) = check_pair(past, late, NOW, same_store=True)
    assert "its last 5m have not happened yet" in warning
    (warning,) = check_pair(Window(NOW - HOUR, NOW), past, NOW, same_store=True)
    assert "later than the after window" in warning


def test_covered() -> None:
    def covered(*stretches: tuple[int, int]) -> int:
        return covered_ns(Window(100, 200), *np.array(stretches, np.int64).reshape(-1, 2).T)

    assert covered() == 0
    assert covered((0, 50), (250, 300)) == 0
    assert covered((150, 300), (0, 120), (110, 130)) == 80
    assert covered((0, 1000), (120, 130)) == 100


@pytest.mark.parametrize(
    ("text", "value"), [("5%", 0.05), ("0.05", 0.05), ("0", 0.0), ("100%", 1.0), ("12.5 %", 0.125)]
)
def test_shares(text: str, value: float) -> None:
    assert share("--tolerance", text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["5", "", "%", "-5%", "nan", "inf", "1e9", "5%%", "99999%", "x", "٥%"])
def test_shares_that_are_refused(text: str) -> None:
    with pytest.raises(SpecError, match="--tolerance"):
        share("--tolerance", text)


@pytest.mark.parametrize(
    ("text", "value"), [("0.99", 0.99), ("p99", 0.99), ("99%", 0.99), ("p99.9", 0.999), ("p50", 0.5)]
)
def test_quantiles(text: str, value: float) -> None:
    assert quantile(text) == value


@pytest.mark.parametrize("text", ["99", "1", "0", "p100", "p", "", "nan", "-0.9", "0.3"])
def test_quantiles_that_are_refused(text: str) -> None:
    with pytest.raises(SpecError, match="--quantile"):
        quantile(text)
