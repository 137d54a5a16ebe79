"""Paths on command lines."""

from __future__ import annotations

from pathlib import Path

import typer


def named_path(text: str | Path) -> Path:
    """The path that was given. Raises typer.BadParameter for an empty one, which would be the working directory:
    what is empty is a variable that was not set.
    """
    if not str(text):
        raise typer.BadParameter("it is empty: name a path")
    return Path(text)
