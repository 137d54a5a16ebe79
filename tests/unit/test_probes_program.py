"""kdiff.probes.program and points: cookies say what they should, and the C compiles for both machines."""

from __future__ import annotations

import itertools
import os
import re
from dataclasses import replace

import pytest

from kdiff.probes.points import DRIVER_SYMBOLS, LIFECYCLE, POINTS, RUNTIME_SYMBOLS, Layer, Point, Shape, Step
from kdiff.probes.program import PROGRAMS, TRACEPOINTS, Layers, Role, Tracing, cookie, include_dir, source
from kdiff.probes.wire import Kind, Sync, WireFlags

WAYS = [Tracing(layers, *returns) for layers in Layers for returns in ((True, True), (False, True), (False, False))]
BY_SYMBOL = {point.symbol: point for point in POINTS}


def apart(value: int) -> list[int]:
    """As COOKIE_* in the C file take a cookie apart."""
    return [value >> 8 * position & 0xFF for position in range(8)]


@pytest.mark.parametrize("tracing", WAYS, ids=str)
def test_cookies_decode_to_what_was_put_in(tracing: Tracing) -> None:
    seen = set()
    for number, point in enumerate(POINTS):
        api, kind, shape, sync, flags, role, *rest = apart(cookie(tracing, point))
        assert (api, kind, shape, sync) == (number, point.kind, point.shape, point.sync)
        stored = "Instantiate" in point.symbol or point.symbol.startswith(
            ("cuGraphCreate", "cuGraphClone", "cuStreamEnd")
        )
        assert bool(flags & WireFlags.PER_THREAD) == point.symbol.endswith("_ptsz")
        assert bool(flags & WireFlags.STORED) == stored
        assert bool(role & Role.RUNTIME) == point.symbol.startswith("cuda")
        assert bool(role & Role.RETURNS) == tracing.returns(point)
        assert rest == [0, 0]
        seen.add(cookie(tracing, point))
    assert len(seen) == len(POINTS)


@pytest.mark.parametrize("tracing", WAYS, ids=str)
def test_of_every_pair_of_layers_one_probe_is_the_last(tracing: Tracing) -> None:
    for point in POINTS:
        if tracing.probes(point) and tracing.layers is not Layers.BOTH and point.kind is Kind.LAUNCH:
            assert apart(cookie(tracing, point))[5] & Role.LAST
    runtime, driver = (apart(cookie(Tracing(), BY_SYMBOL[s]))[5] for s in ("cudaLaunchKernel", "cuLaunchKernel"))
    assert not runtime & Role.LAST
    assert driver & Role.LAST


def test_every_field_fits_its_byte() -> None:
    assert len(POINTS) <= 256
    for point in POINTS:
        for value in (point.kind, point.shape, point.sync):
            assert 0 <= value < 256
    assert max(Role) < 256


@pytest.mark.parametrize(
    ("tracing", "symbol", "probed", "returns"),
    [
        (Tracing(), "cudaLaunchKernel", True, True),
        (Tracing(), "cuLaunchKernel", True, True),
        (Tracing(Layers.RUNTIME), "cuLaunchKernel", False, True),
        (Tracing(Layers.DRIVER), "cudaLaunchKernel", False, True),
        (Tracing(Layers.RUNTIME), "cuStreamBeginCapture", True, True),
        (Tracing(Layers.RUNTIME), "cuEventRecord", True, True),
        (Tracing(Layers.RUNTIME), "cuStreamWaitEvent", True, False),
        (Tracing(launch_returns=False), "cuGraphInstantiateWithFlags", True, True),
        (Tracing(launch_returns=False), "cuLaunchKernel", True, False),
        (Tracing(launch_returns=False), "cudaGraphLaunch", True, False),
        (Tracing(launch_returns=False), "cuStreamSynchronize", True, True),
        (Tracing(launch_returns=False), "cuStreamEndCapture", True, True),
        (Tracing(launch_returns=False, any_returns=False), "cuStreamSynchronize", True, False),
        (Tracing(any_returns=False), "cuLaunchKernel", True, False),
    ],
)
def test_what_is_probed(tracing: Tracing, symbol: str, probed: bool, returns: bool) -> None:
    point = BY_SYMBOL[symbol]
    assert (tracing.probes(point), tracing.returns(point)) == (probed, returns)


