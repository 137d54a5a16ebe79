"""The errors kdiff shows to people.

KdiffError        what went wrong and how to mend it, in one sentence; exit code 2
└── StoreError    a capture or a server that cannot be read or written
"""

from __future__ import annotations


class KdiffError(Exception):
    """A failure whose message is one sentence that names the mend. Commands print it and exit with `code`."""

    code = 2


class StoreError(KdiffError):
    """A capture directory or a server could not be read or written."""
