"""The command on a real recording (tests/data/h200-serving), converted to captures by the agent's own code."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Final, NamedTuple
from xml.etree import ElementTree as ET

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

import captures
from kdiff.agent.names import Kernel
from kdiff.agent.pairing import Pairing
from kdiff.agent.rows import Owner, RowMaker
from kdiff.agent.service_names import Services
from kdiff.probes.points import POINTS
from kdiff.probes.wire import EVENT, Kind, Sync
from kdiff.queries.kernel_names import demangle
from kdiff.queries.printable import cells

DATA: Final = Path(__file__).parents[1] / "data" / "h200-serving"
KDIFF: Final = str(Path(sys.executable).parent / "kdiff")
PID: Final = 4321
SERVICE: Final = "serving"
APIS: Final = [
    next(i for i, point in enumerate(POINTS) if point.symbol == symbol)
    for symbol in ("cuLaunchKernel", "cuLaunchKernelEx", "cuStreamSynchronize")
]
SECOND: Final = captures.SECOND
WINDOW_NS: Final = SECOND // 5
LAUNCHES_PER_REQUEST: Final = {21, 25}


class Phase(NamedTuple):
    start_ns: int
    end_ns: int

    @property
    def spec(self) -> str:
        return f"{self.start_ns}..{self.end_ns}"


PHASES: Final = {
    entry["phase"]: Phase(entry["start_ns"], entry["end_ns"])
    for entry in json.loads((DATA / "phases.json").read_text())
}
TRUTH: Final = pq.read_table(DATA / "device.parquet").to_pandas()


def truth(phase: str) -> dict[str, NDArray[np.int64]]:
    """Device durations of each kernel in a phase, sorted, straight from the recording."""
    window = PHASES[phase]
    rows = TRUTH[(TRUTH.start_ns >= window.start_ns) & (TRUTH.start_ns < window.end_ns)]
    return {
        demangle(str(name)): np.sort(group.to_numpy().astype(np.int64))
        for name, group in rows.groupby("name", observed=True).duration_ns
    }


def quantile(durations: NDArray[np.int64], level: float) -> int:
    return int(np.quantile(durations, level, method="inverted_cdf"))


def write_device(root: Path) -> None:
    device = pq.read_table(DATA / "device.parquet")
    mangled = device["name"].combine_chunks()
    names = [demangle(name) for name in mangled.dictionary.to_pylist()]
    codes = mangled.indices.to_numpy()
    ids = np.array([Kernel(name, "", "load").id for name in mangled.dictionary.to_pylist()], np.uint64)
    given = {name: device[name].to_numpy() for name in ("grid_x", "grid_y", "block_x", "stream", "registers")}
    rows = captures.executions(
        np.array(names, object)[codes],
        device["start_ns"].to_numpy(),
        device["duration_ns"].to_numpy(),
        kernel_id=ids[codes],
        service=SERVICE,
        pid=PID,
        **given,
    )
    captures.write(root, "kernel_executions", rows)


def write_host(root: Path) -> None:
    """Rows as the recorder makes them: one thread's calls in ring order, paired and named in reads of a second."""
    host = pq.read_table(DATA / "host.parquet")
    kinds = host["kind"].to_numpy()
    handles = host["name"].combine_chunks()
    known = [Kernel(name, demangle(name), "handle") for name in handles.dictionary.to_pylist()]
    events = np.zeros(len(kinds), EVENT)
    for field in ("timestamp_ns", "duration_ns", "stream"):
        events[field] = host[field].to_numpy()
    events["grid"] = 1
    events["grid"][:, 0] = host["grid_x"].to_numpy()
    events["block"] = 1
    events["block"][:, 0] = host["block_x"].to_numpy()
    events["pid"] = events["tid"] = PID
    events["kind"] = np.array([Kind.LAUNCH, Kind.LAUNCH, Kind.SYNC])[kinds]
    events["sync"] = np.array([Sync.NONE, Sync.NONE, Sync.STREAM])[kinds]
    events["api"] = np.array(APIS)[kinds]
    launch = kinds < 2
    events["handle"][launch] = handles.indices.to_numpy(zero_copy_only=False)[launch]
    pairing = Pairing()
    maker = RowMaker(
        Services(SERVICE).periods,
        "host-1",
        lambda pid, generation, handle: known[handle],
        lambda pid, tid: Owner("", "", ""),
    )
    tables = []
    seconds = (events["timestamp_ns"] - events["timestamp_ns"][0]) // captures.SECOND
    reads = np.split(events, np.flatnonzero(np.diff(seconds)) + 1)
    for number, read in enumerate(reads, start=1):
        now = int(read["timestamp_ns"][-1])
        tables.append(maker.make(pairing.feed(read, now, last=number == len(reads)))[0])
    captures.write(root, "cuda_events", pa.concat_tables(tables, promote_options="none").unify_dictionaries())


