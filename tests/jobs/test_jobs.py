"""Jobs as folders and processes: the queue, cancelling, deaths of every kind. No training here.

Workers are real processes with the real lock and state, but training is a line of Python.
"""

import os
import re
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from s4s_core.app import jobs as store
from s4s_core.app.detached import LOCK
from s4s_core.app.folders import jobs_home
from s4s_core.app.jobs import Job, list_jobs, runner_is_alive
from s4s_core.app.processes import end_tree
from s4s_core.errors import ConfigError, JobError
from s4s_core.lock import Lock, holder
from trainer.config import TrainConfig, from_toml
from trainer.jobs import queue_job, runner
from trainer.models import ModelChoice

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 120.0
WORKER = f"""
import os, runpy, sys, time
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from s4s_core.errors import S4SError
from trainer.jobs import worker
def train(job):
    folder = job.path
    runpy.run_path(str(folder / "plan.py"), dict(globals(), folder=folder))
    return "made.safetensors"
worker._train = train
sys.exit(worker.work(sys.argv[1]))
"""
HOLD = f"""
import sys, time
sys.path.insert(0, {str(ROOT)!r})
from s4s_core.lock import Lock
Lock(sys.argv[1]).take() and time.sleep(600)
"""
WAIT = "while not (folder.parent / 'go').exists(): time.sleep(0.02)"


@pytest.fixture(autouse=True)
def workers(home, monkeypatch):
    """Workers that run a plan instead of training; nothing that a test starts outlives it."""
    start_workers_with(monkeypatch, [sys.executable, "-c", WORKER])
    monkeypatch.setattr(runner, "POLL", 0.02)
    yield
    for lock in home.rglob("*lock*"):
        pid = holder(lock)
        if pid and pid != os.getpid():
            end_tree(pid)


def start_workers_with(monkeypatch, command):
    monkeypatch.setattr(store, "trainer_command", lambda _, id: [*command, id])


def add(plan="", **changes):
    """Queue a job that runs `plan` instead of training."""
    job = queue_job(TrainConfig(**changes), start=False)
    (job.path / "plan.py").write_text(plan)
    return job


def until(condition, what=""):
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.02)


def status(job):
    return job.view().status


@contextmanager
def running(job):
    """Run the queue in a thread; enter when `job` runs and leave when the queue is empty."""
    thread = threading.Thread(target=runner.run_queue, daemon=True)
    thread.start()
    until(lambda: status(job) == "running", "the job runs")
    yield
    thread.join(PATIENCE)
    assert not thread.is_alive(), "the queue did not end"


def let_go():
    (jobs_home() / "go").touch()


def edit(job, **changes):
    job.save(replace(job.state(), **changes))


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"status": "queued"}', "null"])
def test_a_damaged_job_fails_alone(text):
    bad, good = add(), add()
    (bad.path / store.STATE).write_text(text)
    views = {view.id: view for view in list_jobs()}
    assert views[bad.id].status == "damaged" and "Delete the job" in views[bad.id].error
    runner.run_queue()
    assert status(good) == "done"
    bad.delete()
    assert [view.id for view in list_jobs()] == [good.id]


# The queue


def test_jobs_run_one_after_the_other_in_their_order(home):
    """The newest is listed first."""
    plan = "log = open(folder.parent.parent / 'order', 'a'); print(folder.name, file=log);"
    plan += "log.flush(); time.sleep(0.05); print('end', file=log); log.close()"
    jobs = [add(plan) for _ in range(3)]
    assert [view.id for view in list_jobs()] == [job.id for job in jobs[::-1]]
    runner.run_queue()
    words = (home / "order").read_text().split()
    assert words == [word for job in jobs for word in (job.id, "end")]
    for view in list_jobs():
        assert (view.status, view.exit_code, view.progress) == ("done", 0, 1.0)
        assert view.result == "made.safetensors" and view.error is None
    assert not runner_is_alive()


def test_a_job_runs_as_whoever_queued_it_would_run_it(home, monkeypatch):
    """Not as the runner, which may belong to another host: Python, checkout and folders differ."""

    def be(host):
        (home / host).mkdir()
        monkeypatch.chdir(home / host)
        monkeypatch.setenv("S4S_SOLVERS", os.pathsep.join(["models", "more"]))
        start_workers_with(monkeypatch, [sys.executable, "-c", f"host = {host!r}\n{WORKER}"])

    plan = "print(host, Path.cwd().name, os.environ['S4S_SOLVERS'])"
    be("first")
    one, two = add(plan), add(plan)
    two.cancel()
    be("second")
    two.resume(start=False)
    be("runners")
    monkeypatch.setenv("S4S_HOME", "..")
    runner.run_queue()
    for job, host in ((one, "first"), (two, "second")):
        solvers = os.pathsep.join(str(home / host / name) for name in ("models", "more"))
        assert status(job) == "done" and job.log_tail() == f"{host} {host} {solvers}"


