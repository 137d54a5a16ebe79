"""Clocks, heat, neighbours, models of GPUs and failing launches: what a verdict says of them, and what they bar."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import shipped

import captures
from captures import AFTER, BEFORE, SECOND, TwoWindows, only
from kdiff.agent.segments import SegmentWriter
from kdiff.analysis.context import beyond_clocks, differences, explained, failing_more, on_other_gpus, other_models
from kdiff.analysis.counts import Counts
from kdiff.analysis.output import FORMATS, output_format
from kdiff.analysis.surroundings import ControlsReport, GpuReport
from kdiff.analysis.verdict import Verdict
from kdiff.analysis.window import Window
from kdiff.queries.address import Address
from kdiff.queries.connection import connect
from kdiff.queries.migrations import migrate
from kdiff.queries.server import ServerStore
from kdiff.queries.store import CaptureStore, Params
from kdiff.queries.tables import GPU_SAMPLES

pytestmark = pytest.mark.usefixtures("engine")

IDLE, POWER, HW_THERMAL = 0x1, 0x4, 0x48
KERNELS = 12
N = 6_007
SLOWER = "SM clock 1,980 -> 1,782 MHz (-10%), held down by its power cap 75% of the time (0% before)."
GPU = GpuReport(
    host="host-1", gpu_uuid="GPU-a", parent_uuid="", model="NVIDIA H200", samples=600, busy=1.0, sm_clock_mhz=1980.0,
    sm_clock_p5_mhz=1980.0, throttled={"power_cap": 0.0, "thermal": 0.0}, power_w=500.0, temperature_c=55.0,
    temperature_max_c=60.0, utilization=0.5, memory_utilization=0.2, memory_used_bytes=1e9, memory_total_bytes=1e11,
    neighbours=(),
)  # fmt: skip


class Capture(TwoWindows):
    """A capture of both windows under construction."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.random = np.random.default_rng(1)

    def durations(self, scale: float) -> np.ndarray:
        return (80_000 * scale * self.random.lognormal(0.0, 0.1, N)).astype(np.int64)

    def device(self, name: str, before: float | None = 1.0, after: float | None = 1.0) -> None:
        for window, scale in ((BEFORE, before), (AFTER, after)):
            if scale is not None:
                times = captures.spread(window.from_ns, window.to_ns, N)
                self.add("kernel_executions", captures.executions(name, times, self.durations(scale)))
                self.add("cuda_events", captures.launches(name, times, batch_launches=24))

    def host(self, name: str, **columns: Any) -> None:
        for window in (BEFORE, AFTER):
            times = captures.spread(window.from_ns, window.to_ns, N)
            self.add("cuda_events", captures.launches(name, times, completion_ns=self.durations(1.0), **columns))


def samples(window: Window, **columns: Any) -> pa.Table:
    """A GPU a second."""
    count = window.length_ns // SECOND
    given: dict[str, Any] = {
        "timestamp_ns": window.from_ns + SECOND * np.arange(count),
        "host": "host-1",
        "gpu_uuid": "GPU-a",
        "gpu_name": "NVIDIA H200",
        "sm_clock_mhz": 1980,
        "power_mw": 500_000,
        "temperature_c": 55,
        "gpu_utilization": 50,
        "memory_utilization": 20,
        "memory_used_bytes": 1 << 30,
        "memory_total_bytes": 1 << 37,
    }
    return captures.table("gpu_samples", given | columns, rows=count)


