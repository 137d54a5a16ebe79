"""Builds the stand-ins with gcc; standins.py says what they are."""

from __future__ import annotations

import argparse
import fcntl
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
BUILD = HERE / "build"

# Each probed function must begin with `push %rbp`, which kernels emulate; others are single-stepped, at 20 times
# the cost.
# Identical functions must not be folded into one, or a probe on either would count both.
CFLAGS = [
    "-std=c11",
    "-D_GNU_SOURCE",
    "-O2",
    "-g",
    "-fPIC",
    "-pthread",
    "-fvisibility=hidden",
    "-fcf-protection=none",
    "-fno-omit-frame-pointer",
    "-fno-optimize-sibling-calls",
    "-fno-shrink-wrap",
    "-fno-schedule-insns2",
    "-fno-ipa-icf",
    "-Wall",
    "-Wextra",
    "-Werror",
]
LDFLAGS = ["-Wl,--build-id=sha1", "-Wl,-z,defs"]

DRIVER_SOURCES = (
    "context.c",
    "device.c",
    "truth.c",
    "modules.c",
    "launch.c",
    "streams.c",
    "graphs.c",
    "observe.c",
)
RUNTIME_SOURCES = ("runtime.c", "runtime_calls.c")
WORKLOAD_SOURCES = ("workload.c", "workload_worker.c", "workload_options.c", "workload_kernels.c", "workload_events.c")
CUPTI_SOURCES = ("cupti.c", "cupti_buffers.c")
# CUPTI_VERSION and the size of its kernel records: CUpti_ActivityKernel10, CUpti_ActivityKernel9.
CUPTIS = {"libcupti.so.13": (130001, 216), "libcupti.so.12": (24, 208)}


@dataclass(frozen=True)
class Standins:
    """Where the built stand-ins are."""

    build: Path

    @property
    def driver(self) -> Path:
        """The driver library."""
        return self.build / "libcuda.so.1"

    @property
    def runtime(self) -> Path:
        """The shared runtime that `workload` is linked with."""
        return self.build / "libcudart.so.13"

    @property
    def other_runtime(self) -> Path:
        """A second copy of the runtime, of another version and under another path."""
        return self.build / "other" / "libcudart.so.12"

    @property
    def static_runtime(self) -> Path:
        """The static runtime."""
        return self.build / "libcudart_static.a"

    @property
    def workload(self) -> Path:
        """The program linked with the shared runtime."""
        return self.build / "workload"

    @property
    def workload_static(self) -> Path:
        """The program with the runtime inside, its functions local symbols."""
        return self.build / "workload-static"

    @property
    def workload_static_stripped(self) -> Path:
        """The same without a symbol table."""
        return self.build / "workload-static-stripped"

    @property
    def workload_dlopen(self) -> Path:
        """The program linked with no runtime: `--api driver`, or `--runtime PATH`."""
        return self.build / "workload-dlopen"

    @property
    def cupti(self) -> Path:
        """The profiling library of CUDA 13."""
        return self.build / "libcupti.so.13"

    @property
    def cupti12(self) -> Path:
        """That of CUDA 12, whose records are shorter."""
        return self.build / "libcupti.so.12"

    @property
    def profiler(self) -> Path:
        """A user of CUPTI that is linked with it, its calls bound as they are first made."""
        return self.build / "libprofiler.so"

    @property
    def profiler_now(self) -> Path:
        """The same, bound when it is loaded and read-only from then on."""
        return self.build / "libprofiler-now.so"

    @property
    def profiler_dlsym(self) -> Path:
        """The same, which opens CUPTI by name and looks its functions up."""
        return self.build / "libprofiler-dlsym.so"

    @property
    def listener(self) -> Path:
        """An injected library that loads the device library and writes down what it hands over."""
        return self.build / "listener.so"

    @property
    def nvml(self) -> Path:
        """The management library, in a folder of its own: a host has it only where a test says so."""
        return self.build / "nvml" / "libnvidia-ml.so.1"

    def outputs(self) -> tuple[Path, ...]:
        """Every file that a build makes."""
        return (
            self.driver,
            self.runtime,
            self.other_runtime,
            self.static_runtime,
            self.workload,
            self.workload_static,
            self.workload_static_stripped,
            self.workload_dlopen,
            self.cupti,
            self.cupti12,
            self.profiler,
            self.profiler_now,
            self.profiler_dlsym,
            self.listener,
            self.nvml,
        )