def test_no_config_can_say_how_its_process_is_started():
    with pytest.raises(ConfigError, match="Unknown key 'start'"):
        from_toml('[start]\ncommand = "evil"')
    assert add().state().start.command[0] == sys.executable


def test_a_second_gpu_has_its_own_lane_and_a_second_runner_returns_at_once():
    first = add(WAIT, model=ModelChoice(device="cuda:0"))
    blocked = add(model=ModelChoice(device="auto"))
    other = add(model=ModelChoice(device="cuda:1"))
    with running(first):
        until(lambda: status(other) == "done", "the other GPU's job")
        assert runner_is_alive()
        runner.run_queue()
        assert (status(first), status(blocked)) == ("running", "queued")
        let_go()
    assert status(first) == status(blocked) == "done"


def test_a_job_added_while_the_runner_was_leaving_is_not_forgotten(monkeypatch):
    late, leave = [], runner.Runner.work

    def work(self):
        leave(self)
        if not late:
            late.append(add())  # whoever queued it saw the lock held and started no runner

    monkeypatch.setattr(runner.Runner, "work", work)
    add()
    runner.run_queue()
    assert status(late[0]) == "done"


def test_a_worker_outlives_its_runner_and_the_next_one_waits_for_it(monkeypatch):
    polls, collect = [], runner.Runner.collect_exits
    monkeypatch.setattr(runner.Runner, "collect_exits", lambda r: (polls.append(1), collect(r)))
    first, second = add(WAIT), add("assert (folder.parent / 'go').exists()")
    first.start(first.state().start.command)  # as by a runner that was killed
    until(lambda: status(first) == "running")
    assert runner.Runner().busy_lanes() == {"main"}
    with running(first):
        until(lambda: len(polls) > 2)
        assert status(second) == "queued"
        let_go()
    assert status(first) == status(second) == "done"


# Cancelling


def test_cancelling_ends_the_whole_tree_and_the_next_job_runs(home):
    """Also if several cancel at once."""
    child = home / "child.lock"
    hold = f"start = [sys.executable, '-c', {HOLD!r}, {str(child)!r}]"
    plan = f"import subprocess; {hold}; subprocess.Popen(start); time.sleep(600)"
    first, second = add(plan), add()
    with running(first):
        until(lambda: holder(child), "the child lives")
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda _: first.cancel(), range(4)))
        assert status(first) == "cancelled"
        until(lambda: holder(child) is None, "the child is dead")
    assert (status(first), status(second)) == ("cancelled", "done")
    assert first.view().exit_code is None


def test_a_cancelled_job_is_not_started():
    first, second = add("raise SystemExit(9)"), add()
    first.cancel()
    runner.run_queue()
    second.cancel()
    assert (status(first), status(second)) == ("cancelled", "done")
    command = first.state().start.command  # a worker that was started before the cancellation
    assert subprocess.run(command, capture_output=True, timeout=PATIENCE).returncode == 0
    assert status(first) == "cancelled"


def test_nobody_but_the_worker_is_killed(monkeypatch):
    """The lock is held by another process, and the recorded pid is somebody else's."""
    monkeypatch.setattr(store, "STOP_SECONDS", 0.3)
    job = add()
    command = [sys.executable, "-c", HOLD, job.path / LOCK]
    bystander = subprocess.Popen(command, start_new_session=True)
    try:
        until(lambda: job.holder() == bystander.pid)
        edit(job, status="running", pid=os.getpid())
        with pytest.raises(JobError, match="does not stop"):
            job.cancel()
        with pytest.raises(JobError, match=f"still runs, as process {bystander.pid}"):
            job.delete()
        state = (job.path / store.STATE).read_bytes()
        (job.path / store.STATE).write_bytes(b"[]")
        with pytest.raises(JobError, match=f"still runs, as process {bystander.pid}"):
            job.delete()
        (job.path / store.STATE).write_bytes(state)
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()
    assert status(job) == "interrupted"  # the pid is alive (it is ours), but not the lock
    job.cancel()
    assert status(job) == "cancelled"


def test_a_job_whose_lock_is_held_for_a_moment_is_deleted(monkeypatch):
    """As by the runner, which looks after a worker that has just ended."""
    job = add()
    job.cancel()
    seen = iter([os.getpid(), 0])
    monkeypatch.setattr(Job, "holder", lambda self: next(seen, None))
    job.delete()
    assert not job.path.exists()


# Failing