def write_health(root: Path) -> None:
    for name, phase in PHASES.items():
        rows = captures.health(phase.start_ns, phase.end_ns, step=captures.SECOND, service=SERVICE)
        captures.write(root, "agent_health", rows, name)


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Host calls and device time, as an agent with --device-time on leaves them."""
    root = tmp_path_factory.mktemp("h200") / "device"
    write_device(root)
    write_host(root)
    write_health(root)
    return root


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory, device: Path) -> Path:
    """The same without device time."""
    root = tmp_path_factory.mktemp("h200") / "host"
    root.mkdir(exist_ok=True)
    for table in ("cuda_events", "agent_health"):
        (root / table).symlink_to(device / table)
    return root


@pytest.fixture(scope="module")
def windowed(tmp_path_factory: pytest.TempPathFactory, device: Path) -> Path:
    """The same, but the device was timed for 0.2 s of every 0.6 s only."""
    root = tmp_path_factory.mktemp("h200") / "windowed"
    root.mkdir()
    for table in ("cuda_events", "agent_health"):
        (root / table).symlink_to(device / table)
    starts = np.concatenate([np.arange(p.start_ns, p.end_ns - WINDOW_NS, 3 * WINDOW_NS) for p in PHASES.values()])
    rows = pq.read_table(device / "kernel_executions")
    inside = captures.inside(rows["timestamp_ns"].to_numpy(), starts, WINDOW_NS)
    captures.write(root, "kernel_executions", rows.filter(pa.array(inside)))
    windows = captures.device_windows(starts, WINDOW_NS, executions=1, service=SERVICE, pid=PID)
    captures.write(root, "device_windows", windows)
    return root


def kdiff(store: Path, *arguments: str, columns: int = 80) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"KDIFF_STORE": str(store), "COLUMNS": str(columns)}
    done = subprocess.run([KDIFF, *arguments], env=environment, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr
    return done


def compare(store: Path, before: str, after: str, *options: str) -> tuple[int, dict[str, Any]]:
    done = kdiff(store, "--before", PHASES[before].spec, "--after", PHASES[after].spec, "--format", "json", *options)
    assert done.stderr == ""
    document: dict[str, Any] = json.loads(done.stdout)
    assert document["exit_code"] == done.returncode
    return done.returncode, document


def verdicts(document: dict[str, Any]) -> dict[str, str]:
    return {row["kernel"]: row["verdict"] for row in document["kernels"]}


def row(document: dict[str, Any], kernel: str = "fused_gelu") -> dict[str, Any]:
    (found,) = [row for row in document["kernels"] if row["kernel"] == kernel]
    return dict(found)


def regressed(document: dict[str, Any]) -> set[str]:
    return {kernel for kernel, verdict in verdicts(document).items() if verdict == "REGRESSED"}


def test_durations_of_the_recording_are_exact(device: Path) -> None:
    """Counts and quantiles against numpy, and against the table in the recording's README."""
    readme = (DATA / "README.md").read_text()
    _, ab = compare(device, "A", "B")
    _, bc = compare(device, "B", "C")
    for document, side, phase in ((ab, "before", "A"), (ab, "after", "B"), (bc, "after", "C")):
        expected = truth(phase)
        assert len(document["kernels"]) + len(document["rare"]) == len(expected) == 11
        for found in document["kernels"]:
            durations = expected[found["kernel"]]
            assert found[f"n_{side}"] == len(durations)
            for name, level in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p999", 0.999)):
                assert found[f"{name}_{side}"] == quantile(durations, level), (found["kernel"], phase, name)
        (line,) = re.findall(r"\| device p99 of fused_gelu, ns \|(.*)\|", readme)
        told = dict(zip("ABC", [int(cell.replace(",", "")) for cell in line.split("|")], strict=True))
        assert row(document)[f"p99_{side}"] == told[phase]


