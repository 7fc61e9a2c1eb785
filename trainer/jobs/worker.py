"""`work`: the process that trains one job. It holds the job's lock and writes its files."""

import faulthandler
import json
import os
import sys
import traceback
from argparse import ArgumentParser, Namespace
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from s4s_core.app.detached import FULL, full_disk
from s4s_core.app.folders import publish
from s4s_core.app.jobs import FIT, METRICS, RESULT, SAMPLES, Job, JobState
from s4s_core.app.processes import lead_group
from s4s_core.atomic import sweep_folder, write_atomic
from s4s_core.errors import JobError, S4SError, short
from s4s_core.regular import make_folder, open_regular, remove_tree

from ..config import TrainConfig
from ..estimate import check_disk
from . import job_config

if TYPE_CHECKING:
    from s4s_core.training.settings import Goal
    from s4s_core.training.task import Event

    from ..models.contract import TrainerModel

TEACHER = "teacher"
"""The folder of the teacher's results, kept until the job is done."""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("id", help="the job's id")


def run(args: Namespace) -> int:
    return work(args.id)


def work(id: str) -> int:
    """Train a queued job to its end; return 0, or 1 with the reason in the job's state."""
    job = Job(id)
    with job.lock() as lock:
        if not lock.take(wait=10.0):
            raise JobError(f"Job {id} is already running.")
        lead_group()
        faulthandler.enable()  # a crash inside a library leaves its trace in the log
        state = job.state()
        if state.status != "queued":
            print(f"Job {id} is {state.status}: nothing to do.")
            return 0
        return _work(job, state)


def _work(job: Job, state: JobState) -> int:
    state = replace(state, status="running", pid=os.getpid(), message="Starting.")
    job.save(state)
    try:
        name = _train(job)
    except Exception as error:  # noqa: BLE001 - recorded in the job's state
        reason = _reason(error, job.path)
        with suppress(OSError):  # the log may be on the disk that is full
            print(f"error: {reason}", file=sys.stderr, flush=True)
        state, code = replace(state, status="failed", message=reason, error=reason), 1
    else:
        state, code = replace(state, status="done", message=f"Saved as {name}.", result=name), 0
    job.save(replace(state, exit_code=code))
    return code


def _reason(error: Exception, folder: Path) -> str:
    """Explain an error in a sentence or two; the log gets the traceback of unexpected ones."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in FULL:
            return full_disk(folder, cause.errno)
        cause = cause.__cause__
    if isinstance(error, S4SError):
        return str(error)
    traceback.print_exc()
    if isinstance(error, ModuleNotFoundError):
        return (
            f"{sys.executable} has no module '{error.name}'. Install the package that provides it "
            "for that Python, then resume the job."
        )
    if _is_out_of_memory(error):
        return "Out of memory. Close other programs, or train at a lower resolution or precision."
    if isinstance(error, OSError) and str(error.filename).startswith(str(folder)):
        place = short(f"{error.filename}: {error.strerror}", 300)
        return f"The job cannot use {place}. Remove it, then resume the job."
    text = " ".join(str(error).split())[:200]
    return f"Unexpected {type(error).__name__}: {text}. See the log for details."


def _is_out_of_memory(error: Exception) -> bool:
    """Return whether an allocation failed, without importing torch: that may be what failed."""
    if "torch" not in sys.modules:
        return isinstance(error, MemoryError)
    from s4s_core.training.memory import is_out_of_memory

    return bool(is_out_of_memory(error))


def _train(job: Job) -> str:
    """Train, save the solver and return its name in the solver folder."""
    folder = job.path
    for place in (folder, folder / SAMPLES, folder / TEACHER):
        sweep_folder(place)
    config = job_config(job)
    check_disk(config)
    make_folder(folder / TEACHER)
    data = _train_solver(folder, config)
    write_atomic(folder / RESULT, data)
    path = publish(data, config.title)
    remove_tree(folder / TEACHER)
    print(f"Saved {path}", flush=True)
    return path.name


def _train_solver(folder: Path, config: TrainConfig) -> bytes:
    """Train and return the bytes of the solver file."""
    from s4s_core.solver_file import dump_solver

    from ..models import open_model
    from ..training import train, with_training_facts

    print(f"Loading {config.model.label}", flush=True)
    model = open_model(config.model)
    check_disk(config, model.shape)
    with Record(folder, config, model) as record:
        result = train(config, model, record, folder / FIT, folder / TEACHER)
        for line in result.log:
            print(line, flush=True)
        thumbnail = record.gallery.finish(result)
    data: bytes = dump_solver(with_training_facts(result.pack, model, config, thumbnail))
    return data


class Record:
    """Records fit's events: a line of metrics for each, and pictures now and then.

    The log gets the beginning of each phase, and every step of training.
    """

    def __init__(self, folder: Path, config: TrainConfig, model: "TrainerModel") -> None:
        from s4s_core.app.plan import RunProgress

        from ..gallery import Gallery
        from ..training import call_plan

        last = Job(folder.name).last_metric()
        self.progress = RunProgress(call_plan(config), last.seconds, last.progress)
        self.gallery = Gallery(model, folder / SAMPLES)
        handle = open_regular(folder / METRICS, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.file = os.fdopen(handle, "ab")
        if self.file.tell():
            self.file.write(b"\n")  # ends a line that a killed process left unfinished
        self._phase: tuple[str, Goal | None] | None = None

    def __enter__(self) -> "Record":
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def __call__(self, event: "Event") -> None:
        line = self.progress.line(event)
        self.file.write(json.dumps(asdict(line)).encode() + b"\n")
        self.file.flush()
        phase = event.phase, event.goal
        if phase != self._phase or event.loss is not None:
            print(line.message, flush=True)
        self._phase = phase
        self.gallery.show(event)
