"""The floor of what probing can cost: the agent's own way of attaching, at the same places, and a program that returns.

    python tests/bench/floor.py LAYER [--no-return] FILE...

Attaches, prints a line, and stays attached until its standard input ends.
"""

from __future__ import annotations

import argparse
import sys
from unittest.mock import patch

from kdiff.agent.bpf import Program
from kdiff.agent.targets import Targets
from kdiff.probes.program import PROGRAMS, Layers, Tracing

EMPTY = "#include <uapi/linux/ptrace.h>\n" + "".join(
    f"int {program}(struct pt_regs *ctx) {{ return 0; }}\n" for program in PROGRAMS
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("layer", type=Layers)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--no-return", action="store_true")
    options = parser.parse_args()
    tracing = Tracing(options.layer, launch_returns=not options.no_return)
    with patch("kdiff.agent.bpf.source", return_value=EMPTY):
        program = Program(tracing)
    try:
        targets = Targets(program, tracing, set(), lambda warning: print(warning, file=sys.stderr))
        for file in options.files:
            targets.probe_path(file)
        print(program.attached, flush=True)
        sys.stdin.read()
    finally:
        program.close()


if __name__ == "__main__":
    main()
