"""The command train keeps its run: Ctrl-C, the same command again, --fresh, other settings."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torchrun import ranks

from s4s_core import load_solver
from s4s_core.app.folders import DEMO_SOLVER
from s4s_core.app.processes import trainer_command
from s4s_core.errors import SavedRunError
from s4s_core.training.state import RunState, exclusive
from trainer.cli import main
from trainer.config import TrainConfig
from trainer.models import ModelChoice, open_model
from trainer.progress import ProgressLine
from trainer.training import call_plan, train

ROOT = Path(__file__).resolve().parents[2]
MODELS = ROOT / "tests" / "helpers" / "job_models.py"
PATIENCE = 300
SIZES = {"samples": 8, "validation": 6, "held_out": 6}
SMALL = ["--config", "small.toml", "--nfe", "3,4", "--budget", "2500", "--out", "my.safetensors"]
STOPPED = re.compile(
    r"Stopped at (\d+ %)\. Run the same command again to go on, or add --fresh to begin anew\."
)

# What `python s4s.py` starts, and a command line that sends Ctrl-C to both when a text is shown.
SHELL = "import sys, s4s; sys.exit(s4s.run([sys.executable, *sys.argv[1:]]))"
STOPPING = """
import os, signal, sys
from trainer import cli, progress

where, show = sys.argv.pop(1), progress.ProgressLine.show

def stop(self, share, text):
    show(self, share, text)
    if where and where in text:
        os.killpg(os.getpgrp(), signal.SIGINT)

progress.ProgressLine.show = stop
sys.exit(cli.main(sys.argv[1:]))
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """An empty working folder with the config of a small training."""
    monkeypatch.chdir(tmp_path)
    options = "".join(f"{name} = {count}\n" for name, count in SIZES.items())
    Path("small.toml").write_text(f"[options]\n{options}", encoding="utf-8")
    return tmp_path


def model(function="pictures"):
    return ["--model", f"python:{MODELS}:{function}"]


def left(folder):
    """The names of what is in the folder besides the config."""
    return sorted(path.name for path in folder.iterdir() if path.name != "small.toml")


def train_there(where, *options):
    """Train in a process group of its own, with Ctrl-C where a text is shown first."""
    command = [sys.executable, "-c", SHELL, "-c", STOPPING, where, "train", *model(), *SMALL]
    done = subprocess.run(
        [*command, *options],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        start_new_session=True,
        # Background jobs of a shell ignore Ctrl-C, and pytest may be one.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.skipif(os.name == "nt", reason="POSIX process groups")
def test_the_same_command_goes_on_after_ctrl_c_to_the_same_bytes(folder):
    assert train_there("", "--out", "whole.safetensors")[0] == 0
    share = None
    for where in ("Choosing the teacher: 1", "run 9 of", "4 steps, iteration 1"):
        code, out, err = train_there(where)
        assert code == 130 and not out and "Traceback" not in err, err
        assert (share is None) == ("Going on at" not in err)
        assert share is None or f"Going on at {share}.\n" in err
        share = STOPPED.fullmatch(err.splitlines()[-1])[1]
        assert left(folder) == ["my.safetensors.run", "whole.png", "whole.safetensors"]
    code, _, err = train_there("drawing S4S, 4")
    assert code == 130 and f"Going on at {share}.\n" in err
    assert err.endswith("Stopped. The solver is saved in my.safetensors.\n")
    assert left(folder) == ["my.safetensors", "whole.png", "whole.safetensors"]
    assert Path("my.safetensors").read_bytes() == Path("whole.safetensors").read_bytes()


def train_here(capsys, monkeypatch, *options, stop=None):
    """Train in this process, with Ctrl-C where a text is shown first."""

    def show(self, share, text):
        if stop is not None and stop in text:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ProgressLine, "show", show)
        code = main(["train", *options, "--no-picture"])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture
def stopped(capsys, monkeypatch, folder):
    """A stopped training of `latents`, which has no fingerprint; run(*options) is the next one."""
    code, out, err = train_here(capsys, monkeypatch, *model("latents"), *SMALL, stop="3 steps, it")
    assert code == 130 and not out and err.startswith("At most ")
    assert STOPPED.fullmatch(err.splitlines()[-1]) and left(folder) == ["my.safetensors.run"]
    return lambda *options: train_here(capsys, monkeypatch, *options)


