"""Input that no one expects: the right verdict or one sentence, in every format, and never a nan or a traceback."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree as ET

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import schemas
from command_line import Result, Run, kdiff

import captures
from captures import AFTER, BEFORE, MINUTE, SECOND, T0, TwoWindows
from kdiff.analysis import compare, recorded
from kdiff.analysis.counts import Counts, Recording
from kdiff.analysis.evidence import Evidence
from kdiff.analysis.output import FORMATS, output_format
from kdiff.analysis.report import Report
from kdiff.analysis.verdict import Verdict
from kdiff.queries.printable import cells
from kdiff.queries.store import CaptureStore

pytestmark = pytest.mark.usefixtures("engine")

N: Final = 4_001
COLUMNS: Final = 100
HOUR_NS: Final = 3_600 * SECOND
PAIR: Final = ("--before", str(BEFORE), "--after", str(AFTER))
NO_NUMBER: Final = re.compile(r"(?<![\w.])(?:[-+]?(?i:nan)|NaT|None|-inf|(?<!\+)inf|Infinity)(?!\w)")
"""An interval may be open upwards, +inf; nothing else that is printed may be no number."""

Values = int | np.ndarray
Told = dict[str, Any]
Tell = Callable[..., Told]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    for name in ("KDIFF_STORE", "KDIFF_DEBUG", "KDIFF_KEEP"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", str(COLUMNS))

    def call(*arguments: str | Path) -> Result:
        return kdiff(monkeypatch, capsys, *arguments)

    return call


@pytest.fixture
def tell(run: Run) -> Tell:
    """The JSON document of a comparison, after every format of it was read as its readers do."""

    def told(root: Path, *options: str, pair: tuple[str, ...] = PAIR, numbers_only: bool = True) -> Told:
        results = {name: run("--store", root, *pair, *options, "--format", name) for name in FORMATS}
        assert {result.code for result in results.values()} <= {0, 1, 3}, {r.err for r in results.values()}
        assert len({(result.code, result.err) for result in results.values()}) == 1
        for name, result in results.items():
            READERS[name](result.out)
            if numbers_only:
                assert not NO_NUMBER.search(result.out), (name, result.out)
        document: Told = json.loads(results["json"].out)
        argo = json.loads(results["argo"].out)
        assert document["exit_code"] == argo["exit_code"] == results["json"].code
        assert argo["sentence"] + "\n" == results["sentence"].out
        document["stderr"] = results["json"].err
        return document

    return told


def read_junit(text: str) -> None:
    (suite,) = ET.fromstring(text)
    cases = suite.findall("testcase")
    assert int(suite.attrib["tests"]) == len(cases)
    for counter, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        assert int(suite.attrib[counter]) == sum(case.find(tag) is not None for case in cases)


def read_markdown(text: str) -> None:
    lines = text.splitlines()
    assert lines[0].startswith("### kdiff: ")
    rows = [re.split(r"(?<!\\)\|", line) for line in lines if line.startswith("|")]
    assert {len(row) for row in rows} <= {10}  # eight columns and what lies outside of them


def read_table(text: str) -> None:
    assert max(map(cells, text.splitlines())) <= COLUMNS
    assert "\x1b" not in text


def read_sentence(text: str) -> None:
    assert text.startswith("kdiff: ")
    assert text.count("\n") == 1
    assert cells(text.rstrip("\n")) <= 400


READERS: Final[dict[str, Callable[[str], object]]] = {
    "table": read_table,
    "json": schemas.check_text,
    "markdown": read_markdown,
    "junit": read_junit,
    "argo": schemas.check_text,
    "sentence": read_sentence,
}


class Capture(TwoWindows):
    """Both windows under construction; a kernel is on the device unless `host` makes it."""

    def device(self, before: Values | None, after: Values | None, name: str = "gelu", count: int = N) -> None:
        for window, values in ((BEFORE, before), (AFTER, after)):
            if values is not None:
                times = captures.spread(window.from_ns, window.to_ns, count)
                self.add("kernel_executions", captures.executions(name, times, values))
                self.add("cuda_events", captures.launches(name, times, batch_launches=24))

    def host(self, before: Values, after: Values, count: int = N, **columns: Any) -> None:
        for window, values in ((BEFORE, before), (AFTER, after)):
            times = captures.spread(window.from_ns, window.to_ns, count)
            self.add("cuda_events", captures.launches("gelu", times, completion_ns=values, **columns))


@pytest.fixture
def capture(tmp_path: Path) -> Capture:
    return Capture(tmp_path / "capture")


def one(document: Told, kernel: str = "gelu") -> Told:
    (row,) = [row for row in document["kernels"] if row["kernel"] == kernel]
    return dict(row)


def test_durations_that_never_vary(capture: Capture, tell: Tell) -> None:
    """Of nothing, of a nanosecond, of 20 us and of an hour."""
    values = {"nothing": 0, "least": 1, "usual": 20_000, "hour": HOUR_NS}
    for name, value in values.items():
        capture.device(value, value, name)
    document = tell(capture.root)
    assert document["exit_code"] == 0
    for name, value in values.items():
        row = one(document, name)
        assert (row["verdict"], row["p50_before"], row["p99_after"]) == ("PASS", value, value)
        assert (row["ratio"], row["ci"]) == (1.0, [1.0, 1.0])


def test_constants_that_changed(capture: Capture, tell: Tell) -> None:
    """Exactly the tolerance passes, a nanosecond more does not."""
    expected = {21_000: "PASS", 21_001: "REGRESSED", 40_000: "REGRESSED", HOUR_NS: "REGRESSED", 10: "IMPROVED"}
    for after in expected:
        capture.device(20_000, after, f"to {after}")
    document = tell(capture.root)
    assert document["exit_code"] == 1
    for after, verdict in expected.items():
        row = one(document, f"to {after}")
        assert (row["verdict"], row["ratio"]) == (verdict, pytest.approx(after / 20_000))


def test_from_nothing_to_something_and_back(capture: Capture, tell: Tell) -> None:
    """A duration of 0 is one of a tick, so that its ratio is a number."""
    capture.device(0, 64, "appears")
    capture.device(64, 0, "vanishes")
    document = tell(capture.root)
    assert one(document, "appears")["verdict"] == "REGRESSED"
    assert one(document, "vanishes")["verdict"] == "IMPROVED"
    assert document["exit_code"] == 1


def test_two_values(capture: Capture, tell: Tell) -> None:
    """So many of 4,001 launches take twice as long; a p99 is the 41st from the top."""
    expected = {(200, 200): "PASS", (4, 4): "PASS", (4, 400): "REGRESSED", (400, 4): "IMPROVED"}

    def values(slow: int) -> np.ndarray:
        found = np.full(N, 20_000)
        found[np.linspace(0, N - 1, slow).astype(int)] = 40_000
        return found

    for before, after in expected:
        capture.device(values(before), values(after), f"{before} to {after}")
    document = tell(capture.root)
    assert document["exit_code"] == 1
    for (before, after), verdict in expected.items():
        assert one(document, f"{before} to {after}")["verdict"] == verdict


def test_few_launches(capture: Capture, tell: Tell) -> None:
    counts = (1, 2, 29, 1_999)
    for count in counts:
        capture.device(20_000, 90_000, f"of {count}", count)
    document = tell(capture.root, "--max-unjudged", "0")
    assert document["exit_code"] == 3
    for count in counts:
        row = one(document, f"of {count}")
        assert (row["verdict"], row["n_before"], row["n_after"]) == ("NOT_ENOUGH_DATA", count, count)
        assert row["reasons"][0].startswith(f"The before window has {count:,} launches; p99 needs 2,000")


def test_one_launch_before_and_many_after(capture: Capture, tell: Tell) -> None:
    capture.device(20_000, None, count=1)
    capture.device(None, 20_000)
    row = one(tell(capture.root))
    assert (row["verdict"], row["n_before"], row["n_after"]) == ("NOT_ENOUGH_DATA", 1, N)


@pytest.mark.parametrize("metric", ["auto", "completion", "launch", "device"])
def test_all_launches_failed(capture: Capture, tell: Tell, metric: str) -> None:
    """None of them ran, so none was fast."""
    capture.host(20_000, 20_000, status=2)
    document = tell(capture.root, "--metric", metric)
    assert (document["exit_code"], one(document)["verdict"]) == (3, "INCONCLUSIVE")
    assert (one(document)["ratio"], one(document)["ci"]) == (None, None)


def test_all_launches_failed_after_the_swap(capture: Capture, tell: Tell) -> None:
    capture.host(20_000, 20_000)
    for segment in (capture.root / "cuda_events").glob("*.parquet"):
        rows = pq.read_table(segment)
        late = rows["timestamp_ns"].to_numpy() >= AFTER.from_ns
        place = rows.schema.get_field_index("status")
        pq.write_table(rows.set_column(place, "status", pa.array(2 * late, pa.int32())), segment)
    document = tell(capture.root)
    assert (document["exit_code"], one(document)["verdict"]) == (3, "INCONCLUSIVE")


def test_the_new_kernel_never_ran(capture: Capture, tell: Tell) -> None:
    """That the old one is gone and nothing is in its place is no pass."""
    capture.device(20_000, None, "old_gelu")
    capture.device(20_000, 20_000, "norm")
    document = tell(capture.root)
    assert one(document, "old_gelu")["verdict"] == "GONE"
    assert one(document, "norm")["verdict"] == "PASS"
    assert one(document, "old_gelu")["ratio"] is None
    capture.device(None, 20_000, "new_gelu")
    assert tell(capture.root)["exit_code"] == 3


def test_nothing_ran_after_at_all(capture: Capture, tell: Tell) -> None:
    capture.device(20_000, None)
    document = tell(capture.root)
    assert (document["exit_code"], one(document)["verdict"]) == (3, "GONE")


def test_nothing_but_the_agent_ran(capture: Capture, tell: Tell) -> None:
    document = tell(capture.root)
    assert (document["exit_code"], document["kernels"]) == (3, [])
    assert "no kernel ran that could be compared" in document["cause"]


def test_names_of_2000_characters(capture: Capture, tell: Tell) -> None:
    """Two that differ in the middle stay two, and both can be told apart where they are shortened."""
    names = ["void fused<" + "a" * 995 + middle + "b" * 993 + ">" for middle in ("1", "2")]
    for name, after in zip(names, (20_000, 30_000), strict=True):
        assert len(name) > 1_999
        capture.device(20_000, after, name)
    document = tell(capture.root)
    assert [one(document, name)["verdict"] for name in names] == ["PASS", "REGRESSED"]
    assert document["exit_code"] == 1


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (str(BEFORE), str(BEFORE), "the before and after windows overlap by 10m"),
        (str(BEFORE), f"{T0 + 9 * MINUTE}..{T0 + 15 * MINUTE}", "the before and after windows overlap by 1m "),
        (f"{BEFORE.to_ns}..{BEFORE.from_ns}", str(AFTER), "the window is reversed: it ends at 2025-11-27T10:00:00Z"),
        (f"{T0}..{T0}", str(AFTER), "the window is empty: it starts and ends at 2025-11-27T10:00:00Z"),
        ("2025-11-27T08:00/10m", str(AFTER), "nothing was recorded in the before window"),
        (str(BEFORE), "2025-11-27T12:00/10m", "nothing was recorded in the after window"),
        (str(BEFORE), "2200-01-01T00:00/10m", "in the future"),
        ("nan", str(AFTER), "--before 'nan' is neither a time nor a capture directory"),
        (str(BEFORE), "inf..inf", "--after 'inf..inf' is neither a time nor a capture directory"),
        (f"{T0}..nan", str(AFTER), "is neither a time nor a capture directory"),
    ],
)
def test_windows_that_are_none(capture: Capture, run: Run, before: str, after: str, words: str) -> None:
    capture.device(20_000, 20_000)
    for name in FORMATS:
        result = run("--store", capture.root, "--before", before, "--after", after, "--format", name)
        assert (result.code, result.out) == (2, "")
        assert words in result.err
        assert result.err.count("\n") == 1


@pytest.mark.parametrize(
    ("option", "value"),
    [
        (option, value)
        for option in ("--tolerance", "--quantile", "--max-loss", "--max-unjudged", "--window")
        for value in ("nan", "-nan", "inf", "NaN%", "-1%", "", "1e400", "0x10")
    ],
)
def test_numbers_that_are_none(capture: Capture, run: Run, option: str, value: str) -> None:
    capture.device(20_000, 20_000)
    result = run("--store", capture.root, *PAIR, f"{option}={value}")
    assert (result.code, result.out) == (2, "")
    assert result.err.count("\n") == 1
    assert "unexpected" not in result.err


def test_the_later_window_first(capture: Capture, tell: Tell) -> None:
    capture.device(20_000, 40_000)
    document = tell(capture.root, pair=("--before", str(AFTER), "--after", str(BEFORE)))
    assert (document["exit_code"], one(document)["verdict"], round(one(document)["ratio"], 9)) == (0, "IMPROVED", 0.5)
    assert "the before window is later than the after window" in document["stderr"]


def test_all_launches_at_one_time(capture: Capture, tell: Tell) -> None:
    """What happened in one moment says nothing of how the level moves."""
    for window, value in ((BEFORE, 20_000), (AFTER, 40_000)):
        at = np.full(N, window.from_ns + MINUTE)
        capture.add("kernel_executions", captures.executions("gelu", at, value))
    document = tell(capture.root)
    assert (document["exit_code"], one(document)["verdict"]) == (3, "NOT_ENOUGH_DATA")
    assert one(document)["reasons"][0].startswith("The before window has launches in 1 stretch")


def test_ten_thousand_kernels_of_one_launch(capture: Capture, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"kernel_{i:05d}" for i in range(10_000)]
    for window in (BEFORE, AFTER):
        times = captures.spread(window.from_ns, window.to_ns, len(names))
        capture.add("kernel_executions", captures.executions(names, times, 20_000))
    reports, judge = [], compare.compare

    def kept(*arguments: Any) -> Report:
        reports.append(judge(*arguments))
        return reports[-1]

    monkeypatch.setattr(compare, "compare", kept)
    assert run("--store", capture.root, *PAIR, "--format", "sentence").code == 3
    (report,) = reports
    for name, read in READERS.items():
        read(output_format(name).render(report, COLUMNS, colour=False))
    assert {row.verdict for row in report.kernels} == {Verdict.NOT_ENOUGH_DATA}
    assert len(report.kernels) + len(report.rare) == 10_000
    assert (report.before.executions, report.after.executions) == (10_000, 10_000)


def test_the_sums_of_many_kernels_take_no_longer_a_kernel(capture: Capture) -> None:
    """Counts that are added one to another take each other's keys along: that took minutes for 40,000 kernels."""
    census = {f"kernel_{i:05d}": Counts((i,), launches=2, executions=3) for i in range(40_000)}
    with CaptureStore(capture.root) as store:
        evidence = Evidence(store, BEFORE)
        assert evidence.device.windows == 0
        began = time.thread_time()
        report = recorded.window_report(evidence, census, Recording(), None)
        assert time.thread_time() - began < 2.0
    assert (report.launches, report.executions) == (80_000, 120_000)


