"""No process of S4S imports from the folder that it was started in, whatever lies there.

The folder holds a trap for every module of Python, of S4S and of the packages that it uses: one
that is imported leaves a mark and ends the process.
"""

import importlib
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from panels import Panel
from wheels import offline

from s4s_core.app.folders import DEMO_SOLVER, solver_files
from s4s_core.app.jobs import list_jobs
from s4s_core.app.processes import trainer_command
from s4s_core.errors import shell_line
from trainer.config import TOML, TrainConfig, to_toml
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


def script(path, line):
    """A script that runs a line with the checkout importable, as pip makes one for a wheel."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"import sys\nsys.path.append({str(ROOT)!r})\n{line}\n")
    return [sys.executable, path]


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


def test_the_wheels_command(tmp_path):
    """Its environment may have the working folder on the path; imports behind our first are safe.

    And in a folder that was deleted it says so.
    """
    traps = Traps(tmp_path, NAMES - startup_modules("-c") - {"trainer"})
    with open(ROOT / "pyproject.toml", "rb") as file:
        scripts = importlib.import_module(TOML).load(file)["project"]["scripts"]
    module, name = scripts["s4s"].split(":")
    line = f"from {module.removeprefix('s4s_')} import {name}; sys.exit({name}())"
    command = script(tmp_path / "bin" / "s4s.py", line)
    assert "NFE 5" in traps.run([*command, *INSPECT], PYTHONPATH=f".{os.pathsep}")
    if os.name != "nt":
        shell = f"mkdir gone && cd gone && rmdir ../gone && {shell_line(command)}"
        done = subprocess.run(["sh", "-c", shell], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 1 and done.stderr.startswith("error: The folder that you are in")


@pytest.mark.parametrize("name", ["s4s.py", "install.py"])
def test_a_link_to_a_script_imports_from_the_checkout(traps, name):
    """Python resolves such links on some systems only, so its path is given as on the others."""
    os.symlink(ROOT / name, traps.folder / f"my {name}")
    file = str(traps.folder / f"my {name}")
    text, names = (ROOT / name).read_text(), {"__name__": "__main__", "__file__": file}
    line = f"sys.path[:] = [{str(traps.folder)!r}, *sys.path[1:-1]]\nexec({text!r}, {names})"
    command = script(traps.folder.parent / "bin" / "run.py", line)
    done = subprocess.run([*command, *INSPECT], cwd=ROOT, capture_output=True, text=True)
    assert (traps.caught(), done.returncode, done.stderr) == ([], 0, "")
    assert ("NFE 5" in done.stdout) == (name == "s4s.py")


@pytest.mark.parametrize("place", ["stdlib", "platlib"])
@pytest.mark.parametrize("path", ["", "."])
def test_a_working_folder_of_pythons_own(tmp_path, place, path):
    """Python finds itself and its packages, so nothing is installed."""
    folder, env = sysconfig.get_path(place), os.environ | offline(tmp_path)
    env |= {"PYTHONPATH": path, "S4S_VENV": str(tmp_path / "venv")}
    for command in ([sys.executable, ROOT / "s4s.py"], trainer_command()):
        done = subprocess.run([*command, *INSPECT], cwd=folder, env=env, capture_output=True)
        assert (done.returncode, done.stderr) == (0, b"") and b"NFE 5" in done.stdout


def test_an_isolated_python_keeps_its_path(tmp_path):
    """As an embedded one, whose own folder is on it, and may be the working folder."""
    line = "from trainer.__main__ import forget_working_folder as forget\n"
    line += f"sys.path.append({str(tmp_path)!r}); forget(); print(sys.path[-1])"
    python, file = script(tmp_path / "bin" / "own.py", line)
    for flags, kept in ((["-I"], True), ([], False)):
        command = [python, *flags, file]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert (done.stdout.strip() == str(tmp_path)) is kept and not done.stderr


@pytest.mark.parametrize(
    "options", [["sample", "--model", "comfyui:x"], ["train", "--config", "shared.toml"]], ids=str
)
def test_no_comfyui_is_taken_from_the_working_folder(traps, options):
    """Where nobody has said where ComfyUI is."""
    (traps.folder / "shared.toml").write_text("[model]\nkind = 'comfyui'\npath = 'x'\n")
    (traps.folder / "comfy").mkdir()
    for name in ("cli_args", "sd"):
        os.link(traps.folder / "json.py", traps.folder / "comfy" / f"{name}.py")
    env = {key: value for key, value in os.environ.items() if key != "COMFYUI_PATH"}
    command, told = trainer_command(*options), {"capture_output": True, "text": True}
    done = subprocess.run(command, cwd=traps.folder, env=env, **told)
    assert (traps.caught(), done.returncode) == ([], 1)
    assert done.stderr.startswith("error: Where is ComfyUI? ") and done.stderr.count("\n") == 1


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
