"""Two processes at the same file or folder, and a clock that jumps."""

import json
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from s4s_core.app import jobs as store
from s4s_core.app.jobs import list_jobs
from s4s_core.lock import Lock, holder
from s4s_core.solver_file import load_solver
from trainer.config import TrainConfig
from trainer.jobs import queue_job

ROOT = Path(__file__).resolve().parents[2]
WRITER = f"""
import sys
sys.path[:0] = [{str(ROOT)!r}]
from s4s_core.lock import Lock, holder
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


def add(_=None):
    return queue_job(TrainConfig(), start=False)


def test_two_writers_of_one_solver_and_a_reader(tmp_path):
    """A reader sees one writer's complete file or the other's, and nothing is left behind."""
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
    finally:
        codes = [writer.wait() for writer in writers]
    assert codes == [0, 0] and seen
    assert load_solver(path).metadata["name"] in ("a" * 60, "b" * 60)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("links", ["yes", "no"])
def test_solvers_published_at_once_under_one_title_are_all_there(home, links):
    """No process takes another's name, whether or not the file system has hard links."""
    command = [sys.executable, "-c", PUBLISHER]
    writers = [subprocess.Popen([*command, name, links]) for name in "ab"]
    assert [writer.wait() for writer in writers] == [0, 0]
    found = sorted(path.read_text() for path in (home / "solvers").glob("one title*.safetensors"))
    assert found == sorted(f"{name} {number}" for name in "ab" for number in range(60))
    assert len(list((home / "solvers").iterdir())) == 120


def test_jobs_added_at_once_are_all_there(home):
    with ThreadPoolExecutor(8) as pool:
        ids = {job.id for job in pool.map(add, range(40))}
    assert len(ids) == 40 == len(list_jobs())
    assert {view.status for view in list_jobs()} == {"queued"}


def test_a_job_deleted_while_it_is_listed(home):
    jobs = [add() for _ in range(30)]
    with ThreadPoolExecutor(2) as pool:
        deleted = pool.submit(lambda: [job.delete() for job in jobs])
        while not deleted.done():
            for view in list_jobs():
                json.dumps(view.plain())
        deleted.result()
    assert list_jobs() == [] and not any(home.joinpath("jobs").glob("[0-9]*"))


@pytest.mark.parametrize("jump", [timedelta(days=-400), timedelta(days=400)])
def test_a_clock_that_jumps_loses_no_job(home, monkeypatch, jump):
    """Times only order the list: locks say what is alive, states what is done."""
    first = add()

    class Jumped(datetime):
        @classmethod
        def now(cls, zone=timezone.utc):
            return datetime.now(zone) + jump

    monkeypatch.setattr(store, "datetime", Jumped)
    second = add()
    assert {view.id for view in list_jobs()} == {first.id, second.id}
    for job in (first, second):
        job.cancel()
        assert job.view().status == "cancelled"
        job.resume(start=False)
        assert job.view().status == "queued"


def test_asking_who_holds_a_lock_never_keeps_others_from_it(tmp_path):
    path, stop = tmp_path / "a.lock", threading.Event()

    def ask():
        while not stop.is_set():
            holder(path)

    with ThreadPoolExecutor(3) as pool:
        asking = [pool.submit(ask) for _ in range(3)]
        try:
            for _ in range(20):
                with Lock(path) as lock:
                    assert lock.take(wait=120.0)
        finally:
            stop.set()
    assert all(each.exception() is None for each in asking)
