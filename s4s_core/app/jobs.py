"""Training jobs: make, list, queue, cancel, resume and delete them. No torch here.

A job is a folder that a detached process works in (see `detached`), with these files besides:
    config.toml    what to train; never changes
    metrics.jsonl  one line per step; the last line says how far a running job is
    samples/       sheets of pictures, the newest last
    fit-state.safetensors, result.safetensors
trainer/jobs has the two kinds of process: a runner, which starts one queued job after the other,
and a worker, which trains one.
"""

import os
import re
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Any

from ..atomic import write_atomic
from ..checks import at_most, between, check_fields, one_of, parse_json, record
from ..errors import JobError, short
from ..lock import holder
from ..regular import open_regular, read_end, read_whole, remove_tree
from . import processes
from .detached import STATE as STATE
from .detached import STOP_SECONDS, ProcessFolder, full_disk
from .folders import jobs_home, solver_folders
from .processes import end_tree, start_detached, trainer_command
from .progress import Count, Metric

CONFIG, METRICS, SAMPLES = "config.toml", "metrics.jsonl", "samples"
FIT, RESULT = "fit-state.safetensors", "result.safetensors"
RUNNER_LOCK, RUNNER_LOG = "queue.lock", "queue.log"
OPEN = ("queued", "running")
RESUMABLE = ("cancelled", "failed", "interrupted", "running")
"""States from which a job can be resumed, given its lock: a process that claims to run is dead."""

STATUSES = (*RESUMABLE, "queued", "done")
DAMAGED = "damaged"
"""How a job is shown whose files cannot be read: it can only be deleted."""

WAITING = "Waiting for its turn."

_ID = re.compile(r"[0-9]{8}-[0-9]{6}-[0-9a-f]{6}")
_TAIL, _LARGEST_METRICS, _LARGEST_CONFIG = 8192, 16 << 20, 1 << 20
_MOST_LINES, _LONGEST = 50_000, 2000
_SHEET = re.compile(r"([0-9]{1,9})\.png")
_DAY, _MOMENT = 86_400, 1.0


@dataclass(frozen=True)
class WorkerStart:
    """How to start a job's worker."""

    command: list[str]
    folder: str
    solvers: str