@pytest.mark.parametrize("columns", [80, 95, 100, 105])
def test_a_table_is_never_wider_than_the_terminal(
    capture: Capture, run: Run, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Short names leave room for more columns, which must not take what the heading of names needs."""
    capture.device(20_000, 90_000, "k", 29)
    monkeypatch.setenv("COLUMNS", str(columns))
    result = run("--store", capture.root, *PAIR, "--max-unjudged", "0")
    assert max(map(cells, result.out.splitlines())) <= columns


def test_another_gpu_model(capture: Capture, tell: Tell) -> None:
    """Whatever is slower, it is not the kernel."""
    for window, gpu, model, value in (
        (BEFORE, "GPU-1", "NVIDIA H100", 20_000),
        (AFTER, "GPU-2", "NVIDIA H200", 30_000),
    ):
        times = captures.spread(window.from_ns, window.to_ns, N)
        capture.add(
            "kernel_executions", captures.executions("gelu", times, value, gpu_uuid=gpu, grid_x=64, block_x=128)
        )
        seconds = np.arange(window.from_ns, window.to_ns, SECOND)
        sampled = {"timestamp_ns": seconds, "host": "host-1", "gpu_uuid": gpu, "gpu_name": model, "sm_clock_mhz": 1_980}
        capture.add("gpu_samples", captures.table("gpu_samples", sampled, len(seconds)))
    document = tell(capture.root)
    assert (document["exit_code"], one(document)["verdict"]) == (3, "MIX_NOT_COMPARABLE")


def test_a_negative_duration_on_the_device_is_none(capture: Capture, tell: Tell) -> None:
    """A clock that was set back may have left it in a capture of another make."""
    values = np.full(N, 20_000)
    values[::10] = -1
    values[5] = -(2**62)
    capture.device(values, values)
    document = tell(capture.root)
    row = one(document)
    assert (row["verdict"], row["p50_before"], row["ratio"]) == ("PASS", 20_000, 1.0)
    assert row["n_before"] == row["n_after"] == int((values >= 0).sum())


def test_nothing_but_negative_durations(capture: Capture, tell: Tell) -> None:
    capture.device(-5, -5)
    document = tell(capture.root)
    assert (document["exit_code"], one(document)["ratio"]) == (3, None)
    assert one(document)["verdict"] in ("INCONCLUSIVE", "NOT_ENOUGH_DATA")


def test_negative_completions_are_unknown_ones(capture: Capture, tell: Tell) -> None:
    capture.host(-5, -5)
    document = tell(capture.root)
    assert (document["exit_code"], one(document)["verdict"]) == (3, "INCONCLUSIVE")


@pytest.mark.parametrize("value", ["-5", "nan", "inf", "1e999", "12 us", "9" * 23])
def test_durations_of_a_foreign_file(run: Run, tmp_path: Path, value: str) -> None:
    """That row is left out and counted; the others are taken."""
    rows = [f"gelu,{T0 + i * 1_000_000},{value if i == 7 else 20_000}" for i in range(100)]
    path = tmp_path / "foreign.csv"
    path.write_text("\n".join(["name,start,duration", *rows]) + "\n")
    result = run("import", path, "-o", tmp_path / "capture")
    assert result.code == 0
    assert result.err == "kdiff: warning: 1 kernels without times, or with such as make no sense, were left out\n"
    kept = pq.read_table(tmp_path / "capture" / "kernel_executions")["duration_ns"].to_pylist()
    assert kept == [20_000] * 99


def test_kernels_with_the_names_of_nothing(capture: Capture, tell: Tell) -> None:
    names = ["nan", "NaN", "inf", "None", "null", "NULL", "-", "%", "|", "a\nb", "\x1b[31m", "\u202e", "0", "*"]
    for name in names:
        capture.device(20_000, 20_000, name)
    document = tell(capture.root, numbers_only=False)
    assert document["exit_code"] == 0
    assert {row["kernel"]: row["verdict"] for row in document["kernels"]} == dict.fromkeys(names, "PASS")


def test_a_window_of_one_nanosecond(capture: Capture, tell: Tell) -> None:
    capture.device(20_000, 20_000)
    first, second = BEFORE.from_ns, AFTER.from_ns
    pair = ("--before", f"{first}..{first + 1}", "--after", f"{second}..{second + 1}")
    document = tell(capture.root, pair=pair)
    assert (document["exit_code"], one(document)["verdict"]) == (3, "NOT_ENOUGH_DATA")


def test_every_quantile(capture: Capture, tell: Tell) -> None:
    capture.device(np.arange(N), np.arange(N))
    codes = [tell(capture.root, "--quantile", q)["exit_code"] for q in ("0.5", "0.9", "0.99", "0.999")]
    assert codes == [3, 3, 3, 3]
