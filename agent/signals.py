"""The signals that end a recording, which all processes of one take together."""

from __future__ import annotations

import signal
from typing import Final

ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
