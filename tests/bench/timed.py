"""Runs a command and prints what its process used, as one line of JSON: `python timed.py COMMAND...`

CPU time, since wall time on a busy machine measures the others.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

process = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE)
assert process.stdout is not None
printed = json.loads(process.stdout.read())
_, status, used = os.wait4(process.pid, 0)
process.returncode = os.waitstatus_to_exitcode(status)
print(json.dumps({**printed, "cpu_ns": round((used.ru_utime + used.ru_stime) * 1e9)}))
sys.exit(process.returncode)
