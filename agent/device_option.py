"""`--device-time`: what it means for the agent, and for the environment of a command."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kdiff.agent.errors import AgentError
from kdiff.probes.device_library import BASENAME, BUDGET, INJECTION, NAME, SETTING, DeviceLibraryError, library

_LENGTHS: Final = re.compile(r"(\d+)(ms|s)/(\d+)(ms|s)")
_MS: Final = {"ms": 1, "s": 1000}
_MOST_MS: Final = 86_400_000


@dataclass(frozen=True)
class DeviceOption:
    """`listen`: to device libraries wherever they are mapped. `load`: let the command load one. `setting`: of it."""

    listen: bool = True
    load: bool = False
    setting: str = ""

    @classmethod
    def parse(cls, text: str) -> DeviceOption:
        """From the option's value, '' for none. Raises ValueError that says what is accepted."""
        if text == "":
            return cls()
        if text == "off":
            return cls(listen=False)
        if text == "on":
            return cls(load=True)
        if text == "always":
            return cls(load=True, setting="always")
        found = _LENGTHS.fullmatch(text)
        if found:
            window, period = int(found[1]) * _MS[found[2]], int(found[3]) * _MS[found[4]]
            if 0 < window <= period <= _MOST_MS:
                return cls(load=True, setting=f"{window}/{period}")
        raise ValueError(
            f"{text!r} is not off, on, always or WINDOW/PERIOD like 1s/10s or 200ms/2s, the window not the longer one"
        )

    def environment(self, inherited: Mapping[str, str], note: Callable[[str], None]) -> dict[str, str]:
        """The environment of a command, in which the CUDA driver loads the device library. Raises AgentError."""
        environment = dict(inherited)
        if not self.load:
            return environment
        other = environment.get(INJECTION, "")
        if not other:
            environment[INJECTION] = str(provide_library())
        elif BASENAME not in os.path.basename(other):
            note(f"CUDA_INJECTION64_PATH is set already, to {other}: device time is not recorded")
            return environment
        if self.setting:
            environment[SETTING] = self.setting
            environment.setdefault(BUDGET, "none")  # whoever says how dense windows shall be wants them so
        elif environment.get(SETTING) == "off":
            del environment[SETTING]
        return environment


def provide_library(target: Path | None = None) -> Path:
    """Where the device library is, or the copy of it at `target`. Raises AgentError."""
    try:
        found = library()
    except DeviceLibraryError as error:
        raise AgentError(str(error)) from error
    if target is None:
        return found
    if target.is_dir():
        target = target / NAME
    if BASENAME not in target.name:
        raise AgentError(f"{target.name} would not be found by the agent: keep {BASENAME} in the file's name")
    # Beside it first: programs may have the old one mapped.
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        shutil.copyfile(found, beside)
        beside.chmod(0o755)
        beside.replace(target)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise AgentError(f"{target} cannot be written ({error.strerror}): name another file with -o") from error
    return target.absolute()
