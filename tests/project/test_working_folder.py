"""No process of S4S imports from the folder that it was started in, whatever lies there.

The folder holds a trap for every module of Python, of S4S and of the packages that it uses: one
that is imported leaves a mark and ends the process.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from panels import Panel

from s4s_core.app.folders import DEMO_SOLVER, solver_files
from s4s_core.app.jobs import list_jobs
from s4s_core.app.processes import trainer_command
from s4s_core.errors import shell_line
from trainer.config import TrainConfig, to_toml
from trainer.jobs import queue_job
from trainer.models import ModelChoice

ROOT = Path(__file__).resolve().parents[2]
OURS = {"trainer", "s4s_trainer", "s4s_core", "nodes", "tools", "s4s", "install", "setup"}
THEIRS = {
    *("torch", "numpy", "safetensors", "gradio", "PIL", "lpips", "torchvision", "uvicorn"),
    *("fastapi", "pip", "pytest", "tomli", "sitecustomize", "usercustomize"),
}
NAMES = OURS | THEIRS | set(sys.stdlib_module_names)
INSPECT = ("inspect", str(DEMO_SOLVER))
TINY = TrainConfig(
    model=ModelChoice("mixture"),
    nfes=(3,),
    budget=2000,
    options={"samples": 4, "validation": 2, "held_out": 2},
)


def startup_modules(flag):
    """The modules that Python itself imports before the first line of `python FLAG`."""
    code = f"import sys{', runpy, pkgutil' if flag == '-m' else ''}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    customs = {"sitecustomize", "usercustomize"}
    return {name.partition(".")[0] for name in done.stdout.split()} | customs


class Traps:
    """A folder of traps, and what was caught."""

    def __init__(self, folder, names=NAMES):
        self.folder, self.marks = folder / "downloads", folder / "marks"
        self.folder.mkdir()
        self.marks.mkdir()
        for name in names:
            mark = str(self.marks / name)
            trap = f"import os\nos.close(os.open({mark!r}, os.O_CREAT))\nos._exit(99)\n"
            (self.folder / f"{name}.py").write_text(trap)

    def run(self, command, **env):
        """Run a command in the folder and return its output; it must meet no trap."""
        env = os.environ | {"OMP_NUM_THREADS": "1"} | env
        done = subprocess.run(command, cwd=self.folder, env=env, capture_output=True, text=True)
        assert (self.caught(), done.returncode) == ([], 0), done.stderr
        return done.stdout

    def caught(self):
        return sorted(path.name for path in self.marks.iterdir())


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("S4S_HOME", str(tmp_path / "home"))
    for name in ("S4S_SOLVERS", "PYTHONSAFEPATH", "PYTHONPATH"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def traps(tmp_path):
    return Traps(tmp_path)


def test_the_traps_work(traps):
    done = subprocess.run([sys.executable, "-c", "import json"], cwd=traps.folder)
    assert done.returncode == 99 and traps.caught() == ["json"]


def test_s4s_py(traps):
    assert "NFE 5" in traps.run([sys.executable, ROOT / "s4s.py", *INSPECT])


def test_empty_parts_of_the_python_path(tmp_path):
    """As `export PYTHONPATH=$PYTHONPATH:/x` leaves them: they stand for the working folder."""
    traps = Traps(tmp_path, NAMES - startup_modules("-c"))
    other = tmp_path / "by another name"
    other.symlink_to(traps.folder)
    for path in (f"{os.pathsep}.", f"{other}{os.pathsep}{traps.folder}/"):
        for command in ([sys.executable, ROOT / "s4s.py", *INSPECT], trainer_command(*INSPECT)):
            assert "NFE 5" in traps.run(command, PYTHONPATH=path)
        traps.run([sys.executable, ROOT / "install.py"], PYTHONPATH=path)


@pytest.mark.skipif(os.name == "nt", reason="Windows does not delete a working folder")
def test_a_working_folder_that_was_deleted_is_an_error(tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    for command in ([sys.executable, str(ROOT / "s4s.py"), *INSPECT], trainer_command(*INSPECT)):
        script = f"cd {gone} && rmdir {gone} && {shell_line(command)}; mkdir {gone}"
        done = subprocess.run(["sh", "-c", script], capture_output=True, text=True)
        assert "was deleted. Change to another one." in done.stderr
        assert "Traceback" not in done.stderr


def test_python_m_trainer(tmp_path):
    """A trainer.py in the folder is what this command asks for; all else is safe."""
    traps = Traps(tmp_path, NAMES - startup_modules("-m") - {"trainer"})
    command = [sys.executable, "-m", "trainer", *INSPECT]
    assert "NFE 5" in traps.run(command, PYTHONPATH=str(ROOT))


def test_the_runner_and_its_worker(traps, monkeypatch):
    monkeypatch.chdir(traps.folder)
    queue_job(TINY, start=False)
    traps.run(trainer_command("queue"))
    (job,) = list_jobs()
    assert job.status == "done" and traps.caught() == [] and len(solver_files()) == 1


def test_an_estimate_and_a_rendering(traps):
    config = traps.folder / "config.toml"
    config.write_text(to_toml(TINY))
    assert "calls" in traps.run(trainer_command("estimate", "--config", config))
    options = ("--model", "demo", "--nfe", "3", "--count", "1", "--out", "pictures")
    assert "solver.png" in traps.run(trainer_command("render", *options))


def test_the_panel(traps, tmp_path):
    panel = Panel(tmp_path / "home", root=traps.folder)
    panel.command = trainer_command("panel", "--port", "0", "--no-browser")
    with panel:
        assert panel.url.startswith("http://127.0.0.1:") and traps.caught() == []
