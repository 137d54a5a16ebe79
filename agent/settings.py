"""Where `run` takes its settings from: flags, then KDIFF_AGENT_*, then a file, then defaults."""

from __future__ import annotations

import os
import stat
import tomllib
from collections.abc import Iterable, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Final

import typer

from kdiff.agent.errors import AgentError
from kdiff.agent.nearest import nearest
from kdiff.queries.address import masked

FILE: Final = Path("/etc/kdiff/agent.toml")
PREFIX: Final = "KDIFF_AGENT"
_LARGEST: Final = 1 << 20
_NOT_IN_A_FILE: Final = ("config", "help")


def load_file(context: typer.Context, given: Path | None) -> None:
    """Take what a file says as the defaults of `context`: the one `given`, else FILE where it is there.

    Raises AgentError, one sentence without a value in it where that may be a secret.
    """
    path = given or FILE
    settings = settings_of(context.command)
    refuse_unknown(os.environ, settings)
    for key, option in settings.items():
        for variable in _variables_of(key, option):
            if text := os.environ.get(variable):
                _check_choice(variable, text, option)
    if given is None and not _is_there(path):
        return
    said = _read(path)
    shown = masked(str(path))
    for key in said:
        if key not in settings:
            raise AgentError(
                f"{shown} has a key that does not exist, '{masked(key)}': {nearest(key, sorted(settings))}"
            )
    context.default_map = {
        str(settings[key].name): _checked(f"{shown}: {key}", value, settings[key]) for key, value in said.items()
    }


def setting(key: str, environment: Mapping[str, str]) -> str:
    """What a text is set to where no flag says: by its variable, else by the file that `run` reads; '' by neither.

    Raises AgentError where the file does not tell.
    """
    if text := environment.get(variable_of(key)):
        return text
    named = environment.get(variable_of("config"))
    path = Path(named) if named else FILE
    if not named and not _is_there(path):
        return ""
    value = _read(path).get(key, "")
    if not isinstance(value, str):
        raise AgentError(f"{masked(str(path))}: {key} is a text: write it in quotes")
    return value


def settings_of(command: Any) -> dict[str, Any]:
    """The options of a command by their key in a file, as the long option without its dashes."""
    options = (param for param in command.params if param.param_type_name == "option")
    named = {max(option.opts, key=len).removeprefix("--"): option for option in options}
    return {key: option for key, option in named.items() if key not in _NOT_IN_A_FILE and not option.hidden}


def refuse_unknown(environment: Mapping[str, str], settings: Iterable[str]) -> None:
    """Raises AgentError for a variable of the agent's that is no setting: it would be silently without effect."""
    known = [variable_of(key) for key in (*settings, "config")]
    for name in environment:
        if name.startswith(f"{PREFIX}_") and name not in known:
            raise AgentError(f"{masked(name)} is no setting: {nearest(name, sorted(known))}")


def variable_of(key: str) -> str:
    """The environment variable of a setting."""
    return f"{PREFIX}_{key.replace('-', '_').upper()}"


def source_of(context: typer.Context, option: Any, path: Path | None) -> str:
    """Where the value of an option came from, in words."""
    source = getattr(context.get_parameter_source(str(option.name)), "name", "DEFAULT")
    if source == "ENVIRONMENT":
        variables = _variables_of(max(option.opts, key=len).removeprefix("--"), option)
        return next((name for name in variables if os.environ.get(name)), variables[0])
    return {"DEFAULT_MAP": str(path or FILE), "COMMANDLINE": "flag"}.get(source, "default")


def _variables_of(key: str, option: Any) -> list[str]:
    """Those that an option is taken from: its own, or those that it names, the first goes before the others."""
    named = [option.envvar] if isinstance(option.envvar, str) else option.envvar
    return list(named or [variable_of(key)])


def _is_there(path: Path) -> bool:
    """Whether there is a file, or something that keeps it from being seen: settings are not passed over in silence."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        pass
    return True


def _read(path: Path) -> dict[str, Any]:
    shown = masked(str(path))
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise AgentError(f"{shown} is no regular file: name another with --config")
            raw = file.read(_LARGEST + 1)
    except IsADirectoryError as error:
        raise AgentError(f"{shown} is no regular file: name another with --config") from error
    except OSError as error:
        raise AgentError(f"{shown} cannot be read ({error.strerror}): name another file with --config") from error
    if len(raw) > _LARGEST:
        raise AgentError(f"{shown} is larger than 1 MiB, which no file of settings is: name another with --config")
    try:
        return tomllib.loads(raw.decode())
    except UnicodeDecodeError as error:
        raise AgentError(f"{shown} is no text in UTF-8: name another file with --config") from error
    except tomllib.TOMLDecodeError as error:
        raise AgentError(f'{shown} is no TOML ({error}): write lines like max-bytes = "10G"') from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, lists in lists
        raise AgentError(f'{shown} is no file of settings: write lines like max-bytes = "10G"') from error


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # a FIFO has no writer


def _checked(what: str, value: object, option: Any) -> object:
    """`what` names the setting in errors."""
    if option.is_flag:
        if not isinstance(value, bool):
            raise AgentError(f"{what} is true or false, without quotes")
        return value
    if option.multiple:
        if not isinstance(value, list) or not all(isinstance(part, str) for part in value):
            raise AgentError(f'{what} is a list of texts, like ["user=inference"]')
        for part in value:
            _check_text(what, part)
        return value
    if not isinstance(value, str):
        raise AgentError(f"{what} is a text: write it in quotes")
    _check_text(what, value)
    if not value and isinstance(option.default, Path):  # it would be the working directory
        raise AgentError(f"{what} is empty: name a path, or leave the line out")
    _check_choice(what, value, option)
    return value


def _check_text(what: str, value: str) -> None:
    if "\0" in value:  # no path, no address and no argument of a process can hold it
        raise AgentError(f"{what} holds a NUL character: leave it out")


def _check_choice(what: str, value: str, option: Any) -> None:
    """The parser would repeat what stands in a choice's place."""
    if isinstance(option.default, Enum):
        choices = [str(choice.value) for choice in type(option.default)]
        if value not in choices:
            raise AgentError(f"{what} is one of {', '.join(choices)}: {nearest(value, sorted(choices))}")
