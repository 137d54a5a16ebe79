"""A JAX program for torch_device.py that uses JAX's profiler once: `python jax_device_load.py --profile-at SECONDS`.

Prints `ready`, and at the end one line of JSON as torch_device_load.py does. Needs JAX with CUDA.
"""

from __future__ import annotations

import argparse
import faulthandler
import gzip
import json
import os
import tempfile
import time
from pathlib import Path

os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # several run on one GPU

import jax
import jax.numpy as jnp


def main() -> None:
    parser = argparse.ArgumentParser(description="A JAX program that profiles itself once.")
    parser.add_argument("--profile-at", type=float, default=1)
    parser.add_argument("--seconds", type=float, default=3)
    args = parser.parse_args()
    faulthandler.enable()
    call = jax.jit(lambda value: value * 2 + 1)
    x = jnp.ones(64)

    def run(calls: int) -> None:
        nonlocal x
        for _ in range(calls):
            x = call(x)
        x.block_until_ready()

    run(500)
    print("ready", flush=True)
    began = time.monotonic()
    while time.monotonic() < began + args.profile_at:
        run(100)
    with tempfile.TemporaryDirectory() as traces:
        with jax.profiler.trace(traces):
            run(2000)
        events = [
            event
            for path in Path(traces).rglob("*.trace.json.gz")
            for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        ]
    # Each call shows on the host's line and on the device's, under the name of its fusion.
    seen = sum("fusion" in event.get("name", "") and "correlation_id" in event.get("args", {}) for event in events)
    while time.monotonic() < began + args.seconds:
        run(100)
    print(json.dumps({"rates": [], "profiled": [(seen // 2, 0.0)]}))


if __name__ == "__main__":
    main()
