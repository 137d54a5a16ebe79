"""--policy FILE: what a verdict is held to, kept beside the code that it gates.

Keys are long options without their dashes, and tables [[kernel]] say what is held against single kernels. What the
command line says goes before the file.
"""

from __future__ import annotations

import difflib
import math
import tomllib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

import typer

from kdiff.analysis import arguments
from kdiff.analysis.renames import MOST_BYTES, read_bytes, show
from kdiff.analysis.tolerances import Tolerance
from kdiff.queries.errors import KdiffError
from kdiff.queries.printable import printable

_KERNELS: Final = "kernel"
_OF_KERNEL: Final = ("match", "tolerance")
_META: Final = "kdiff.policy"
_FORM: Final = 'write lines like tolerance = "5%", and tables [[kernel]] with match = "name" and tolerance = "10%"'
"""What a file looks like, as the end of an error."""


class PolicyError(KdiffError):
    """A policy file that cannot be read or says something else."""


@dataclass(frozen=True, slots=True)
class PolicyFile:
    """What a file says: options by their key, and the tolerances of kernels, the first ones going before the others."""

    options: Mapping[str, str | list[str]]
    tolerances: tuple[Tolerance, ...]


def read_policy(path: str) -> PolicyFile:
    """The policy in a TOML file. Raises PolicyError, one sentence that names the key."""
    where = f"--policy {show(path)}"
    if not path:
        raise PolicyError(f"{where} names no file: give one, or leave the option out")
    try:
        raw = read_bytes(path)
        if len(raw) > MOST_BYTES:
            raise PolicyError(f"{where} has more than 1 MiB: {_FORM}")
        said = tomllib.loads(raw.decode("utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        why = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
        raise PolicyError(f"{where} cannot be read ({printable(why or 'error')[:160]}): {_FORM}") from error
    options = {}
    for key, value in said.items():
        if key == _KERNELS:
            continue
        if key not in _CHECKS:
            raise PolicyError(f"{where} has a key that does not exist, {show(key)}: {_nearest(key, _KEYS)}")
        options[key] = _CHECKS[key](f"{where}: {key}", value)
    tables = said.get(_KERNELS, [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise PolicyError(f"{where}: kernel is a table for each pattern: {_FORM}")
    tolerances = [
        one for number, table in enumerate(tables, start=1) for one in _kernel(f"{where}, kernel {number}", table)
    ]
    return PolicyFile(options, tuple(tolerances))


def tolerances(context: typer.Context) -> tuple[Tolerance, ...]:
    """Those of the file that --policy of this command named; none without one."""
    found = context.meta.get(_META)
    return found.tolerances if isinstance(found, PolicyFile) else ()


def take(context: typer.Context, path: str) -> None:
    """Makes what the file says the defaults of those options that the command has. Raises PolicyError."""
    said = read_policy(path)
    has = {param.name for param in context.command.params}
    named = {key.replace("-", "_"): value for key, value in said.options.items()}
    context.default_map = {**(context.default_map or {}), **{k: v for k, v in named.items() if k in has}}
    context.meta[_META] = said


def _kernel(where: str, table: Mapping[str, Any]) -> list[Tolerance]:
    for key in table:
        if key not in _OF_KERNEL:
            raise PolicyError(f"{where} has a key that does not exist, {show(key)}: {_nearest(key, _OF_KERNEL)}")
    for key in _OF_KERNEL:
        if key not in table:
            raise PolicyError(f"{where} has no {key}: {_FORM}")
    patterns = table["match"] if isinstance(table["match"], list) else [table["match"]]
    if not patterns or not all(isinstance(pattern, str) and pattern for pattern in patterns):
        raise PolicyError(
            f"{where}: match is a part of a name, a shell pattern for the whole of it, or a list of these"
        )
    share = arguments.share(f"{where}: tolerance", _text(f"{where}: tolerance", table["tolerance"]))
    return [Tolerance(pattern, share, where) for pattern in patterns]


def _text(what: str, value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise PolicyError(f'{what} is a text or a number: write "5%" or 0.05')
    # A float may be written with an exponent, which no option has.
    return f"{Decimal(repr(value)):f}" if isinstance(value, float) and math.isfinite(value) else str(value)


def _share(what: str, value: Any) -> str:
    text = _text(what, value)
    arguments.share(what, text)
    return text


def _quantile(what: str, value: Any) -> str:
    text = _text(what, value)
    try:
        arguments.quantile(text)
    except KdiffError as error:
        raise PolicyError(f"{what}: {error}") from error
    return text


def _one_of(choices: Collection[str]) -> Callable[[str, Any], str]:
    def check(what: str, value: Any) -> str:
        if not isinstance(value, str) or value not in choices:
            raise PolicyError(f"{what} is one of {', '.join(choices)}: {_nearest(str(value), choices)}")
        return value

    return check


def _names(what: str, value: Any) -> list[str]:
    names = value if isinstance(value, list) else [value]
    if not all(isinstance(name, str) and name for name in names):
        raise PolicyError(f'{what} is a name or a list of names, like ["gelu"]')
    return list(names)


def _nearest(word: str, known: Collection[str]) -> str:
    """The known word that may be meant, or all of them, as the end of a sentence."""
    found = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f"is {found[0]} meant?" if found else f"there are {', '.join(known)}"


_CHECKS: Final[dict[str, Callable[[str, Any], str | list[str]]]] = {
    "tolerance": _share,
    "quantile": _quantile,
    "max-loss": _share,
    "max-unjudged": _share,
    "on-undecided": _one_of([choice.value for choice in arguments.Undecided]),
    "unpaired": _one_of([choice.value for choice in arguments.Unpaired]),
    "swapped": _names,
}
_KEYS: Final = (*_CHECKS, _KERNELS)
