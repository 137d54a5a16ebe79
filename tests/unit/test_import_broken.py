"""kdiff import of what is broken, foreign or hostile: one sentence that names the mend, status 2, nothing left."""

from __future__ import annotations

import gzip
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import traces
from command_line import Result, Run, kdiff
from disks import mounted
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from traces import BASE, Kernel, numbered

from kdiff.analysis.import_capture import import_traces
from kdiff.analysis.import_source import Format
from kdiff.queries.errors import KdiffError
from kdiff.queries.export import appearing
from kdiff.queries.locks import lock

KDIFF = Path(sys.executable).parent / "kdiff"
FEW = numbered([Kernel("gelu", 10_000, 2_656, launch_ns=3_001), Kernel("norm", 20_000, 32, launch_ns=4_000)])
MANY = numbered(Kernel(f"k{at % 7}", 1_000 * at, 500, launch_ns=1_000 * at - 900) for at in range(1, 3_001))

WRITERS: dict[str, Callable[[Path, list[Kernel]], Path]] = {
    "json": traces.kineto,
    "sqlite": traces.nsys,
    "csv": traces.csv_own,
}

FORMATS: dict[str, Format] = {"json": "kineto", "sqlite": "nsys", "csv": "csv"}


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    return lambda *arguments: kdiff(monkeypatch, capsys, *arguments)


def refused(run: Run, path: Path, *more: str | Path) -> str:
    """What is said of a trace that is not imported."""
    output = path.parent / "out"
    beside = set(path.parent.iterdir())
    result: Result = run("import", path, *more, "-o", output)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("kdiff: ")
    assert result.err.count("\n") == 1
    assert "unexpected" not in result.err
    assert set(path.parent.iterdir()) == beside
    return result.err


