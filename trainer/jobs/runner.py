"""`queue`: the process that runs the queued jobs, one at a time on each device.

It starts a worker for each job and records the deaths that workers cannot record themselves. It
ends when the queue is empty. Workers outlive it; the next runner finds them by their locks.
"""

import subprocess
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from dataclasses import replace

from s4s_core.app.folders import data_home, jobs_home
from s4s_core.app.jobs import OPEN, RUNNER_LOCK, Job, JobState, empty_trash, explained, job_ids
from s4s_core.errors import JobError
from s4s_core.lock import Lock

POLL = 0.5


def add_arguments(parser: ArgumentParser) -> None:
    pass


def run(args: Namespace) -> int:
    run_queue()
    return 0


def run_queue() -> None:
    """Run jobs until the queue is empty; return at once if another runner is alive."""
    with explained(f"Could not run the queue in {jobs_home()}"):
        jobs_home().mkdir(parents=True, exist_ok=True)
    empty_trash()
    runner = Runner()
    while True:
        with Lock(jobs_home() / RUNNER_LOCK) as lock:
            with explained(f"Could not lock {lock.path}"):
                taken = lock.take()
            if not taken:
                return
            runner.work()
        # A job queued while we held the lock has no other runner: check again without it.
        if not runner.waiting():
            return


class Runner:
    """Runs jobs until the queue is empty."""

    def __init__(self) -> None:
        self.children: dict[subprocess.Popen[bytes], tuple[Job, JobState]] = {}
        self.tried: set[tuple[str, int]] = set()

    def work(self) -> None:
        while True:
            self.collect_exits()
            busy = self.busy_lanes()
            waiting = self.waiting()
            for job, state in waiting:
                if state.lane not in busy:
                    self.start(job, state)
                    busy.add(state.lane)
            if not busy and not waiting:
                return
            time.sleep(POLL)

    def open_jobs(self) -> Iterator[tuple[Job, JobState]]:
        """Yield every job that is readable and not over."""
        for id in job_ids():
            try:
                job = Job(id)
                state = job.state()
            except JobError:
                continue
            if state.status in OPEN:
                yield job, state

    def waiting(self) -> list[tuple[Job, JobState]]:
        """Return queued jobs, the longest waiting first, each only once per attempt."""
        queued = [
            (job, state)
            for job, state in self.open_jobs()
            if state.status == "queued" and (job.id, state.attempt) not in self.tried
        ]
        return sorted(queued, key=lambda pair: pair[1].queued)

    def busy_lanes(self) -> set[str]:
        """Return the lanes in which a worker is alive, whoever started it."""
        busy = {state.lane for _, state in self.children.values()}
        for job, state in self.open_jobs():
            if state.status == "running" and job.is_running():
                busy.add(state.lane)
        return busy

    def start(self, job: Job, state: JobState) -> None:
        """Start a job's worker the way whoever queued it would."""
        self.tried.add((job.id, state.attempt))
        start = state.start
        variables = {"S4S_HOME": str(data_home().absolute()), "S4S_SOLVERS": start.solvers}
        try:
            process = job.start(start.command, start.folder, **variables)
        except (OSError, ValueError, IndexError) as error:  # no program, a null byte, no command
            self.note_exit(job, state, f"Could not start the job's process: {error}.", None)
            return
        self.children[process] = job, state

    def collect_exits(self) -> None:
        """Record the exit codes of workers that have ended."""
        for process in list(self.children):
            if process.poll() is not None:
                job, state = self.children.pop(process)
                code = process.returncode
                self.note_exit(
                    job, state, f"The process ended immediately with exit code {code}.", code
                )

    def note_exit(self, job: Job, started: JobState, reason: str, code: int | None) -> None:
        """Record a worker's end in its job's state, unless the worker did so itself.

        started: the state when it was started; a job that was resumed since then stays queued.
        """
        try:
            with job.lock() as lock:
                if not lock.take():
                    return
                state, status = job.state(), "failed"
                if state.status == "running":
                    status, reason = "interrupted", job.death()
                elif (state.status, state.attempt) != ("queued", started.attempt):
                    return
                job.save(
                    replace(state, status=status, message=reason, error=reason, exit_code=code)
                )
        except (OSError, JobError) as error:  # a deleted job, a full disk: the queue goes on
            print(f"{job.id}: {error}", file=sys.stderr, flush=True)
