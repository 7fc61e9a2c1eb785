"""The command line: what becomes of errors, and `inspect`."""

import json
import os
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest

from s4s_core import SolverPack, SolverTable, save_solver
from s4s_core.app.processes import trainer_command
from s4s_core.errors import S4SError
from trainer import cli

ROOT = Path(__file__).resolve().parents[2]
ABOUT = {
    "model": {"name": "demo", "hash": "abc"},
    "cfg": [1.0, 2.5],
    "notes": "red \x1b[31m alert",
    "scores": {"2": {"solver": 0.0512345678, "ipndm": 0.087}},
}


@pytest.fixture
def command(monkeypatch):
    """Registers a command whose work is the given function."""

    def register(work):
        module = types.ModuleType("trainer.commands.fake")
        module.add_arguments, module.run = lambda parser: None, work
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setitem(cli.COMMANDS, "fake", "a command for tests")

    return register


@pytest.fixture
def solver_file(tmp_path):
    """A file with an LMS table whose calls are apart from its nodes, and a single-step one."""
    lms = SolverTable(
        "lms", 2, "noise", "ve", [80.0, 3.0, 0.0], [79.5, 2.5], {"b": [[1.0, 0.0], [1.5, -0.5]]}
    )
    stages = {"b": np.full((2, 2), 0.5), "a": np.zeros((2, 2, 2))}
    stages["a"][:, 1, 0] = 1.0
    ss = SolverTable("ss", 2, "noise", "ve", [80.0, 3.0, 0.1], [80.0, 3.0, 3.0, 0.1], stages)
    path = tmp_path / "demo.safetensors"
    save_solver(path, SolverPack.of(lms, ss, metadata=ABOUT))
    return path


def test_an_exit_code_is_passed_on(command):
    command(lambda args: 7)
    assert cli.main(["fake"]) == 7


def test_an_s4s_error_is_one_line(command, capsys):
    def work(args):
        raise S4SError("the tea is cold.")

    command(work)
    assert cli.main(["fake"]) == 1
    assert capsys.readouterr().err == "error: the tea is cold.\n"


def test_other_errors_are_not_hidden(command):
    command(lambda args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        cli.main(["fake"])


def test_ctrl_c_is_130(command):
    def work(args):
        raise KeyboardInterrupt

    command(work)
    assert cli.main(["fake"]) == 130


def test_a_reader_that_leaves_early_is_no_error(solver_file):
    command = [sys.executable, "-m", "trainer", "inspect", str(solver_file)]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        process.stdout.close()
        assert process.stderr.read() == ""


def test_what_we_read_ourselves_is_utf8(tmp_path):
    """Logs and the pipes of our processes, whatever code page a Windows has."""
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


def test_inspect_for_people(solver_file, capsys):
    assert cli.main(["inspect", str(solver_file)]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    head, two, four = out.split("\n\n")
    lines = [line.split() for line in two.splitlines()]
    assert head.startswith(str(solver_file))
    assert ["model.name", "demo"] in [line.split() for line in head.splitlines()]
    assert ["cfg", "1,", "2.5"] in [line.split() for line in head.splitlines()]
    assert lines[0][:2] == ["NFE", "2:"] and "lms, order 2, noise form" in two
    assert ["nodes", "80", "3", "0"] in lines and ["calls", "79.5", "2.5"] in lines
    assert ["b", "1", "0"] in lines and ["1.5", "-0.5"] in lines
    assert ["score.solver", "0.0512346"] in lines
    assert "NFE 4: ss" in four and "score" not in four


def test_inspect_names_calls_only_where_they_differ(tmp_path, capsys):
    euler = SolverTable("lms", 1, "noise", "ve", [9.0, 1.0, 0.0], [9.0, 1.0], {"b": [[1.0]] * 2})
    save_solver(tmp_path / "euler.safetensors", SolverPack.of(euler))
    assert cli.main(["inspect", str(tmp_path / "euler.safetensors")]) == 0
    out = capsys.readouterr().out
    assert "  nodes" in out and "  calls" not in out


def test_inspect_as_json(solver_file, capsys):
    assert cli.main(["inspect", "--json", str(solver_file), str(solver_file)]) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert first == second and first["metadata"] == ABOUT and len(first["digest"]) == 64
    assert list(first["tables"]) == ["2", "4"]
    assert first["tables"]["2"]["call_sigmas"] == [79.5, 2.5]
    assert first["tables"]["4"]["a"][1] == [[0.0, 0.0], [1.0, 0.0]]


def test_inspect_names_a_bad_file(tmp_path, capsys):
    path = tmp_path / "bad.safetensors"
    path.write_bytes(b"no solver")
    assert cli.main(["inspect", str(path)]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"error: {path}") and error.count("\n") == 1
