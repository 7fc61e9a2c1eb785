"""Jobs as folders: what a job says about itself, here and on the command line."""

import json
import shutil
from dataclasses import replace

import pytest

from s4s_core import load_solver
from s4s_core.app import jobs as store
from s4s_core.app.description import describe
from s4s_core.app.detached import LOG
from s4s_core.app.folders import DEMO_SOLVER
from s4s_core.app.jobs import RESULT, Job, list_jobs
from s4s_core.errors import JobError
from trainer.cli import main
from trainer.config import TrainConfig
from trainer.jobs import job_config, queue_job
from trainer.models import ModelChoice


def add(**changes):
    return queue_job(TrainConfig(**changes), start=False)


def edit(job, **changes):
    job.save(replace(job.state(), **changes))


def test_a_new_job_is_queued_and_describes_itself():
    job = add(name="mine", nfes=(8, 4), model=ModelChoice("mixture"))
    view = job.view()
    assert (view.id, view.name, view.model, view.nfes) == (job.id, "mine", "mixture", [4, 8])
    assert (view.status, view.progress, view.eta, view.calls) == ("queued", 0.0, None, 0)
    assert view.error is view.exit_code is view.result is None
    assert json.loads(json.dumps(view.plain())) == view.plain()
    assert job_config(job) == TrainConfig(name="mine", nfes=(4, 8), model=ModelChoice("mixture"))
    assert job.metrics() == [] and job.log_tail() == "" and job.sheet() is None


def test_two_jobs_of_one_second_have_different_ids(monkeypatch):
    now = store.datetime.now(store.timezone.utc)
    fixed = type("Clock", (), {"now": staticmethod(lambda zone: now)})
    drawn = iter(["aaaaaa", "aaaaaa", "bbbbbb"])
    monkeypatch.setattr(store, "datetime", fixed)
    monkeypatch.setattr(store.secrets, "token_hex", lambda n: next(drawn) if n == 3 else "0" * n)
    assert [add().id[-6:], add().id[-6:]] == ["aaaaaa", "bbbbbb"]


@pytest.mark.parametrize("id", ["", "nothing", "../jobs", "20200101-000000-abcdef", "x" * 500, 5])
def test_only_existing_jobs_are_opened(id):
    add()
    with pytest.raises(JobError, match="There is no job"):
        Job(id)


def test_metrics_survive_a_torn_line_and_are_thinned():
    job = add()
    edit(job, status="running")
    lines = [json.dumps({"step": n, "loss": 1.0, "calls": n, "progress": 0.5}) for n in range(1000)]
    text = json.dumps({"phase": "teacher", "loss": None}) + "\n" + "\n".join(lines)
    (job.path / store.METRICS).write_text(text + '\n{"step": 1000, "lo')
    assert job.view().calls == 999
    steps = [line.step for line in job.metrics(most=100)]
    assert len(steps) == 100 and steps == sorted(steps) and steps[-1] == 999
    assert len(job.metrics(most=5000)) == 1000


def test_the_end_of_the_log_and_the_newest_sheet():
    job = add()
    (job.path / LOG).write_bytes(b"\xff\n" + b"".join(b"%d\n" % n for n in range(9999)))
    assert job.log_tail(3) == "9996\n9997\n9998"
    (job.path / store.SAMPLES).mkdir()
    for name in ("0002.png", "0010.png", ".s4s-x.tmp"):
        (job.path / store.SAMPLES / name).touch()
    assert job.sheet().name == "0010.png"


def test_a_job_that_cannot_be_saved_says_why(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("S4S_HOME", str(tmp_path / "file"))
    with pytest.raises(JobError, match="Could not save the job"):
        queue_job(TrainConfig(), start=False)


def test_the_command_line_sees_the_same_jobs(capsys, monkeypatch):
    def run(*arguments):
        assert main(["jobs", *arguments]) == 0
        return capsys.readouterr().out

    monkeypatch.setattr(store, "ensure_runner", lambda: None)
    view = json.loads(run("add", "--model", "mixture", "--nfe", "4,6", "--name", "x", "--json"))
    job = Job(view["id"])
    assert view == job.view().plain() and view["nfes"] == [4, 6]
    assert json.loads(run("list", "--json")) == {"jobs": [view]} and job.id in run("list")
    assert json.loads(run("cancel", job.id, "--json"))["jobs"][0]["status"] == "cancelled"
    run("resume", job.id)
    assert job.view().status == "queued"
    shown = json.loads(run("show", job.id, "--json"))
    assert shown["config"]["nfes"] == [4, 6] and shown["measures"] is None
    shutil.copy(DEMO_SOLVER, job.path / RESULT)
    assert "Median error" in run("show", job.id)
    shown = json.loads(run("show", job.id, "--json"))
    assert shown["measures"] == describe(load_solver(DEMO_SOLVER)).plain()["measures"]
    edit(job, status="failed", error="Too bad.", message="Too bad.", exit_code=1)
    (job.path / LOG).write_text("last words\n")
    text = run("show", job.id)
    assert all(part in text for part in ("Too bad.", "Exit code 1", "last words"))
    run("delete", job.id)
    assert list_jobs() == []


@pytest.mark.parametrize("arguments", [["cancel"], ["delete", "x"], ["add", "--nfe", "0"]])
def test_bad_commands_print_one_line(capsys, arguments):
    assert main(["jobs", *arguments]) == 1
    out, err = capsys.readouterr()
    assert not out and err.startswith("error: ") and err.count("\n") == 1
