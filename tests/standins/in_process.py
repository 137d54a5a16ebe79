"""The stand-in driver inside the calling process, through ctypes."""

from __future__ import annotations

import ctypes
import shutil
from pathlib import Path

from standins.standins import Truth, load_truth


class Driver:
    """A driver of its own in this process: a copy of the library is another library to the loader.

    The environment variables of the driver take effect here, when it is started.
    """

    def __init__(self, driver: Path, folder: Path, truth: Path) -> None:
        copy = folder / "libcuda-copy.so"
        shutil.copy(driver, copy)
        self.lib = ctypes.CDLL(str(copy))
        self.truth_path = truth
        assert self.lib.cuInit(0) == 0
        context = ctypes.c_void_p()
        assert self.lib.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
        assert self.lib.cuCtxSetCurrent(context) == 0

    def out(self, call: str, *args: object) -> int:
        """Make a call whose first argument is an out-pointer; what it gave."""
        value = ctypes.c_void_p()
        assert getattr(self.lib, call)(ctypes.byref(value), *args) == 0
        return value.value or 0

    def load(self, *kernels: str) -> int:
        """Load a module with these kernels, each `NAME median_ns ...`."""
        image = "".join(f"kernel {kernel}\n" for kernel in kernels).encode()
        return self.out("cuModuleLoadData", ctypes.c_char_p(image))

    def function(self, module: int, name: str) -> int:
        """The CUfunction of a kernel."""
        return self.out("cuModuleGetFunction", ctypes.c_void_p(module), ctypes.c_char_p(name.encode()))

    def call(self, name: str, *pointers: int) -> int:
        """Make a call whose arguments are all pointers or handles; its status."""
        status: int = getattr(self.lib, name)(*map(ctypes.c_void_p, pointers))
        return status

    def launch(self, function: int, stream: int = 0, block: int = 32, grid: int = 1, ptsz: bool = False) -> int:
        """Launch a kernel; the status."""
        call = self.lib.cuLaunchKernel_ptsz if ptsz else self.lib.cuLaunchKernel
        pointers = [ctypes.c_void_p(value) for value in (stream, 0, 0)]
        status: int = call(ctypes.c_void_p(function), grid, 1, 1, block, 1, 1, 0, *pointers)
        return status

    @property
    def truth(self) -> Truth:
        """What happened so far."""
        return load_truth(self.truth_path)
