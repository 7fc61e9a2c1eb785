"""Training jobs: make, list, queue, cancel, resume and delete them. No torch here.

A job is a folder that a detached process works in (see `detached`), with these files besides:
    config.toml    what to train; never changes
    metrics.jsonl  one line per step; the last line says how far a running job is
    samples/       sheets of pictures, the newest last
    fit-state.safetensors, result.safetensors
trainer/jobs has the two kinds of process: a runner, which starts one queued job after the other,
and a worker, which trains one.
"""

import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ..atomic import write_atomic
from ..errors import JobError
from ..lock import holder
from . import processes
from .detached import STATE as STATE
from .detached import STOP_SECONDS, ProcessFolder
from .folders import jobs_home, solver_folders
from .processes import end_tree, start_detached, trainer_command

CONFIG, METRICS, SAMPLES = "config.toml", "metrics.jsonl", "samples"
FIT, RESULT = "fit-state.safetensors", "result.safetensors"
RUNNER_LOCK, RUNNER_LOG = "queue.lock", "queue.log"
OPEN = ("queued", "running")
RESUMABLE = ("cancelled", "failed", "interrupted", "running")
"""States from which a job can be resumed, given its lock: a process that claims to run is dead."""

WAITING = "Waiting for its turn."
DIED = "The process died unexpectedly (often out of memory). Resume the job to continue."

_ID = re.compile(r"[0-9]{8}-[0-9]{6}-[0-9a-f]{6}")
_TAIL = 8192


@dataclass(frozen=True)
class JobState:
    """What state.json says.

    lane: the device whose turn the job waits for. attempt: counts resumptions. start: how whoever
    queued the job would start its worker (command, folder, solvers): the runner may belong to
    another host, with another Python, checkout and solver folders.
    """

    name: str
    model: str
    nfes: list[int]
    lane: str
    created: str
    queued: str
    status: str
    attempt: int
    pid: int | None
    message: str
    error: str | None
    exit_code: int | None
    result: str | None
    start: dict[str, Any]


@dataclass(frozen=True)
class JobView:
    """A job as people see it; `progress` is a share, `eta` seconds, `estimate` a sentence."""

    id: str
    name: str
    model: str
    nfes: list[int]
    status: str
    progress: float = 0.0
    eta: float | None = None
    message: str = ""
    error: str | None = None
    exit_code: int | None = None
    result: str | None = None
    calls: int = 0
    created: str = ""
    estimate: str = ""

    def plain(self) -> dict[str, Any]:
        """Return the view as JSON-able data."""
        return asdict(self)


