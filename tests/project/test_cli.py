"""The command line: exit codes, encodings, help."""

import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from s4s_core.app.folders import DEMO_SOLVER
from s4s_core.app.processes import trainer_command
from s4s_core.errors import S4SError
from trainer import cli

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "error, code, message",
    [(S4SError("the tea is cold."), 1, "error: the tea is cold.\n")]
    + [(KeyboardInterrupt(), 130, "stopped\n"), (None, 7, "")],
)
def test_exit_codes(monkeypatch, capsys, error, code, message):
    def run(args):
        if error:
            raise error
        return 7

    module = types.ModuleType("trainer.commands.fake")
    module.add_arguments, module.run = lambda parser: None, run
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(cli.COMMANDS, "fake", "a command for tests")
    assert cli.main(["fake"]) == code and capsys.readouterr().err == message


MODEL = """
class Model:
    space, sigma_min, sigma_max, shape = "ve", 0.1, 80.0, (2,)
    def denoise(self, x, sigma, cond=None):
        RAISED

def make(choice):
    return Model()
"""


@pytest.mark.parametrize(
    "raised",
    [
        "1 / 0",
        r"raise OSError('\x1b[2J\x07gone')",
        "import no_such_module",
        "raise SyntaxError('x')",
    ],
)
def test_an_unexpected_error_says_where_and_ends_in_a_sentence(tmp_path, capsys, raised):
    """As in a model's own code, whose words must not reach the terminal raw."""
    (tmp_path / "mine.py").write_text(MODEL.replace("RAISED", raised))
    model = ["--model", f"python:{tmp_path / 'mine.py'}:make", "--nfe", "4"]
    assert cli.main(["train", *model, "--out", str(tmp_path / "x.safetensors")]) == 1
    said = capsys.readouterr().err
    *where, last = said.splitlines()
    assert last.startswith("error: Unexpected ") and any("in denoise" in line for line in where)
    assert "\x1b" not in said.replace("\x1b[K", "") and "\x07" not in said


def test_a_module_in_the_working_folder_is_not_imported_and_the_error_says_so(
    tmp_path, capsys, monkeypatch
):
    (tmp_path / "lies_here.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["sample", "--model", "python:lies_here:make"]) == 1
    assert "from the working folder: name the file" in capsys.readouterr().err


def test_a_reader_that_leaves_early_is_not_an_error():
    command = [sys.executable, "-m", "trainer", "inspect", str(DEMO_SOLVER)]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        process.stdout.close()
        assert process.stderr.read() == ""


def test_child_processes_print_utf8(tmp_path):
    """In logs and pipes, whatever the code page of a Windows system."""
    command = trainer_command("inspect", tmp_path / "Füchse 狐.safetensors")
    env = {**os.environ, "PYTHONIOENCODING": "cp1252"}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True)
    assert done.returncode == 1 and "Füchse 狐" in done.stderr.decode("utf-8")


def test_every_command_explains_itself_and_wrong_usage_is_2(capsys):
    calls = [([name, "--help"], 0) for name in cli.COMMANDS]
    for argv, code in [*calls, ([], 2), (["no-such-command"], 2), (["inspect"], 2)]:
        with pytest.raises(SystemExit) as stop:
            cli.main(argv)
        assert stop.value.code == code
        assert code or argv[0] in capsys.readouterr().out
