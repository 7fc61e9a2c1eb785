"""Messages about missing packages name a command that works for the running Python."""

import shlex
import sys
from pathlib import Path

import pytest

from s4s_core import errors
from s4s_core.errors import ModelError
from trainer import extras
from trainer.jobs import worker

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", ["diffusers", "panel", "benchmarks"])
def test_a_checkout_names_its_own_list_and_a_wheel_its_extra(name, monkeypatch, tmp_path):
    file = ROOT / "requirements" / f"{name}.txt"
    assert file.is_file()
    line = errors.shell_line([sys.executable, "-m", "pip", "install", "-r", str(file)])
    assert extras.install_line(name) == line
    monkeypatch.setattr(extras.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match="needs diffusers and transformers.*pip install"):
        extras.import_extras("diffusers", "transformers")
    monkeypatch.setattr(extras, "CHECKOUT", tmp_path)
    assert f"s4s-solver[{name}]" in extras.install_line(name)


@pytest.mark.parametrize("platform", ["linux", "win32"])
def test_spaces_are_quoted(monkeypatch, platform):
    monkeypatch.setattr(sys, "platform", platform)
    line = errors.shell_line(["/my apps/python", "-m", Path("x")])
    assert shlex.split(line) == ["/my apps/python", "-m", "x"]
    assert line.startswith('"' if platform == "win32" else "'")


def test_in_a_webui_the_own_environment_is_named_until_it_runs(monkeypatch, tmp_path):
    """A1111 puts its own versions back at every start."""
    checkout, environment = tmp_path / "extensions" / "s4s", tmp_path / "venv"
    environment.mkdir()
    monkeypatch.setattr(extras, "CHECKOUT", checkout)
    monkeypatch.setattr(extras.sys, "prefix", str(environment))
    monkeypatch.setattr(extras.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match="'python s4s.py' in .*s4s and train there.$") as caught:
        extras.import_extras("diffusers")
    assert "pip" not in str(caught.value)
    (environment / "s4s-requirements.stamp").touch()
    with pytest.raises(ModelError, match="pip install"):
        extras.import_extras("diffusers")


def test_a_job_without_a_module_names_its_python_and_promises_nothing(tmp_path):
    error = ModuleNotFoundError("No module named 'sentencepiece'", name="sentencepiece")
    reason = worker._reason(error, tmp_path)
    assert sys.executable in reason and "'sentencepiece'" in reason and "s4s.py" not in reason
