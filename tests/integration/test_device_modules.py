"""The device library leads calls of a program's modules through it, whatever the modules are like."""

from __future__ import annotations

import os
import struct
import subprocess
from pathlib import Path

import pytest

from kdiff.probes.device_library import library
from standins.standins import build

MODULE = """
#define _GNU_SOURCE
#include <dlfcn.h>
void *(*const table[])(void *, const char *) = {dlsym};
int written = 1;
int use(void) { written++; return table[0](RTLD_DEFAULT, "malloc") && dlsym(RTLD_NEXT, "free"); }
"""
IN_CODE = """
#include <dlfcn.h>
__asm__(".text\\n.globl in_code\\nin_code: .quad dlsym\\n");
int use(void) { return dlsym(0, "malloc") != 0; }
"""
PROGRAM = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <unistd.h>
int cuInit(unsigned);
int main(int count, char **path)
{
    void *module = dlopen(path[1], RTLD_NOW | RTLD_LOCAL);
    int (*use)(void) = module ? dlsym(module, "use") : 0;
    if (!use || cuInit(0))
        return 3;
    for (int i = 0; i < 40; i++, usleep(10000))
        if (!use())
            return 4;
    return 0;
}
"""
# A layer over CUPTI, and a module that looks CUPTI up in a scope that only it has.
LAYER = """
#define _GNU_SOURCE
#include <dlfcn.h>
int depth;
int cuptiGetVersion(unsigned *version);
int cuptiActivityDisable(int kind)
{
    if (++depth > 3)
        return -1;
    int (*next)(int) = dlsym(RTLD_NEXT, "cuptiActivityDisable");
    int result = next ? next(kind) : -2;
    depth--;
    return result;
}
"""
CALLS = """
#include <dlfcn.h>
int cuptiActivityDisable(int kind);
int use(void) { return cuptiActivityDisable(10) >= 0; }
"""
OWN_SCOPE = """
#define _GNU_SOURCE
#include <dlfcn.h>
int use(void) { return dlsym(RTLD_DEFAULT, "cuptiSubscribe") != 0; }
"""
CUPTI = (f"-L{build().build}", "-Wl,--no-as-needed", "-l:libcupti.so.13")


def compiled(directory: Path, name: str, source: str, *options: str) -> Path:
    (directory / f"{name}.c").write_text(source)
    made = directory / name
    subprocess.run(["cc", "-O1", "-w", "-o", made, directory / f"{name}.c", *options], check=True)
    return made


def shared(directory: Path, source: str, *options: str, name: str = "module.so") -> Path:
    return compiled(directory, name, source, "-shared", "-fPIC", *options)


def run(directory: Path, module: Path, **env: str) -> int:
    """The exit status of a program that uses the module with the device library in it."""
    program = compiled(directory, "program", PROGRAM, f"-L{build().build}", "-l:libcuda.so.1")
    settings = {"LD_LIBRARY_PATH": str(build().build), "CUDA_INJECTION64_PATH": str(library()), **env}
    return subprocess.run([program, module], env={**os.environ, **settings}, timeout=30, check=False).returncode


def end_relro_within_a_page(module: Path) -> None:
    """Makes its GNU_STACK header a RELRO one whose end shares a page with data, as where pages are of 64 KiB."""
    elf = bytearray(module.read_bytes())
    (offset,), (count,) = struct.unpack_from("<Q", elf, 32), struct.unpack_from("<H", elf, 56)
    headers = {at: struct.unpack_from("<IIQQQQQQ", elf, at) for at in range(offset, offset + 56 * count, 56)}
    data = next(h for h in headers.values() if h[0] == 1 and h[1] & 2)
    stack = next(at for at, h in headers.items() if h[0] == 0x6474E551)
    struct.pack_into("<IIQQQQQQ", elf, stack, 0x6474E552, 4, *data[2:5], data[5] - 8, data[5] - 8, 1)
    module.write_bytes(elf)


@pytest.mark.parametrize("linking", ["-Wl,-z,now,-z,relro", "-Wl,-z,lazy", "-Wl,-z,now,-z,pack-relative-relocs"])
def test_slots_wherever_they_lie(tmp_path: Path, linking: str) -> None:
    assert run(tmp_path, shared(tmp_path, MODULE, linking)) == 0


def test_data_beside_the_end_of_relro_stays_writable(tmp_path: Path) -> None:
    module = shared(tmp_path, MODULE, "-Wl,-z,now,-z,norelro")
    end_relro_within_a_page(module)
    assert run(tmp_path, module) == 0


def test_an_address_in_code_is_left_alone(tmp_path: Path) -> None:
    assert run(tmp_path, shared(tmp_path, IN_CODE, "-Wl,-z,notext")) == 0


def test_a_layer_that_calls_the_next_one(tmp_path: Path) -> None:
    layer = shared(tmp_path, LAYER, *CUPTI, name="layer.so")
    assert run(tmp_path, shared(tmp_path, CALLS, *CUPTI), LD_PRELOAD=str(layer)) == 0


def test_a_module_looks_up_in_its_own_scope(tmp_path: Path) -> None:
    assert run(tmp_path, shared(tmp_path, OWN_SCOPE, *CUPTI)) == 0
