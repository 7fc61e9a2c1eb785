"""Training jobs as anyone may see them: a job is a folder, and its process holds the lock in it.

    config.toml    what was asked for; never changes
    state.json     what became of it; written only by whoever holds the lock
    metrics.jsonl  one line per step; its last line tells how far a running job is
    samples/       grids of pictures, the newest last
    log.txt        what the process printed
    fit-state.safetensors, result.safetensors
The trainer makes jobs and runs them (trainer/jobs); this module reads them and stops them, with
nothing but the standard library, for the hosts too.
"""

import json
import re
import time

from ..atomic import write_atomic
from ..errors import JobError
from ..lock import Lock, holder
from .folders import jobs_home
from .processes import end_tree

CONFIG, STATE, METRICS, SAMPLES = "config.toml", "state.json", "metrics.jsonl", "samples"
LOG, FIT, RESULT, LOCK = "log.txt", "fit-state.safetensors", "result.safetensors", "lock"

KEYS = {"name", "model", "nfes", "lane", "created", "queued", "status", "attempt", "pid"}
KEYS |= {"message", "error", "exit_code", "result", "start"}
"""What a state says: `lane` is the device whose turn it waits for, `attempt` counts resumptions,
`start` is how whoever queued it last would start its process: command, folder, solvers' folders."""

_ID = re.compile(r"[0-9]{8}-[0-9]{6}-[0-9a-f]{6}")
_TAIL = 8192
_PATIENCE = 5.0
"""Seconds that a killed process may take to let go of its lock."""

DIED = "The process ended without a word, as when memory runs out: resume the job to go on."


def job_folder(id):
    """The folder of a job; only names that are jobs' are looked for."""
    if not _ID.fullmatch(str(id)) or not (jobs_home() / id / STATE).is_file():
        raise JobError(f"There is no job '{str(id)[:40]}': see the list of jobs.")
    return jobs_home() / id


def read_state(folder):
    """What a job's state.json says; JobError if it is damaged."""
    try:
        state = json.loads((folder / STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise JobError(f"{folder / STATE} cannot be read ({error}): delete the job.") from None
    if not isinstance(state, dict) or not state.keys() >= KEYS:
        raise JobError(f"{folder / STATE} is incomplete: delete the job.")
    return state


def write_state(folder, state):
    """Replace a job's state; the caller holds its lock."""
    write_atomic(folder / STATE, json.dumps(state, indent=1).encode())


def lines_of(data):
    """The objects of JSON lines; lines that a killed process left unfinished are left out."""
    found = []
    for line in data.splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            found.append(value)
    return found


def last_metric(folder):
    """The newest whole line of a job's metrics, or {}."""
    try:
        with open(folder / METRICS, "rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _TAIL))
            found = lines_of(file.read())
    except OSError:
        return {}
    return found[-1] if found else {}


def _view(folder):
    running = holder(folder / LOCK) is not None  # asked first: a job that ends meanwhile is over
    state = read_state(folder)
    status, error = state["status"], state["error"]
    if status == "running" and not running:
        status, error = "interrupted", DIED
    last = last_metric(folder)
    progress = 1.0 if status == "done" else last.get("progress", 0.0)
    message = last.get("message", "Starting.") if status == "running" else state["message"]
    return {
        "id": folder.name,
        "name": state["name"],
        "model": state["model"],
        "nfes": state["nfes"],
        "status": status,
        "progress": progress,
        "eta": last.get("eta") if status == "running" else None,
        "message": DIED if status == "interrupted" else message,
        "error": error,
        "exit_code": state["exit_code"],
        "result": state["result"],
        "calls": last.get("calls", 0),
        "created": state["created"],
    }


def _unreadable(folder, error):
    facts = {"name": folder.name, "model": "", "nfes": [], "status": "failed", "progress": 0.0}
    facts |= {"eta": None, "message": error, "error": error, "exit_code": None, "result": None}
    return {"id": folder.name, **facts, "calls": 0, "created": ""}


def job_view(id):
    """One job as JSON; a damaged one is a failed one that says so."""
    folder = job_folder(id)
    try:
        return _view(folder)
    except JobError as error:
        return _unreadable(folder, str(error))


def job_ids():
    """Names of all jobs, newest first."""
    try:
        names = [path.name for path in jobs_home().iterdir() if _ID.fullmatch(path.name)]
    except OSError:
        return []
    return sorted(names, reverse=True)


def list_jobs():
    """Views of all jobs, newest first."""
    views = []
    for id in job_ids():
        try:
            views.append(job_view(id))
        except JobError:  # deleted meanwhile
            continue
    return sorted(views, key=lambda view: (view["created"], view["id"]), reverse=True)


def request_cancel(id):
    """Stop a job: its whole process tree if it runs, its turn if it waits.

    A job that is over stays as it is. What it has learned is kept, so that it can be resumed.
    """
    folder = job_folder(id)
    with Lock(folder / LOCK) as lock:
        deadline = time.monotonic() + _PATIENCE
        while not lock.take(wait=0.1):
            pid, state = holder(folder / LOCK), read_state(folder)
            if state["status"] == "running" and pid == state["pid"]:  # else a passing writer's
                end_tree(pid)
            if time.monotonic() > deadline:
                raise JobError(f"The job {id} does not end: end its process {pid} by hand.")
        state = read_state(folder)
        if state["status"] in ("queued", "running", "interrupted"):
            done = {"status": "cancelled", "message": "Cancelled: resume it to go on."}
            write_state(folder, state | done | {"error": None, "exit_code": None})
