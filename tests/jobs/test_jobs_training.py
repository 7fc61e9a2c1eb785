"""Jobs that train: the worker's files, deaths and resumption byte for byte, failures, pictures."""

import base64
import io
import itertools
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from PIL import Image

from s4s_core import atomic, load_solver
from s4s_core.app import jobs as core
from s4s_core.app.folders import jobs_home, publish, solver_folders
from s4s_core.app.processes import end_tree, trainer_command
from s4s_core.schedules import gits
from trainer import jobs
from trainer.config import TrainConfig, from_plain
from trainer.gallery import thumbnail
from trainer.jobs import worker
from trainer.models import ModelChoice

MODELS = Path(__file__).parents[1] / "helpers" / "job_models.py"
PATIENCE = 300
SMALL = {
    "nfes": (3, 4),
    "budget": 700,
    "options": {"samples": 8, "validation": 6, "held_out": 6, "starts": 2},
}


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("S4S_HOME", str(tmp_path))
    monkeypatch.delenv("S4S_SOLVERS", raising=False)
    monkeypatch.delenv("S4S_TEST_DEATHS", raising=False)
    monkeypatch.setattr(worker, "lead_group", lambda: None)  # pytest stays in its group
    return tmp_path


def add(function="pictures", **changes):
    return jobs.add(
        TrainConfig(**{"model": ModelChoice("python", f"{MODELS}:{function}"), **SMALL, **changes}),
        start=False,
    )


def work_here(id):
    """The worker in this process: the job's view after it."""
    worker.work(id)
    return core.job_view(id)


def work_there(id, **environment):
    """The worker in a process of its own, to its end: its exit code."""
    command = trainer_command("work", id)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    done = subprocess.run(command, env=environment, capture_output=True, timeout=PATIENCE)
    return done.returncode


def result(id):
    return (core.job_folder(id) / core.RESULT).read_bytes()


def test_a_job_leaves_a_solver_that_says_how_to_repeat_it(home):
    id = add(name="first: one")
    view = work_here(id)
    assert (view["status"], view["exit_code"], view["error"]) == ("done", 0, None)
    path = solver_folders()[0] / view["result"]
    assert path.read_bytes() == result(id)
    pack = load_solver(path)
    about = pack.metadata
    assert pack.nfes == (3, 4) and about["name"] == "first: one"
    assert about["training"]["calls"] >= view["calls"] > 0
    for nfe in ("3", "4"):
        assert about["scores"][nfe]["rmse"] <= about["scores"][nfe]["initial"]
    again = from_plain(about["config"])
    assert (again.nfes, again.budget, again.options) == ((3, 4), 700, SMALL["options"])
    said = json.dumps(dict(about))
    assert str(home) not in said and str(MODELS.parent) not in said
    picture = base64.b64decode(about["thumbnail"].partition(",")[2])
    assert Image.open(io.BytesIO(picture)).size == (256, 256)
    assert not (core.job_folder(id) / worker.TEACHER).exists()


def test_metrics_and_pictures_tell_the_course(monkeypatch):
    monkeypatch.setattr("trainer.gallery.PAUSE", 0.0)
    monkeypatch.setattr("trainer.gallery.SHARE", 0)
    id = add()
    work_here(id)
    lines = [json.loads(line) for line in (core.job_folder(id) / core.METRICS).open()]
    assert lines[0]["phase"] == "teacher" and lines[-1]["nfe"] == 4
    shares = [line["progress"] for line in lines]
    assert shares == sorted(shares) and shares[0] > 0 and shares[-1] <= 1
    calls = [line["calls"] for line in lines]
    assert calls == sorted(calls)
    steps = jobs.job(id).metrics()
    assert {"step", "nfe", "loss", "validation", "calls", "seconds"} <= set(steps[0])
    grids = sorted((core.job_folder(id) / core.SAMPLES).iterdir())
    assert len(grids) > 2 and jobs.job(id).grid() == grids[-1]
    first, last = Image.open(grids[0]), Image.open(grids[-1])
    assert last.height > first.height  # one NFE while it runs, all of them at the end


def test_a_killed_and_resumed_job_gives_the_same_bytes(home):
    """Killed while it trains 3 NFE, and again at 4; the last part runs here."""
    whole = add()
    work_here(whole)
    deaths = home / "deaths"
    deaths.write_text("120 90")
    id = add()
    for left in ("90", ""):
        assert work_there(id, S4S_TEST_DEATHS=str(deaths)) != 0
        assert deaths.read_text() == left, jobs.job(id).log_tail()
        assert core.job_view(id)["status"] == "interrupted"
        with (core.job_folder(id) / core.METRICS).open("ab") as file:
            file.write(b'{"torn')
        jobs.resume(id, start=False)
    view = work_here(id)
    assert view["status"] == "done" and result(id) == result(whole)
    assert view["result"] == core.job_view(whole)["result"], "the same bytes are one file"
    assert len(list(solver_folders()[0].iterdir())) == 1


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="kills as POSIX does")
def test_ten_kills_at_random_moments_change_nothing(home):
    big = {"nfes": (4, 5, 6), "budget": 12_000, "options": {"samples": 32}}
    whole, id = add(**big), add(**big)
    work_here(whole)
    random.seed(5)
    deaths = 0
    for _ in range(10):
        command = trainer_command("work", id)
        metrics = core.job_folder(id) / core.METRICS
        before = metrics.stat().st_size if metrics.exists() else 0
        process = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL)
        while process.poll() is None and (not metrics.exists() or metrics.stat().st_size <= before):
            time.sleep(0.05)  # it is loading: nothing to lose yet
        time.sleep(random.uniform(0.0, 2.0))
        end_tree(process.pid)
        process.wait()
        if core.job_view(id)["status"] == "done":
            break
        if core.job_view(id)["status"] == "interrupted":
            deaths += 1
            jobs.resume(id, start=False)
    assert deaths > 2, "it was done before it could be killed"
    if core.job_view(id)["status"] != "done":
        work_here(id)
    assert result(id) == result(whole)


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("not_a_number", "not finite"),
        ("greedy", "Out of memory with a single sample"),
        ("nothing", "has no function 'nothing'"),
    ],
)
def test_a_bad_model_is_one_sentence(model, says):
    view = work_here(add(model))
    assert (view["status"], view["exit_code"], view["result"]) == ("failed", 1, None)
    assert says in view["error"] and "\n" not in view["error"]
    assert not solver_folders()[0].exists()


