"""Two processes at the same file or the same folder, and a clock that jumps."""

import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from s4s_core.app import jobs as core
from s4s_core.solver_file import load_solver
from trainer import jobs
from trainer.config import TrainConfig

ROOT = Path(__file__).resolve().parents[2]
WRITER = f"""
import sys
sys.path[:0] = [{str(ROOT)!r}]
from s4s_core.solver_file import load_solver, save_solver
from s4s_core.table import SolverPack
path, name = sys.argv[1:]
pack = load_solver({str(ROOT / "s4s_core" / "demo" / "solver.safetensors")!r})
for number in range(60):
    save_solver(path, SolverPack(pack.tables, {{"name": name * (number + 1)}}))
"""
PUBLISHER = f"""
import os, sys
sys.path[:0] = [{str(ROOT)!r}]
from s4s_core import atomic
from s4s_core.app.folders import publish
name, links = sys.argv[1:]
if links == "no":
    def link(*_):
        raise OSError(95, "Operation not supported")
    atomic.os.link = link
for number in range(60):
    publish(f"{{name}} {{number}}".encode(), "one title")
"""


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("S4S_HOME", str(tmp_path))
    monkeypatch.delenv("S4S_SOLVERS", raising=False)
    return tmp_path


def test_two_writers_of_one_solver_and_a_reader(tmp_path):
    """Whoever reads finds one writer's file or the other's, whole, and nothing is left behind."""
    path = tmp_path / "shared.safetensors"
    command = [sys.executable, "-c", WRITER, str(path)]
    writers = [subprocess.Popen([*command, name]) for name in "ab"]
    seen = set()
    try:
        while any(writer.poll() is None for writer in writers):
            if path.exists():
                name = load_solver(path).metadata["name"]
                assert len(set(name)) == 1
                seen.add(name)
            time.sleep(0.001)
    finally:
        codes = [writer.wait() for writer in writers]
    assert codes == [0, 0] and seen
    assert load_solver(path).metadata["name"] in ("a" * 60, "b" * 60)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("links", ["yes", "no"])
def test_solvers_published_at_once_under_one_title_are_all_there(home, links):
    """With the file system's links, and without: no process takes a name that another one has."""
    command = [sys.executable, "-c", PUBLISHER]
    writers = [subprocess.Popen([*command, name, links]) for name in "ab"]
    assert [writer.wait() for writer in writers] == [0, 0]
    found = sorted(path.read_text() for path in (home / "solvers").glob("one title*.safetensors"))
    assert found == sorted(f"{name} {number}" for name in "ab" for number in range(60))
    assert len(list((home / "solvers").iterdir())) == 120


def test_jobs_added_at_once_are_all_there(home):
    with ThreadPoolExecutor(8) as pool:
        ids = list(pool.map(lambda _: jobs.add(TrainConfig(), start=False), range(40)))
    assert len(set(ids)) == 40 == len(core.list_jobs())
    assert {view["status"] for view in core.list_jobs()} == {"queued"}


def test_a_job_deleted_while_it_is_listed(home):
    ids = [jobs.add(TrainConfig(), start=False) for _ in range(30)]
    with ThreadPoolExecutor(2) as pool:
        deleted = pool.submit(lambda: [jobs.delete(id) for id in ids])
        while not deleted.done():
            for view in core.list_jobs():
                json.dumps(view)
        deleted.result()
    assert core.list_jobs() == [] and not any(home.joinpath("jobs").glob("[0-9]*"))


@pytest.mark.parametrize("jump", [timedelta(days=-400), timedelta(days=400)])
def test_a_clock_that_jumps_loses_no_job(home, monkeypatch, jump):
    """Times only order the list; what is alive is known by locks, what is done by states."""
    first = jobs.add(TrainConfig(), start=False)

    class Jumped(datetime):
        @classmethod
        def now(cls, zone=timezone.utc):
            return datetime.now(zone) + jump

    monkeypatch.setattr(jobs, "datetime", Jumped)
    second = jobs.add(TrainConfig(), start=False)
    assert {view["id"] for view in core.list_jobs()} == {first, second}
    for id in (first, second):
        jobs.cancel(id)
        assert core.job_view(id)["status"] == "cancelled"
        jobs.resume(id, start=False)
        assert core.job_view(id)["status"] == "queued"
