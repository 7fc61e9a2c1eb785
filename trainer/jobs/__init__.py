"""Training jobs: make, queue, stop, resume and delete them. No torch here.

Seeing and stopping them is in s4s_core/app/jobs.py, which says what a job's folder holds. `runner`
is the process that starts one queued job after the other, `worker` the process that trains.
"""

import os
import secrets
import shutil
from datetime import datetime, timezone
from pathlib import Path

from s4s_core.app import jobs as core
from s4s_core.app import processes
from s4s_core.app.folders import jobs_home, solver_folders
from s4s_core.app.processes import start_detached, trainer_command
from s4s_core.atomic import write_atomic
from s4s_core.errors import JobError
from s4s_core.lock import Lock, holder

from ..config import from_toml, rooted, to_toml

RUNNER_LOCK, RUNNER_LOG = "queue.lock", "queue.log"
RESUMABLE = ("cancelled", "failed", "interrupted", "running")
"""What a job may be to be resumed, once its lock is ours: one that says it runs does not."""

WAITING = "Waiting for its turn."


def add(config, start=True):
    """Queue a config and return the job's id; the runner is started unless told otherwise."""
    config, now = rooted(config), datetime.now(timezone.utc)
    id = _new_id(now)
    state = {
        "name": config.title,
        "model": config.model.label,
        "nfes": list(config.nfes),
        "lane": lane(config.model.device),
        "created": now.isoformat(),
        "queued": now.isoformat(),
        "status": "queued",
        "attempt": 1,
        "pid": None,
        "message": WAITING,
        "error": None,
        "exit_code": None,
        "result": None,
        "start": _start(id),
    }
    try:
        folder = jobs_home() / f".new-{id}"  # renamed when complete: nobody sees half a job
        folder.mkdir(parents=True)
        write_atomic(folder / core.CONFIG, to_toml(config).encode())
        core.write_state(folder, state)
        folder.rename(jobs_home() / id)
    except OSError as error:
        reason = error.strerror or error
        raise JobError(f"{jobs_home()}: the job cannot be saved there: {reason}.") from error
    if start:
        ensure_runner()
    return id


def _start(id):
    """How this process would start a job's worker: the runner may be another host's, with another
    Python, another checkout and other solvers' folders."""
    return {
        "command": trainer_command("work", id),
        "folder": str(processes.DETACHED_IN or Path.cwd()),
        "solvers": os.pathsep.join(str(folder.absolute()) for folder in solver_folders()),
    }


def _new_id(now):
    """A name that no job has: hundreds queued in one second may well draw the same one."""
    while True:
        id = f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"
        if not any((jobs_home() / f"{prefix}{id}").exists() for prefix in ("", ".new-")):
            return id


def lane(device):
    """Jobs of one lane run one at a time: every numbered GPU but the first has its own."""
    kind, _, number = device.partition(":")
    return device if number not in ("", "0") else "main"


def cancel(id):
    """Stop a job, with all processes that it has started."""
    core.request_cancel(id)


def resume(id, start=True):
    """Queue a job again that was cancelled, failed or interrupted; it goes on where it was."""
    folder = core.job_folder(id)
    with Lock(folder / core.LOCK) as lock:
        taken, state = lock.take(), core.read_state(folder)
        if not taken or state["status"] not in RESUMABLE:
            raise JobError(f"The job {id} is {state['status']}: there is nothing to resume.")
        state |= {"status": "queued", "message": WAITING, "error": None, "exit_code": None}
        now = datetime.now(timezone.utc).isoformat()
        state |= {"pid": None, "queued": now, "attempt": state["attempt"] + 1, "start": _start(id)}
        core.write_state(folder, state)
    if start:
        ensure_runner()


def delete(id):
    """Stop a job and remove its folder; a solver that it has saved stays."""
    folder = core.job_folder(id)
    if core.job_view(id)["status"] in ("queued", "running"):
        cancel(id)
    grave = jobs_home() / f".old-{folder.name}"
    try:
        folder.rename(grave)
    except OSError as error:
        raise JobError(f"{folder} cannot be deleted: {error.strerror or error}.") from error
    shutil.rmtree(grave, ignore_errors=True)


def is_running():
    """Is there a runner?"""
    return holder(jobs_home() / RUNNER_LOCK) is not None


def ensure_runner():
    """Start the process that works through the queue, unless one is running.

    It outlives whoever starts it. Two that start at once do no harm: one finds the lock taken.
    """
    jobs_home().mkdir(parents=True, exist_ok=True)
    if not is_running():
        start_detached(trainer_command("queue"), jobs_home() / RUNNER_LOG)


class Job:
    """One job, as the panel and the command line show it."""

    def __init__(self, id):
        self.id, self.folder = id, core.job_folder(id)

    def view(self):
        return core.job_view(self.id)

    @property
    def config(self):
        return from_toml((self.folder / core.CONFIG).read_text(encoding="utf-8"))

    def metrics(self, most=500):
        """Training steps (step, nfe, loss, validation, calls, seconds), evenly thinned."""
        try:
            lines = core.lines_of((self.folder / core.METRICS).read_bytes())
        except OSError:
            return []
        steps = [line for line in lines if line.get("loss") is not None]
        stride = -(-len(steps) // max(1, most))
        return steps if stride < 2 else steps[::-1][::stride][::-1]  # the newest is always kept

    def log_tail(self, lines=40):
        """The end of what the process printed."""
        try:
            text = (self.folder / core.LOG).read_bytes()[-20_000:].decode("utf-8", "replace")
        except OSError:
            return ""
        return "\n".join(text.splitlines()[-lines:])

    def grid(self):
        """The newest grid of samples, or None."""
        found = sorted((self.folder / core.SAMPLES).glob("[0-9]*.png"))
        return found[-1] if found else None


def job(id):
    """The job of an id; JobError if there is none."""
    return Job(id)
