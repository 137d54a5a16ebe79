"""A small load on a real GPU: two Triton kernels in turn, a sync after each launch or after many.

`--rounds` is the inner work of `fused_gelu`; more of it is a slower kernel under the same name. `layer_norm` stays as
it is. With `--sync-every 200` launches queue up, and the host sees nothing of the kernels' own time.
Needs PyTorch and Triton.
"""

from __future__ import annotations

import argparse
import time

import torch
import triton
import triton.language as tl

LAUNCHES = 8_000  # of each kernel
ROWS, COLUMNS = 4096, 1024
BLOCK = 1024


@triton.jit
def fused_gelu(source, target, ROUNDS: tl.constexpr, BLOCK: tl.constexpr):  # noqa: N803
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(source + at)
    for _ in range(ROUNDS):
        value = 0.5 * value * (1.0 + tl.erf(value * 0.70710678)) + 0.0001
    tl.store(target + at, value)


@triton.jit
def layer_norm(source, target, ROUNDS: tl.constexpr, BLOCK: tl.constexpr):  # noqa: N803
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(source + at)
    for _ in range(ROUNDS):
        centred = value - tl.sum(value, axis=0) / BLOCK
        value = centred / tl.sqrt(tl.sum(centred * centred, axis=0) / BLOCK + 1e-5)
    tl.store(target + at, value)


def main() -> None:
    parser = argparse.ArgumentParser(description="Launch two Triton kernels in turn, with a sync after each.")
    parser.add_argument("--rounds", type=int, default=60, help="inner work of fused_gelu")
    parser.add_argument("--launches", type=int, default=LAUNCHES, help="of each kernel")
    parser.add_argument("--sync-every", type=int, default=1, help="launches between two syncs")
    parser.add_argument("--seconds", type=float, default=0, help="run so long, whatever --launches says")
    args = parser.parse_args()

    source = torch.randn(ROWS, COLUMNS, device="cuda", dtype=torch.float32)
    target = torch.empty_like(source)
    stream = torch.cuda.current_stream()
    work = [(layer_norm, 8), (fused_gelu, args.rounds)]

    rounds_done = 0
    end = time.monotonic() + args.seconds
    while time.monotonic() < end if args.seconds else rounds_done < args.launches:
        for place, (kernel, rounds) in enumerate(work):
            kernel[(ROWS,)](source, target, ROUNDS=rounds, BLOCK=BLOCK, num_warps=4)
            if (rounds_done * len(work) + place + 1) % args.sync_every == 0:
                stream.synchronize()
        rounds_done += 1
    stream.synchronize()
    print(f"{rounds_done:,} launches of each of {len(work)} kernels")


if __name__ == "__main__":
    main()
