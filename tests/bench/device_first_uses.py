"""A program for torch_device.py that does again and again what programs do once: `python device_first_uses.py WHAT`.

WHAT is `streams` (a new stream for each launch), `modules` (a new module) or `contexts` (a new context), in `--threads`
threads beside one that launches all the time. Prints `ready` and at the end how often it was done, as one line of JSON.
Needs a GPU and its driver only.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import sys
import threading
import time
from typing import Any

PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry first_use() { ret; }
"""

cuda = ctypes.CDLL("libcuda.so.1")


def call(name: str, *arguments: Any) -> None:
    if status := getattr(cuda, name)(*arguments):
        print(f"{name}: {status}", file=sys.stderr, flush=True)
        os._exit(3)  # of whichever thread


def handle(name: str, *arguments: Any) -> ctypes.c_void_p:
    """What a call stores where its first argument points to."""
    made = ctypes.c_void_p()
    call(name, ctypes.byref(made), *arguments)
    return made


def loaded() -> tuple[ctypes.c_void_p, ctypes.c_void_p]:
    module = handle("cuModuleLoadData", PTX)
    return module, handle("cuModuleGetFunction", module, b"first_use")


def launch(function: ctypes.c_void_p, stream: ctypes.c_void_p | None) -> None:
    call("cuLaunchKernel", function, 1, 1, 1, 32, 1, 1, 0, stream, None, None)


def streams(device: int, context: ctypes.c_void_p, function: ctypes.c_void_p) -> None:
    stream = handle("cuStreamCreate", 1)
    launch(function, stream)
    call("cuStreamSynchronize", stream)
    call("cuStreamDestroy_v2", stream)


def modules(device: int, context: ctypes.c_void_p, function: ctypes.c_void_p) -> None:
    module, fresh = loaded()
    launch(fresh, None)
    call("cuCtxSynchronize")
    call("cuModuleUnload", module)


def contexts(device: int, context: ctypes.c_void_p, function: ctypes.c_void_p) -> None:
    own = handle("cuCtxCreate_v2", 0, device)
    _, fresh = loaded()
    launch(fresh, None)
    call("cuCtxSynchronize")
    call("cuCtxDestroy_v2", own)
    call("cuCtxSetCurrent", context)


WHAT = {"streams": streams, "modules": modules, "contexts": contexts}


def main() -> None:
    parser = argparse.ArgumentParser(description="First uses of CUDA, again and again.")
    parser.add_argument("what", choices=WHAT)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    device = ctypes.c_int()
    call("cuInit", 0)
    call("cuDeviceGet", ctypes.byref(device), 0)
    context = handle("cuDevicePrimaryCtxRetain", device)
    call("cuCtxSetCurrent", context)
    _, function = loaded()
    print("ready", flush=True)
    until = time.monotonic() + args.seconds
    done = [0] * args.threads

    def again(index: int) -> None:
        call("cuCtxSetCurrent", context)
        while time.monotonic() < until:
            WHAT[args.what](device.value, context, function)
            done[index] += 1

    threads = [threading.Thread(target=again, args=(index,)) for index in range(args.threads)]
    for thread in threads:
        thread.start()
    while time.monotonic() < until:
        launch(function, None)
    for thread in threads:
        thread.join()
    print(json.dumps({"done": sum(done)}))


if __name__ == "__main__":
    main()
