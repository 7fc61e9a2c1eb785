"""What lies in a job's folder may be anything: that job is damaged, and nothing else changes."""

import errno
import json
import math
import os
from contextlib import suppress
from dataclasses import asdict, fields

import pytest
from hostile import ODD_VALUES, make_deep
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from s4s_core import lock
from s4s_core.app import detached
from s4s_core.app import jobs as store
from s4s_core.app.detached import LOCK, LOG, STATE
from s4s_core.app.folders import jobs_home
from s4s_core.app.jobs import CONFIG, METRICS, JobState, list_jobs
from s4s_core.app.progress import Metric
from s4s_core.errors import JobError, S4SError
from trainer import rendering
from trainer.cli import main
from trainer.config import TrainConfig
from trainer.jobs import queue_job, runner, worker

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=8,
)
ODD = JSON | st.sampled_from([v for v in ODD_VALUES if not isinstance(v, bytes) and v != 10**5000])
DEEP = b'{"name":' * 100_000
RAW = [b"", b"{", b"[]", b"null", b"5", b"\xff\xfe", b"[" * 100_000, DEEP, b"9" * 5000, b'"x"']

ENSURE_RUNNER = store.ensure_runner
FUZZ = settings(max_examples=60, suppress_health_check=list(HealthCheck), deadline=None)


@pytest.fixture(autouse=True)
def no_processes(monkeypatch):
    """A worker that cannot start: nothing here trains."""
    monkeypatch.setattr(store, "ensure_runner", lambda: None)
    monkeypatch.setattr(store, "trainer_command", lambda *_: ["/no/such/program"])
    monkeypatch.setattr(runner, "POLL", 0.0)


def add():
    return queue_job(TrainConfig(), start=False)


def show_all(capsys):
    """Use everything that reads jobs; return their views by id."""
    views = {view.id: view for view in list_jobs()}
    assert json.loads(json.dumps([view.plain() for view in views.values()], allow_nan=False))
    for arguments in (["list"], ["list", "--json"], *(["show", id] for id in views)):
        assert main(["jobs", *arguments]) == 0
        shown, said = capsys.readouterr()
        assert not said and "\x1b" not in shown
    return views


@FUZZ
@given(st.sampled_from([field.name for field in fields(JobState)]), ODD)
@example("created", None)
@example("lane", [])
@example("start", {"command": [], "folder": "\0", "solvers": ""})
@example("start", {"command": ["a\0b"], "folder": "/", "solvers": ""})
@example("pid", 10**400)
@example("nfes", [10**400])
def test_a_state_of_any_types_damages_only_its_job(capsys, name, value):
    bad, good = add(), add()
    state = asdict(bad.state()) | {name: value}
    (bad.path / STATE).write_text(json.dumps(state))
    views = show_all(capsys)
    assert views[good.id].status == "queued" and bad.id in views
    runner.run_queue()
    assert good.view().status == "failed"  # the worker could not start: its turn came
    if views[bad.id].status == store.DAMAGED:
        assert "Delete the job" in views[bad.id].error and views[bad.id].error.isprintable()
        for action in (bad.cancel, bad.resume, bad.state):
            with pytest.raises(JobError, match="Delete the job"):
                action()
    for job in (bad, good):
        job.delete()
    assert list_jobs() == []


@pytest.mark.parametrize("data", RAW, ids=lambda data: str(data[:12]))
def test_a_file_that_is_no_state_damages_only_its_job(capsys, data):
    bad, good = add(), add()
    (bad.path / STATE).write_bytes(data)
    assert {id: view.status for id, view in show_all(capsys).items()} == {
        bad.id: "damaged",
        good.id: "queued",
    }


def test_a_state_of_a_later_version_is_read():
    job = add()
    (job.path / STATE).write_text(json.dumps(asdict(job.state()) | {"mood": "fine"}))
    assert job.view().status == "queued"


