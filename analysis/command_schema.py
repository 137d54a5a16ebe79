"""`kdiff schema`: the JSON Schema of what kdiff prints as JSON."""

from __future__ import annotations

from enum import StrEnum
from importlib import resources
from typing import Annotated

import typer

from kdiff.analysis.terminal import show


class SchemaName(StrEnum):
    """The documents that have a schema, analysis/schema/NAME.schema.json."""

    COMPARISON = "comparison"
    KERNELS = "kernels"
    HISTORY = "history"
    CALIBRATE = "calibrate"
    ARGO = "argo"


def schema(name: SchemaName) -> str:
    """The schema's text, draft 2020-12."""
    return resources.files("kdiff.analysis").joinpath("schema", f"{name}.schema.json").read_text(encoding="utf-8")


def schema_command(
    name: Annotated[SchemaName, typer.Argument(help="Which document.")] = SchemaName.COMPARISON,
) -> None:
    """Print the JSON Schema (draft 2020-12) of a comparison, or of another document. `$id` has its version.

    Example:  kdiff schema argo
    """
    show(schema(name), 0)
