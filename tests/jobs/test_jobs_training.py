"""Jobs that train: the worker's files, kills and byte-for-byte resumption, failures, pictures."""

import base64
import io
import itertools
import json
import os
import random
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from PIL import Image

from s4s_core import atomic, load_solver
from s4s_core.app.folders import jobs_home, publish, solver_folders
from s4s_core.app.jobs import (
    CONFIG,
    FIT,
    METRICS,
    RESULT,
    RUNNER_LOG,
    SAMPLES,
    ensure_runner,
    runner_is_alive,
)
from s4s_core.app.pictures import thumbnail
from s4s_core.app.processes import end_tree, trainer_command
from s4s_core.app.progress import Throttle
from s4s_core.candidates import named_solver
from s4s_core.parts import stretched
from s4s_core.schedules import gits
from s4s_core.training.task import Event
from trainer.cli import main
from trainer.config import TrainConfig, from_plain
from trainer.gallery import Gallery
from trainer.jobs import queue_job, worker
from trainer.models import ModelChoice, open_model

MODELS = Path(__file__).parents[1] / "helpers" / "job_models.py"
PATIENCE = 300
SMALL = {
    "nfes": (3, 4),
    "budget": 700,
    "options": {"samples": 8, "validation": 6, "held_out": 6, "starts": 2, "inclusive": False},
}


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.delenv("S4S_TEST_DEATHS", raising=False)
    monkeypatch.setattr(worker, "lead_group", lambda: None)  # pytest stays in its group


def add(function="pictures", **changes):
    model = ModelChoice("python", f"{MODELS}:{function}")
    return queue_job(TrainConfig(**{"model": model, **SMALL, **changes}), start=False)


def work_here(job):
    """Run the worker in this process and return the job's view."""
    worker.work(job.id)
    return job.view()