@FUZZ
@given(st.sampled_from([field.name for field in fields(Metric)]), ODD)
@example("calls", "many")
@example("progress", 7)
def test_metrics_that_do_not_fit_are_passed_over(capsys, name, value):
    job, good = add(), Metric("gauss-newton", 5, 1, 0.5, 0.6, 70, 1.0, 0.25, 9.0, "Fine.")
    text = f"{json.dumps(asdict(good))}\n{json.dumps(asdict(good) | {name: value})}\n"
    (job.path / METRICS).write_text(text)
    assert [job.metrics()[0], show_all(capsys)[job.id].progress >= 0] == [good, True]
    for data in (data for data in RAW if len(data) < 4000):
        (job.path / METRICS).write_bytes(json.dumps(asdict(good)).encode() + b"\n" + data)
        assert job.last_metric() == good
    job.delete()


def test_numbers_that_version_0_1_wrote_as_nan_are_missing_ones():
    job, metric = add(), Metric("gauss-newton", 5, 1, 0.5, None, 70, 1.0, 0.25, 9.0, "Fine.")
    (job.path / METRICS).write_text(json.dumps(asdict(metric) | {"validation": math.nan}))
    assert job.metrics() == [metric]
    place = rendering.ProcessFolder(job.path)
    done = {name: rendering.RenderedPicture("x", 5, math.nan) for name in rendering.PICTURES}
    place.write_state(rendering.RenderingState("Done.", 1.0, done=done))
    state, _ = rendering.rendering_state(job.path)
    assert state.error is None and {each.rmse for each in state.done.values()} == {None}


@FUZZ
@given(st.sampled_from([f.name for f in fields(rendering.RenderingState)]), ODD)
@example("done", {"teacher": {"label": 5}})
@example("done", {"teacher": {"label": "x", "nfe": 10**400, "rmse": None}})
@example("warnings", 5)
def test_a_comparison_of_any_types_is_shown_or_refused(name, value):
    from trainer.panel import compare

    folder = rendering.compare_home()
    folder.mkdir(exist_ok=True)
    state = asdict(rendering.RenderingState("Done.", 1.0)) | {name: value}
    for data in (json.dumps(state).encode(), *RAW):
        (folder / STATE).write_bytes(data)
        assert len(compare.refresh({}, None, None)) == 5
        rendering.stop(folder)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such files")
@pytest.mark.parametrize("name", [LOG, LOCK, STATE, METRICS, "samples/1.png"])
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda p: os.symlink("/dev/zero", p)])
def test_a_pipe_a_device_or_a_folder_in_place_of_a_file_stops_nothing(capsys, name, make):
    """Neither the lists nor the queue nor a deletion: nothing waits, and nothing is read on."""
    from trainer.panel import jobs

    bad, good = add(), add()
    (bad.path / "samples").mkdir()
    (bad.path / name).unlink(missing_ok=True)
    make(bad.path / name)
    assert show_all(capsys)[good.id].status == "queued"
    assert len(jobs.refresh({}, bad.id)) == 10
    for action in (bad.cancel, bad.resume):
        with suppress(JobError):
            action()
    runner.run_queue()
    assert good.view().status == "failed"  # its turn came
    bad.delete()
    assert [view.id for view in list_jobs()] == [good.id]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such files")
def test_no_link_is_followed(tmp_path):
    """What it leads to may block, like /proc/kmsg, which claims to be an empty file."""
    job = add()
    (tmp_path / "other").write_text("not of this job")
    (job.path / LOG).symlink_to(tmp_path / "other")
    assert job.log_tail() == ""


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such files")
@pytest.mark.parametrize("name", [store.RUNNER_LOCK, store.RUNNER_LOG])
def test_a_queue_that_cannot_start_is_an_error(name):
    add()
    (jobs_home() / name).mkdir()
    with pytest.raises(JobError, match="Could not start the queue"):
        ENSURE_RUNNER()


