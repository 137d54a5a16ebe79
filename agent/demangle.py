"""C++ names for people, as every table has them."""

from __future__ import annotations

from kdiff.queries.kernel_names import demangle

__all__ = ["demangle"]