def work_there(job, **environment):
    """Run the worker in another process and return its exit code."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    command = trainer_command("work", job.id)
    done = subprocess.run(command, env=environment, capture_output=True, timeout=PATIENCE)
    return done.returncode


def result(job):
    return (job.path / RESULT).read_bytes()


def metrics_lines(job):
    """The lines of metrics.jsonl; a torn one has no end."""
    lines = (job.path / METRICS).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines if line.endswith("}")]


def picture(uri):
    return Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2])))


def test_a_job_leaves_a_solver_that_says_how_to_repeat_it(home):
    job = add(name="first: one")
    view = work_here(job)
    assert (view.status, view.exit_code, view.error) == ("done", 0, None)
    path = solver_folders()[0] / view.result
    assert path.read_bytes() == result(job)
    pack = load_solver(path)
    about = pack.metadata
    assert pack.nfes == (3, 4) and about["name"] == "first: one"
    assert about["training"]["calls"] >= view.calls > 0
    again = from_plain(about["config"])
    assert (again.nfes, again.budget, again.options) == ((3, 4), 700, SMALL["options"])
    text = json.dumps(dict(about))
    assert str(home) not in text and str(MODELS.parent) not in text
    assert picture(about["thumbnail"]).size == (256, 256)
    assert not (job.path / worker.TEACHER).exists()


def test_metrics_and_pictures_show_the_progress(monkeypatch):
    monkeypatch.setattr("trainer.gallery.Throttle", lambda: Throttle(pause=0.0, factor=0.0))
    job = add()
    work_here(job)
    lines = metrics_lines(job)
    phases = dict.fromkeys(line["phase"] for line in lines)
    assert list(phases) == ["choice", "teacher", "search", "gauss-newton", "scoring"]
    assert lines[-1]["nfe"] == 4
    shares, calls = ([line[name] for line in lines] for name in ("progress", "calls"))
    assert shares == sorted(shares) and shares[0] == 0 and 0.9 < shares[-1] <= 1
    assert calls == sorted(calls)
    assert all(line.nfe and line.step and line.validation and line.calls for line in job.metrics())
    sheets = sorted((job.path / SAMPLES).iterdir())
    assert len(sheets) > 2 and job.sheet() == sheets[-1]
    first, last = Image.open(sheets[0]), Image.open(sheets[-1])
    assert last.height > first.height  # one NFE while it runs, all of them at the end
    assert not any("teacher samples" in text for text in job.log_tail().splitlines())


def test_nothing_is_drawn_before_the_teacher_is_known(tmp_path):
    model = open_model(ModelChoice("python", f"{MODELS}:pictures"))
    gallery = Gallery(model, tmp_path)
    table = named_solver(model, "euler:1:edm", 3, 0.0).table
    gallery.show(Event("gauss-newton", 3, 1, 9, table=table))
    assert list(tmp_path.iterdir()) == [] and gallery.enabled
    gallery.show(
        Event("teacher", None, 0, 9, table=named_solver(model, "euler:1:edm", 5, 0.0).table)
    )
    assert list(tmp_path.iterdir()) == []
    gallery.show(Event("gauss-newton", 3, 2, 9, table=table))
    assert len(list(tmp_path.iterdir())) == 1


def test_pictures_begin_in_noise(tmp_path):
    """No table for a strength is drawn."""
    model = open_model(ModelChoice("python", f"{MODELS}:pictures"))
    gallery = Gallery(model, tmp_path)
    teacher, table = (named_solver(model, "euler:1:edm", n, 0.0).table for n in (5, 3))
    gallery.show(Event("teacher", None, 0, 9, table=teacher))
    for phase in ("search", "gauss-newton", "scoring"):
        gallery.show(Event(phase, 3, 1, 9, table=stretched(table, 2.0), strength=0.5))
    assert list(tmp_path.iterdir()) == []


def test_a_killed_and_resumed_job_gives_the_same_bytes(home):
    """Killed while it chooses a teacher, while it searches, and later; the last part runs here."""
    whole = add()
    work_here(whole)
    deaths, phases = home / "deaths", []
    deaths.write_text("100 300 700")
    job = add()
    for left in ("300 700", "700", ""):
        assert work_there(job, S4S_TEST_DEATHS=str(deaths)) != 0
        assert deaths.read_text() == left, job.log_tail()
        assert job.view().status == "interrupted"
        phases.append([metrics_lines(job)[-1][key] for key in ("phase", "nfe")])
        with (job.path / METRICS).open("ab") as file:
            file.write(b'{"torn')
        job.resume(start=False)
    assert phases[:2] == [["choice", None], ["search", 3]] and len(metrics_lines(job)) > 60
    view = work_here(job)
    assert view.status == "done" and result(job) == result(whole)
    assert view.result == whole.view().result, "the same bytes are one file"
    assert len(list(solver_folders()[0].iterdir())) == 1


def test_a_job_for_strengths_resumes_to_the_same_bytes_and_is_shown(home, capfd):
    """Killed while it draws the strength's pairs, and while it trains there; then the panel, the
    command line and a comparison show its solver."""
    strengths = {"nfes": (3,), "options": {**SMALL["options"], "strengths": [0.5]}}
    whole = add(**strengths)
    work_here(whole)
    log = capfd.readouterr().out
    assert "\n3 steps at strength 0.5: classical solvers, run 1 of at most" in log
    deaths, job, reached = home / "deaths", add(**strengths), []
    deaths.write_text("290 560")
    while deaths.read_text():
        assert work_there(job, S4S_TEST_DEATHS=str(deaths)) != 0
        reached.append([metrics_lines(job)[-1][key] for key in ("phase", "nfe", "strength")])
        job.resume(start=False)
    view = work_here(job)
    assert view.status == "done" and result(job) == result(whole)
    assert reached == [["teacher", None, None], ["gauss-newton", 3, 0.5]]
    assert {line.strength for line in job.metrics()} == {None, 0.5}
    for arguments in (["jobs", "show", job.id], ["inspect", str(job.path / RESULT)]):
        assert main(arguments) == 0
        assert re.search("3 steps at strength 0.5  Error +0", capfd.readouterr().out)
    model = ["--model", f"python:{MODELS}:pictures", "--solver", str(job.path / RESULT)]
    assert main(["compare", *model, "--count", "2", "--out", str(home / "c.png")]) == 0
    assert "  3 steps\n" in capfd.readouterr().out
    assert main(["render", *model, "--nfe", "3", "--out", str(home / "sheets")]) == 0


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="kills as POSIX does")
def test_ten_kills_at_random_moments_change_nothing():
    big = {"nfes": (4, 5, 6), "budget": 12_000, "options": {"samples": 32}}
    whole, job, deaths = add(**big), add(**big), 0
    work_here(whole)
    random.seed(5)
    while deaths < 10:
        (job.path / METRICS).touch()
        before = (job.path / METRICS).stat().st_size
        command = trainer_command("work", job.id)
        process = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL)
        while process.poll() is None and (job.path / METRICS).stat().st_size <= before:
            time.sleep(0.02)  # it is loading: nothing to lose yet
        time.sleep(random.uniform(0.0, 0.5))
        end_tree(process.pid)
        process.wait()
        if job.view().status == "interrupted":
            deaths += 1
            job.resume(start=False)
        elif job.view().status == "done":  # before it was killed
            assert result(job) == result(whole)
            job = add(**big)
    work_here(job)
    assert result(job) == result(whole)


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("not_a_number", "NaN or infinity"),
        ("greedy", "Out of memory with a single sample"),
        ("nothing", "has no function 'nothing'"),
        ("broken.safetensors", "broken.safetensors|install"),
    ],
)
def test_a_bad_model_fails_with_one_line(home, model, says):
    path = home / "broken.safetensors"
    path.write_bytes(b"\xff" * 1000)
    broken = {"model": ModelChoice("diffusers", str(path))} if model == path.name else {}
    view = work_here(add(model, **broken))
    assert (view.status, view.exit_code, view.result) == ("failed", 1, None)
    assert re.search(says, view.error) and "\n" not in view.error
    assert not solver_folders()[0].exists()


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such files")
@pytest.mark.parametrize("name", [CONFIG, METRICS, FIT, SAMPLES, worker.TEACHER])
@pytest.mark.parametrize("make", [os.mkfifo, "link"], ids=["pipe", "link"])
def test_a_worker_waits_for_nothing_and_writes_through_no_link(home, name, make):
    """The job fails and says what is in its way, or goes on without; the file elsewhere stays."""
    job, other = add(), home / "other"
    elsewhere = other if name in (SAMPLES, worker.TEACHER) else other / "file"
    other.mkdir()
    (other / "file").write_text("kept")
    (job.path / name).unlink(missing_ok=True)
    make(job.path / name) if make is os.mkfifo else (job.path / name).symlink_to(elsewhere)
    work_there(job)
    view = job.view()
    if name == SAMPLES:  # only the pictures are missing
        assert view.status == "done"
    else:
        assert view.status == "failed" and name in view.error and "Unexpected" not in view.error
    assert [path.name for path in other.iterdir()] == ["file"]
    assert (other / "file").read_text() == "kept"
    job.delete()
    assert not job.path.exists()


def test_what_lies_among_the_pictures_stops_no_job():
    job = add()
    (job.path / SAMPLES).mkdir()
    for name in ("0001 (copy).png", "0.5.png", "1a.png", "x.png", "9" * 50 + ".png"):
        (job.path / SAMPLES / name).touch()
    assert job.sheet() is None and work_here(job).status == "done"
    assert job.sheet() is not None


@pytest.mark.skipif(sys.platform == "win32", reason="limits are POSIX's")
def test_a_job_can_be_resumed_after_the_disk_was_full():
    """A limit of 6 kB per file stands in for a full disk; the teacher's results exceed it."""
    import resource

    job = add()

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000))

    command = trainer_command("work", job.id)
    done = subprocess.run(command, capture_output=True, preexec_fn=limit)
    view = job.view()
    assert done.returncode == 1 and view.status == "failed", done.stderr.decode()
    assert view.error.startswith("The limit on the size of a file is reached")
    job.resume(start=False)
    assert work_here(job).status == "done"


