"""Where Python has no gradio, the panel downloads its own, which no other process sees.

Python without its site-packages (-S) plays the host without gradio. It starts the real pip, which
installs a gradio that is made here.
"""

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from wheels import make_wheel, offline

from s4s_core.app import folders
from s4s_core.errors import S4SError
from s4s_core.lock import Lock
from trainer.panel import packages

ROOT = Path(__file__).resolve().parents[2]
PANEL = f"""
import subprocess, sys, types
sys.path.insert(0, {str(ROOT)!r})
from trainer import cli

def serve(port, follow, browser):
    import gradio
    print("panel", gradio.__file__, flush=True)
    subprocess.run([sys.executable, "-m", "site"])  # prints the sys.path that jobs have

sys.modules["trainer.panel.server"] = types.SimpleNamespace(serve=serve)
sys.exit(cli.main(["panel", *sys.argv[1:]]))
"""


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("S4S_HOME", str(tmp_path / "a home"))
    return tmp_path / "a home" / "panel"


@pytest.fixture
def wheels(tmp_path):
    """A folder with wheels for everything in the panel's requirements."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    for name in ("gradio", "pillow"):
        make_wheel(folder, name, "99.0", __init__="")
    return folder


def start(*arguments, wheels, **env):
    """Run the panel of a host without gradio until it would serve."""
    command = [sys.executable, "-S", "-c", PANEL, *arguments]
    options = {"env": os.environ | offline(wheels) | env, "capture_output": True, "text": True}
    with TemporaryDirectory() as folder:
        Path(folder, "pip.py").write_text("raise SystemExit('imported from the working folder')")
        return subprocess.run(command, cwd=folder, timeout=300, **options)


def test_only_the_panels_process_sees_its_packages(home, wheels):
    (home / f"{packages.NEW}killed").mkdir(parents=True)
    done = start("--install", wheels=wheels)
    assert done.returncode == 0, done.stderr
    panel, child = done.stdout.split("panel ", 1)[1].split("\n", 1)
    own = folders.panel_packages()
    assert own.parent == home and Path(panel) == own / "gradio" / "__init__.py"
    assert "sys.path" in child and str(own) not in child
    assert {path.name for path in home.iterdir()} == {own.name, "lock"}
    again = start(wheels=home / "nothing")
    assert again.returncode == 0 and again.stdout.startswith(f"panel {panel}")


def test_a_failed_download_leaves_nothing_and_says_why(home, tmp_path):
    done = start("--install", wheels=tmp_path)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("error: Could not download gradio (No matching distribution found")
    assert last.endswith("try again.") and "Traceback" not in done.stderr
    assert [path.name for path in home.iterdir()] == ["lock"]


def test_errors_say_why_there_is_no_gradio(home, wheels, monkeypatch, tmp_path):
    done = start(wheels=wheels)
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and not home.exists()
    assert done.stderr.rstrip().endswith("panel --install")
    assert sys.executable in done.stderr
    monkeypatch.setattr(packages, "find_spec", lambda name: None)
    home.mkdir(parents=True)
    with Lock(home / "lock") as lock:
        lock.take()
        with pytest.raises(S4SError, match="Another process is downloading"):
            packages.provide_gradio(install=True)
    (tmp_path / "file").touch()
    monkeypatch.setenv("S4S_HOME", str(tmp_path / "file"))
    with pytest.raises(S4SError, match="Could not save gradio"):
        packages.provide_gradio(install=True)
    monkeypatch.setattr("trainer.extras.CHECKOUT", tmp_path)  # as installed from a wheel
    for install in (False, True):
        with pytest.raises(S4SError, match=r"pip install .?s4s-solver\[panel\]"):
            packages.provide_gradio(install)
