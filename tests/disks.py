"""File systems of a given size, to be filled."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def mounted(disk: Path, size: str) -> Iterator[Path]:
    """A tmpfs of `size`, as mount writes it, at `disk`, which is made. Skips the test where nothing may be mounted."""
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, stderr=subprocess.DEVNULL, check=False).returncode != 0:
        pytest.skip("nothing may be mounted here")
    try:
        yield disk
    finally:
        # What a test that failed left running may still use it.
        subprocess.run(["umount", "--lazy", str(disk)], check=True)
