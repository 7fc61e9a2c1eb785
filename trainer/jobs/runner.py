"""The process that works through the queue: one job at a time on each device.

It starts a worker for each job and notes what those cannot: that they died. It ends by itself when
nothing is left to do. Workers outlive it; the next runner finds them by their locks.
"""

import shutil
import sys
import time

from s4s_core.app import jobs as core
from s4s_core.app.folders import data_home, jobs_home
from s4s_core.app.processes import start_detached
from s4s_core.errors import JobError
from s4s_core.lock import Lock, holder

from . import RUNNER_LOCK

POLL = 0.5


def run():
    """Work through the queue until it is empty; does nothing while another runner does."""
    jobs_home().mkdir(parents=True, exist_ok=True)
    for grave in jobs_home().glob(".old-*"):  # a deletion that was cut off
        shutil.rmtree(grave, ignore_errors=True)
    runner = Runner()
    while True:
        with Lock(jobs_home() / RUNNER_LOCK) as lock:
            if not lock.take():
                return
            runner.work()
        # Whoever queued a job while the lock was held relied on us: look again without it.
        if not runner.waiting():
            return


class Runner:
    """One spell of work, from the first job to an empty queue."""

    def __init__(self):
        self.children, self.tried = {}, set()

    def work(self):
        while True:
            self.bury()
            busy = self.busy_lanes()
            waiting = self.waiting()
            for folder, state in waiting:
                if state["lane"] not in busy:
                    self.start(folder, state)
                    busy.add(state["lane"])
            if not busy and not waiting:
                return
            time.sleep(POLL)

    def states(self):
        """(folder, state) of every job that can be read and is not over."""
        for id in core.job_ids():
            try:
                folder = core.job_folder(id)
                state = core.read_state(folder)
            except JobError:
                continue
            if state["status"] in ("queued", "running"):
                yield folder, state

    def waiting(self):
        """Queued jobs, the longest waiting first, none for a second time in the same attempt."""
        found = [
            (folder, state)
            for folder, state in self.states()
            if state["status"] == "queued" and (folder.name, state["attempt"]) not in self.tried
        ]
        return sorted(found, key=lambda pair: pair[1]["queued"])

    def busy_lanes(self):
        """Lanes in which a worker lives, whoever started it."""
        busy = {state["lane"] for _, state in self.children.values()}
        for folder, state in self.states():
            if state["status"] == "running" and holder(folder / core.LOCK) is not None:
                busy.add(state["lane"])
        return busy

    def start(self, folder, state):
        """Start a job's worker as whoever queued it would."""
        self.tried.add((folder.name, state["attempt"]))
        start = state["start"]
        variables = {"S4S_HOME": str(data_home().absolute()), "S4S_SOLVERS": start["solvers"]}
        try:
            process = start_detached(
                start["command"], folder / core.LOG, start["folder"], **variables
            )
        except OSError as error:
            self.note(folder, state, f"Its process cannot be started: {error}.", None)
            return
        self.children[process] = folder, state

    def bury(self):
        """Note the exit code of workers that have ended, and what they could not say themselves."""
        for process in list(self.children):
            if process.poll() is not None:
                folder, state = self.children.pop(process)
                code = process.returncode
                self.note(folder, state, f"Its process ended with code {code} at once.", code)

    def note(self, folder, started, error, code):
        """Put a job's end into its state, where its worker has not done so.

        `started` is the state that it was started with: a job that was resumed meanwhile waits.
        """
        try:
            with Lock(folder / core.LOCK) as lock:
                if not lock.take():
                    return
                state, status = core.read_state(folder), "failed"
                if state["status"] == "running":
                    status, error = "interrupted", core.DIED
                elif (state["status"], state["attempt"]) != ("queued", started["attempt"]):
                    return
                told = {"status": status, "message": error, "error": error, "exit_code": code}
                core.write_state(folder, state | told)
        except (OSError, JobError) as error:  # a deleted job, a full disk: the queue goes on
            print(f"{folder.name}: {error}", file=sys.stderr, flush=True)
