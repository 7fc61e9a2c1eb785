"""Many files, many jobs, long runs: lists stay quick and memory stays flat.

Times are the process's CPU seconds, so that a busy machine matters little.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import gradio as gr
import pytest
from learners import small

from s4s_core import classical_table, schedule
from s4s_core.app import description
from s4s_core.app.description import summary
from s4s_core.app.folders import solver_files
from s4s_core.app.jobs import METRICS, list_jobs
from s4s_core.solver_file import dump_solver
from s4s_core.table import SolverPack
from trainer.config import TrainConfig
from trainer.jobs import queue_job
from trainer.panel import compare as compare_tab
from trainer.panel import jobs as jobs_tab
from trainer.panel import solvers as solvers_tab

ROOT = Path(__file__).resolve().parents[2]
FILES, JOBS, ROWS = 10_000, 100, 10_000
SOON, TICK = 1.0, 0.3
"""Seconds that docs/reliability.md promises: for one task, and for a list that was shown before."""


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        place = tmp_path_factory.mktemp("load")
        patch.setenv("S4S_HOME", str(place))
        patch.delenv("S4S_SOLVERS", raising=False)
        (place / "solvers").mkdir()
        model = small()
        tables = [classical_table("ipndm", schedule("edm", n, model), 3, "ve") for n in (4, 5, 6)]
        for number in range(FILES):
            pack = SolverPack.of(*tables, metadata={"name": f"solver {number}"})
            data = dump_solver(pack) if number % 10 else b"no solver"
            (place / "solvers" / f"{number:05}.safetensors").write_bytes(data)
        for _ in range(JOBS):
            newest = queue_job(TrainConfig(), start=False)
        row = {"progress": 0.5, "nfe": 5, "loss": 0.1, "validation": 0.2, "message": "going on"}
        lines = (json.dumps(row | {"step": n, "calls": n, "seconds": n}) for n in range(ROWS))
        (newest.path / METRICS).write_text("\n".join(lines) + "\n")
        yield newest


def seconds(work):
    began = time.process_time()
    result = work()
    return result, time.process_time() - began


def summaries():
    return [summary(path) for path in solver_files().values()]


def test_ten_thousand_solver_files_are_listed_and_read_once(home, monkeypatch):
    """The best of three counts."""
    found = summaries()
    assert len(found) == FILES and sum(one["error"] is None for one in found) == 0.9 * FILES
    monkeypatch.setattr(description, "read_solver", lambda _: pytest.fail("read again"))
    again, spent = zip(*(seconds(summaries) for _ in range(3)), strict=True)
    assert list(again) == [found] * 3 and min(spent) < TICK, spent


def test_the_tabs_show_one_of_ten_thousand_files(home, monkeypatch):
    shown, chosen = {}, ("00501.safetensors", "5")
    assert "solver 501" in solvers_tab.refresh(shown, *chosen)[2]
    compare_tab.refresh(shown, *chosen)
    scandir, scanned = os.scandir, []
    monkeypatch.setattr(os, "scandir", lambda path: (scanned.append(path), scandir(path))[1])
    tabs = (solvers_tab, compare_tab)
    _, spent = zip(
        *(seconds(lambda: [tab.refresh(shown, *chosen) for tab in tabs]) for _ in range(3)),
        strict=True,
    )
    assert len(scanned) == 3 * len(tabs) and min(spent) < TICK, spent


def test_a_hundred_jobs_are_listed(home):
    views, spent = seconds(list_jobs)
    assert len(views) == JOBS and spent < SOON


def test_a_run_of_ten_thousand_rows_is_shown(home):
    metrics, read = seconds(home.metrics)
    assert len(metrics) <= 500 and metrics[-1].step == ROWS - 1 and read < SOON
    shown, spent = seconds(lambda: jobs_tab.refresh({}, home.id))
    assert "svg" in shown[3] and spent < SOON


def test_a_refresh_without_news_sends_nothing(home):
    shown = {}
    jobs_tab.refresh(shown, home.id)
    again, spent = seconds(lambda: jobs_tab.refresh(shown, home.id))
    assert all(value == gr.skip() or value == gr.update() for value in again) and spent < SOON


RUN = """
import sys
from pathlib import Path
from learners import small, tiny_fit

pages = []

def note(event):
    pages.append(int(Path("/proc/self/statm").read_text().split()[1]))

method, folder = sys.argv[1:]
long = {"epochs": 1100, "budget": 200_000} if method == "s4s" else {"budget": 50_000}
seed = 0
while len(pages) < 1000:  # gauss-newton has converged long before
    state = Path(folder) / str(seed)
    tiny_fit(small(), 4, method, seed=seed, callback=note, state=state, **long)
    seed += 1
print(*pages)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
@pytest.mark.parametrize("method", ["gauss-newton", "s4s"])
def test_memory_is_flat_over_a_thousand_steps(tmp_path, method):
    """The memory at the end is what it was after a quarter of the steps."""
    command = [sys.executable, "-c", RUN, method, str(tmp_path)]
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests" / "helpers")])}
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    pages = [int(word) for word in done.stdout.split()]
    quarter = len(pages) // 4
    early, late = statistics.median(pages[quarter : 2 * quarter]), max(pages[-quarter:])
    assert (late - early) * os.sysconf("SC_PAGE_SIZE") < 4 << 20
