"""`kdiff-agent config`: each setting of `run`, and where it came from."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from kdiff.agent.command_run import checked
from kdiff.agent.command_ship import STORE_VARIABLE
from kdiff.agent.settings import FILE, settings_of, source_of, variable_of
from kdiff.queries.address import masked
from kdiff.queries.printable import printable


class ConfigFormat(StrEnum):
    """How `config` prints."""

    TEXT = "text"
    JSON = "json"


def config_command(
    context: typer.Context,
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", envvar=variable_of("config"), help=f"A file of settings in place of {FILE}."),
    ] = None,
    form: Annotated[ConfigFormat, typer.Option("--format", help="How to print it.")] = ConfigFormat.TEXT,
) -> None:
    """Show what `run` would be set to, and where each value came from: environment, file or default."""
    parent = context.parent
    group: Any = parent.command if parent else None
    run = group.commands["run"]
    given = [] if config is None else ["--config", str(config)]
    asked = run.make_context("run", given, parent=parent)
    values = asked.params
    arguments = (values[name] for name in ("output", "store", "max_bytes", "metrics", "include", "exclude"))
    address, _, _ = checked(*arguments)
    rows = {
        key: (_value(values[str(option.name)]), source_of(asked, option, values["config"]))
        for key, option in settings_of(run).items()
    }
    if address and not values["store"]:
        rows["store"] = masked(address), STORE_VARIABLE
    if form is ConfigFormat.JSON:
        settings = [{"key": key, "value": value, "from": source} for key, (value, source) in rows.items()]
        print(json.dumps({"schema": "kdiff-config/1", "settings": settings}, indent=2))
        return
    shown = [(key, _text(value), source) for key, (value, source) in rows.items()]
    widths = [max(len(row[column]) for row in shown) for column in range(2)]
    for key, text, source in shown:
        print(printable(f"{key:{widths[0]}}  {text:{widths[1]}}  {source}"))


def _value(value: object) -> str | bool | list[str]:
    if isinstance(value, (list, tuple)):
        return [masked(str(part)) for part in value]
    return value if isinstance(value, bool) else masked("" if value is None else str(getattr(value, "value", value)))


def _text(value: str | bool | list[str]) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return ", ".join(value) if isinstance(value, list) else value
