"""Jobs as folders and processes: the queue, cancelling, deaths of every kind. No training here.

Workers are real processes with the real lock and state, whose training is a line of Python.
"""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from s4s_core.app import jobs as core
from s4s_core.app.folders import jobs_home
from s4s_core.app.processes import end_tree, start_detached
from s4s_core.errors import ConfigError, JobError
from s4s_core.lock import Lock, holder
from trainer import jobs
from trainer.cli import main
from trainer.config import TrainConfig, from_toml
from trainer.jobs import runner
from trainer.models import ModelChoice

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 120.0
WORKER = f"""
import os, runpy, sys, time
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from s4s_core.app import jobs as core
from s4s_core.errors import S4SError
from s4s_core.app.processes import start_detached
from s4s_core.lock import Lock
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
    """A home of its own; nothing that a test starts outlives it."""
    monkeypatch.setenv("S4S_HOME", str(tmp_path))
    monkeypatch.delenv("S4S_SOLVERS", raising=False)
    worker = lambda _, id: [sys.executable, "-c", WORKER, id]  # noqa: E731
    monkeypatch.setattr(jobs, "trainer_command", worker)
    monkeypatch.setattr(runner, "POLL", 0.02)
    yield tmp_path
    for lock in tmp_path.rglob("*lock*"):
        pid = holder(lock)
        if pid and pid != os.getpid():
            end_tree(pid)


def add(plan="", **changes):
    """Queue a job whose training is `plan`."""
    id = jobs.add(TrainConfig(**changes), start=False)
    (jobs_home() / id / "plan.py").write_text(plan)
    return id


def until(condition, what=""):
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.02)


def status(id):
    return core.job_view(id)["status"]


def in_background():
    """The runner in a thread; its `ended` is set when it returns."""
    thread = threading.Thread(target=runner.run, daemon=True)
    thread.start()
    return thread


def join(thread):
    thread.join(PATIENCE)
    assert not thread.is_alive(), "the runner did not end"


def edit(id, **changes):
    folder = core.job_folder(id)
    core.write_state(folder, core.read_state(folder) | changes)


# Seeing


def test_a_new_job_waits_and_says_what_it_is():
    id = add(name="mine", nfes=(8, 4), model=ModelChoice("mixture"))
    view = core.job_view(id)
    assert view | {"id": id, "name": "mine", "model": "mixture", "nfes": [4, 8]} == view
    assert (view["status"], view["progress"], view["eta"], view["calls"]) == (
        "queued",
        0.0,
        None,
        0,
    )
    assert view["error"] is view["exit_code"] is view["result"] is None
    assert view["created"].endswith("+00:00") and json.loads(json.dumps(view)) == view
    assert jobs.job(id).config == TrainConfig(
        name="mine", nfes=(4, 8), model=ModelChoice("mixture")
    )
    assert jobs.job(id).metrics() == [] and jobs.job(id).log_tail() == ""
    assert jobs.job(id).grid() is None


def test_the_newest_job_is_listed_first():
    ids = [add(name=str(number)) for number in range(4)]
    assert [view["id"] for view in core.list_jobs()] == ids[::-1]
    assert [view["name"] for view in core.list_jobs()] == ["3", "2", "1", "0"]


def test_two_jobs_of_one_second_never_share_a_name(monkeypatch):
    now = jobs.datetime.now(jobs.timezone.utc)
    fixed = type("Clock", (), {"now": staticmethod(lambda zone: now)})
    drawn = iter(["aaaaaa", "aaaaaa", "bbbbbb"])
    monkeypatch.setattr(jobs, "datetime", fixed)
    monkeypatch.setattr(jobs.secrets, "token_hex", lambda n: next(drawn) if n == 3 else "0" * n)
    first, second = add(), add()
    assert (first[-6:], second[-6:]) == ("aaaaaa", "bbbbbb")


def test_there_are_no_jobs_where_there_is_no_folder():
    assert core.list_jobs() == []


@pytest.mark.parametrize("id", ["", "nothing", "../jobs", "20200101-000000-abcdef", "x" * 500, 5])
def test_only_names_of_jobs_are_looked_for(id, home):
    add()
    for act in (core.job_view, core.request_cancel, jobs.resume, jobs.delete, jobs.job):
        with pytest.raises(JobError, match="There is no job"):
            act(id)


def test_metrics_forgive_a_torn_line_and_are_thinned():
    id = add()
    edit(id, status="running")
    lines = [json.dumps({"step": n, "loss": 1.0, "calls": n, "progress": 0.5}) for n in range(1000)]
    text = json.dumps({"phase": "teacher", "loss": None}) + "\n" + "\n".join(lines)
    (core.job_folder(id) / core.METRICS).write_text(text + '\n{"step": 1000, "lo')
    assert core.job_view(id)["calls"] == 999
    steps = [line["step"] for line in jobs.job(id).metrics(most=100)]
    assert len(steps) == 100 and steps == sorted(steps) and steps[-1] == 999
    assert len(jobs.job(id).metrics(most=5000)) == 1000


def test_the_end_of_the_log_and_the_newest_grid():
    id = add()
    folder = core.job_folder(id)
    (folder / core.LOG).write_bytes(b"\xff\n" + b"".join(b"%d\n" % n for n in range(9999)))
    assert jobs.job(id).log_tail(3) == "9996\n9997\n9998"
    (folder / core.SAMPLES).mkdir()
    for name in ("0002.png", "0010.png", ".s4s-x.tmp"):
        (folder / core.SAMPLES / name).touch()
    assert jobs.job(id).grid().name == "0010.png"


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"status": "queued"}', "null"])
def test_a_damaged_job_fails_alone(text):
    bad, good = add(), add()
    (core.job_folder(bad) / core.STATE).write_text(text)
    views = {view["id"]: view for view in core.list_jobs()}
    assert views[bad]["status"] == "failed" and "delete the job" in views[bad]["error"]
    runner.run()
    assert status(good) == "done"
    jobs.delete(bad)
    assert [view["id"] for view in core.list_jobs()] == [good]


# The queue


def test_jobs_run_one_after_the_other_in_their_order(home):
    plan = (
        "log = open(folder.parent.parent / 'order', 'a'); log.write(f'{folder.name} '); log.flush()"
    )
    ids = [add(f"{plan}; time.sleep(0.05); log.write('end '); log.close()") for _ in range(3)]
    runner.run()
    assert (home / "order").read_text().split() == [word for id in ids for word in (id, "end")]
    for id in ids:
        view = core.job_view(id)
        assert (view["status"], view["exit_code"], view["progress"]) == ("done", 0, 1.0)
        assert view["result"] == "made.safetensors" and view["error"] is None
    assert not jobs.is_running()


def test_a_job_runs_as_whoever_queued_it_would_run_it(home, monkeypatch):
    """Not as the runner, which may be another host's: Python, checkout and folders are its own."""

    def be(host):
        (home / host).mkdir()
        monkeypatch.chdir(home / host)
        monkeypatch.setenv("S4S_SOLVERS", os.pathsep.join(["models", "more"]))
        worker = f"host = {host!r}\n{WORKER}"
        monkeypatch.setattr(
            jobs, "trainer_command", lambda _, id: [sys.executable, "-c", worker, id]
        )

    plan = "print(host, Path.cwd().name, os.environ['S4S_SOLVERS'])"
    solvers = lambda host: f"{home / host / 'models'}{os.pathsep}{home / host / 'more'}"  # noqa: E731
    be("first")
    one, two = add(plan), add(plan)
    jobs.cancel(two)
    be("second")
    jobs.resume(two, start=False)
    be("runners")
    monkeypatch.setenv("S4S_HOME", "..")
    runner.run()
    assert (status(one), status(two)) == ("done", "done")
    assert jobs.job(one).log_tail() == f"first first {solvers('first')}"
    assert jobs.job(two).log_tail() == f"second second {solvers('second')}"