def test_a_corrupt_checkpoint_is_one_sentence(home):
    path = home / "broken.safetensors"
    path.write_bytes(b"\xff" * 1000)
    id = jobs.add(TrainConfig(model=ModelChoice("diffusers", str(path))), start=False)
    view = work_here(id)
    assert view["status"] == "failed" and "\n" not in view["error"]
    assert "broken.safetensors" in view["error"] or "install" in view["error"]


@pytest.mark.skipif(sys.platform == "win32", reason="limits are POSIX's")
def test_a_disk_that_fills_up_is_one_sentence_and_the_job_can_go_on(home):
    """A limit of 6 kB on every file stands for the full disk: the teacher's results exceed it."""
    id = add()
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000)); "
    python, flag, line, *arguments = trainer_command("work", id)
    done = subprocess.run([python, flag, limit + line, *arguments], capture_output=True)
    view = core.job_view(id)
    assert done.returncode == 1 and view["status"] == "failed", done.stderr.decode()
    assert "disk is full" in view["error"] or "Could not save" in view["error"]
    jobs.resume(id, start=False)
    assert work_here(id)["status"] == "done"


def test_no_room_on_the_disk_is_said_before_anything_is_loaded(monkeypatch):
    import shutil

    free = type("usage", (), {"free": 1000})
    monkeypatch.setattr(shutil, "disk_usage", lambda path: free)
    view = work_here(add())
    assert view["status"] == "failed" and "free disk" in view["error"]
    assert "Loading" not in jobs.job(view["id"]).log_tail()


def test_a_thumbnail_of_pure_noise_is_still_small():
    noise = torch.rand(4, 3, 512, 384, generator=torch.Generator().manual_seed(0))
    uri = thumbnail(noise)
    assert len(uri) < 41_000
    assert Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))).size == (256, 256)


def test_a_result_that_cannot_be_published_stays_and_is_published_by_resume(monkeypatch):
    """The solvers' folder is read-only when a job ends."""
    solvers, open_file = solver_folders()[0], os.open

    def read_only(path, *options):
        if Path(path).parent == solvers:
            raise PermissionError(30, "Read-only file system")
        return open_file(path, *options)

    id = add(nfes=(3,), budget=300)
    with monkeypatch.context() as patch:
        patch.setattr(atomic.os, "open", read_only)
        view = work_here(id)
    assert view["status"] == "failed" and "cannot be saved there: Read-only" in view["error"]
    kept = result(id)
    assert not any(solvers.iterdir())
    jobs.resume(id, start=False)
    view = work_here(id)
    assert view["status"] == "done" and result(id) == kept
    assert (solvers / view["result"]).read_bytes() == kept


def test_a_clock_that_jumps_changes_no_byte_of_a_job(monkeypatch):
    """A year back, a year on, at every look at it: durations are of a clock that cannot jump."""
    quiet, jumpy = add(nfes=(3,), budget=300), add(nfes=(3,), budget=300)
    assert work_here(quiet)["status"] == "done"
    real, years = time.time, itertools.cycle((-1, 0, 1))
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: real() + next(years) * 365 * 86_400)
        view = work_here(jumpy)
    assert view["status"] == "done" and result(jumpy) == result(quiet)
    lines = (core.job_folder(jumpy) / core.METRICS).read_text().splitlines()
    seconds = [json.loads(line)["seconds"] for line in lines]
    assert seconds == sorted(seconds) and seconds[0] >= 0 and seconds[-1] < PATIENCE


def test_a_teacher_on_gits_is_measured_once_a_job(monkeypatch):
    measured, costs = [], gits.gits_costs

    def few(model, low):
        measured.append(low)
        return costs(model, low, samples=4)

    monkeypatch.setattr(gits, "gits_costs", few)
    view = work_here(add(nfes=(3,), budget=300, teacher="ipndm:2:gits:6"))
    assert view["status"] == "done" and len(measured) == 1


def test_new_solvers_replace_none(home):
    first = publish(b"one", "a/b")
    assert publish(b"one", "a/b") == first and first.name == "a-b.safetensors"
    second = publish(b"two", "a/b")
    assert second.name == "a-b-2.safetensors" and first.read_bytes() == b"one"
    assert publish(b"two", "other") == second


def test_the_queue_trains_by_itself(home):
    """Through the real runner and worker, detached, with a job that fails before one that works."""
    bad, good = add(), add(nfes=(3,), budget=300)
    (core.job_folder(bad) / core.CONFIG).write_text("colour = 1")
    jobs.ensure_runner()
    deadline = time.monotonic() + PATIENCE
    while core.job_view(good)["status"] in ("queued", "running") or jobs.is_running():
        assert time.monotonic() < deadline, jobs.job(good).log_tail()
        time.sleep(0.1)
    assert "no key 'colour'" in core.job_view(bad)["error"]
    assert core.job_view(good)["status"] == "done", jobs.job(good).log_tail()
    assert (jobs_home() / jobs.RUNNER_LOG).read_text() == ""
