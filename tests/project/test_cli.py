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


@pytest.fixture
def command(monkeypatch):
    """Registers a command whose work is the given function."""

    def register(work):
        module = types.ModuleType("trainer.commands.fake")
        module.add_arguments, module.run = lambda parser: None, work
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setitem(cli.COMMANDS, "fake", "a command for tests")

    return register


def stop(args):
    raise KeyboardInterrupt


def fail(args):
    raise S4SError("the tea is cold.")


@pytest.mark.parametrize(
    ("work", "code", "message"),
    [(lambda args: 7, 7, ""), (fail, 1, "error: the tea is cold.\n"), (stop, 130, "stopped\n")],
)
def test_exit_codes(command, capsys, work, code, message):
    command(work)
    assert cli.main(["fake"]) == code
    assert capsys.readouterr().err == message


def test_unexpected_errors_are_not_hidden(command):
    command(lambda args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        cli.main(["fake"])


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


@pytest.mark.parametrize("argv", [[], ["no-such-command"], ["inspect"]])
def test_wrong_usage_is_2(argv):
    with pytest.raises(SystemExit) as stop:
        cli.main(argv)
    assert stop.value.code == 2


def test_every_command_explains_itself(capsys):
    for name in cli.COMMANDS:
        with pytest.raises(SystemExit) as stop:
            cli.main([name, "--help"])
        assert stop.value.code == 0 and name in capsys.readouterr().out