def test_a_failure_has_a_message_a_code_and_a_log():
    expected = add("print('half way'); raise S4SError('The tea is cold. Heat it.')")
    unexpected = add("raise RuntimeError('sugar' + chr(10) + 'milk')")
    full = add("import errno; raise OSError(errno.ENOSPC, 'no space')")
    good = add()
    runner.run_queue()
    view = expected.view()
    assert (view.status, view.exit_code) == ("failed", 1)
    assert view.error == view.message == "The tea is cold. Heat it."
    assert expected.log_tail() == "half way\nerror: The tea is cold. Heat it."
    assert "Unexpected RuntimeError: sugar milk" in unexpected.view().error
    assert "Traceback" in unexpected.log_tail()
    assert "disk is full" in full.view().error
    assert status(good) == "done"


@pytest.mark.parametrize(("plan", "code"), [("os._exit(3)", 3), ("os.abort()", -6)])
def test_a_worker_that_dies_without_a_word_is_interrupted(plan, code):
    """It can still be cancelled, and resumed."""
    job, good = add(plan), add()
    runner.run_queue()
    view = job.view()
    assert view.status == "interrupted"
    assert re.fullmatch(r"The process died unexpectedly.* is free\)\.", view.error)
    assert view.exit_code == code or os.name == "nt"
    assert status(good) == "done"
    job.cancel()
    view = job.view()
    assert (view.status, view.error, view.exit_code) == ("cancelled", None, None)
    (job.path / "plan.py").write_text("")
    job.resume(start=False)
    runner.run_queue()
    view = job.view()
    assert (view.status, view.error, view.exit_code) == ("done", None, 0)


@pytest.mark.parametrize("command", [[sys.executable, "-c", "raise SystemExit(7)"], ["/no/such"]])
def test_a_worker_that_cannot_begin_fails_once(monkeypatch, command):
    started, start = [], Job.start
    monkeypatch.setattr(Job, "start", lambda *a, **k: (started.append(a), start(*a, **k))[1])
    start_workers_with(monkeypatch, command)
    job = add()
    runner.run_queue()
    assert status(job) == "failed" and len(started) == 1
    assert job.view().exit_code == (7 if len(command) > 1 else None)


def test_a_job_resumed_before_its_death_was_recorded_stays_queued(monkeypatch):
    start_workers_with(monkeypatch, [sys.executable, "-c", ""])
    job, active = add(), runner.Runner()
    active.start(job, job.state())
    next(iter(active.children)).wait(PATIENCE)
    job.cancel()
    job.resume(start=False)
    active.collect_exits()
    assert status(job) == "queued" and [j.id for j, _ in active.waiting()] == [job.id]


def test_a_state_that_cannot_be_written_does_not_stop_the_queue(monkeypatch, capsys):
    """A full disk: the worker ends before it begins, and the runner cannot record it."""

    def refuse(self, state):
        raise OSError(28, "No space left on device")

    start_workers_with(monkeypatch, [sys.executable, "-c", ""])
    jobs = [add(), add()]
    monkeypatch.setattr(Job, "save", refuse)
    runner.run_queue()
    assert [status(job) for job in jobs] == ["queued", "queued"]
    assert capsys.readouterr().err.count("No space left") == 2


def test_after_a_reboot_a_running_job_is_interrupted_and_can_be_resumed():
    job = add()
    edit(job, status="running", pid=os.getpid())  # the pid is another process's by now
    assert status(job) == "interrupted" and "died unexpectedly" in job.view().error
    job.resume(start=False)
    with pytest.raises(JobError, match="is queued: there is nothing to resume"):
        job.resume(start=False)
    runner.run_queue()
    assert status(job) == "done"


def test_a_running_job_cannot_be_resumed_and_a_resumed_one_queues_behind():
    first, second = add(WAIT), add()
    with running(first):
        with pytest.raises(JobError, match="is running: there is nothing to resume"):
            first.resume()
        first.cancel()
    assert status(second) == "done"
    third = add()
    first.resume(start=False)
    assert [job.id for job, _ in runner.Runner().waiting()] == [third.id, first.id]


def test_deleting_stops_a_job_and_removes_it():
    job, other = add("time.sleep(600)"), add()
    with running(job):
        job.delete()
        assert not job.path.exists() and not list(jobs_home().glob(".old-*"))
    assert status(other) == "done"


# The lock


def test_a_lock_is_one_processs_and_dies_with_it(tmp_path):
    path = tmp_path / "a.lock"
    assert holder(path) is None
    with Lock(path) as lock:
        assert lock.take() and holder(path) == os.getpid()
        assert not Lock(path).take(wait=0.05)
    assert holder(path) is None
    process = subprocess.Popen([sys.executable, "-c", HOLD, path])
    until(lambda: holder(path) == process.pid)
    process.kill()
    process.wait()
    assert holder(path) is None
    with Lock(path) as lock:
        assert lock.take()
