"""The load of the store's benchmark is a capture as an agent writes it, with every column."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from kdiff.analysis.compare import Options, compare
from kdiff.analysis.evidence import Evidence
from kdiff.analysis.window import Window
from kdiff.queries.store import CaptureStore

T0_NS = 1_764_237_600 * 10**9
HOUR_NS = 3_600 * 10**9
WRITE = """
import pathlib, sys
sys.path.insert(0, sys.argv[1])
from store_load import Load
Load(7_001, 1).write(pathlib.Path(sys.argv[2]))
"""


def test_the_load_of_the_benchmark_is_judged(tmp_path: Path) -> None:
    bench = Path(__file__).parents[1] / "bench"
    subprocess.run([sys.executable, "-c", WRITE, str(bench), str(tmp_path)], check=True, timeout=120)
    windows = Window(T0_NS, T0_NS + 3 * HOUR_NS), Window(T0_NS + 4 * HOUR_NS, T0_NS + 7 * HOUR_NS)
    with CaptureStore(tmp_path) as store:
        before, after = (Evidence(store, window, exact=True) for window in windows)
        report = compare(before, after, Options(metric="completion"))
        names = before.census().keys() | after.census().keys()
        launches = [sum(c.launches for c in evidence.census().values()) for evidence in (before, after)]
        assert not store.warnings
    assert all(3_200 < count < 3_800 for count in launches)
    assert report.before.coverage == report.after.coverage == 1.0
    assert len(report.kernels) + len(report.rare) == len(names) > 200


def test_the_month_of_the_benchmark_is_judged_alike_by_minutes_and_by_hours() -> None:
    bench = Path(__file__).parents[1] / "bench" / "store_month.py"
    small = ["--hosts", "1", "--kernels", "1", "--days", "5"]
    done = subprocess.run([sys.executable, bench, *small], capture_output=True, text=True, timeout=280, check=False)
    assert (done.returncode, "WRONG" in done.stdout) == (0, False), done.stderr
    assert [by for by in ("by minutes", "by hours") if f"completion, {by}" not in done.stdout] == []
