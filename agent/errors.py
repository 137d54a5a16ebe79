"""Errors of the agent that people see.

KdiffError
└── AgentError    tracing cannot start or go on: the message says how to mend it
    └── ElfError  a file is cut off, or no ELF file at all
"""

from __future__ import annotations

from kdiff.queries.errors import KdiffError


class AgentError(KdiffError):
    """Tracing cannot start or go on."""


class ElfError(AgentError):
    """A file that is mapped as a library cannot be read as ELF."""