# ---- building ----


def _sources() -> list[Path]:
    return [*HERE.glob("*.c"), *HERE.glob("*.h"), Path(__file__)]


def _current(standins: Standins) -> bool:
    newest = max(source.stat().st_mtime_ns for source in _sources())
    return all(output.exists() and output.stat().st_mtime_ns >= newest for output in standins.outputs())


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _run(*command: str | Path) -> None:
    done = subprocess.run([str(part) for part in command], cwd=HERE, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"building the stand-ins failed: {' '.join(map(str, command))}\n{done.stderr}")


def _compile(into: Path, extra_cflags: Sequence[str]) -> None:
    made = Standins(into)
    for folder in (made.other_runtime.parent, made.nvml.parent):
        folder.mkdir()
    shared = ["gcc", *CFLAGS, *extra_cflags, *LDFLAGS]
    _run(*shared, "-shared", "-Wl,-soname,libcuda.so.1", "-o", made.driver, *DRIVER_SOURCES, "-lm")
    for library, runpath in ((made.runtime, "$ORIGIN"), (made.other_runtime, "$ORIGIN:$ORIGIN/..")):
        _run(
            *shared, "-shared", f"-Wl,-soname,{library.name}", f"-Wl,-rpath,{runpath}", "-o", library, *RUNTIME_SOURCES
        )

    for name, (version, record_bytes) in CUPTIS.items():
        macros = [f"-DCUPTI_VERSION={version}", f"-DCUPTI_RECORD_BYTES={record_bytes}"]
        options = [*macros, "-shared", f"-Wl,-soname,{name}", "-Wl,--default-symver"]
        _run(*shared, *options, "-o", into / name, *CUPTI_SOURCES)
    _run(*shared, "-shared", "-o", made.listener, "listener.c")
    _run(*shared, "-shared", f"-Wl,-soname,{made.nvml.name}", "-o", made.nvml, "nvml.c")
    linked = ("-Wl,-rpath,$ORIGIN", "profiler.c", made.cupti)
    _run(*shared, "-shared", "-Wl,-z,lazy", "-o", made.profiler, *linked)
    _run(*shared, "-shared", "-Wl,-z,now,-z,relro", "-fno-plt", "-o", made.profiler_now, *linked)
    _run(*shared, "-shared", "-DPROFILER_DLSYM", "-o", made.profiler_dlsym, "profiler.c")

    objects = []
    for source in RUNTIME_SOURCES:
        objects.append(into / Path(source).with_suffix(".o"))
        _run("gcc", *CFLAGS, *extra_cflags, "-DSTANDIN_STATIC", "-c", "-o", objects[-1], source)
    _run("ar", "rcs", made.static_runtime, *objects)
    for made_object in objects:
        made_object.unlink()

    program = [*shared, "-pie", "-Wl,-rpath,$ORIGIN", *WORKLOAD_SOURCES]
    _run(*program, "-DRUNTIME_LINKED", "-o", made.workload, made.runtime, "-lm")
    _run(*program, "-DRUNTIME_LINKED", "-o", made.workload_static, made.static_runtime, "-lm")
    # As nvcc leaves them: in the program the runtime's functions are local symbols.
    _run("objcopy", "--localize-hidden", made.workload_static)
    _run("strip", "-o", made.workload_static_stripped, made.workload_static)
    _run(*program, "-o", made.workload_dlopen, "-lm")


def build(force: bool = False, into: Path = BUILD, extra_cflags: Sequence[str] = ()) -> Standins:
    """Build what is older than its sources; safe while others build or run the same files."""
    standins = Standins(into)
    with _locked(into / ".lock"):
        if force or not _current(standins):
            with tempfile.TemporaryDirectory(prefix=".making-", dir=into) as work:
                made = Standins(Path(work) / "made")
                made.build.mkdir()
                _compile(made.build, extra_cflags)
                for folder in (standins.other_runtime.parent, standins.nvml.parent):
                    folder.mkdir(parents=True, exist_ok=True)
                # A rename leaves the old file to those that have it open or mapped.
                for source, target in zip(made.outputs(), standins.outputs(), strict=True):
                    os.utime(source)
                    source.replace(target)
    return standins


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Build the stand-ins for CUDA's libraries.")
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("build", help="build with gcc and print the paths")
    command.add_argument("--force", action="store_true", help="also when nothing is out of date")
    args = parser.parse_args(argv)
    for path in build(force=args.force).outputs():
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