def test_a_queue_whose_lock_is_closed_to_this_user_is_an_error(monkeypatch):
    """Whether a process holds it cannot be told, and jobs would wait for ever."""

    def refuse(*_):
        raise OSError(errno.EACCES, "Permission denied")

    add()
    for module in (store, lock):
        monkeypatch.setattr(module, "open_regular", refuse)
    with pytest.raises(JobError, match="Could not start the queue in .*: Permission denied"):
        ENSURE_RUNNER()


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such files")
def test_a_comparison_whose_files_are_none_is_an_error():
    from trainer.panel import compare

    folder = rendering.compare_home()
    folder.write_bytes(b"a file")
    with pytest.raises(S4SError, match="Could not render in"):
        rendering.start(folder, [])
    folder.unlink()
    folder.mkdir()
    picture = rendering.RenderedPicture("x", 1, 0.5)
    done = dict.fromkeys(rendering.PICTURES, picture)
    rendering.ProcessFolder(folder).write_state(rendering.RenderingState("Done.", 1.0, done=done))
    for name in rendering.PICTURES:
        os.mkfifo(folder / f"{name}.png")
    assert "<img" not in compare.refresh({}, None, None)[3]


def test_a_flood_of_metrics_is_read_in_part():
    """No more of the shortest lines are parsed than a plot needs."""
    job, line = add(), json.dumps(asdict(Metric("gauss-newton", 5, 1, 0.5, 0.6, 70, 1.0)))
    (job.path / METRICS).write_bytes(b"{}\n" * 200_000 + line.encode())
    assert len(job._lines(store._LARGEST_METRICS)) == store._MOST_LINES
    assert len(job.metrics()) == 1


@pytest.mark.skipif(os.name == "nt", reason="bytes of POSIX")
def test_a_job_is_not_queued_from_a_folder_that_its_state_cannot_name(tmp_path, monkeypatch):
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    monkeypatch.chdir(folder)
    with pytest.raises(JobError, match="cannot be queued from here") as error:
        add()
    assert str(error.value).isprintable() and list_jobs() == []


@pytest.mark.skipif(os.name == "nt", reason="Windows has shorter paths")
def test_jobs_in_whose_folders_trees_are_too_deep_are_deleted():
    """And the queue goes on: it empties the trash when it starts."""
    bad, good = add(), add()
    make_deep(bad.path / "deep", 3000)
    bad.delete()
    make_deep(jobs_home() / ".old-x", 3000)
    os.mkfifo(jobs_home() / ".old-pipe")
    runner.run_queue()
    assert good.view().status == "failed"  # its turn came
    assert {path.name for path in jobs_home().iterdir() if path.is_dir()} == {good.id}


def test_unfinished_additions_are_removed(monkeypatch):
    """At once if an error ends them, and later if the process was killed."""

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    (jobs_home() / ".new-killed").mkdir(parents=True)
    os.utime(jobs_home() / ".new-killed", (0, 0))
    (jobs_home() / ".new-now").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(store.ProcessFolder, "write_state", full)
        with pytest.raises(JobError, match="No space left"):
            add()
    runner.run_queue()
    assert [path.name for path in jobs_home().glob(".new-*")] == [".new-now"]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such files")
def test_a_queue_that_cannot_run_is_an_error(capsys):
    jobs_home().mkdir(parents=True)
    (jobs_home() / store.RUNNER_LOCK).mkdir()
    assert main(["queue"]) == 1
    assert capsys.readouterr().err.startswith("error: Could not lock")


