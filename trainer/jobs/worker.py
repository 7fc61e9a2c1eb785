"""The process that trains one job: it holds the job's lock and writes everything in its folder."""

import errno
import faulthandler
import json
import os
import shutil
import sys
import traceback
from dataclasses import replace

from s4s_core.app.detached import STATE
from s4s_core.app.folders import publish
from s4s_core.app.jobs import CONFIG, FIT, METRICS, RESULT, SAMPLES, Job, JobState
from s4s_core.app.processes import lead_group
from s4s_core.atomic import sweep, write_atomic
from s4s_core.errors import JobError, S4SError

from ..config import read_config
from ..estimate import check_disk

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
TEACHER = "teacher"
"""Folder of the teacher's results, kept until the job is done."""


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
        name = _train(job.path)
    except Exception as error:  # noqa: BLE001 - whatever it is, the job's state must say so
        reason = _reason(error)
        print(f"error: {reason}", file=sys.stderr, flush=True)
        state, code = replace(state, status="failed", message=reason, error=reason), 1
    else:
        state, code = replace(state, status="done", message=f"Saved as {name}.", result=name), 0
    job.save(replace(state, exit_code=code))
    return code


def _reason(error):
    """One sentence for people; what nobody foresaw goes to the log whole."""
    if isinstance(error, S4SError):
        return str(error)
    traceback.print_exc()
    if isinstance(error, ModuleNotFoundError):
        return (
            f"{sys.executable} has no module '{error.name}': install the package that brings it "
            "for that very Python, and resume the job."
        )
    if _is_out_of_memory(error):
        return "Out of memory: close other programs, or train at a lower resolution or precision."
    if isinstance(error, OSError) and error.errno in FULL:
        return "The disk is full, or its quota is: make room, and resume the job."
    said = " ".join(str(error).split())[:200]
    return f"An unexpected {type(error).__name__} stopped it ({said}): the log has the details."


def _is_out_of_memory(error):
    """Did an allocation fail? Asks torch only if it is here: its import may be what failed."""
    if "torch" not in sys.modules:
        return isinstance(error, MemoryError)
    from s4s_core.training.memory import is_out_of_memory

    return is_out_of_memory(error)


def _train(folder):
    """Train, save the solver, and return the name that it has in the solvers' folder."""
    for name in (STATE, FIT, RESULT):
        sweep(folder / name)
    config = read_config(folder / CONFIG)
    check_disk(config)
    data = _solver(folder, config)
    write_atomic(folder / RESULT, data)
    path = publish(data, config.title)
    shutil.rmtree(folder / TEACHER, ignore_errors=True)
    print(f"Saved {path}", flush=True)
    return path.name


def _solver(folder, config):
    """The bytes of the solver file that a config asks for; imports what is heavy."""
    from s4s_core.solver_file import dump_solver

    from ..models import open_model
    from ..training import described, teacher_of, train

    print(f"Loading {config.model.label}", flush=True)
    model = open_model(config.model)
    check_disk(config, model.shape)
    teacher = teacher_of(config, model)
    with Record(folder, config, model, teacher) as record:
        result = train(config, model, record, folder / FIT, folder / TEACHER, teacher)
        for line in result.log:
            print(line, flush=True)
        pack = described(result.pack, model, config, record.gallery.finish(result))
    return dump_solver(pack)


class Record:
    """Listens to fit: a line of metrics for every event, and pictures now and then."""

    def __init__(self, folder, config, model, teacher):
        from ..gallery import Gallery
        from ..training import Course

        last = Job(folder.name).last_metric()
        self.course = Course(config, last.get("seconds", 0.0))
        self.gallery = Gallery(model, teacher, folder / SAMPLES)
        self.file = open(folder / METRICS, "ab")  # noqa: SIM115 - closed in __exit__
        if self.file.tell():
            self.file.write(b"\n")  # ends a line that a killed process left unfinished

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()

    def __call__(self, event):
        line = self.course.line(event)
        self.file.write(json.dumps(line).encode() + b"\n")
        self.file.flush()
        if event.table is not None:
            print(line["message"], flush=True)
            self.gallery.show(event)
