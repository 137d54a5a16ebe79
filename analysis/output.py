"""The output formats of a comparison: one module each, found by name."""

from __future__ import annotations

from importlib import import_module
from typing import Final, Protocol, cast

from kdiff.analysis.report import Report

FORMATS: Final = ("table", "json", "markdown", "junit", "argo", "sentence")


class Format(Protocol):
    """What a module analysis/output_<name>.py provides."""

    def render(self, report: Report, width: int, colour: bool) -> str:
        """The report as text that ends with a newline; `width` in cells and `colour` concern terminals only."""


def output_format(name: str) -> Format:
    """The format called `name`, one of FORMATS; only that one is imported."""
    return cast(Format, import_module(f"kdiff.analysis.output_{name}"))