def file(data: bytes | str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        path = folder / "trace"
        path.write_bytes(data.encode() if isinstance(data, str) else data)
        return path

    return make


def database(sql: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        with closing(sqlite3.connect(folder / "trace")) as made:
            made.executescript(sql)
        return folder / "trace"

    return make


def changed(kernels: list[Kernel], cut: Callable[[bytes], bytes], kind: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        path = WRITERS[kind.removesuffix(".gz")](folder / f"trace.{kind}", kernels)
        path.write_bytes(cut(path.read_bytes()))
        return path

    return make


GRAPHS = "CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start INT, end INT); "
STRINGS = "CREATE TABLE StringIds (id INT, value TEXT); "
CASES: dict[str, tuple[Callable[[Path], Path], str]] = {
    "empty": (file(b""), "is empty: was the profiler ended before it wrote?"),
    "missing": (lambda folder: folder / "none", "No such file or directory"),
    "a name that no file has": (lambda folder: folder / "a\0b", "embedded null byte"),
    "a directory": (lambda folder: folder, "is not a file: name the trace itself"),
    "a report": (lambda folder: file(b"x")(folder).rename(folder / "a.nsys-rep"), "`nsys export --type sqlite FILE`"),
    "something else": (file(bytes(range(256))), "is no SQLite database, JSON or CSV"),
    "blank": (file(b" \n \n"), "is no SQLite database, JSON or CSV"),
    "a compressed database": (file(gzip.compress(b"SQLite format 3\0")), "decompress it with gunzip first"),
    "no JSON": (file('{"traceEvents": [{"a": nonsense}]}' + " " * 99), "is not valid JSON at character 23"),
    "JSON of another kind": (file('{"a": 1}'), "holds no traceEvents"),
    "two texts": (file('{"traceEvents": []} {}'), "is not valid JSON at character 20"),
    "an endless string": (
        lambda folder: file(gzip.compress(b'[{"name": "' + b"x" * (100 << 20), 1))(folder),
        "is not valid JSON at character 1 (or one value is too long)",
    ),
    "a deep one": (file('{"traceEvents": [' + "[" * 200_000), "nested too deep"),
    "a long number": (file('{"traceEvents": [' + "1" * 9_000 + "]}" + " " * 99), "is not valid JSON at character 17"),
    "no kernels": (file('{"traceEvents": [{"cat": "cpu_op"}, 7]}'), "holds no kernels among 2 events"),
    "an empty list": (file("[]"), "holds no kernels among 0 events"),
    "only kernels that make no sense": (
        file('[{"ph": "X", "cat": "kernel", "name": 7, "ts": "x", "dur": [], "args": {"grid": {}}}]'),
        "has 1 kernels, none with times that make sense",
    ),
    "exponents beyond any number": (
        file(
            '[{"ph": "X", "cat": "kernel", "name": "k", "ts": 1E9999999, "dur": 1.5}, '
            '{"ph": "X", "cat": "kernel", "name": "k", "ts": 1.5, "dur": 1E9999999}]'
        ),
        "has 2 kernels, none with times that make sense",
    ),
    "a start beyond any number": (
        file("start,duration,name\n1E9999999,5,k\n"),
        "no number but '1E9999999' as the start in line 2",
    ),
    "a duration beyond any number": (
        file("start,duration,name\n1,1E9999999,k\n"),
        "has 1 kernels, none with times that make sense",
    ),
    "calls of nothing": (
        file(
            '[{"cat": "cuda_driver"}, {"cat": "cuda_driver", "name": 1, "args": 2}, {"cat": [1]}, 1, {}, '
            '{"cat": "kernel", "args": 1}]'
        ),
        "has 1 kernels, none with times that make sense",
    ),
    "a merged trace": (
        file('[{"cat": "cuda_driver", "pid": 5, "name": "a"}, {"cat": "cuda_runtime", "pid": 6, "name": "b"}]'),
        "holds calls of several processes, 5 and 6",
    ),
    "a cut database": (changed(MANY, lambda data: data[:-9_000], "sqlite"), "was cut off"),
    "a damaged database": (changed(MANY, lambda data: data[:4_096].ljust(len(data), b"\xff"), "sqlite"), "is damaged"),
    "a foreign database": (database("CREATE TABLE a (b INT)"), "is no export of Nsight Systems"),
    "a database of graphs": (database(STRINGS + GRAPHS + "INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES (1, 2)"),
        "--cuda-graph-trace=node",
    ),
    "a database without kernels": (database(STRINGS), "`nsys profile --trace=cuda`"),
    "a table without names": (
        database(STRINGS + "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INT, end INT)"),
        "has kernels without start, end or name",
    ),
    "a view for a table": (
        database(STRINGS + "CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS SELECT 1 AS start, 2 AS end, 1 AS shortName"),
        "holds no kernels",
    ),
    "text": (file("hello, world\n"), "needs the columns start, duration (or end) and name, and has 'hello, world'"),
    "a summary": (file("Time (%),Total Time (ns),Instances,Name\n1,2,3,k\n"), "has 'Time (%), Total Time (ns)"),
    "a header only": (file("start,duration,name\n"), "holds no kernels below its header"),
    "copies only": (file("start,duration,name\n1,2,[CUDA memset]\n"), "holds no kernels below its header"),
    "an unknown unit": (file("start (h),duration,name\n1,2,k\n"), "has start (h) in the unit h, which is not known"),
    "a start that is none": (file("start,duration,name\nsoon,2,k\n"), "no number but 'soon' as the start in line 2"),
    "a time that was never set": (
        file("start,duration,name,pid\n0,5,k,1\n1764237600000000000,5,k,1\n"),
        "has kernels with times since 1970 and others, like 0 ns, that are not",
    ),
    "one of Kineto's that was never set": (
        file(
            '[{"ph": "X", "cat": "kernel", "name": "k", "ts": 0, "dur": 2}, '
            '{"ph": "X", "cat": "kernel", "name": "k", "ts": 1764237600000000, "dur": 2}]'
        ),
        "has kernels with times since 1970 and others, like 0 ns, that are not",
    ),
    "a cut line": (file("start,duration,name\n1,2,k\n1,"), "is cut off or broken in line 3"),
    "an endless cell": (file('start,duration,name\n1,2,"' + "x\n" * 600_000), "is no CSV (field larger than"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_is_broken_is_one_sentence(run: Run, tmp_path: Path, case: str) -> None:
    make, words = CASES[case]
    assert words in refused(run, make(tmp_path))


def test_numbers_of_names_may_be_text(run: Run, tmp_path: Path) -> None:
    """SQLite keeps what it is given: a column of numbers may hold text."""
    trace = traces.nsys(tmp_path / "t.sqlite", FEW)
    with closing(sqlite3.connect(trace)) as made:
        made.executescript(
            "ALTER TABLE CUPTI_ACTIVITY_KIND_RUNTIME RENAME TO old; CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME "
            "(start INT, end INT, globalTid INT, correlationId INT, nameId TEXT); INSERT INTO "
            "CUPTI_ACTIVITY_KIND_RUNTIME SELECT start, end, globalTid, correlationId, nameId FROM old;"
        )
    result = run("import", trace, "-o", tmp_path / "out")
    assert (result.code, result.err) == (0, "")
    assert "rows 2 of kernel_executions, 2 of cuda_events, " in result.out


TORN = traces.kineto_text(FEW).rstrip().encode()


@pytest.mark.parametrize("compressed", [False, True])
def test_a_trace_that_was_cut_anywhere_is_refused(tmp_path: Path, compressed: bool) -> None:
    whole = gzip.compress(TORN) if compressed else TORN
    path = tmp_path / ("t.json.gz" if compressed else "t.json")
    for at in range(20, len(whole), 7):
        path.write_bytes(whole[:at])
        with pytest.raises(KdiffError, match=r"was cut off|ends in the middle|is damaged"):
            import_traces([(path, "kineto")], tmp_path / "out", "svc", None, lambda *_: traces.quiet())
        assert not (tmp_path / "out").exists()


def test_the_sentence_of_a_cut_trace_says_how_much_was_there(run: Run, tmp_path: Path) -> None:
    (tmp_path / "t.json").write_bytes(TORN[: TORN.rindex(b'"norm"')])
    told = refused(run, tmp_path / "t.json")
    assert "ends in the middle, after 3 whole events" in told
    assert "nothing was imported: record or copy it again" in told


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(kind=st.sampled_from(sorted(FORMATS)), seed=st.integers(0, 2**32))
def test_damage_is_a_sentence_or_harmless(tmp_path_factory: pytest.TempPathFactory, kind: str, seed: int) -> None:
    folder = tmp_path_factory.mktemp("damage")
    path = WRITERS[kind](folder / f"t.{kind}", FEW)
    data = bytearray(path.read_bytes())
    chance = random.Random(seed)
    for _ in range(chance.randint(1, 40)):
        data[chance.randrange(len(data))] = chance.randrange(256)
    path.write_bytes(data)
    try:
        import_traces([(path, FORMATS[kind])], folder / "out", "svc", None, lambda *_: traces.quiet())
    except KdiffError as error:
        lines = len(str(error).splitlines())
    else:
        lines = 1
    assert lines == 1
    shutil.rmtree(folder)


# ---- times, files, directories ----


def test_times_that_cannot_be(run: Run, tmp_path: Path) -> None:
    ahead = time.time_ns() + 7_200 * 1_000_000_000
    late = traces.csv_own(tmp_path / "t.csv", FEW, ahead)
    assert "ends in the future, " in refused(run, late)
    assert run("import", late, "-o", tmp_path / "moved", "--start", "2026-01-01").code == 0
    early = traces.nsys(tmp_path / "t.sqlite", [replace(kernel, start_ns=-2 * BASE) for kernel in FEW])
    assert "before 1970: say with --start TIME" in refused(run, early)
    for start, words in (("soon", "--start: 'soon' is not a time"), ("2200-01-01", "--start is in the future")):
        assert words in refused(run, late, "--start", start)


def test_what_does_not_say_when_it_was_is_placed_by_its_file(run: Run, tmp_path: Path) -> None:
    trace = traces.csv_nsys(tmp_path / "t.csv", FEW)
    os.utime(trace, ns=(BASE, BASE))
    result = run("import", trace, "-o", tmp_path / "out")
    assert result.code == 0
    assert "t.csv does not say when it was recorded: taken to end when the file was written" in result.err
    assert "2025-11-27T09:59:59.999Z..2025-11-27T10:00:00Z" in result.out
    known = traces.kineto(tmp_path / "t.json", MANY)
    shutil.rmtree(tmp_path / "out")
    told = refused(run, trace, known, "--start", "2026-01-01")
    assert "t.csv does not say when it was recorded, and others do: import it by itself" in told


def test_a_trace_is_counted_once(run: Run, tmp_path: Path) -> None:
    one = traces.kineto(tmp_path / "t.json", FEW)
    for other in (one, traces.kineto(tmp_path / "t.json.gz", FEW), traces.nsys(tmp_path / "t.sqlite", FEW)):
        assert "hold the same 2 kernels: name each trace once" in refused(run, one, other)
    more = [*FEW, Kernel("more", 15_000, 1, correlation=9)]
    overlapping = refused(run, one, traces.kineto(tmp_path / "more.json", more))
    assert f"hold the same time of the process {traces.PID} on rank 3: import one, or each by itself" in overlapping
    later = [replace(kernel, start_ns=kernel.start_ns + 10**9, launch_ns=None, duration_ns=40) for kernel in FEW]
    assert run("import", one, traces.kineto(tmp_path / "later.json", later), "-o", tmp_path / "two").code == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "a trace and -o DIR are needed: try `kdiff import trace.json.gz -o DIR`"),
        (["t.json"], "a trace and -o DIR are needed"),
        (["t.json", "-o", "there"], "is there already and not an empty directory: name another with -o"),
        (["t.json", "-o", "/no/such/x"], "no directory can be made in /no/such"),
        (["t.json", "-o", "x", "--service", ""], "the name of the service is empty"),
        (["t.json", "-o", "x", "--format", "nsys"], "is no SQLite database: make one with"),
        (["t.json", "-o", "x", "--format", "csv"], "is no CSV of kernels: it needs the columns"),
    ],
)
def test_arguments(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str) -> None:
    monkeypatch.chdir(tmp_path)
    traces.kineto(Path("t.json"), FEW)
    (tmp_path / "there" / "x").mkdir(parents=True)
    result = run("import", *arguments)
    assert (result.code, result.out) == (2, "")
    assert words in result.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t.json", "there"]


def test_two_imports_into_one_directory(tmp_path: Path) -> None:
    """One is whole, the other is told."""
    trace = traces.kineto(tmp_path / "t.json", FEW)
    told: list[str] = []

    def one() -> None:
        try:
            import_traces([(trace, "kineto")], tmp_path / "out", "svc", None, lambda *_: traces.quiet(barrier.wait))
        except KdiffError as error:
            told.append(str(error))

    barrier = threading.Barrier(2)
    threads = [threading.Thread(target=one) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert told == [f"{tmp_path / 'out'} was made by another meanwhile: name another with -o"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "t.json"]


def test_what_a_kill_left_is_removed_by_the_next(run: Run, tmp_path: Path) -> None:
    """Not what is still being made, nor what others called alike."""
    trace = traces.kineto(tmp_path / "t.json", FEW)
    left, new, busy, other = (
        tmp_path / f".{name}.partial" for name in ("out.abcdefgh", "out.bcdefghi", "out.cdefghij", "out.x.defghijk")
    )
    for folder in (left, new, busy, other):
        (folder / "cuda_events").mkdir(parents=True)
        (folder / "cuda_events" / "a.parquet").write_bytes(b"x")
        if folder is not new:
            os.utime(folder, (1, 1))
    link = tmp_path / ".out.efghijkl.partial"
    link.symlink_to(other)
    held = os.open(busy, os.O_RDONLY)
    assert lock(held)
    assert run("import", trace, "-o", tmp_path / "out").code == 0
    os.close(held)
    assert {*tmp_path.iterdir()} == {trace, tmp_path / "out", new, busy, other, link}
    assert (other / "cuda_events" / "a.parquet").exists()


def test_one_that_is_being_made_is_held(tmp_path: Path) -> None:
    with appearing(tmp_path / "out") as beside:
        other = os.open(beside, os.O_RDONLY)
        assert not lock(other)
        os.close(other)
    assert (tmp_path / "out").is_dir()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Of 200 kB."""
    with mounted(tmp_path / "disk", "200k") as disk:
        yield disk


def test_a_full_disk(run: Run, tmp_path: Path, small_disk: Path) -> None:
    trace = traces.kineto(tmp_path / "t.json", MANY)
    result = run("import", trace, "-o", small_disk / "out")
    assert (result.code, result.out) == (2, "")
    assert "out cannot be written (No space left on device): free space, or name another with -o" in result.err
    assert list(small_disk.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_is_ended_halfway_is_no_capture(tmp_path: Path, number: signal.Signals) -> None:
    pipe_like = tmp_path / "t.json"
    traces.kineto(pipe_like, MANY)
    program = (
        "import sys, time, kdiff.queries.export as c; w = c.write_batches; "
        "c.write_batches = lambda *a: (w(*a), print('written', flush=True), time.sleep(60)); "
        "from kdiff.analysis.cli import main; main()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, "import", pipe_like, "-o", tmp_path / "out"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"written\n"
    process.send_signal(number)
    assert process.communicate(timeout=30) == (b"", b"")
    assert process.returncode == {signal.SIGINT: 130, signal.SIGTERM: 143}[number]
    assert list(tmp_path.iterdir()) == [pipe_like]


def test_memory_does_not_grow_with_the_trace(tmp_path: Path) -> None:
    """Ten times the events take the same memory."""
    peaks = []
    noise = [{"ph": "X", "cat": "cpu_op", "name": "x" * 2_000, "pid": 1, "ts": 1, "args": {}}]
    program = (
        "import sys, re, kdiff.analysis.import_json as j; j._CHUNK = 1 << 20; from kdiff.analysis.cli import app; "
        "app(sys.argv[1:], standalone_mode=False); "
        "print(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1])"
    )
    for factor in (1, 10):
        trace = traces.kineto(tmp_path / f"{factor}.json", MANY, more=noise * (3_000 * factor))
        command: list[str | Path] = [sys.executable, "-c", program, "import", trace, "-o", tmp_path / str(factor)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        peaks.append(int(done.stdout.splitlines()[-1]))
    assert peaks[1] < peaks[0] + 10_000, peaks  # kB; the text alone is 54 MB more
