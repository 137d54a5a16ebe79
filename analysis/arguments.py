"""What the command line takes besides SPECs: shares, quantiles and choices, read strictly."""

from __future__ import annotations

import math
import re
from enum import StrEnum

from kdiff.analysis.timespec import SpecError, parse_instant, parse_length
from kdiff.queries.printable import quoted

_LONGEST_WARM_UP_NS = 3_600 * 1_000_000_000
_NUMBER = re.compile(r"[0-9]{1,18}(?:\.[0-9]{1,18})?")


class MetricName(StrEnum):
    """--metric."""

    AUTO = "auto"
    DEVICE = "device"
    COMPLETION = "completion"
    LAUNCH = "launch"
    GRAPH = "graph"


class FormatName(StrEnum):
    """--format of a comparison."""

    TABLE = "table"
    JSON = "json"
    MARKDOWN = "markdown"
    JUNIT = "junit"
    ARGO = "argo"
    SENTENCE = "sentence"


class ListFormat(StrEnum):
    """--format of a list."""

    TABLE = "table"
    JSON = "json"


class Undecided(StrEnum):
    """--on-undecided."""

    PASS = "pass"
    FAIL = "fail"


class Unpaired(StrEnum):
    """--unpaired."""

    UNDECIDED = "undecided"
    IGNORE = "ignore"


def instant(option: str, text: str, now_ns: int) -> int:
    """Unix ns of an instant, as timespec.parse_instant reads it. Raises SpecError, which names the option."""
    try:
        return parse_instant(text, now_ns)
    except SpecError as error:
        raise SpecError(f"{option}: {error}") from error


def warm_up(text: str) -> int:
    """--warm-up: nanoseconds of 60s or 2m; 0, off or 0s is none. Raises SpecError above an hour."""
    text = text.strip()
    if text in ("0", "0s", "off"):
        return 0
    try:
        length = parse_length(text)
    except SpecError as error:
        raise SpecError(f"--warm-up: {error}") from error
    if length > _LONGEST_WARM_UP_NS:
        raise SpecError(f"--warm-up {quoted(text)} is over an hour: give a shorter one, or 0")
    return length


def share(option: str, text: str) -> float:
    """5% or 0.05 as 0.05. A number above 1 without a percent sign is refused: it is 5% or 500%. Raises SpecError."""
    text = text.strip()
    number = text.removesuffix("%").strip()
    if not _NUMBER.fullmatch(number):
        raise SpecError(f"{option} {quoted(text)} is not a share: write 5% or 0.05")
    value = float(number) / (100.0 if text.endswith("%") else 1.0)
    if value > 1.0 and not text.endswith("%"):
        raise SpecError(f"{option} {quoted(text)} is over 1: write {number}% if that is meant")
    if not math.isfinite(value) or value > 10.0:
        raise SpecError(f"{option} {quoted(text)} is over 1000%: give a smaller share")
    return value


def quantile(text: str) -> float:
    """0.99, 99% or p99 as 0.99. Raises SpecError outside [0.5, 0.9999]."""
    cleaned = text.strip()
    percent = cleaned[:1] in "pP" or cleaned.endswith("%")
    number = cleaned[1:] if cleaned[:1] in ("p", "P") else cleaned.removesuffix("%")
    if not _NUMBER.fullmatch(number):
        raise SpecError(f"--quantile {quoted(text)} is not a quantile: write 0.99 or p99")
    value = round(float(number) / 100.0, 12) if percent else float(number)
    if not 0.5 <= value <= 0.9999:
        raise SpecError(f"--quantile {quoted(text)} is not between 0.5 and 0.9999: write 0.99 or p99")
    return value