def test_the_same_program_passes(device: Path) -> None:
    code, document = compare(device, "A", "B")
    assert (code, document["verdict"], document["metric"]) == (0, "PASS", "device")
    assert set(verdicts(document).values()) == {"PASS"}
    assert [(r["n_before"], r["n_after"]) for r in document["rare"]] == [(924, 976)]
    assert (document["rare_launches"], document["rare_time"]) == pytest.approx((0.0082, 0.0398), abs=1e-4)


def test_the_slower_kernel_is_found_and_no_other(device: Path) -> None:
    code, document = compare(device, "B", "C")
    assert code == 1
    assert regressed(document) == {"fused_gelu"}
    found = row(document)
    assert found["metric"] == "device"
    assert 1.22 < found["ci"][0] < found["ratio"] < found["ci"][1] < 1.25
    assert found["ratio"] == pytest.approx(found["p99_after"] / found["p99_before"], rel=1e-3)


def test_a_third_of_the_time_is_enough(windowed: Path) -> None:
    """The verdicts of the whole recording on the kernels that all requests run, and its p99 within two ticks or 2%."""
    common = [
        option for name in ("fused_gelu", "layer_norm", "vectorized_elementwise") for option in ("--kernel", name)
    ]
    for before, after, code in (("A", "B", 0), ("B", "C", 1)):
        found, document = compare(windowed, before, after, *common)
        assert found == code
        assert regressed(document) == ({"fused_gelu"} if code else set())
        assert document["before"]["device"]["coverage"] == pytest.approx(1 / 3, abs=0.01)
        assert len(document["kernels"]) == 3
        for kernel in document["kernels"]:
            for side, phase in (("before", before), ("after", after)):
                durations = truth(phase)[kernel["kernel"]]
                assert 0.2 * len(durations) < kernel[f"n_{side}"] < 0.4 * len(durations)
                assert kernel[f"p99_{side}"] == pytest.approx(quantile(durations, 0.99), rel=0.02, abs=64)


def test_the_way_back_is_an_improvement(device: Path) -> None:
    done = kdiff(device, "--before", PHASES["C"].spec, "--after", PHASES["B"].spec, "--format", "json")
    document = json.loads(done.stdout)
    assert done.returncode == 0
    assert verdicts(document)["fused_gelu"] == "IMPROVED"
    assert 1 / 1.25 < row(document)["ratio"] < 1 / 1.22


def test_without_a_budget_the_rare_matmul_leaves_the_run_undecided(device: Path) -> None:
    code, document = compare(device, "A", "B", "--max-unjudged", "0")
    assert code == 3
    assert [kernel for kernel, verdict in verdicts(document).items() if verdict != "PASS"] == [
        "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT"
    ]
    assert compare(device, "B", "C", "--max-unjudged", "0")[0] == 1


def test_other_quantiles(device: Path) -> None:
    """p90 finds it. The median lies where batch 1 ends and batch 8 begins, 48% to 51% of all launches: no verdict."""
    before, after = truth("B")["fused_gelu"], truth("C")["fused_gelu"]
    assert quantile(after, 0.9) / quantile(before, 0.9) == pytest.approx(1.233, abs=0.001)
    code, document = compare(device, "B", "C", "--quantile", "p90")
    assert (code, regressed(document)) == (1, {"fused_gelu"})
    assert quantile(after, 0.5) / quantile(before, 0.5) > 2.5
    for pair in (("A", "B"), ("B", "C")):
        code, document = compare(device, *pair, "--quantile", "0.5")
        assert (code, row(document)["verdict"], document["rare"]) == (3, "INCONCLUSIVE", [])
        assert row(document)["ci"][1] > 2.0