def slower_clocks(window: Window) -> pa.Table:
    """Three quarters of the time at its power cap."""
    held = np.arange(window.length_ns // SECOND) % 4 != 0
    return samples(window, sm_clock_mhz=np.where(held, 1716, 1980), throttle_reasons=np.where(held, POWER, 0))


@pytest.fixture
def capture(tmp_path: Path) -> Capture:
    return Capture(tmp_path / "capture")


def kernels(capture: Capture, common: float, own: float = 1.0) -> None:
    for number in range(KERNELS):
        capture.device(f"kernel_{number}", 1.0, common * (own if number == 0 else 1.0))


def test_a_drop_of_clocks_is_told_and_confounds(capture: Capture) -> None:
    kernels(capture, 1.11)
    capture.add("gpu_samples", samples(BEFORE))
    capture.add("gpu_samples", slower_clocks(AFTER))
    report = capture.compare()
    assert {row.verdict for row in report.kernels} == {Verdict.CONFOUNDED}
    assert (report.verdict, report.exit_code) == (Verdict.CONFOUNDED, 3)
    (controls,) = report.controls
    assert (controls.metric, controls.n, controls.apart, controls.adjusted) == ("device", 12, 0, True)
    assert controls.common_ratio == pytest.approx(1.11, rel=0.01)
    assert report.kernels[0].reasons[-1] == SLOWER
    assert SLOWER in report.notes
    (before,), (after,) = report.before.gpus, report.after.gpus
    assert (before.host, before.gpu_uuid, before.model, before.samples, before.busy) == (
        *("host-1", "GPU-a", "NVIDIA H200"),
        *(600, 1.0),
    )
    assert (before.sm_clock_mhz, before.sm_clock_p5_mhz, before.power_w, before.temperature_c) == (1980, 1980, 500, 55)
    assert (after.sm_clock_mhz, after.sm_clock_p5_mhz, after.utilization) == (1782, 1716, 0.5)
    assert after.throttled == {
        "power_cap": 0.75,
        "thermal": 0.0,
        "power_brake": 0.0,
        "hardware_slowdown": 0.0,
        "sync_boost": 0.0,
        "clock_setting": 0.0,
    }
    for name in FORMATS:
        assert output_format(name).render(report, 120, colour=False)
    for name in ("table", "markdown", "junit"):
        text = " ".join(output_format(name).render(report, 400, colour=False).replace("\\", "").split())
        assert "SM clock 1,980 -> 1,782 MHz" in text.replace("&gt;", ">"), name
    assert report.notes.count(SLOWER) == 1


def test_a_kernel_that_is_slower_besides_is_regressed_with_the_clocks_beside_it(capture: Capture) -> None:
    kernels(capture, 1.11, own=1.3)
    capture.add("gpu_samples", samples(BEFORE))
    capture.add("gpu_samples", slower_clocks(AFTER))
    row = only(capture.compare(), "kernel_0")
    assert row.verdict is Verdict.REGRESSED
    assert row.adjusted_ratio == pytest.approx(1.3, rel=0.02)
    assert row.ratio == pytest.approx(1.11 * 1.3, rel=0.02)
    assert row.reasons[-1] == SLOWER


ELSE = "look at what else all kernels share, as a driver, a compiler, a framework, the memory's clock or neighbours."
UNKNOWN = "The GPUs' clocks are not known of both windows: whether they moved all kernels cannot be told."


@pytest.mark.parametrize("sampled", [True, False])
def test_what_moved_all_kernels_but_no_clock_is_told_as_such(capture: Capture, sampled: bool) -> None:
    kernels(capture, 1.2)
    for window in (BEFORE, AFTER) if sampled else (BEFORE,):
        capture.add("gpu_samples", samples(window))
    report = capture.compare()
    told = f"SM clocks did not change (1,980 -> 1,980 MHz): {ELSE}" if sampled else UNKNOWN
    assert {row.verdict for row in report.kernels} == {Verdict.CONFOUNDED}
    assert {row.reasons[-1] for row in report.kernels} == {told}
    assert report.notes.count(told) == 1
    line = output_format("table").render(report, 120, colour=False).splitlines()[-1]
    assert line.startswith(f"UNDECIDED: {KERNELS} of {KERNELS} kernels cannot be told from what moved all: ")


@pytest.mark.parametrize(
    ("common", "clocks", "told"),
    [
        (None, [(1980, 1980)], ""),
        (1.1, [], UNKNOWN),
        (1.1, [(None, 1980), (1980, None)], UNKNOWN),
        (1.1, [(1980, 1980), (1980, 1970)], f"SM clocks did not change (1,980 -> 1,975 MHz): {ELSE}"),
        (0.9, [(1980, 1980)], f"SM clocks did not change (1,980 -> 1,980 MHz): {ELSE}"),
        (1.1, [(1980, 1800)], ""),
        (1.1, [(1980, 1980), (1980, 1800)], ""),  # the tail is that of the GPU that moved
        (1.2, [(1980, 1920)], f"SM clocks explain at most +3.1% of the +20.0% that is common to all: {ELSE}"),
        (1.2, [(1700, 1980)], f"SM clocks explain nothing of the +20.0% that is common to all: {ELSE}"),
        (0.9, [(1800, 1980)], ""),
        (0.8, [(1800, 1980)], f"SM clocks explain at most -9.1% of the -20.0% that is common to all: {ELSE}"),
        (0.8, [(1980, 1800)], f"SM clocks explain nothing of the -20.0% that is common to all: {ELSE}"),
    ],
)
def test_clocks_explain_what_is_common_by_their_ratio_at_most(
    common: float | None, clocks: list[tuple[float | None, float | None]], told: str
) -> None:
    sides = [
        [replace(GPU, gpu_uuid=f"GPU-{i}", sm_clock_mhz=pair[side]) for i, pair in enumerate(clocks)] for side in (0, 1)
    ]
    ratio = common or 1.1
    controls = [ControlsReport("device", 12, ratio, (ratio, ratio), 0, adjusted=common is not None)]
    assert beyond_clocks(*sides, controls) == told


def test_gpus_that_moved_against_each_other_are_told_apart() -> None:
    before = [replace(GPU, gpu_uuid=f"GPU-{i}") for i in range(3)]
    after = [replace(gpu, temperature_c=value) for gpu, value in zip(before, (85.0, 25.0, 55.0), strict=True)]
    assert differences(before, after) == [
        "The GPUs' temperature 55 °C -> 85 °C on 1 of 3 GPUs.",
        "The GPUs' temperature 55 °C -> 25 °C on 1 of 3 GPUs.",
    ]


def test_a_reason_of_clocks_that_was_not_known_before_is_no_change() -> None:
    unknown = replace(GPU, throttled={})
    assert differences([unknown], [replace(GPU, throttled={"thermal": 1.0})]) == []
    assert differences([unknown], [replace(GPU, sm_clock_mhz=1755.0, throttled={"thermal": 1.0})]) == [
        "SM clock 1,980 -> 1,755 MHz (-11%), held down by heat 100% of the time."
    ]


def test_kernels_chosen_of_many_say_that_controls_are_missing(capture: Capture) -> None:
    kernels(capture, 1.11)
    told = (
        "Only kernels that --kernel chose were compared, too few to tell what moved all kernels: without it the "
        "others are controls."
    )
    alone = capture.compare(patterns=["kernel_3"])
    assert (alone.verdict, alone.notes) == (Verdict.REGRESSED, (told,))
    assert told not in capture.compare(patterns=["kernel"]).notes


def test_where_nothing_moved_nothing_is_told(capture: Capture) -> None:
    kernels(capture, 1.0)
    capture.add("gpu_samples", samples(BEFORE))
    capture.add("gpu_samples", slower_clocks(AFTER))
    report = capture.compare()
    assert {row.verdict for row in report.kernels} == {Verdict.PASS}
    assert report.notes == ()
    assert len(report.after.gpus) == 1


def test_gpus_of_another_model_are_not_compared(capture: Capture) -> None:
    capture.device("gelu", 1.0, 1.3)
    capture.device("norm", 1.0, None)
    capture.add("gpu_samples", samples(BEFORE))
    capture.add("gpu_samples", samples(AFTER, gpu_name="NVIDIA A100-SXM4-80GB", gpu_uuid="GPU-b"))
    report = capture.compare()
    text = "The GPUs of the before window are 'NVIDIA H200', those of the after window 'NVIDIA A100-SXM4-80GB'"
    assert report.warnings[-1] == text
    assert report.exit_code == 3
    assert only(report).verdict is Verdict.MIX_NOT_COMPARABLE
    assert only(report).reasons[0] == f"{text}: what is another GPU and what another kernel cannot be told apart."
    assert only(report, "norm").verdict is Verdict.GONE


def test_idle_samples_say_nothing_of_clocks_and_null_readings_are_null(capture: Capture) -> None:
    capture.device("gelu")
    idle = np.arange(600) % 2 == 0
    columns = {"sm_clock_mhz": np.where(idle, 345, 1980), "throttle_reasons": np.where(idle, IDLE, HW_THERMAL)}
    capture.add("gpu_samples", samples(BEFORE, **columns))
    bare = samples(AFTER, gpu_uuid="GPU-b").to_pylist()
    capture.add(
        "gpu_samples", pa.Table.from_pylist([row | dict.fromkeys(GPU_SAMPLES.names[6:-2]) for row in bare], GPU_SAMPLES)
    )
    report = capture.compare()
    (before,), (after,) = report.before.gpus, report.after.gpus
    assert (before.busy, before.sm_clock_mhz, before.sm_clock_p5_mhz) == (0.5, 1980, 1980)
    assert (before.throttled["thermal"], before.throttled["hardware_slowdown"]) == (1.0, 0.0)
    assert (after.busy, after.sm_clock_mhz, after.throttled, after.temperature_c) == (1.0, None, {}, None)
    assert only(report).verdict is Verdict.PASS


def test_neighbours_are_those_that_are_none_of_the_service_s(capture: Capture) -> None:
    capture.host("gelu", pid=77)
    for window, pids in ((BEFORE, [77]), (AFTER, [77, 4711])):
        count = window.length_ns // SECOND
        capture.add("gpu_samples", samples(window, pids=[pids] * count, pid_memory_bytes=[[None] * len(pids)] * count))
    capture.add("gpu_samples", samples(AFTER, host="another", gpu_name="not where it ran"))
    report = capture.compare()
    assert [gpu.neighbours for gpu in (*report.before.gpus, *report.after.gpus)] == [(), (4711,)]
    assert differences(report.before.gpus, report.after.gpus) == [
        "1 other process used the GPUs in the after window, 0 before: new are 4711 on 'host-1'."
    ]


@pytest.mark.parametrize(
    ("after", "told"),
    [
        ({}, []),
        ({"sm_clock_mhz": 1950.0}, []),
        ({"sm_clock_mhz": 1755.0}, ["SM clock 1,980 -> 1,755 MHz (-11%)."]),
        (
            {"sm_clock_mhz": 1755.0, "throttled": {"power_cap": 0.64, "thermal": 0.3}},
            ["SM clock 1,980 -> 1,755 MHz (-11%), held down by its power cap 64% of the time (0% before)."],
        ),
        ({"throttled": {"thermal": 0.3}}, ["Clocks were held down by heat 30% of the time (0% before)."]),
        ({"temperature_c": 71.0}, ["The GPUs' temperature 55 °C -> 71 °C."]),
        ({"utilization": 0.8}, ["The GPUs' utilization 50% -> 80%."]),
        ({"utilization": None, "sm_clock_mhz": None, "temperature_c": None, "throttled": {}}, []),
    ],
)
def test_differences_in_words(after: dict[str, Any], told: list[str]) -> None:
    assert differences([GPU], [replace(GPU, **after)]) == told
    other = replace(GPU, gpu_uuid="GPU-b")
    found = differences([GPU, other], [replace(GPU, **after), other])
    assert [one.replace(" on 1 of 2 GPUs", "") for one in found] == told
    assert all("on 1 of 2 GPUs" in one for one in found)


def test_gpus_of_two_groups_of_hosts_are_compared_by_what_they_have() -> None:
    canary = [replace(GPU, host="b", gpu_uuid=f"GPU-{i}", sm_clock_mhz=1782.0) for i in range(2)]
    control = [replace(GPU, host="a", gpu_uuid=f"GPU-x{i}") for i in range(5)]
    assert differences(control, canary) == ["SM clock 1,980 -> 1,782 MHz (-10%)."]
    assert differences([], canary) == differences(control, []) == []


def test_models() -> None:
    h100 = replace(GPU, model="NVIDIA H100")
    assert other_models([GPU], [GPU]) == ("", False)
    assert other_models([], [GPU]) == ("", False)
    assert other_models([replace(GPU, model="")], [h100]) == ("", False)
    text = "The GPUs of the before window are 'NVIDIA H200', those of the after window 'NVIDIA H100' and 'NVIDIA H200'"
    assert other_models([GPU], [GPU, h100]) == (text, False)
    assert other_models([GPU], [h100])[1] is True


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ((10_000, 0), (10_000, 0), False),
        ((10_000, 10), (10_000, 10), False),
        ((10_000, 0), (10_000, 10), False),  # 0.1%
        ((10_000, 0), (10_000, 11), True),
        ((1_000, 0), (1_000, 3), False),  # by chance one time in eight
        ((10_000, 80), (10_000, 100), False),
        ((10_000, 80), (10_000, 140), True),
        ((10_000, 140), (10_000, 80), False),
        ((0, 0), (10, 10), False),
    ],
)
def test_launches_that_fail_more_often(before: tuple[int, int], after: tuple[int, int], told: bool) -> None:
    sides = [Counts(launches=launches, failed=failed) for launches, failed in (before, after)]
    assert bool(failing_more(*sides)) is told