@pytest.mark.parametrize(
    "other",
    [
        [*model("latents"), *SMALL, "--budget", "2600"],
        [*model("latents"), *SMALL, "--seed", "1"],
        [*model("latents"), *SMALL, "--cfg", "3"],
        [*model("modest"), *SMALL],
    ],
)
def test_a_run_with_other_settings_is_refused_until_fresh_is_added(stopped, folder, other):
    before = Path("my.safetensors.run/state.safetensors").read_bytes()
    code, out, err = stopped(*other)
    assert (code, out) == (1, "") and err == (
        "error: my.safetensors.run/state.safetensors belongs to a run with other settings: "
        "restore them to go on. Add --fresh to begin anew.\n"
    )
    assert Path("my.safetensors.run/state.safetensors").read_bytes() == before
    code, _, err = stopped(*other, "--fresh")
    assert code == 0 and err.startswith("At most ") and "Going on" not in err
    assert left(folder) == ["my.safetensors"]


def test_a_run_may_go_on_elsewhere(stopped, folder):
    """Where a model runs is not what it computes."""
    code, _, err = stopped(*model("latents"), *SMALL, "--offload")
    assert code == 0 and "Going on at" in err and "At most" not in err
    assert left(folder) == ["my.safetensors"]


def test_a_damaged_run_is_refused_until_fresh_is_added(stopped, folder):
    Path("my.safetensors.run/state.safetensors").write_bytes(b"damaged")
    code, _, err = stopped(*model("latents"), *SMALL)
    assert code == 1 and "is not a valid saved run" in err
    assert err.endswith(" Add --fresh to begin anew.\n")
    assert stopped(*model("latents"), *SMALL, "--fresh")[0] == 0
    assert left(folder) == ["my.safetensors"]


def test_fresh_does_not_delete_a_run_that_another_process_trains(stopped):
    state = Path("my.safetensors.run/state.safetensors")
    with exclusive(state):
        code, _, err = stopped(*model("latents"), *SMALL, "--fresh")
    assert code == 1 and "in use by another training process" in err and state.exists()


def test_a_state_that_the_user_names_stays_and_goes_on(capsys, monkeypatch, folder):
    options = [*model(), *SMALL, "--state", "run"]
    code, _, err = train_here(capsys, monkeypatch, *options, stop="4 steps, it")
    assert code == 130 and STOPPED.fullmatch(err.splitlines()[-1])
    assert "run" in left(folder) and "my.safetensors.run" not in left(folder)
    code, _, err = train_here(capsys, monkeypatch, *options)
    assert code == 0 and "Going on at" in err and RunState.read("run") is not None
    code, _, err = train_here(capsys, monkeypatch, *options, "--fresh", stop="Choosing")
    assert code == 130 and "Going on at" not in err


@pytest.mark.parametrize("entry", ["a thesis", "a folder", "a pipe"])
def test_what_the_user_names_is_not_deleted_unless_it_is_a_run(capsys, monkeypatch, folder, entry):
    if entry == "a thesis":
        Path("thesis.txt").write_text("years of work")
    elif os.name != "nt":
        (os.mkdir if entry == "a folder" else os.mkfifo)("thesis.txt")
    before = os.lstat("thesis.txt").st_mode
    for more in ([], ["--fresh"]):
        options = [*model(), *SMALL, "--state", "thesis.txt", *more]
        code, out, err = train_here(capsys, monkeypatch, *options)
        said = "is not a valid saved run" if entry == "a thesis" else "It is not a file."
        assert (code, out) == (1, "") and said in err.splitlines()[-1]
    assert os.lstat("thesis.txt").st_mode == before
    if entry == "a thesis":
        assert "choose another file" in err and Path("thesis.txt").read_text() == "years of work"


def test_only_the_run_is_removed_from_its_folder(capsys, monkeypatch, folder):
    Path("my.safetensors.run").mkdir()
    Path("my.safetensors.run/notes.txt").write_text("mine")
    assert train_here(capsys, monkeypatch, *model("latents"), *SMALL)[0] == 0
    assert [path.name for path in Path("my.safetensors.run").iterdir()] == ["notes.txt"]


def test_what_is_refused_leaves_nothing_behind(capsys, monkeypatch, folder):
    code, _, err = train_here(capsys, monkeypatch, *model(), *SMALL, "--budget", "300")
    assert code == 1 and "A budget of 300 model calls is too small" in err and not left(folder)


@pytest.mark.parametrize("letters", [243, 244], ids=["its run", "itself"])
@pytest.mark.parametrize("more", [[], ["--fresh"]], ids=str)
def test_a_name_that_is_too_long_is_refused_before_training(
    capsys, monkeypatch, folder, letters, more
):
    """A name has at most 255 bytes, those of .run included."""
    monkeypatch.setattr("trainer.models.open_model", lambda _: pytest.fail("the model is loaded"))
    out = f"{'x' * letters}.safetensors"
    code, _, err = train_here(capsys, monkeypatch, *model(), *SMALL, "--out", out, *more)
    assert code == 1 and "File name too long." in err and err.count("\n") == 1 and not left(folder)


