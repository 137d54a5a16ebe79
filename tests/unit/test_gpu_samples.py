"""Samples of GPUs: the real pynvml on the stand-in NVML, from a process of its own."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path

import pytest
from nvml_host import H200, OTHER, READINGS, Host, Sampling

LOST, UNSUPPORTED, NO_PERMISSION, NOT_FOUND_FUNCTION, UNKNOWN = 15, 3, 4, 13, 999
PLACE = {"service": "svc", "host": "host-1", "parent_uuid": ""}
PROCESSES = {"processes": 2, "pids": [4242, 4243], "pid_memory_bytes": [77_309_411_328, 1_048_576]}


def without(row: dict[str, object], *names: str) -> dict[str, object]:
    return {name: value for name, value in row.items() if name not in names}


def test_each_gpu_is_a_row_each_second(tmp_path: Path) -> None:
    host = Host(tmp_path, H200, {**H200, "uuid": "GPU-b", "sm_clock": 345, "pids": "7:-"})
    begin = time.time_ns()
    with Sampling(host, sample=0.2) as sampling:
        sampling.until(lambda: len(sampling.rows) >= 8)
        assert sampling.look(4242, 7, 8) == [[H200["uuid"]], ["GPU-b"], []]
        sampling.end()
    rows = sampling.rows
    first = rows[0::2]
    assert [row["gpu_uuid"] for row in rows[:8]] == [H200["uuid"], "GPU-b"] * 4
    wanted = {**PLACE, "gpu_uuid": H200["uuid"], "gpu_name": "NVIDIA H200", **READINGS, **PROCESSES}
    assert without(first[0], "timestamp_ns") == wanted
    other = {"gpu_uuid": "GPU-b", "sm_clock_mhz": 345, "processes": 1, "pids": [7], "pid_memory_bytes": [None]}
    assert without(rows[1], "timestamp_ns") == wanted | other
    times = [row["timestamp_ns"] for row in first]
    assert begin < times[0] < times[-1] < time.time_ns()
    steps = [(b - a) / 1e9 for a, b in pairwise(times)]
    assert 0.1 < sorted(steps)[len(steps) // 2] < 0.3
    assert sampling.summary["rows"] == len(rows)
    assert (sampling.summary["failed"], sampling.summary["hung"], sampling.notes) == (0, 0, [])
    assert sampling.summary["cpu_ns"] > 0
    assert host.calls()[-1][0] == "nvmlShutdown"


@pytest.mark.parametrize(
    ("setting", "columns"),
    [
        ("sm_clock", ["sm_clock_mhz"]),
        ("mem_clock", ["mem_clock_mhz"]),
        ("reasons", ["throttle_reasons"]),
        ("power", ["power_mw"]),
        ("temperature", ["temperature_c"]),
        ("gpu_utilization", ["gpu_utilization", "memory_utilization"]),
        ("total", ["memory_used_bytes", "memory_total_bytes"]),
        ("ecc_corrected", ["ecc_corrected"]),
        ("ecc_uncorrected", ["ecc_uncorrected"]),
    ],
)
def test_what_a_gpu_does_not_support_is_null(tmp_path: Path, setting: str, columns: list[str]) -> None:
    with Sampling(Host(tmp_path, {k: v for k, v in H200.items() if k != setting})) as sampling:
        row = sampling.new_rows(1)[0]
    assert {name: row[name] for name in READINGS} == READINGS | dict.fromkeys(columns)
    assert sampling.summary["failed"] == 0


def test_processes_that_cannot_be_told_are_not_none(tmp_path: Path) -> None:
    host = Host(tmp_path, {**H200, "error.nvmlDeviceGetComputeRunningProcesses_v3": NO_PERMISSION}, OTHER)
    with Sampling(host) as sampling:
        [unknown] = sampling.new_rows(1, gpu_uuid=H200["uuid"])[:1]
        [none] = sampling.new_rows(1, gpu_uuid=OTHER["uuid"])[:1]
    assert (unknown["processes"], unknown["pids"], unknown["pid_memory_bytes"]) == (None, [], [])
    assert (none["processes"], none["pids"], none["pid_memory_bytes"]) == (0, [], [])
    assert [none[name] for name in READINGS] == [None] * len(READINGS)


def test_an_odd_reading_costs_itself_only(tmp_path: Path) -> None:
    with Sampling(Host(tmp_path, {**H200, "error.nvmlDeviceGetPowerUsage": UNKNOWN})) as sampling:
        row = sampling.new_rows(1)[0]
    assert {name: row[name] for name in READINGS} == READINGS | {"power_mw": None}
    assert (sampling.summary["failed"], sampling.notes) == (0, [])


def test_drivers_that_lack_the_newer_functions_are_asked_by_the_older(tmp_path: Path) -> None:
    newer = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetMemoryInfo_v2")
    host = Host(tmp_path, H200 | {f"error.{name}": NOT_FOUND_FUNCTION for name in newer})
    with Sampling(host) as sampling:
        row = sampling.new_rows(1)[0]
    # What the driver reserves counts as used there.
    assert {name: row[name] for name in READINGS} == READINGS | {"memory_used_bytes": 77_309_411_328 + 524_288_000}


def test_the_only_gpu_is_everybodys_and_one_of_two_that_is_left_is_not(tmp_path: Path) -> None:
    host = Host(tmp_path, H200)
    with Sampling(host) as sampling:
        sampling.new_rows(1)
        assert sampling.look(1, 4242) == [[H200["uuid"]], [H200["uuid"]]]
        host.set(H200, {**OTHER, "error": LOST}, load=1)
        sampling.until(lambda: sampling.look(1) == [[]])
        host.set(H200, load=2)
        time.sleep(0.5)
        assert sampling.look(1, 4242) == [[], [H200["uuid"]]]


def test_a_gpu_that_falls_off_the_bus_is_said_once_counted_and_tried_again(tmp_path: Path) -> None:
    host = Host(tmp_path, H200, OTHER)
    with Sampling(host) as sampling:
        sampling.new_rows(2, gpu_uuid=H200["uuid"])
        host.set({**H200, "error": LOST}, OTHER)
        sampling.until(lambda: sampling.summary["failed"] >= 8)
        assert len(sampling.new_rows(8)) == len(sampling.new_rows(8, gpu_uuid=OTHER["uuid"]))
        [line] = set(sampling.notes)  # one for a GPU and a reason, which the recorder says once
        said = "GPU 0 (NVIDIA H200) is not sampled: NVML says GPU is lost; it is tried again"
        assert line == f"{said}, and `dmesg | grep Xid` says more"
        opened = len([1 for call in host.calls() if call[0] == "nvmlInitWithFlags"])
        assert 2 <= opened <= 12
        host.set(H200, OTHER)
        row = sampling.new_rows(1, gpu_uuid=H200["uuid"])[0]
        assert {name: row[name] for name in READINGS} == READINGS
        failed = sampling.summary["failed"]
        sampling.new_rows(4, gpu_uuid=H200["uuid"])
        assert sampling.summary["failed"] == failed
        sampling.end()
    names = [call[0] for call in host.calls()]
    assert names.count("nvmlInitWithFlags") == names.count("nvmlShutdown")


def test_a_driver_that_is_loaded_anew_is_opened_anew(tmp_path: Path) -> None:
    host = Host(tmp_path, H200)
    with Sampling(host) as sampling:
        sampling.new_rows(2)
        host.set(driver=0, load=2)
        sampling.until(lambda: sampling.summary["failed"] >= 5)
        host.set({**H200, "uuid": "GPU-new"}, load=2)
        row = sampling.new_rows(1)[0]
    assert row["gpu_uuid"] == "GPU-new"
    assert {name: row[name] for name in READINGS} == READINGS
    said = "GPU 0 (NVIDIA H200) is not sampled: NVML says Unknown Error; it is tried again"
    assert sorted(set(sampling.notes)) == [
        f"{said}, and `dmesg | grep Xid` says more",
        "GPUs are not sampled (Driver Not Loaded): `kdiff-agent doctor` says more; it is tried again",
    ]


def test_an_upgraded_driver_is_said_with_its_mend(tmp_path: Path) -> None:
    with Sampling(Host(tmp_path, H200, error__nvmlInitWithFlags=18)) as sampling:
        sampling.until(lambda: sampling.notes)
    assert set(sampling.notes) == {
        "GPUs are not sampled (RM has detected an NVML/RM version mismatch): the driver was upgraded: reboot or reload "
        "the nvidia module, and start the agent again"
    }


def test_a_host_without_a_driver_says_nothing_until_it_has_one(tmp_path: Path) -> None:
    host = Host(tmp_path, driver=0)
    with Sampling(host) as sampling:
        time.sleep(0.7)
        assert sampling.look(1) == [[]]
        assert sampling.summary | {"cpu_ns": 0} == {"rows": 0, "failed": 0, "hung": 0, "cpu_ns": 0}
        host.set(H200)
        sampling.new_rows(1)
    assert sampling.notes == []


def test_a_host_without_nvml_says_nothing(tmp_path: Path) -> None:
    host = Host(tmp_path, H200)
    host.__class__ = type("Bare", (Host,), {"environment": {"LD_LIBRARY_PATH": str(tmp_path)}})
    with Sampling(host) as sampling:
        time.sleep(0.3)
        assert sampling.look(1) == [[]]
        assert sampling.end() < 2
    assert (sampling.rows, sampling.notes, sampling.summary["failed"]) == ([], [], 0)


def test_a_call_that_hangs_keeps_the_thread_only_and_sampling_goes_on_after_it(tmp_path: Path) -> None:
    host = Host(tmp_path, H200)
    with Sampling(host) as sampling:
        sampling.new_rows(1)
        host.set(H200 | {"hang.nvmlDeviceGetPowerUsage": 1})
        sampling.until(lambda: sampling.summary["hung"])
        before = len(sampling.rows)
        time.sleep(0.5)
        sampling.look()
        assert len(sampling.rows) == before
        assert sampling.notes == [
            "NVML does not answer about GPU 0: no GPU is sampled until it does; `dmesg | grep Xid` says more"
        ]
        host.set(H200)
        sampling.new_rows(3)
        assert sampling.summary["hung"] == 1
        assert sampling.end() < 2
    assert len({thread for _, thread, _ in host.calls()}) == 1


def test_a_gpu_that_hangs_for_long_is_left_out_and_the_others_are_sampled(tmp_path: Path) -> None:
    host = Host(tmp_path, {**H200, "hang": 1}, OTHER)
    with Sampling(host, replaced=0.8, left_out=3.0) as sampling:
        rows = sampling.new_rows(3)
        assert {row["gpu_uuid"] for row in rows} == {OTHER["uuid"]}
        host.set(H200, OTHER)
        sampling.new_rows(3, gpu_uuid=OTHER["uuid"])
        sampling.end()
    # The thread that hung came back, found another in its place, and did no more.
    assert len({thread for _, thread, _ in host.calls()}) == 2


def test_no_more_threads_than_a_few_wait_for_ever(tmp_path: Path) -> None:
    host = Host(tmp_path, H200, hang__nvmlInitWithFlags=1)
    with Sampling(host, hung=0.1, replaced=0.2) as sampling:
        sampling.until(lambda: sampling.summary["hung"] == 4)
        time.sleep(1.0)
        sampling.look()
        assert sampling.summary["hung"] == 4
        assert sampling.end() < 3
    assert sampling.rows == []


def test_instances_of_a_gpu_are_rows_of_what_nvml_gives_for_them(tmp_path: Path) -> None:
    mig = {k: v for k, v in H200.items() if not k.endswith("utilization")} | {"mig": 1, "pids": "11:5,12:6,12:7"}
    instance = {"0.uuid": "MIG-a", "0.name": "NVIDIA H200 MIG 1g.18gb", "0.used": 5, "0.total": 18, "0.pids": "11:5"}
    bare = {"3.uuid": "MIG-d", "3.name": "NVIDIA H200 MIG 2g.35gb"}
    host = Host(tmp_path, mig | instance | bare)
    with Sampling(host, listing=0.2) as sampling:
        sampling.new_rows(6)
        assert sampling.look(11, 99) == [[H200["uuid"]], [H200["uuid"]]]
        [row] = sampling.new_rows(1, gpu_uuid="MIG-a")[:1]
        [whole] = sampling.new_rows(1, gpu_uuid=H200["uuid"])[:1]
        host.set(mig)
        time.sleep(0.5)
        left = sampling.new_rows(4)
    wanted = dict.fromkeys(READINGS) | {"memory_used_bytes": 5, "memory_total_bytes": 18}
    assert {name: row[name] for name in READINGS} == wanted
    assert (row["parent_uuid"], row["gpu_name"], row["pids"]) == (H200["uuid"], "NVIDIA H200 MIG 1g.18gb", [11])
    lacking = dict.fromkeys(("gpu_utilization", "memory_utilization"))
    assert {name: whole[name] for name in READINGS} == READINGS | lacking
    assert (whole["processes"], whole["pids"], whole["pid_memory_bytes"]) == (2, [11, 12], [5, 13])
    assert {row["gpu_uuid"] for row in sampling.rows} == {H200["uuid"], "MIG-a"}
    assert {row["gpu_uuid"] for row in left} == {H200["uuid"]}
    assert (sampling.summary["failed"], sampling.notes) == (0, [])


def test_without_samples_one_gpu_is_asked_for_nothing_and_two_for_their_processes(tmp_path: Path) -> None:
    host = Host(tmp_path, H200)
    with Sampling(host, rows=False) as sampling:
        time.sleep(0.5)
        assert sampling.look(1) == [[H200["uuid"]]]
        host.set(H200, OTHER, load=1)
        time.sleep(0.2)
        sampling.end()
    assert sampling.rows == []
    listing = {"nvmlInitWithFlags", "nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetUUID"}
    assert {call[0] for call in host.calls()} == {*listing, "nvmlDeviceGetName", "nvmlDeviceGetMigMode", "nvmlShutdown"}
    two = tmp_path / "two"
    two.mkdir()
    with Sampling(Host(two, H200, OTHER), rows=False) as sampling:
        sampling.until(lambda: sampling.look(4242) == [[H200["uuid"]]])
        assert (sampling.rows, sampling.summary["failed"]) == ([], 0)


def test_answers_that_make_no_sense_end_nothing(tmp_path: Path) -> None:
    host = Host(tmp_path, H200, OTHER)
    with Sampling(host) as sampling:
        sampling.new_rows(1)
        host.set({**H200, "name": "GPU"}, {**OTHER, "uuid": "GPU-\udcff"}, load=1)
        sampling.until(lambda: sampling.summary["failed"] >= 6)
        assert any("no GPU is sampled: NVML says 'utf-8' codec" in line for line in sampling.notes)
        host.set(H200, OTHER, load=2)
        sampling.new_rows(3, gpu_uuid=OTHER["uuid"])
        assert sampling.end() < 2
