"""Fixtures of the panel's tests."""

import os

import pytest

os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"

from s4s_core import load_solver, save_solver
from s4s_core.app import jobs as store
from s4s_core.demo import SOLVERS
from s4s_core.table import SolverPack


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A data folder in which no runner starts."""
    from trainer.panel import jobs

    monkeypatch.setenv("S4S_HOME", str(tmp_path))
    monkeypatch.delenv("S4S_SOLVERS", raising=False)
    for module in (store, jobs):
        monkeypatch.setattr(module, "ensure_runner", lambda: None)
    return tmp_path


@pytest.fixture
def files(home):
    """The folder of two solver files for the demo model: a.safetensors (3 to 5 steps), b (6)."""
    folder = home / "solvers"
    folder.mkdir()
    pack = load_solver(SOLVERS["ve"])
    about = {**pack.metadata, "thumbnail": "data:image/png;base64,AAAA"}
    for name, nfes in {"a": (3, 4, 5), "b": (6,)}.items():
        part = SolverPack({n: pack[n] for n in nfes}, about)
        save_solver(folder / f"{name}.safetensors", part)
    return folder