def test_no_config_can_say_how_its_process_is_started():
    with pytest.raises(ConfigError, match="no key 'start'"):
        from_toml('[start]\ncommand = "evil"')
    assert core.read_state(core.job_folder(add()))["start"]["command"][0] == sys.executable


def test_a_second_gpu_has_its_own_turn(home):
    first = add(WAIT, model=ModelChoice(device="cuda:0"))
    blocked = add(model=ModelChoice(device="auto"))
    other = add(model=ModelChoice(device="cuda:1"))
    thread = in_background()
    until(lambda: (status(first), status(other)) == ("running", "done"), "the other GPU's job")
    assert status(blocked) == "queued"
    (jobs_home() / "go").touch()
    join(thread)
    assert status(first) == status(blocked) == "done"


def test_one_runner_is_enough(home):
    id = add(WAIT)
    thread = in_background()
    until(lambda: status(id) == "running")
    assert jobs.is_running()
    began = time.monotonic()
    runner.run()  # returns, because another one works
    assert time.monotonic() - began < PATIENCE and status(id) == "running"
    (jobs_home() / "go").touch()
    join(thread)


def test_a_job_added_while_the_runner_was_leaving_is_not_forgotten(monkeypatch):
    late, leave = [], runner.Runner.work

    def work(self):
        leave(self)
        if not late:
            late.append(add())  # its author saw the lock held and relied on this runner

    monkeypatch.setattr(runner.Runner, "work", work)
    add()
    runner.run()
    assert status(late[0]) == "done"


