"""Jobs as folders and processes: the queue, cancelling, deaths of every kind. No training here.

Workers are real processes with the real lock and state, but training is a line of Python.
"""

import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from s4s_core.app import jobs as store
from s4s_core.app.detached import LOCK, LOG
from s4s_core.app.folders import jobs_home
from s4s_core.app.jobs import Job, list_jobs, runner_is_alive
from s4s_core.app.processes import end_tree
from s4s_core.errors import ConfigError, JobError
from s4s_core.lock import Lock, holder
from trainer.cli import main
from trainer.config import TrainConfig, from_toml
from trainer.jobs import job_config, queue_job, runner
from trainer.models import ModelChoice

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 120.0
WORKER = f"""
import os, runpy, sys, time
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from s4s_core.errors import S4SError
from trainer.jobs import worker
def train(folder):
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
def home(tmp_path, monkeypatch):
    """A data folder of its own; nothing that a test starts outlives it."""
    monkeypatch.setenv("S4S_HOME", str(tmp_path))
    monkeypatch.delenv("S4S_SOLVERS", raising=False)
    start_workers_with(monkeypatch, [sys.executable, "-c", WORKER])
    monkeypatch.setattr(runner, "POLL", 0.02)
    yield tmp_path
    for lock in tmp_path.rglob("*lock*"):
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


def in_background():
    thread = threading.Thread(target=runner.run_queue, daemon=True)
    thread.start()
    return thread


def join(thread):
    thread.join(PATIENCE)
    assert not thread.is_alive(), "the thread did not end"


def let_go():
    (jobs_home() / "go").touch()


def edit(job, **changes):
    job.save(replace(job.state(), **changes))


# Views


def test_a_new_job_is_queued_and_describes_itself():
    config = TrainConfig(name="mine", nfes=(4, 8), model=ModelChoice("mixture"))
    job = add(name="mine", nfes=(8, 4), model=ModelChoice("mixture"))
    view = job.view()
    assert (view.id, view.name, view.model, view.nfes) == (job.id, "mine", "mixture", [4, 8])
    assert (view.status, view.progress, view.eta, view.calls) == ("queued", 0.0, None, 0)
    assert view.error is view.exit_code is view.result is None
    assert view.created.endswith("+00:00")
    assert json.loads(json.dumps(view.plain())) == view.plain()
    assert job_config(job) == config
    assert job.metrics() == [] and job.log_tail() == "" and job.sheet() is None


def test_the_newest_job_is_listed_first():
    assert list_jobs() == []
    ids = [add(name=str(number)).id for number in range(4)]
    assert [view.id for view in list_jobs()] == ids[::-1]


def test_two_jobs_of_one_second_have_different_ids(monkeypatch):
    now = store.datetime.now(store.timezone.utc)
    fixed = type("Clock", (), {"now": staticmethod(lambda zone: now)})
    drawn = iter(["aaaaaa", "aaaaaa", "bbbbbb"])
    monkeypatch.setattr(store, "datetime", fixed)
    monkeypatch.setattr(store.secrets, "token_hex", lambda n: next(drawn) if n == 3 else "0" * n)
    assert [add().id[-6:], add().id[-6:]] == ["aaaaaa", "bbbbbb"]


@pytest.mark.parametrize("id", ["", "nothing", "../jobs", "20200101-000000-abcdef", "x" * 500, 5])
def test_only_existing_jobs_are_opened(id):
    add()
    with pytest.raises(JobError, match="There is no job"):
        Job(id)


def test_metrics_survive_a_torn_line_and_are_thinned():
    job = add()
    edit(job, status="running")
    lines = [json.dumps({"step": n, "loss": 1.0, "calls": n, "progress": 0.5}) for n in range(1000)]
    text = json.dumps({"phase": "teacher", "loss": None}) + "\n" + "\n".join(lines)
    (job.path / store.METRICS).write_text(text + '\n{"step": 1000, "lo')
    assert job.view().calls == 999
    steps = [line["step"] for line in job.metrics(most=100)]
    assert len(steps) == 100 and steps == sorted(steps) and steps[-1] == 999
    assert len(job.metrics(most=5000)) == 1000


def test_the_end_of_the_log_and_the_newest_sheet():
    job = add()
    (job.path / LOG).write_bytes(b"\xff\n" + b"".join(b"%d\n" % n for n in range(9999)))
    assert job.log_tail(3) == "9996\n9997\n9998"
    (job.path / store.SAMPLES).mkdir()
    for name in ("0002.png", "0010.png", ".s4s-x.tmp"):
        (job.path / store.SAMPLES / name).touch()
    assert job.sheet().name == "0010.png"


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"status": "queued"}', "null"])
def test_a_damaged_job_fails_alone(text):
    bad, good = add(), add()
    (bad.path / store.STATE).write_text(text)
    views = {view.id: view for view in list_jobs()}
    assert views[bad.id].status == "failed" and "Delete the job" in views[bad.id].error
    runner.run_queue()
    assert status(good) == "done"
    bad.delete()
    assert [view.id for view in list_jobs()] == [good.id]


# The queue


def test_jobs_run_one_after_the_other_in_their_order(home):
    plan = (
        "log = open(folder.parent.parent / 'order', 'a'); log.write(f'{folder.name} '); log.flush()"
    )
    jobs = [add(f"{plan}; time.sleep(0.05); log.write('end '); log.close()") for _ in range(3)]
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

    def expected(host):
        solvers = os.pathsep.join(str(home / host / name) for name in ("models", "more"))
        return f"{host} {host} {solvers}"

    plan = "print(host, Path.cwd().name, os.environ['S4S_SOLVERS'])"
    be("first")
    one, two = add(plan), add(plan)
    two.cancel()
    be("second")
    two.resume(start=False)
    be("runners")
    monkeypatch.setenv("S4S_HOME", "..")
    runner.run_queue()
    assert (status(one), status(two)) == ("done", "done")
    assert (one.log_tail(), two.log_tail()) == (expected("first"), expected("second"))


def test_no_config_can_say_how_its_process_is_started():
    with pytest.raises(ConfigError, match="Unknown key 'start'"):
        from_toml('[start]\ncommand = "evil"')
    assert add().state().start["command"][0] == sys.executable


def test_a_second_gpu_has_its_own_lane():
    first = add(WAIT, model=ModelChoice(device="cuda:0"))
    blocked = add(model=ModelChoice(device="auto"))
    other = add(model=ModelChoice(device="cuda:1"))
    thread = in_background()
    until(lambda: (status(first), status(other)) == ("running", "done"), "the other GPU's job")
    assert status(blocked) == "queued"
    let_go()
    join(thread)
    assert status(first) == status(blocked) == "done"


def test_a_second_runner_returns_at_once():
    job = add(WAIT)
    thread = in_background()
    until(lambda: status(job) == "running")
    assert runner_is_alive()
    runner.run_queue()
    assert status(job) == "running"
    let_go()
    join(thread)


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
    first.start(first.state().start["command"])  # as by a runner that was killed
    until(lambda: status(first) == "running")
    assert runner.Runner().busy_lanes() == {"main"}
    thread = in_background()
    until(lambda: len(polls) > 2)
    assert status(second) == "queued"
    let_go()
    join(thread)
    assert status(first) == status(second) == "done"


# Cancelling


def test_cancelling_ends_the_whole_tree_and_the_next_job_runs(home):
    child = home / "child.lock"
    hold = f"start = [sys.executable, '-c', {HOLD!r}, {str(child)!r}]"
    plan = f"import subprocess; {hold}; subprocess.Popen(start); time.sleep(600)"
    first, second = add(plan), add()
    thread = in_background()
    until(lambda: holder(child) and status(first) == "running")
    first.cancel()
    assert status(first) == "cancelled"
    until(lambda: holder(child) is None, "the child is dead")
    join(thread)
    assert (status(first), status(second)) == ("cancelled", "done")
    assert first.view().exit_code is None


def test_a_cancelled_job_is_not_started():
    first, second = add("raise SystemExit(9)"), add()
    first.cancel()
    runner.run_queue()
    second.cancel()
    assert (status(first), status(second)) == ("cancelled", "done")
    command = first.state().start["command"]  # a worker that was started before the cancellation
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
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()
    assert status(job) == "interrupted"  # the pid is alive (it is ours), but not the lock
    job.cancel()
    assert status(job) == "cancelled"


def test_cancelling_twice_at_once_is_harmless():
    job = add("time.sleep(600)")
    thread = in_background()
    until(lambda: status(job) == "running")
    threads = [threading.Thread(target=job.cancel) for _ in range(4)]
    for each in threads:
        each.start()
    for each in [*threads, thread]:
        join(each)
    assert status(job) == "cancelled"


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
    job, good = add(plan), add()
    runner.run_queue()
    view = job.view()
    assert (view.status, view.error) == ("interrupted", store.DIED)
    assert view.exit_code == code or os.name == "nt"
    assert status(good) == "done"
    (job.path / "plan.py").write_text("")
    job.resume(start=False)
    assert status(job) == "queued"
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
    assert status(job) == "interrupted" and job.view().error == store.DIED
    job.resume(start=False)
    with pytest.raises(JobError, match="is queued: there is nothing to resume"):
        job.resume(start=False)
    runner.run_queue()
    assert status(job) == "done"


def test_a_job_that_the_runner_saw_die_first_is_still_cancelled():
    job = add()
    edit(job, status="interrupted", error=store.DIED, exit_code=-9)
    job.cancel()
    view = job.view()
    assert (view.status, view.error, view.exit_code) == ("cancelled", None, None)


def test_a_running_job_cannot_be_resumed_and_a_resumed_one_queues_behind():
    first, second = add(WAIT), add()
    thread = in_background()
    until(lambda: status(first) == "running")
    with pytest.raises(JobError, match="is running: there is nothing to resume"):
        first.resume()
    first.cancel()
    join(thread)
    assert status(second) == "done"
    third = add()
    first.resume(start=False)
    assert [job.id for job, _ in runner.Runner().waiting()] == [third.id, first.id]


def test_deleting_stops_a_job_and_removes_it():
    job, other = add("time.sleep(600)"), add()
    thread = in_background()
    until(lambda: status(job) == "running")
    job.delete()
    assert not job.path.exists() and not list(jobs_home().glob(".old-*"))
    join(thread)
    assert status(other) == "done"


def test_a_job_that_cannot_be_saved_says_why(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("S4S_HOME", str(tmp_path / "file"))
    with pytest.raises(JobError, match="Could not save the job"):
        queue_job(TrainConfig(), start=False)


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


def test_asking_who_holds_a_lock_never_keeps_others_from_it(tmp_path):
    path, stop = tmp_path / "a.lock", threading.Event()

    def ask():
        while not stop.is_set():
            holder(path)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for each in threads:
        each.start()
    try:
        for _ in range(20):
            with Lock(path) as lock:
                assert lock.take(wait=PATIENCE)
    finally:
        stop.set()
        for each in threads:
            each.join()


# The command line


def run(capsys, *arguments):
    code = main(["jobs", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_command_line_sees_the_same_jobs(capsys, monkeypatch):
    monkeypatch.setattr(store, "ensure_runner", lambda: None)
    assert run(capsys)[1] == "There are no jobs.\n"
    code, out, _ = run(capsys, "add", "--model", "mixture", "--nfe", "4,6", "--name", "x", "--json")
    view = json.loads(out)
    job = Job(view["id"])
    assert code == 0 and view == job.view().plain() and view["nfes"] == [4, 6]
    assert json.loads(run(capsys, "list", "--json")[1]) == {"jobs": [view]}
    assert job.id in run(capsys, "list")[1]
    cancelled = json.loads(run(capsys, "cancel", job.id, "--json")[1])
    assert cancelled["jobs"][0]["status"] == "cancelled"
    assert run(capsys, "resume", job.id)[0] == 0 and status(job) == "queued"
    shown = json.loads(run(capsys, "show", job.id, "--json")[1])
    assert shown["config"]["nfes"] == [4, 6] and shown["log"] == "" and shown["grid"] is None
    edit(job, status="failed", error="Too bad.", message="Too bad.", exit_code=1)
    (job.path / LOG).write_text("last words\n")
    text = run(capsys, "show", job.id)[1]
    assert all(part in text for part in ("Too bad.", "Exit code 1", "last words"))
    assert run(capsys, "delete", job.id)[0] == 0 and list_jobs() == []


@pytest.mark.parametrize(
    "arguments", [["cancel"], ["show"], ["delete", "x"], ["add", "--nfe", "0"]]
)
def test_bad_commands_print_one_line(capsys, arguments):
    code, out, err = run(capsys, *arguments)
    assert code == 1 and not out and err.startswith("error: ") and err.count("\n") == 1