def hostile_jobs():
    """Fill the folder of jobs with entries that are no jobs; return the ids among them."""
    home, ids = jobs_home(), [f"20200101-00000{n}-abcdef" for n in range(7)]
    (home / ids[0]).write_bytes(b"a file")
    (home / ids[1]).mkdir()
    (home / ids[2]).symlink_to(home / "nowhere")
    (home / ids[3]).symlink_to(home / ids[3])
    for number, name in ((4, STATE), (5, "other")):
        (home / ids[number] / name).mkdir(parents=True)
    (home / ids[6]).mkdir()
    os.mkfifo(home / ids[6] / STATE)
    (home / "20200101-000000-ABCDEF").mkdir()
    os.mkdir(os.fsencode(home) + b"/\xff\xfe")
    return ids


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such entries")
def test_entries_that_are_no_jobs_are_named_and_can_be_deleted(capsys):
    good, ids = add(), []
    ids = hostile_jobs()
    views = show_all(capsys)
    assert {id for id, view in views.items() if view.status == "damaged"} == set(ids)
    assert views.keys() == {good.id, *ids} and all(views[id].error for id in ids)
    runner.run_queue()
    assert main(["jobs", "delete", *ids]) == 0
    assert [view.id for view in list_jobs()] == [good.id]
    assert not list(jobs_home().glob(".old-*"))


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such files")
def test_files_of_a_job_that_are_none_do_not_hang(capsys):
    job = add()
    for name in (METRICS, LOG):
        os.mkfifo(job.path / name)
    (job.path / CONFIG).unlink()
    (job.path / store.SAMPLES).write_bytes(b"")
    assert show_all(capsys)[job.id].status == "queued" and job.metrics() == []
    assert main(["jobs", "show", job.id, "--json"]) == 1
    assert capsys.readouterr().err.startswith("error: Could not read")


def test_a_folder_that_cannot_be_listed_says_so(monkeypatch, capsys):
    add()

    def refuse(path):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "listdir", refuse)
    assert main(["jobs"]) == 1
    assert capsys.readouterr().err == f"error: Could not list {jobs_home()}: Permission denied.\n"
    from trainer.panel import jobs

    _, card, *_ = jobs.refresh({}, None)
    assert "Permission denied" in card


def test_a_state_that_cannot_be_read_is_named(monkeypatch, capsys):
    bad, good, read = add(), add(), detached.read_whole

    def refuse(path, most):
        if path == bad.path / STATE:
            raise PermissionError(errno.EACCES, "Permission denied")
        return read(path, most)

    monkeypatch.setattr(detached, "read_whole", refuse)
    views = show_all(capsys)
    assert "Permission denied" in views[bad.id].error and views[good.id].status == "queued"


# Full disks


def test_a_full_disk_is_called_one(monkeypatch):
    """What a job could not write, however it says so."""
    full = OSError(errno.ENOSPC, "No space left on device")
    wrapped = JobError("Could not save the run.")
    wrapped.__cause__ = full
    quota = OSError(errno.EDQUOT, "Disk quota exceeded")
    for error, said in ((full, "disk is full"), (wrapped, "disk is full"), (quota, "quota is")):

        def fail(folder, error=error):
            raise error

        job = add()
        monkeypatch.setattr(worker, "_train", fail)
        assert worker.work(job.id) == 1
        assert said in job.view().error and "MB free" in job.view().error


def test_a_death_without_room_to_record_it_is_explained_while_the_disk_is_full(monkeypatch):
    job = add()
    usage = detached.shutil.disk_usage
    monkeypatch.setattr(detached.shutil, "disk_usage", lambda path: usage(path)._replace(free=4096))
    assert job.view().message.startswith("The disk is full (0.0 MB free")
    job.save(job.state().__class__(**(vars(job.state()) | {"status": "running"})))
    view = job.view()
    assert view.status == "interrupted" and view.error == view.message
    assert view.error.startswith("The disk is full (0.0 MB free")
    unknown = usage(job.path)._replace(total=0, used=0, free=0)  # some network disks say so
    monkeypatch.setattr(detached.shutil, "disk_usage", lambda path: unknown)
    assert "memory ran out" in job.view().error
    monkeypatch.setattr(detached.shutil, "disk_usage", usage)
    assert "memory ran out" in job.view().error and "of disk space is free" in job.view().error
    (job.path / LOG).write_text("Traceback\nOSError: [Errno 28] No space left on device\n")
    assert "died: OSError: [Errno 28] No space left" in job.view().error