def test_disk_space_is_checked_before_anything_is_loaded(monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    job = add()
    assert "Not enough disk space" in work_here(job).error
    assert job.view().status == "failed" and "Loading" not in job.log_tail()


def test_a_thumbnail_of_pure_noise_is_still_small():
    uri = thumbnail(torch.rand(4, 3, 512, 384))
    assert len(uri) < 41_000 and picture(uri).size == (256, 256)


def test_a_result_that_cannot_be_published_stays_and_is_published_by_resume(monkeypatch):
    """The solver folder is read-only when a job ends."""
    solvers, open_file = solver_folders()[0], os.open

    def read_only(path, *options):
        if Path(path).parent == solvers:
            raise PermissionError(30, "Read-only file system")
        return open_file(path, *options)

    job = add(nfes=(3,), budget=300)
    with monkeypatch.context() as patch:
        patch.setattr(atomic.os, "open", read_only)
        view = work_here(job)
    assert view.status == "failed" and "Could not save the solver in" in view.error
    kept = result(job)
    assert not any(solvers.iterdir())
    job.resume(start=False)
    view = work_here(job)
    assert view.status == "done" and result(job) == kept
    assert (solvers / view.result).read_bytes() == kept


def test_a_clock_that_jumps_changes_no_byte_of_a_job(monkeypatch):
    """The wall clock jumps by a year whenever it is read; durations use a monotonic clock."""
    quiet, jumpy = add(nfes=(3,), budget=300), add(nfes=(3,), budget=300)
    assert work_here(quiet).status == "done"
    real, years = time.time, itertools.cycle((-1, 0, 1))
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: real() + next(years) * 365 * 86_400)
        view = work_here(jumpy)
    assert view.status == "done" and result(jumpy) == result(quiet)
    seconds = [line["seconds"] for line in metrics_lines(jumpy)]
    assert seconds == sorted(seconds) and seconds[0] >= 0 and seconds[-1] < PATIENCE