def test_every_function_in_all_its_forms() -> None:
    design = {
        *("cudaLaunchKernel", "cudaLaunchKernelExC", "cudaGraphLaunch", "cudaStreamSynchronize"),
        *("cudaDeviceSynchronize", "cudaEventSynchronize", "cuLaunchKernel", "cuLaunchKernelEx", "cuGraphLaunch"),
        *("cuStreamSynchronize", "cuCtxSynchronize", "cuEventSynchronize"),
    }
    assert design <= set(BY_SYMBOL)
    assert len(BY_SYMBOL) == len(POINTS)
    for symbol, point in BY_SYMBOL.items():
        assert (point.layer is Layer.RUNTIME) == symbol.startswith("cuda")
        assert point.api == symbol.removesuffix("_ptsz")
        if point.per_thread:
            assert point.api in BY_SYMBOL
        elif any(word in symbol for word in ("Launch", "Stream")):
            assert f"{symbol}_ptsz" in BY_SYMBOL
        assert (point.kind is Kind.SYNC) == (point.sync is not Sync.NONE)
    assert set(BY_SYMBOL) | set(LIFECYCLE) == RUNTIME_SYMBOLS | DRIVER_SYMBOLS
    assert not RUNTIME_SYMBOLS & DRIVER_SYMBOLS


@pytest.mark.parametrize(
    ("symbol", "shape", "kind", "sync"),
    [
        ("cuLaunchKernel", Shape.DRIVER_LAUNCH, Kind.LAUNCH, Sync.NONE),
        ("cuLaunchKernelEx", Shape.LAUNCH_CONFIG, Kind.LAUNCH, Sync.NONE),
        ("cudaLaunchKernelExC_ptsz", Shape.LAUNCH_CONFIG, Kind.LAUNCH, Sync.NONE),
        ("cudaLaunchCooperativeKernel", Shape.RUNTIME_LAUNCH, Kind.LAUNCH, Sync.NONE),
        ("cuGraphLaunch", Shape.GRAPH, Kind.GRAPH_LAUNCH, Sync.NONE),
        ("cudaStreamSynchronize", Shape.STREAM, Kind.SYNC, Sync.STREAM),
        ("cuCtxSynchronize", Shape.NOTHING, Kind.SYNC, Sync.DEVICE),
        ("cuEventSynchronize", Shape.HANDLE, Kind.SYNC, Sync.EVENT),
        ("cuStreamBeginCapture_v2_ptsz", Shape.STREAM, Kind.CAPTURE_BEGIN, Sync.NONE),
    ],
)
def test_how_functions_take_their_arguments(symbol: str, shape: Shape, kind: Kind, sync: Sync) -> None:
    point = BY_SYMBOL[symbol]
    assert (point.shape, point.kind, point.sync) == (shape, kind, sync)


CONTEXT_ENDS = ("cuCtxDestroy", "cuDevicePrimaryCtxReset", "cuDevicePrimaryCtxRelease")


def test_lifecycle_steps() -> None:
    assert LIFECYCLE["cuInit"] is Step.INIT
    assert LIFECYCLE["cuModuleGetFunction"] is LIFECYCLE["cuLibraryGetKernel"] is Step.NAMED
    assert {s for s, step in LIFECYCLE.items() if step is Step.UNLOAD} == {
        "cuModuleUnload",
        "cuLibraryUnload",
        *(f"{call}{version}" for version in ("", "_v2") for call in CONTEXT_ENDS),
    }


def test_the_source_defines_what_it_uses() -> None:
    text = source(Tracing(event_pages=64, name_pages=8))
    defined = set(re.findall(r"^\s*#define (\w+)", text, re.MULTILINE))
    for prefix in ("SHAPE", "STEP", "ROLE", "KIND", "SYNC", "SOURCE", "DECISION", "FLAG"):
        for used in re.findall(rf"\b{prefix}_[A-Z_]+\b", text):
            assert used in defined
    assert "#define KDIFF_EVENT_PAGES 64\n#define KDIFF_NAME_PAGES 8\n" in text
    for program in PROGRAMS:
        assert len(re.findall(rf"^int {program}\(struct pt_regs \*ctx\)$", text, re.MULTILINE)) == 1