class Job(ProcessFolder):
    """One job; JobError if there is no such job."""

    def __init__(self, id: str) -> None:
        if not _ID.fullmatch(str(id)) or not (jobs_home() / id / STATE).is_file():
            raise JobError(f"There is no job '{str(id)[:40]}'. Run 'jobs list' to see all jobs.")
        super().__init__(jobs_home() / id)
        self.id = id

    def state(self) -> JobState:
        """Return the job's state; raise JobError if it is damaged."""
        file = self.path / STATE
        try:
            state = self.read_state()
        except (OSError, ValueError) as error:
            raise JobError(f"Could not read {file} ({error}). Delete the job.") from None
        names = [field.name for field in fields(JobState)]
        if not isinstance(state, dict) or not state.keys() >= set(names):
            raise JobError(f"{file} is incomplete. Delete the job.")
        return JobState(**{name: state[name] for name in names})

    def save(self, state: JobState) -> None:
        """Replace the job's state; the caller holds its lock."""
        self.write_state(asdict(state))

    def view(self) -> JobView:
        """Return the job as people see it; a damaged job is a failed one that says why."""
        running = self.is_running()  # before reading: a job that ends meanwhile is over
        try:
            state = self.state()
        except JobError as damage:
            text = str(damage)
            return JobView(self.id, self.id, "", [], "failed", message=text, error=text)
        status, error, message = state.status, state.error, state.message
        last = self.last_metric()
        if status == "running" and running:
            message = last.get("message", "Starting.")
        elif status == "running":
            status, error, message = "interrupted", DIED, DIED
        return JobView(
            id=self.id,
            name=state.name,
            model=state.model,
            nfes=state.nfes,
            status=status,
            progress=1.0 if status == "done" else last.get("progress", 0.0),
            eta=last.get("eta") if status == "running" else None,
            message=message,
            error=error,
            exit_code=state.exit_code,
            result=state.result,
            calls=last.get("calls", 0),
            created=state.created,
        )

    def config_text(self) -> str:
        """Return the job's config as TOML."""
        return (self.path / CONFIG).read_text(encoding="utf-8")

    def metrics(self, most: int = 500) -> list[dict[str, Any]]:
        """Return training steps (step, nfe, loss, validation, calls, seconds), evenly thinned."""
        try:
            lines = _json_lines((self.path / METRICS).read_bytes())
        except OSError:
            return []
        steps = [line for line in lines if line.get("loss") is not None]
        stride = -(-len(steps) // max(1, most))
        return steps if stride < 2 else steps[::-1][::stride][::-1]  # always keeps the newest

    def last_metric(self) -> dict[str, Any]:
        """Return the newest complete line of the metrics, or {}."""
        try:
            with open(self.path / METRICS, "rb") as file:
                file.seek(max(0, file.seek(0, 2) - _TAIL))
                lines = _json_lines(file.read())
        except OSError:
            return {}
        return lines[-1] if lines else {}

    def sheet(self) -> Path | None:
        """Return the newest sheet of samples, or None."""
        sheets = sorted((self.path / SAMPLES).glob("[0-9]*.png"))
        return sheets[-1] if sheets else None

    def cancel(self) -> None:
        """Stop the job with every process it started, or take it out of the queue.

        A job that is over stays as it is. What it has learned is kept, so it can be resumed.
        """
        with self.lock() as lock:
            deadline = time.monotonic() + STOP_SECONDS
            while not lock.take(wait=0.1):
                pid, state = self.holder(), self.state()
                if pid and state.status == "running" and pid == state.pid:  # not a brief writer
                    end_tree(pid)
                if time.monotonic() > deadline:
                    raise JobError(f"Job {self.id} does not stop. Kill process {pid} by hand.")
            state = self.state()
            if state.status in (*OPEN, "interrupted"):
                message = "Cancelled. Resume the job to continue."
                state = replace(state, status="cancelled", message=message)
                self.save(replace(state, error=None, exit_code=None))

    def resume(self, start: bool = True) -> None:
        """Queue the job again after it was cancelled, failed or interrupted."""
        with self.lock() as lock:
            taken, state = lock.take(), self.state()
            if not taken or state.status not in RESUMABLE:
                raise JobError(f"Job {self.id} is {state.status}: there is nothing to resume.")
            queued = replace(
                state,
                status="queued",
                message=WAITING,
                error=None,
                exit_code=None,
                pid=None,
                queued=datetime.now(timezone.utc).isoformat(),
                attempt=state.attempt + 1,
                start=_start_of(self.id),
            )
            self.save(queued)
        if start:
            ensure_runner()

    def delete(self) -> None:
        """Stop the job and remove its folder; a solver that it saved stays."""
        if self.view().status in OPEN:
            self.cancel()
        trash = jobs_home() / f".old-{self.id}"
        try:
            self.path.rename(trash)
        except OSError as error:
            raise JobError(f"Could not delete {self.path}: {error.strerror or error}.") from error
        shutil.rmtree(trash, ignore_errors=True)


def _json_lines(data: bytes) -> list[dict[str, Any]]:
    """Return the objects of JSON lines, without lines that a killed process left unfinished."""
    objects = []
    for line in data.splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            objects.append(value)
    return objects


def job_ids() -> list[str]:
    """Return the ids of all jobs, newest first."""
    try:
        names = [path.name for path in jobs_home().iterdir() if _ID.fullmatch(path.name)]
    except OSError:
        return []
    return sorted(names, reverse=True)


def list_jobs() -> list[JobView]:
    """Return views of all jobs, newest first."""
    views = []
    for id in job_ids():
        try:
            views.append(Job(id).view())
        except JobError:  # deleted meanwhile
            continue
    return sorted(views, key=lambda view: (view.created, view.id), reverse=True)


def add_job(
    config: str, *, name: str, model: str, nfes: Sequence[int], device: str, start: bool = True
) -> Job:
    """Queue a job for a config in TOML; start the runner unless told otherwise."""
    now = datetime.now(timezone.utc)
    id = _new_id(now)
    state = JobState(
        name=name,
        model=model,
        nfes=list(nfes),
        lane=lane_of(device),
        created=now.isoformat(),
        queued=now.isoformat(),
        status="queued",
        attempt=1,
        pid=None,
        message=WAITING,
        error=None,
        exit_code=None,
        result=None,
        start=_start_of(id),
    )
    try:
        folder = jobs_home() / f".new-{id}"  # renamed when complete, so nobody sees half a job
        folder.mkdir(parents=True)
        write_atomic(folder / CONFIG, config.encode())
        ProcessFolder(folder).write_state(asdict(state))
        folder.rename(jobs_home() / id)
    except OSError as error:
        reason = error.strerror or error
        raise JobError(f"Could not save the job in {jobs_home()}: {reason}.") from error
    if start:
        ensure_runner()
    return Job(id)


def _new_id(now: datetime) -> str:
    """Return an unused id: among hundreds of jobs queued in one second, two may draw the same."""
    while True:
        id = f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"
        if not any((jobs_home() / f"{prefix}{id}").exists() for prefix in ("", ".new-")):
            return id


def _start_of(id: str) -> dict[str, Any]:
    """Return how this process would start a job's worker (see JobState.start)."""
    return {
        "command": trainer_command("work", id),
        "folder": str(processes.DETACHED_IN or Path.cwd()),
        "solvers": os.pathsep.join(str(folder.absolute()) for folder in solver_folders()),
    }


def lane_of(device: str) -> str:
    """Return a device's lane: jobs of one lane run one at a time; GPUs above 0 have their own."""
    number = device.partition(":")[2]
    return device if number not in ("", "0") else "main"


def runner_is_alive() -> bool:
    return holder(jobs_home() / RUNNER_LOCK) is not None


def ensure_runner() -> None:
    """Start the process that works through the queue, unless one is running.

    It outlives its parent. Starting two at once is harmless: one finds the lock taken and ends.
    """
    jobs_home().mkdir(parents=True, exist_ok=True)
    if not runner_is_alive():
        start_detached(trainer_command("queue"), jobs_home() / RUNNER_LOG)
