"""kdiff import: what is read of each format is what was written, and two traces are judged like two recordings."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import traces
from command_line import Run, kdiff
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from traces import BASE, PID, TID, UUIDS, Kernel, Nsys, numbered, quiet

from kdiff.agent.names import Kernel as AgentKernel
from kdiff.agent.segment_files import Listing
from kdiff.analysis import import_json
from kdiff.analysis.import_capture import import_traces
from kdiff.analysis.import_source import Format
from kdiff.queries.kernel_names import kernel_id
from kdiff.queries.segments_read import scan
from kdiff.queries.shipping_notes import OWN_NAME

MANGLED = "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEESt5arrayIPcLm1EEEEviT0_T1_"
DEMANGLED = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1ul> >"
    "(int, at::native::FillFunctor<float>, std::array<char*, 1ul>)"
)
PAIR = numbered(
    [
        Kernel("gelu", 10_000, 2_656, launch_ns=3_001, dynamic_shared=1_024, context=2, stream=9),
        Kernel(MANGLED, 20_001, 32, launch_ns=4_000, api="cuLaunchKernelEx", static_shared=64, registers=168),
        Kernel("gelu", 20_100, 2_688, device=1, grid=(8_192, 2, 3), block=(32, 4, 2)),
    ]
)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    return lambda *arguments: kdiff(monkeypatch, capsys, *arguments)


def rows(root: Path, table: str) -> list[dict[str, Any]]:
    """All rows of a table, in order of time."""
    parts = [pq.read_table(path) for path in sorted((root / table).glob("*.parquet"))]
    found = [row for part in parts for row in part.to_pylist()]
    order = ("timestamp_ns", "from_ns", "stream", "kernel_id", "pid")
    return sorted(found, key=lambda row: [row.get(key, 0) for key in order])


def imported(root: Path, *sources: tuple[Path, Format], service: str = "svc") -> Path:
    import_traces(sources, root, service, None, lambda *_: quiet())
    return root


def executions(
    kernels: Sequence[Kernel], host: str, gpus: Callable[[Kernel], str], **same: Any
) -> list[dict[str, Any]]:
    """The rows that kernels of a trace become, in order of time; `same`: columns that the format does not know."""
    found = [
        {
            "timestamp_ns": BASE + k.start_ns,
            "duration_ns": k.duration_ns,
            "kernel_name": DEMANGLED if k.name == MANGLED else k.name,
            "kernel_id": kernel_id(k.name),
            "service": "svc",
            "host": host,
            "gpu_uuid": gpus(k),
            "pid": k.pid,
            "container_id": "",
            "stream": k.context << 32 | k.stream,
            **dict(zip(("grid_x", "grid_y", "grid_z"), k.grid, strict=True)),
            **dict(zip(("block_x", "block_y", "block_z"), k.block, strict=True)),
            "registers": k.registers,
            "static_shared": k.static_shared,
            "dynamic_shared": k.dynamic_shared,
            "local_bytes": k.local_bytes,
            "graph_id": k.graph_id,
            "graph_node_id": k.graph_node_id,
            "queue_ns": 0 if k.launch_ns is None else k.start_ns - k.launch_ns,
        }
        | {key: value(k) if callable(value) else value for key, value in same.items()}
        for k in kernels
    ]
    return sorted(found, key=lambda row: [row["timestamp_ns"], row["stream"], row["kernel_id"], row["pid"]])


def device(kernel: Kernel) -> str:
    return f"device {kernel.device}"


def uuid(kernel: Kernel) -> str:
    return f"GPU-{UUIDS[kernel.device]}"


def shared(kernel: Kernel) -> int:
    return kernel.static_shared + kernel.dynamic_shared


def same(found: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> None:
    """The columns that are wanted are equal."""
    assert [{key: row[key] for key in wanted[0]} for row in found] == wanted


# ---- each format ----


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
@pytest.mark.parametrize("ts", [traces.relative, traces.absolute])
def test_kineto(tmp_path: Path, name: str, ts: Callable[[int], traces.Raw]) -> None:
    copies = [
        {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD", "pid": 0, "tid": 7, "ts": ts(5), "dur": 4, "args": {}},
        {"ph": "X", "cat": "gpu_memset", "name": "Memset", "pid": 0, "tid": 7, "ts": ts(9), "dur": 4, "args": {}},
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaMalloc", "pid": PID, "tid": 9, "ts": ts(1), "args": {}},
        {"ph": "M", "name": "process_name", "pid": "Spans", "args": {"name": "python"}},
    ]
    path = traces.kineto(tmp_path / name, PAIR, ts=ts, more=copies)
    root = imported(tmp_path / "out", (path, "kineto"))
    wanted = executions(PAIR, "rank 3", device, static_shared=0, dynamic_shared=shared)
    same(rows(root, "kernel_executions"), wanted)
    launches = rows(root, "cuda_events")
    assert [
        {key: row[key] for key in ("timestamp_ns", "duration_ns", "kind", "api", "kernel_name", "pid", "tid", "status")}
        for row in launches
    ] == [
        {
            "timestamp_ns": BASE + at,
            "duration_ns": 5_000,
            "kind": "launch",
            "api": api,
            "kernel_name": name,
            "pid": PID,
            "tid": TID,
            "status": 0,
        }
        for at, api, name in ((3_001, "cudaLaunchKernel", "gelu"), (4_000, "cuLaunchKernelEx", DEMANGLED))
    ]
    assert [row["batch_launches"] for row in launches] == [row["completion_ns"] for row in launches] == [0, 0]
    [window] = rows(root, "device_windows")
    assert (window["from_ns"], window["to_ns"]) == (BASE + 3_001, BASE + 22_788)
    assert (window["executions"], window["uncollected"], window["pid"], window["host"]) == (3, 0, PID, "rank 3")
    names = {row["kernel_name"]: row for row in rows(root, "kernels")}
    assert names.keys() == {"gelu", DEMANGLED}
    assert (names[DEMANGLED]["mangled_name"], names[DEMANGLED]["name_source"]) == (MANGLED, "device")
    assert names["gelu"]["first_seen_ns"] == BASE + 10_000
    assert names["gelu"]["kernel_id"] == AgentKernel("gelu", "gelu", "device").id
    assert [path.name for path in root.iterdir() if path.name.startswith(".")] == []


def test_nsys(tmp_path: Path) -> None:
    kernels = [replace(PAIR[0], graph_id=5, graph_node_id=5 << 32 | 7), *PAIR[1:], replace(PAIR[1], pid=77)]
    path = traces.nsys(tmp_path / "trace.sqlite", kernels, Nsys(demangled={MANGLED: "in another style"}))
    before = path.read_bytes()
    root = imported(tmp_path / "out", (path, "nsys"))
    assert path.read_bytes() == before
    wanted = executions(kernels, "node7", uuid)
    wanted = [row | {"queue_ns": 0 if row["graph_id"] else row["queue_ns"]} for row in wanted]
    same(rows(root, "kernel_executions"), wanted)
    assert [(row["pid"], row["api"], row["timestamp_ns"] - BASE) for row in rows(root, "cuda_events")] == [
        (77, "cuLaunchKernelEx", 4_000),
        (PID, "cuLaunchKernelEx", 4_000),
    ]
    windows = {row["pid"]: (row["from_ns"] - BASE, row["to_ns"] - BASE) for row in rows(root, "device_windows")}
    assert windows == {PID: (4_000, 22_788), 77: (4_000, 20_033)}


def test_nsys_with_the_fewest_columns(tmp_path: Path) -> None:
    """Older and newer versions lack columns and tables: what is not there is 0."""
    kept = ("start", "end", "shortName")
    drop = [column for column in traces.KERNEL_COLUMNS if column not in kept]
    without = [f"TARGET_INFO_{table}" for table in ("GPU", "CUDA_DEVICE", "SYSTEM_ENV")]
    options = Nsys(drop=drop, without=[*without, "CUPTI_ACTIVITY_KIND_RUNTIME"])
    root = imported(tmp_path / "out", (traces.nsys(tmp_path / "trace.sqlite", PAIR, options), "nsys"))
    found = rows(root, "kernel_executions")
    assert [(row["timestamp_ns"] - BASE, row["duration_ns"]) for row in found] == [
        (10_000, 2_656),
        (20_001, 32),
        (20_100, 2_688),
    ]
    kept_columns = {"timestamp_ns", "duration_ns", "kernel_name", "kernel_id", "service", "host", "gpu_uuid"}
    assert {value for row in found for key, value in row.items() if key not in kept_columns} <= {0, ""}
    assert {(row["host"], row["gpu_uuid"]) for row in found} == {("imported", "device 0")}


def test_csv_of_nsys_in_its_units(tmp_path: Path) -> None:
    notice = "\nNOTICE: Existing SQLite export found: x.sqlite\n\nProcessing [x.sqlite] with [cuda_gpu_trace.py]...\n"
    kernels = [replace(kernel, static_shared=33_000, launch_ns=None) for kernel in PAIR]
    path = traces.csv_nsys(tmp_path / "trace.csv", kernels, notice)
    import_traces([(path, "csv")], tmp_path / "out", "svc", BASE + 10_000, lambda *_: quiet())
    wanted = executions(kernels, "imported", device, pid=1, dynamic_shared=lambda k: round(k.dynamic_shared, -3))
    found = rows(tmp_path / "out", "kernel_executions")
    assert [(row["timestamp_ns"] - BASE, row["duration_ns"], row["static_shared"]) for row in found] == [
        (10_000, 2_656, 33_000),
        (20_001, 32, 33_000),
        (20_100, 2_688, 33_000),
    ]
    same(found, wanted)


@pytest.mark.parametrize(
    ("header", "row"),
    [
        ("Start:ts_us,Duration:dur_ms,StcSMem:mem_KiB,Name", "1764237600000010,0.002656,1,gelu"),
        ("start_ns,end_ns,staticSharedMemory,name", f"{BASE + 10_000},{BASE + 12_656},1024,gelu"),
        ("Start (s),Duration [us],Static SMem (kb),Kernel Name", "1764237600.000010,2.656,1.024,gelu"),
        ('==7== NVPROF\n"Start","Duration","Static SMem","Name"\nms,us,KiB,', "1764237600000.010,2.656,1.0,gelu"),
        ("\ufeffname;,x\nName,START ,Duration , static_shared (bytes)", f"gelu, {BASE + 10_000} ,2656, 1024"),
    ],
)
def test_units_of_csv(tmp_path: Path, header: str, row: str) -> None:
    (tmp_path / "t.csv").write_text(f"{header}\n{row}\n\n", encoding="utf-8")
    root = imported(tmp_path / "out", (tmp_path / "t.csv", "csv"))
    [found] = rows(root, "kernel_executions")
    assert (found["timestamp_ns"], found["duration_ns"], found["static_shared"]) == (BASE + 10_000, 2_656, 1_024)


# ---- any kernels ----

U32 = st.integers(0, 2**32 - 1)
NAMES = st.one_of(
    st.sampled_from(["gelu", MANGLED, "k" * 2_000, "a\x1b[31m\u202eb\x00", "x\ud800y", "", "_Z", "(graph )"]),
    st.text(st.characters(exclude_characters="\r\n"), min_size=1, max_size=20),
)
KERNELS = st.lists(
    st.builds(
        Kernel,
        name=NAMES,
        start_ns=st.integers(10**6, 10**15),
        duration_ns=st.integers(1, 10**12),
        device=st.integers(0, 1),
        context=U32,
        stream=U32,
        grid=st.tuples(U32, U32, U32),
        block=st.tuples(U32, U32, U32),
        registers=st.integers(0, 65_535),
        static_shared=st.integers(0, 2**31 - 1),
        dynamic_shared=st.integers(0, 2**31 - 1),
        local_bytes=U32,
        graph_id=U32,
        graph_node_id=st.integers(0, 2**63 - 1),
    ),
    min_size=1,
    max_size=12,
    unique_by=lambda kernel: kernel.start_ns,
)


def names_as_stored(kernels: Sequence[Kernel]) -> list[Kernel]:
    return [
        replace(k, name=k.name.encode("utf-8", "backslashreplace").decode() or "unresolved:unknown") for k in kernels
    ]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(kernels=KERNELS, chunk=st.integers(1, 3_000), kind=st.sampled_from(["kineto", "nsys", "csv"]))
def test_what_is_written_is_read(
    kernels: list[Kernel], chunk: int, kind: Format, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("any")
    kernels = numbered(kernels)
    stored = names_as_stored(kernels)
    with pytest.MonkeyPatch.context() as patch:
        if kind == "kineto":
            patch.setattr(import_json, "_CHUNK", chunk)
            path = traces.kineto(root / "t.json", kernels, header={"baseTimeNanoseconds": BASE})
            same_as = executions(
                stored, "imported", device, pid=1, static_shared=0, dynamic_shared=shared, local_bytes=0
            )
            wanted = [row | {"graph_id": row["graph_id"] or row["graph_node_id"] >> 32} for row in same_as]
        elif kind == "nsys":
            stored = kernels = [replace(k, name=s.name) for k, s in zip(kernels, stored, strict=True)]
            path = traces.nsys(root / "t.sqlite", kernels)
            wanted = executions(stored, "node7", uuid, graph_id=lambda k: k.graph_node_id >> 32)
        else:
            stored = kernels = [replace(k, name=s.name) for k, s in zip(kernels, stored, strict=True)]
            path = traces.csv_own(root / "t.csv", kernels)
            wanted = executions(stored, "imported", device)
        imported(root / "out", (path, kind))
    same(rows(root / "out", "kernel_executions"), wanted)
    assert not scan(root / "out").warnings


@settings(max_examples=60, deadline=None)
@given(
    events=st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=5)),
        lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=9), inner, max_size=3)),
        max_leaves=12,
    ),
    chunk=st.integers(1, 40),
)
def test_events_are_those_of_a_whole_parser(events: Any, chunk: int) -> None:
    """However the text is cut into pieces, and at whatever byte."""
    text = json.dumps(
        {"before": [events, 12, "x"], "traceEvents": [{"a": events}, [events], 1.5], "after": 12}, indent=chunk % 3
    )
    data = text.encode()
    at = 0

    def read(_count: int) -> bytes:
        nonlocal at
        at += chunk
        return data[at - chunk : at]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(import_json, "_CHUNK", 1)
        found = import_json.Events(Path("t"), read, frozenset({"before", "after"}))
        assert list(found) == [{"a": events}, [events], "1.5"]
    assert found.header == {"before": [events, 12, "x"], "after": 12}
    assert found.events == 3


# ---- what is dropped, joined, told ----


def test_kernels_without_times_are_counted_and_dropped(run: Run, tmp_path: Path) -> None:
    zero = [replace(PAIR[0], duration_ns=duration, start_ns=at) for duration, at in ((0, 30_000), (-5, 40_000), (0, 0))]
    for name, path in (
        ("nsys", traces.nsys(tmp_path / "t.sqlite", [*PAIR, *zero])),
        ("csv", traces.csv_own(tmp_path / "t.csv", [*PAIR, *zero])),
        ("kineto", traces.kineto(tmp_path / "t.json", [*PAIR, *zero])),
    ):
        result = run("import", path, "-o", tmp_path / name)
        assert result.code == 0
        assert "3 kernels without times, or with such as make no sense, were left out" in result.err
        assert "rows 3 of kernel_executions" in result.out
        assert [row["uncollected"] for row in rows(tmp_path / name, "device_windows")] == [3]


def test_kernels_of_graphs_have_no_launch_of_their_own(tmp_path: Path) -> None:
    launch: dict[str, Any] = {"launch_ns": 1_000, "api": "cudaGraphLaunch", "correlation": 9}
    graph = [Kernel("a", 5_000, 10, **launch), Kernel("b", 6_000, 10, graph_id=4, **launch)]
    path = traces.kineto(tmp_path / "t.json", [*graph, replace(PAIR[0], correlation=10)])
    root = imported(tmp_path / "out", (path, "kineto"))
    found = {row["kernel_name"]: (row["queue_ns"], row["graph_id"]) for row in rows(root, "kernel_executions")}
    assert found == {"a": (0, 0), "b": (0, 4), "gelu": (6_999, 0)}
    assert [row["kernel_name"] for row in rows(root, "cuda_events")] == ["gelu"]


def test_the_outermost_of_two_calls_of_one_number_is_the_launch(tmp_path: Path) -> None:
    inner = traces.kineto_launch(replace(PAIR[0], api="cuLaunchKernel", launch_ns=3_500), traces.relative)
    late = traces.kineto_launch(replace(PAIR[1], launch_ns=20_002), traces.relative)
    kernels = [PAIR[0], replace(PAIR[1], launch_ns=None)]
    root = imported(tmp_path / "out", (traces.kineto(tmp_path / "t.json", kernels, more=[inner, late]), "kineto"))
    assert [(row["api"], row["timestamp_ns"]) for row in rows(root, "cuda_events")] == [
        ("cudaLaunchKernel", BASE + 3_001)
    ]


def test_files_of_several_ranks_are_one_period(run: Run, tmp_path: Path) -> None:
    for rank in (0, 1):
        header = {"baseTimeNanoseconds": BASE, "distributedInfo": {"rank": rank}}
        shifted = [replace(k, duration_ns=k.duration_ns + rank) for k in PAIR]
        traces.kineto(tmp_path / f"node1_1.17642376{rank}.pt.trace.json", shifted, header=header)
    result = run("import", *sorted(tmp_path.glob("*.json")), "-o", tmp_path / "out", "--service", "train")
    assert (result.code, result.err) == (0, "")
    assert "rows 6 of kernel_executions, 4 of cuda_events, 4 of kernels, 2 of device_windows" in result.out
    assert [(row["host"], row["service"]) for row in rows(tmp_path / "out", "device_windows")] == [
        ("node1 rank 0", "train"),
        ("node1 rank 1", "train"),
    ]


def test_segments_are_named_as_recordings_name_theirs(run: Run, tmp_path: Path) -> None:
    assert run("import", traces.kineto(tmp_path / "t.json", PAIR), "-o", tmp_path / "out").code == 0
    names = [path.name for path in (tmp_path / "out").rglob("*.parquet")]
    assert len(names) == len(set(names)) == 4
    assert all(OWN_NAME.fullmatch(name) for name in names)
    shipped = [file.table for file in Listing(tmp_path / "out", print).read()]
    assert shipped == ["kernels", "kernel_executions", "cuda_events", "device_windows"]
    schema = pq.read_schema(next((tmp_path / "out" / "kernel_executions").iterdir()))
    assert schema.field("kernel_name").type == pa.dictionary(pa.int32(), pa.string())