def test_a_kernel_whose_launches_fail_more_often_does_not_pass(capture: Capture) -> None:
    status = np.zeros(6_007, int)
    capture.host("gelu")
    capture.host("norm")
    status[:30] = 700
    times = captures.spread(AFTER.from_ns, AFTER.to_ns, 30)
    capture.add("cuda_events", captures.launches("gelu", times, status=status[:30], completion_ns=0))
    report = capture.compare()
    assert only(report, "norm").verdict is Verdict.PASS
    row = only(report)
    assert (row.verdict, report.exit_code) == (Verdict.INCONCLUSIVE, 3)
    assert row.reasons[0] == "Its launches fail more often: 0% before, 0.5% after (30 of 6,037)."


def test_rows_keep_what_needs_no_word(capture: Capture) -> None:
    capture.device("gelu")
    capture.device("new", None, 1.0)
    rows: Sequence[Any] = capture.compare().kernels
    assert explained(rows, ["x"]) == list(rows)
    assert [row.verdict for row in on_other_gpus(rows, "Text")] == [Verdict.NEW, Verdict.MIX_NOT_COMPARABLE]


def test_a_server_says_of_gpus_what_a_capture_says(database: Address, tmp_path: Path) -> None:
    begin = (time.time_ns() // captures.MINUTE - 60) * captures.MINUTE
    window = Window(begin, begin + 101 * SECOND)
    root = tmp_path / "capture"
    held = np.arange(101) % 4 != 0
    rows = samples(
        window,
        service="svc",
        sm_clock_mhz=np.where(held, 1716, 1980),
        throttle_reasons=np.where(held, POWER | (1 << 40), IDLE),
        pids=[[7, 4711 + second % 3] for second in range(101)],
        pid_memory_bytes=[[None, 1]] * 101,
    )
    SegmentWriter(root, "host-1", shipped.BOOT, begin).write("gpu_samples", rows)
    client = connect(database)
    migrate(client, database.database)
    client.close()
    shipped.ship(database, root)
    asked: Params = {"from_ns": window.from_ns, "to_ns": window.to_ns, "service": "svc"}
    with ServerStore(database) as server, CaptureStore(root) as capture:
        found = [store.query("gpu_context", asked).to_pylist() for store in (server, capture)]
        assert server.query("gpu_context", asked | {"service": "another"}).num_rows == 0
    assert found[0] == found[1]
    (row,) = found[0]
    assert (row["samples"], row["samples_busy"], row["sm_clock_mhz"], row["power_cap"]) == (101, 75, 1716, 1.0)
    assert (row["pids"], row["temperature_max_c"], row["clock_setting"]) == ([7, 4711, 4712, 4713], 55, 0.0)
