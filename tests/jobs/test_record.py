"""What a job records in every phase: metrics, the log, the first pictures, and going on."""

import json
from pathlib import Path

import pytest

from s4s_core.app.jobs import METRICS, SAMPLES
from s4s_core.app.progress import Throttle
from trainer.config import TrainConfig
from trainer.jobs import queue_job, worker
from trainer.models import ModelChoice

MODELS = Path(__file__).parents[1] / "helpers" / "job_models.py"
PHASES = ["choice", "teacher", "search", "gauss-newton", "scoring"]
SIZES = {"samples": 8, "validation": 6, "held_out": 6}


class Stop(Exception):
    pass


@pytest.fixture
def job(monkeypatch):
    monkeypatch.setattr(worker, "lead_group", lambda: None)  # pytest stays in its group
    monkeypatch.setattr("trainer.gallery.Throttle", lambda: Throttle(pause=0.0, factor=0.0))
    model = ModelChoice("python", f"{MODELS}:pictures")
    config = TrainConfig(model=model, nfes=(3, 4), budget=2500, options=SIZES)
    return queue_job(config, start=False)


def stop_at(monkeypatch, phase):
    """Make the job fail after it has recorded the first event of a phase."""
    record = worker.Record.__call__

    def stop(self, event):
        record(self, event)
        if event.phase == phase:
            raise Stop

    monkeypatch.setattr(worker.Record, "__call__", stop)


def metrics(job):
    lines = (job.path / METRICS).read_text().splitlines()
    return [json.loads(line) for line in lines if line]


def test_every_phase_is_recorded_and_the_log_stays_short(job, capfd):
    assert worker.work(job.id) == 0
    log, lines = capfd.readouterr().out, metrics(job)
    phases = [line["phase"] for line in lines]
    assert list(dict.fromkeys(phases)) == PHASES
    assert phases.count("search") > 100  # two searches
    for text, times in (("Choosing the", 1), ("teacher samples", 1), ("classical solvers", 2)):
        assert log.count(text) == times
    assert log.count("scoring on new noise") == 2
    assert log.count("iteration") == phases.count("gauss-newton")
    shares, calls = ([line[name] for line in lines] for name in ("progress", "calls"))
    assert shares == sorted(shares) and calls == sorted(calls) and shares[-1] > 0.95
    assert all(line["eta"] is not None for line in lines[5:])
    assert {line.phase for line in job.metrics()} == {"gauss-newton"}  # what charts show


def test_the_first_sheet_appears_during_the_search(job, monkeypatch):
    stop_at(monkeypatch, "search")
    assert worker.work(job.id) == 1
    assert [path.name for path in (job.path / SAMPLES).iterdir()] == ["0001.png"]


def test_a_job_that_goes_on_begins_where_it_was(job, monkeypatch):
    """Results that are loaded again are no progress: the time left is not extrapolated from it."""
    with monkeypatch.context() as patch:
        stop_at(patch, "gauss-newton")
        assert worker.work(job.id) == 1
    before = metrics(job)
    job.resume(start=False)
    assert worker.work(job.id) == 0
    after = metrics(job)[len(before) :]
    assert [line["phase"] for line in after[:2]] == ["teacher", "teacher"]
    assert after[0]["progress"] == after[1]["progress"] == before[-1]["progress"]
    assert after[0]["eta"] is None and after[1]["eta"] is None
    assert after[0]["seconds"] >= before[-1]["seconds"]