def test_a_worker_outlives_its_runner_and_the_next_one_waits_for_it(home):
    first, second = add(WAIT), add("assert (folder.parent / 'go').exists()")
    command = jobs.trainer_command("work", first)
    start_detached(command, core.job_folder(first) / core.LOG)  # as by a runner that was killed
    until(lambda: status(first) == "running")
    assert runner.Runner().busy_lanes() == {"main"}
    thread = in_background()
    time.sleep(0.3)  # a runner that does not wait would start the second one now
    assert status(second) == "queued"
    (jobs_home() / "go").touch()
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
    jobs.cancel(first)
    assert status(first) == "cancelled"
    until(lambda: holder(child) is None, "the child is dead")
    join(thread)
    assert status(second) == "done" and status(first) == "cancelled"
    assert core.job_view(first)["exit_code"] is None


def test_a_waiting_job_loses_its_turn():
    first, second = add(), add()
    jobs.cancel(first)
    runner.run()
    assert status(first) == "cancelled" and status(second) == "done"
    jobs.cancel(second)
    assert status(second) == "done"


def test_a_worker_finds_its_job_cancelled_meanwhile():
    id = add("raise SystemExit(9)")
    jobs.cancel(id)
    command = jobs.trainer_command("work", id)
    assert subprocess.run(command, capture_output=True, timeout=PATIENCE).returncode == 0
    assert status(id) == "cancelled"


def test_nobody_but_the_worker_is_killed(home, monkeypatch):
    """A lock held by a process that is not the worker, and a pid that is now somebody else's."""
    monkeypatch.setattr(core, "_PATIENCE", 0.3)
    id = add()
    command = [sys.executable, "-c", HOLD, core.job_folder(id) / core.LOCK]
    bystander = subprocess.Popen(command, start_new_session=True)
    try:
        until(lambda: holder(core.job_folder(id) / core.LOCK) == bystander.pid)
        edit(id, status="running", pid=os.getpid())
        with pytest.raises(JobError, match="does not end"):
            jobs.cancel(id)
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()
    assert status(id) == "interrupted"  # the pid lives (it is ours), the lock tells
    jobs.cancel(id)
    assert status(id) == "cancelled"


def test_cancelling_twice_at_once_is_harmless():
    id = add("time.sleep(600)")
    thread = in_background()
    until(lambda: status(id) == "running")
    threads = [threading.Thread(target=jobs.cancel, args=[id]) for _ in range(4)]
    for each in threads:
        each.start()
    for each in [*threads, thread]:
        join(each)
    assert status(id) == "cancelled"


# Failing


def test_a_failure_has_a_sentence_a_code_and_a_log():
    told = add("print('half way'); raise S4SError('The tea is cold: heat it.')")
    unforeseen = add("raise RuntimeError('sugar' + chr(10) + 'milk')")
    full = add("import errno; raise OSError(errno.ENOSPC, 'no space')")
    good = add()
    runner.run()
    view = core.job_view(told)
    assert (view["status"], view["exit_code"]) == ("failed", 1)
    assert view["error"] == view["message"] == "The tea is cold: heat it."
    assert jobs.job(told).log_tail() == "half way\nerror: The tea is cold: heat it."
    assert "RuntimeError stopped it (sugar milk)" in core.job_view(unforeseen)["error"]
    assert "Traceback" in jobs.job(unforeseen).log_tail()
    assert "disk is full" in core.job_view(full)["error"]
    assert status(good) == "done"


@pytest.mark.parametrize(("plan", "code"), [("os._exit(3)", 3), ("os.abort()", -6)])
def test_a_worker_that_dies_without_a_word_is_interrupted(plan, code):
    id, good = add(plan), add()
    runner.run()
    view = core.job_view(id)
    assert (view["status"], view["error"]) == ("interrupted", core.DIED)
    assert view["exit_code"] == code or os.name == "nt"
    assert status(good) == "done"
    (core.job_folder(id) / "plan.py").write_text("")
    jobs.resume(id, start=False)
    assert status(id) == "queued"
    runner.run()
    assert core.job_view(id) | {"status": "done", "error": None, "exit_code": 0} == core.job_view(
        id
    )


@pytest.mark.parametrize("command", [[sys.executable, "-c", "raise SystemExit(7)"], ["/no/such"]])
def test_a_worker_that_cannot_begin_fails_once(monkeypatch, command):
    started = []
    start = lambda *a, **k: started.append(a) or start_detached(*a, **k)  # noqa: E731
    monkeypatch.setattr(runner, "start_detached", start)
    monkeypatch.setattr(jobs, "trainer_command", lambda *a: command)
    id = add()
    runner.run()
    assert status(id) == "failed" and len(started) == 1
    assert core.job_view(id)["exit_code"] == (7 if len(command) > 1 else None)