def link_to_a_device(path):
    path.symlink_to("/dev/zero")


def a_checkpoint(path):
    save_file({"unet.weight": torch.zeros(300_000)}, path)


def a_damaged_solver(path):
    path.write_bytes(DEMO_SOLVER.read_bytes()[:-1])


@pytest.mark.skipif(os.name == "nt", reason="POSIX pipes and devices")
@pytest.mark.parametrize("make", [a_checkpoint, a_damaged_solver, os.mkfifo, link_to_a_device])
def test_only_solvers_are_replaced(capsys, monkeypatch, folder, make):
    make(Path("my.safetensors"))
    before = os.lstat("my.safetensors")
    with monkeypatch.context() as patch:
        patch.setattr("trainer.models.open_model", lambda _: pytest.fail("the model is loaded"))
        code, _, err = train_here(capsys, monkeypatch, *model(), *SMALL)
    assert code == 1 and "not a solver file. Choose another --out" in err and err.count("\n") == 1
    assert os.lstat("my.safetensors") == before and left(folder) == ["my.safetensors"]


@pytest.mark.parametrize("data", [b"", DEMO_SOLVER.read_bytes()], ids=["empty", "a solver"])
def test_solvers_and_empty_files_are_replaced(capsys, monkeypatch, folder, data):
    Path("my.safetensors").write_bytes(data)
    assert train_here(capsys, monkeypatch, *model(), *SMALL)[0] == 0
    assert load_solver("my.safetensors").nfes == (3, 4)


def test_only_the_summary_is_printed_to_stdout(capsys, monkeypatch, folder):
    code, out, err = train_here(capsys, monkeypatch, *model(), *SMALL, "--json")
    summary = json.loads(out)
    assert code == 0 and summary["calls"] <= 4000 and set(summary["errors"]) == {"3", "4"}
    assert err.startswith("At most 4,000 model calls: about ") and "Device: cpu." in err


def test_strengths_are_trained_and_shown_too(capsys, monkeypatch, folder):
    options = [*model(), *SMALL, "--nfe", "3", "--strengths", "0.5"]
    code, out, err = train_here(capsys, monkeypatch, *options, stop="strength 0.5, iteration 2")
    assert code == 130 and STOPPED.fullmatch(err.splitlines()[-1])
    code, out, err = train_here(capsys, monkeypatch, *options)
    assert code == 0 and "Going on at" in err
    assert "\n  3 steps\n" in out and "\n  3 steps at strength 0.5\n" in out
    (part,) = load_solver("my.safetensors").parts
    assert part.nfe == 3


def test_a_saved_run_is_as_far_as_its_last_event(folder):
    """So a run goes on at the percentage that it showed."""
    config = TrainConfig(nfes=(3, 4, 5), budget=2500, options=SIZES)
    plan, seen = call_plan(config), []

    def compare(event):
        state = RunState.read("run")
        share = 0.0 if state is None else plan.saved_share(state)
        seen.append((event.phase, plan.share(event), share))

    train(config, open_model(ModelChoice("python", f"{MODELS}:pictures")), compare, "run")
    phases = {phase for phase, _, _ in seen}
    assert phases == {"choice", "teacher", "search", "gauss-newton", "scoring"}
    for phase, shown, saved in seen:
        if phase == "scoring":  # there may be fewer tables to score than planned
            assert shown - 0.1 < saved <= shown
        else:
            assert saved == pytest.approx(shown), phase
    assert plan.saved_share(RunState.read("run")) == pytest.approx(1.0)


def test_the_error_of_another_run_says_what_to_do_in_python(folder):
    Path("run").write_bytes(b"damaged")
    with pytest.raises(SavedRunError, match="Delete it to start over") as caught:
        RunState.read("run")
    assert "Delete" not in caught.value.problem


def test_processes_of_torchrun_share_the_saved_run(capsys, monkeypatch, folder):
    """The second finds neither a run that the first deletes nor one that it has finished."""
    options = [*model(), *SMALL, "--no-picture"]
    assert train_here(capsys, monkeypatch, *options, stop="3 steps, it")[0] == 130
    command = trainer_command("train", *options, "--fresh")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with ranks(2) as environments:
        running = [subprocess.Popen(command, env=each, **pipes) for each in environments]
        (out, err), (other_out, other_err) = (p.communicate(timeout=PATIENCE) for p in running)
    assert [p.returncode for p in running] == [0, 0], err + other_err
    assert "At most" in err and "Going on" not in err and "Solver:" in out
    assert not other_out and "model calls" not in other_err
    assert left(folder) == ["my.safetensors"]