@dataclass(frozen=True)
class JobState:
    """What state.json says.

    lane: the device whose turn the job waits for. attempt: counts resumptions. start: how whoever
    queued the job would start its worker (command, folder, solvers): the runner may belong to
    another host, with another Python, checkout and solver folders.
    """

    name: str
    model: str
    nfes: Annotated[list[Annotated[int, between(1, 1000)]], at_most(1000)]
    lane: str
    created: str
    queued: str
    status: Annotated[str, one_of("status", STATUSES)]
    attempt: Count
    pid: Annotated[int, between(0, 2**31 - 1)] | None
    message: str
    error: str | None
    exit_code: Annotated[int, between(-(2**32), 2**32)] | None
    result: str | None
    start: WorkerStart


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
        if not _ID.fullmatch(str(id)) or not os.path.lexists(jobs_home() / id):
            raise JobError(f"There is no job '{short(str(id))}'. Run 'jobs list' to see all jobs.")
        super().__init__(jobs_home() / id)
        self.id = id

    def state(self) -> JobState:
        """Return the job's state; raise JobError if it is damaged."""
        try:
            return self.read_state(JobState)
        except (OSError, ValueError) as error:
            file = self.path / STATE
            raise JobError(f"Could not read {file}: {_reason(error)}. Delete the job.") from None

    def save(self, state: JobState) -> None:
        """Replace the job's state, or raise JobError; the caller holds its lock."""
        with explained(f"Could not write {self.path / STATE}"):
            self.write_state(state)

    def view(self) -> JobView:
        """Return the job as people see it; a damaged one says why."""
        running = self.is_running()  # before reading: a job that ends meanwhile is over
        try:
            state = self.state()
        except JobError as damage:
            Job(self.id)  # raises JobError if it was deleted meanwhile
            text = str(damage)
            return JobView(self.id, self.id, "", [], DAMAGED, message=text, error=text)
        status, error, message = state.status, state.error, state.message
        last = self.last_metric()
        if status == "running" and running:
            message = last.message
        elif status == "running":
            status, error = "interrupted", self.death()
            message = error
        elif status == "queued" and self.lacks_room():  # its process cannot even say so
            message = full_disk(self.path)
        return JobView(
            id=self.id,
            name=short(state.name, _LONGEST),
            model=short(state.model, _LONGEST),
            nfes=state.nfes,
            status=status,
            progress=1.0 if status == "done" else last.progress,
            eta=last.eta if status == "running" else None,
            message=short(message, _LONGEST),
            error=error and short(error, _LONGEST),
            exit_code=state.exit_code,
            result=state.result and short(state.result, _LONGEST),
            calls=last.calls,
            created=short(state.created),
        )

    def config_text(self) -> str:
        """Return the job's config as TOML; raise JobError if it cannot be read."""
        try:
            return read_whole(self.path / CONFIG, _LARGEST_CONFIG).decode()
        except (OSError, ValueError) as error:
            raise JobError(f"Could not read {self.path / CONFIG}: {_reason(error)}.") from None

    def metrics(self, most: int = 500) -> list[Metric]:
        """Return training steps, evenly thinned."""
        steps = [line for line in self._lines(_LARGEST_METRICS) if line.get("loss") is not None]
        stride = max(1, -(-len(steps) // max(1, most)))
        newest_first = map(_metric, steps[::-1][::stride])  # the newest is always kept
        return [metric for metric in newest_first if metric][::-1]

    def last_metric(self) -> Metric:
        """Return the newest complete line of the metrics."""
        newest_first = map(_metric, reversed(self._lines(_TAIL)))
        return next(filter(None, newest_first), Metric())

    def _lines(self, most: int) -> list[dict[str, Any]]:
        """Return the objects in the last `most` bytes and _MOST_LINES lines of the metrics; a
        killed process may have left an unfinished line."""
        objects = []
        with suppress(OSError):
            lines = read_end(self.path / METRICS, most).rsplit(b"\n", _MOST_LINES)
            for line in lines[-_MOST_LINES:]:
                with suppress(ValueError):
                    objects.append(parse_json(line))
        return [each for each in objects if isinstance(each, dict)]

    def sheet(self) -> Path | None:
        """Return the newest sheet of samples, or None."""
        found = sheets(self.path / SAMPLES)
        return found[max(found)] if found else None

    def cancel(self) -> None:
        """Stop the job with every process it started, or take it out of the queue.

        A job that is over stays as it is. What it has learned is kept, so it can be resumed.
        """
        self.state()  # raises JobError if the job is damaged
        with explained(f"Could not cancel job {self.id}"), self.lock() as lock:
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
        self.state()  # raises JobError if the job is damaged
        with explained(f"Could not resume job {self.id}"), self.lock() as lock:
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
            with suppress(JobError):  # what still runs is told below
                self.cancel()
        if not self.ends_within(_MOMENT):  # a damaged state does not say whom to stop
            pid = self.holder()
            raise JobError(f"Job {self.id} still runs, as process {pid}. End that process first.")
        with explained(f"Could not delete {self.path}"):
            self.path.rename(jobs_home() / f".old-{self.id}")
        empty_trash()


def sheets(folder: Path) -> dict[int, Path]:
    """Return the sheets in a folder of samples by number; whatever else lies there is not one."""
    try:
        names = os.listdir(folder)
    except OSError:
        return {}
    found = map(_SHEET.fullmatch, names)
    return {int(match[1]): folder / match[0] for match in found if match}


def empty_trash() -> None:
    """Remove deleted jobs, and what interrupted deletions and additions left of others."""
    for trash in jobs_home().glob(".old-*"):
        remove_tree(trash)
    for unfinished in jobs_home().glob(".new-*"):  # made in a moment
        with suppress(OSError):
            if unfinished.lstat().st_mtime < time.time() - _DAY:
                remove_tree(unfinished)


@contextmanager
def explained(what: str) -> Iterator[None]:
    """Turn an OSError into a JobError that says what could not be done."""
    try:
        yield
    except OSError as error:
        raise JobError(f"{what}: {_reason(error)}.") from error


def _metric(values: dict[str, Any]) -> Metric | None:
    """Return a line of metrics; None if it does not fit."""
    try:
        return record(Metric, values, ValueError)
    except ValueError:
        return None


def _reason(error: Exception) -> str:
    """Return why a file cannot be used, as a part of a sentence."""
    return short(str(getattr(error, "strerror", None) or error).rstrip("."), 200)


def job_ids() -> list[str]:
    """Return the ids of all jobs, newest first; raise JobError if they cannot be listed."""
    try:
        names = os.listdir(jobs_home())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise JobError(f"Could not list {jobs_home()}: {_reason(error)}.") from None
    return sorted(filter(_ID.fullmatch, names), reverse=True)


def list_jobs() -> list[JobView]:
    """Return views of all jobs, newest first."""
    views = []
    for id in job_ids():
        with suppress(JobError):  # deleted meanwhile
            views.append(Job(id).view())
    return sorted(views, key=lambda view: (view.created, view.id), reverse=True)


def add_job(
    config: str, *, name: str, model: str, nfes: Sequence[int], device: str, start: bool = True
) -> Job:
    """Queue a job for a config in TOML; start the runner unless told otherwise."""
    with explained(f"Could not save the job in {jobs_home()}"):
        now = datetime.now(timezone.utc)
        id = _new_id(now)
        state = _new_state(id, now, name, model, nfes, device)
        _write_job(id, state, config)
    if start:
        ensure_runner()
    return Job(id)


def _new_state(
    id: str, now: datetime, name: str, model: str, nfes: Sequence[int], device: str
) -> JobState:
    """Return the state of a new job; raise JobError if it could not be read again."""
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
    check_fields(state, JobError)
    return state


def _write_job(id: str, state: JobState, config: str) -> None:
    """Write a new job. It is renamed when complete, so that nobody sees half a job."""
    folder = jobs_home() / f".new-{id}"
    folder.mkdir(parents=True)
    try:
        write_atomic(folder / CONFIG, config.encode())
        ProcessFolder(folder).write_state(state)
        folder.rename(jobs_home() / id)
    except OSError:
        remove_tree(folder)
        raise


def _new_id(now: datetime) -> str:
    """Return an unused id: among hundreds of jobs queued in one second, two may draw the same."""
    while True:
        id = f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"
        if not any((jobs_home() / f"{prefix}{id}").exists() for prefix in ("", ".new-")):
            return id


def _start_of(id: str) -> WorkerStart:
    """Return how this process would start a job's worker (see JobState.start)."""
    start = WorkerStart(
        command=trainer_command("work", id),
        folder=str(processes.DETACHED_IN or Path.cwd()),
        solvers=os.pathsep.join(str(folder.absolute()) for folder in solver_folders()),
    )
    try:
        check_fields(start, ValueError)
    except ValueError as problem:
        raise JobError(
            f"A job cannot be queued from here ({short(str(problem))}). Rename the folder, or "
            "queue the job from another one."
        ) from None
    return start


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
    with explained(f"Could not start the queue in {jobs_home()}"):
        jobs_home().mkdir(parents=True, exist_ok=True)
        os.close(open_regular(jobs_home() / RUNNER_LOCK, os.O_RDWR | os.O_CREAT))
        if not runner_is_alive():
            start_detached(trainer_command("queue"), jobs_home() / RUNNER_LOG)