def test_a_job_resumed_before_its_death_was_noted_still_waits(monkeypatch):
    monkeypatch.setattr(jobs, "trainer_command", lambda *a: [sys.executable, "-c", ""])
    id = add()
    folder, tended = core.job_folder(id), runner.Runner()
    tended.start(folder, core.read_state(folder))
    next(iter(tended.children)).wait(PATIENCE)
    jobs.cancel(id)
    jobs.resume(id, start=False)
    tended.bury()
    assert status(id) == "queued" and [f.name for f, _ in tended.waiting()] == [id]


def test_a_state_that_cannot_be_written_does_not_stop_the_queue(monkeypatch, capsys):
    """A full disk: the worker ends without having begun, and the runner cannot note it."""

    def refuse(folder, state):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(jobs, "trainer_command", lambda *a: [sys.executable, "-c", ""])
    ids = [add(), add()]
    monkeypatch.setattr(core, "write_state", refuse)
    runner.run()
    assert [status(id) for id in ids] == ["queued", "queued"]
    assert capsys.readouterr().err.count("No space left") == 2


def test_after_a_reboot_a_running_job_is_interrupted_and_can_be_resumed():
    id = add()
    edit(id, status="running", pid=os.getpid())  # the number is another process's by now
    assert status(id) == "interrupted" and core.job_view(id)["error"] == core.DIED
    jobs.resume(id, start=False)
    with pytest.raises(JobError, match="is queued: there is nothing to resume"):
        jobs.resume(id, start=False)
    runner.run()
    assert status(id) == "done"


def test_a_job_that_the_runner_saw_die_first_is_still_cancelled():
    id = add()
    edit(id, status="interrupted", error=core.DIED, exit_code=-9)
    jobs.cancel(id)
    view = core.job_view(id)
    assert (view["status"], view["error"], view["exit_code"]) == ("cancelled", None, None)


def test_a_running_job_cannot_be_resumed_and_a_resumed_one_queues_behind():
    first = add(WAIT)
    second = add()
    thread = in_background()
    until(lambda: status(first) == "running")
    with pytest.raises(JobError, match="is running: there is nothing to resume"):
        jobs.resume(first)
    jobs.cancel(first)
    join(thread)
    assert status(second) == "done"
    third = add()
    jobs.resume(first, start=False)
    assert [folder.name for folder, _ in runner.Runner().waiting()] == [third, first]


def test_deleting_stops_a_job_and_removes_it():
    id, other = add("time.sleep(600)"), add()
    thread = in_background()
    until(lambda: status(id) == "running")
    lock = core.job_folder(id) / core.LOCK
    jobs.delete(id)
    assert not lock.parent.exists() and not list(jobs_home().glob(".old-*"))
    join(thread)
    assert status(other) == "done"


def test_no_room_for_a_new_job_is_one_sentence(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("S4S_HOME", str(tmp_path / "file"))
    with pytest.raises(JobError, match="the job cannot be saved there"):
        jobs.add(TrainConfig(), start=False)


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

    askers = [threading.Thread(target=ask) for _ in range(3)]
    for each in askers:
        each.start()
    try:
        for _ in range(20):
            with Lock(path) as lock:
                assert lock.take(wait=PATIENCE)
    finally:
        stop.set()
        for each in askers:
            each.join()


# The command line


def run(capsys, *arguments):
    code = main(["jobs", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_command_line_sees_the_same_jobs(capsys, monkeypatch):
    monkeypatch.setattr(jobs, "ensure_runner", lambda: None)
    assert run(capsys)[1] == "There are no jobs.\n"
    code, out, _ = run(capsys, "add", "--model", "mixture", "--nfe", "4,6", "--name", "x", "--json")
    view = json.loads(out)
    id = view["id"]
    assert code == 0 and view == core.job_view(id) and view["nfes"] == [4, 6]
    assert json.loads(run(capsys, "list", "--json")[1]) == {"jobs": [view]}
    assert id in run(capsys, "list")[1]
    assert json.loads(run(capsys, "cancel", id, "--json")[1])["jobs"][0]["status"] == "cancelled"
    assert run(capsys, "resume", id)[0] == 0 and status(id) == "queued"
    shown = json.loads(run(capsys, "show", id, "--json")[1])
    assert shown["config"]["nfes"] == [4, 6] and shown["log"] == "" and shown["grid"] is None
    edit(id, status="failed", error="Too bad.", message="Too bad.", exit_code=1)
    (core.job_folder(id) / core.LOG).write_text("last words\n")
    text = run(capsys, "show", id)[1]
    assert "Too bad." in text and "exit code 1" in text and "last words" in text
    assert run(capsys, "delete", id)[0] == 0 and core.list_jobs() == []


@pytest.mark.parametrize(
    "arguments", [["cancel"], ["show"], ["delete", "x"], ["add", "--nfe", "0"]]
)
def test_bad_commands_get_one_sentence(capsys, arguments):
    code, out, err = run(capsys, *arguments)
    assert code == 1 and not out and err.startswith("error: ") and err.count("\n") == 1