def test_a_teacher_on_gits_is_measured_once_a_job(monkeypatch):
    measured, costs = [], gits.gits_costs

    def measure(model, low):
        measured.append(low)
        return costs(model, low, samples=4)

    monkeypatch.setattr(gits, "gits_costs", measure)
    view = work_here(add(nfes=(3,), budget=300, teacher="ipndm:2:gits:6"))
    assert view.status == "done" and len(measured) == 1


def test_a_job_named_with_wide_letters_is_published():
    """80 letters of 4 bytes are more than a file name can have."""
    view = work_here(add(name="\U0001d4b3" * 80, nfes=(3,), budget=300))
    assert view.status == "done" and (solver_folders()[0] / view.result).is_file()


def test_publishing_never_replaces_a_solver(home):
    first = publish(b"one", "a/b")
    assert publish(b"one", "a/b") == first and first.name == "a-b.safetensors"
    second = publish(b"two", "a/b")
    assert second.name == "a-b-2.safetensors" and first.read_bytes() == b"one"
    assert publish(b"two", "other") == second


def test_the_queue_trains_by_itself(home):
    """The real runner and workers, detached; the first job fails, the second works."""
    bad, good = add(), add(nfes=(3,), budget=300)
    (bad.path / CONFIG).write_text("colour = 1")
    ensure_runner()
    deadline = time.monotonic() + PATIENCE
    while good.view().status in ("queued", "running") or runner_is_alive():
        assert time.monotonic() < deadline, good.log_tail()
        time.sleep(0.1)
    assert "Unknown key 'colour'" in bad.view().error
    assert good.view().status == "done", good.log_tail()
    assert (jobs_home() / RUNNER_LOG).read_text() == ""