def test_without_device_time_there_is_no_verdict(host: Path) -> None:
    for pair in (("A", "B"), ("B", "C")):
        code, document = compare(host, *pair)
        assert (code, document["metric"]) == (3, "none")
        assert set(verdicts(document).values()) == {"INCONCLUSIVE"}
        assert row(document)["reasons"][0].startswith("Device time not recorded")
        assert document["before"]["executions"] == document["after"]["executions"] == 0
    assert compare(host, "B", "C", "--metric", "device")[0] == 3


@pytest.mark.parametrize(
    ("metric", "words"),
    [
        ("launch", "Judged by time in the host call: this says nothing of the kernel's time on the device."),
        ("completion", "Judged by completion, launch to the sync that proves it finished"),
    ],
)
def test_host_measures_asked_for_by_name(host: Path, metric: str, words: str) -> None:
    for pair in (("A", "B"), ("B", "C")):
        code, document = compare(host, *pair, "--metric", metric)
        assert code in (0, 3)
        assert regressed(document) == set()
        assert row(document)["metric"] == metric
        assert any(words in note for note in document["notes"])


def test_launches_are_paired_with_the_sync_of_their_request(host: Path) -> None:
    events = pq.read_table(host / "cuda_events").to_pandas()
    launches = events[events.kind == "launch"]
    # What was launched before the first sync seen may share it with launches not seen.
    assert set(launches.batch_launches[launches.batch_launches > 0]) == LAUNCHES_PER_REQUEST
    assert int((launches.batch_launches == 0).sum()) == 25
    calls = pq.read_table(DATA / "host.parquet").to_pandas()
    ends = set((calls.timestamp_ns + calls.duration_ns)[calls.kind == 2])
    proven = launches[launches.completion_ns > 0]
    assert set(proven.timestamp_ns + proven.completion_ns) <= ends


@pytest.mark.parametrize("columns", [80, 140])
def test_what_people_read(device: Path, host: Path, columns: int) -> None:
    windows = ("--before", PHASES["B"].spec, "--after", PHASES["C"].spec)
    lines = kdiff(device, *windows, columns=columns).stdout.splitlines()
    assert max(map(cells, lines)) <= columns
    assert lines[-1].startswith("REGRESSED: fused_gelu p99 +23.7%")
    assert any("Rare, not judged: 1 kernel, 0.8% of the launches, 4.0% of the time" in line for line in lines)
    lines = kdiff(host, *windows, columns=columns).stdout.splitlines()
    assert max(map(cells, lines)) <= columns
    assert sum("Device time not recorded" in line for line in lines) == 1
    assert sum(line.startswith("  completion") and "not judged" in line for line in lines) == 10
    assert sum(line.startswith("  launch") and "not judged" in line for line in lines) == 10


def test_kernels_lists_all_of_them(device: Path) -> None:
    done = kdiff(device, "kernels", PHASES["B"].spec, "--format", "json")
    listed = {kernel["kernel_name"]: kernel for kernel in json.loads(done.stdout)["kernels"]}
    assert {name: kernel["executions"] for name, kernel in listed.items()} == {
        name: len(durations) for name, durations in truth("B").items()
    }
    assert next(iter(listed)) == "fused_gelu"
    table = kdiff(device, "kernels", PHASES["B"].spec).stdout
    assert "119,515 launches of 11 kernels, lost 0 (0%), recorded 100%" in table
    assert max(map(cells, table.splitlines()[1:])) <= 80


def test_junit_and_markdown(device: Path) -> None:
    windows = ("--before", PHASES["B"].spec, "--after", PHASES["C"].spec)
    suite = ET.fromstring(kdiff(device, *windows, "--format", "junit").stdout)[0]
    (failed,) = [case for case in suite.findall("testcase") if case.find("failure") is not None]
    assert (failed.attrib["name"], suite.attrib["failures"], suite.attrib["tests"]) == ("fused_gelu", "1", "10")
    markdown = kdiff(device, *windows, "--format", "markdown").stdout
    assert "| fused\\_gelu | REGRESSED | 80.0 us | 98.9 us | +23.7% |" in markdown