def test_without_scheduling_nothing_of_it_is_in_the_program() -> None:
    """What the option costs those who do not use it is seen in the instructions: its functions are empty."""
    text, asked = source(Tracing()), source(Tracing(scheduling=True, threads=77, wait_pages=2))
    assert not re.search(r"#define KDIFF_(SCHEDULING|THREADS|WAIT_PAGES)", text)
    assert "#define KDIFF_SCHEDULING 1\n#define KDIFF_THREADS 77\n#define KDIFF_WAIT_PAGES 2\n" in asked
    empty = text.partition("#else\n\nstruct waited {\n};\n")[2].partition("#endif")[0]
    assert len(re.findall(r"^static __always_inline void \w+\([^)]*\)\n\{\n\}$", empty, re.MULTILINE)) == 3
    for program in TRACEPOINTS:
        assert len(re.findall(rf"^int {program}\(struct tracepoint \*ctx\)$", asked, re.MULTILINE)) == 1


def test_fields_of_cookies_are_where_the_c_looks_for_them() -> None:
    text = source(Tracing())
    shifts = {
        name: int(shift or 0) for name, shift in re.findall(r"COOKIE_(\w+)\(c\) \(\(u8\)\(+c\)?(?: >> (\d+))?", text)
    }
    assert shifts == {"API": 0, "KIND": 8, "SHAPE": 16, "SYNC": 24, "FLAGS": 32, "ROLE": 40}
    probe = Point("x", Layer.DRIVER, Kind.SYNC, Shape.HANDLE, Sync.EVENT)
    assert probe.api == "x"


@pytest.mark.ebpf
@pytest.mark.filterwarnings("ignore:not a bytes object:DeprecationWarning")
@pytest.mark.parametrize("arch", ["x86_64", "aarch64"])
def test_it_compiles_for_both_machines(
    arch: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from kdiff.agent.bpf import _import_bcc

    monkeypatch.setenv("BCC_KERNEL_SOURCE", str(include_dir()))
    bcc = _import_bcc()
    small = Tracing(event_pages=8, name_pages=8)
    for way in (small, replace(small, launch_returns=False), replace(small, scheduling=True)):
        program = bcc.BPF(text=source(way, arch=arch))
        names = [*PROGRAMS, *(TRACEPOINTS if way.scheduling else ())]
        sizes = {name: len(program.dump_func(name)) for name in names}
        program.cleanup()
        # The registers are read where the machine keeps them, and nowhere else.
        assert all(size > (50 if name in TRACEPOINTS else 100) for name, size in sizes.items())
    assert "warning" not in capfd.readouterr().err.lower()


@pytest.mark.ebpf
@pytest.mark.filterwarnings("ignore:not a bytes object:DeprecationWarning")
@pytest.mark.parametrize("scheduling", [False, True])
@pytest.mark.parametrize("multi", [True, False])
def test_the_verifier_takes_it(multi: bool, scheduling: bool) -> None:
    from kdiff.agent.bpf import Program

    program = Program(Tracing(event_pages=8, name_pages=8, scheduling=scheduling), multi=multi)
    try:
        assert program.attached == 0
        if scheduling:
            program.attach_scheduling()
            assert program.attached == 3
            program.detach()
            assert program.attached == 3, "threads that end are still seen"
            program.detach_scheduling()
            assert program.attached == 0
        assert program.map("lost").max_entries == len(Kind)
    finally:
        program.close()


def test_the_header_tree_is_whole() -> None:
    """BCC asks for these of a kernel source tree."""
    wanted = [
        *(f"linux/{name}.h" for name in ("kconfig", "types", "version", "log2", "bpf_common")),
        "asm/page.h",
        *(f"uapi/linux/{name}.h" for name in ("bpf", "ptrace", "if_packet")),
    ]
    assert [name for name in wanted if not os.path.isfile(include_dir() / "include" / name)] == []


def test_every_way_has_its_own_cookies() -> None:
    launch = BY_SYMBOL["cudaLaunchKernel"]
    both, runtime = (cookie(Tracing(layers), launch) for layers in (Layers.BOTH, Layers.RUNTIME))
    assert both != runtime
    for one, other in itertools.pairwise((Tracing(), Tracing(launch_returns=False))):
        assert cookie(one, launch) != cookie(other, launch)
