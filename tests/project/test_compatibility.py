"""What version 0.1 left behind still works: its solver files, its jobs, and its public surface.

Everything in tests/fixtures/v0_1 was written by version 0.1 itself; its README says how.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from s4s_core import load_solver, sample, save_solver
from s4s_core.training.state import read_state

ROOT = Path(__file__).resolve().parents[2]
OLD = ROOT / "tests" / "fixtures" / "v0_1"
SURFACE = Path(__file__).with_name("public_surface.py")
SOLVERS = sorted(path.name for path in (OLD / "solvers").glob("*.safetensors"))
CANCELLED = sorted(path.stem for path in (OLD / "reference").glob("*.safetensors"))


def expected():
    return json.loads((OLD / "expected.json").read_text(encoding="utf-8"))


def run(*command, home):
    """Standard output of a Python command, from a data folder of its own."""
    own = {"S4S_HOME": str(home), "S4S_SOLVERS": str(home / "solvers"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=ROOT,
        env=os.environ | own,
        capture_output=True,
        encoding="utf-8",
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def trainer(*arguments, home):
    """What a command of the trainer prints as JSON."""
    return json.loads(run("-m", "trainer", *arguments, "--json", home=home))


@pytest.fixture
def home(tmp_path):
    """A copy of the old data folder, and of the old solver files."""
    shutil.copytree(OLD / "home", tmp_path / "home")
    shutil.copytree(OLD / "solvers", tmp_path / "home" / "solvers")
    return tmp_path / "home"


# Solver files


def denoise(x, sigma, cond=None):
    """A smooth model without anything of ours in it."""
    level = sigma.reshape(-1, 1).to(x)
    return x / (1 + level**2) + 0.2 * (3 * x / (1 + level)).sin()


def sampled(path):
    """{NFE: results} of every table in a solver file."""
    pack = load_solver(path)
    noise = torch.linspace(-2, 2, 12, dtype=torch.float64).reshape(3, 4)
    return {
        str(nfe): sample(denoise, noise * table.sigmas[0], table).tolist()
        for nfe, table in pack.tables.items()
    }


def test_there_is_a_solver_of_every_family():
    tables = [t for name in SOLVERS for t in load_solver(OLD / "solvers" / name).tables.values()]
    assert {(table.family, table.space) for table in tables} >= {
        ("lms", "ve"),
        ("lms", "flow"),
        ("pc", "ve"),
        ("ss", "ve"),
    }


@pytest.mark.parametrize("name", SOLVERS)
def test_old_solvers_sample_to_the_same_numbers(name):
    """To 1e-9: in float64 the last bits of sin and exp may depend on the CPU."""
    found, wanted = sampled(OLD / "solvers" / name), expected()["samples"][name]
    assert found.keys() == wanted.keys()
    for nfe in wanted:
        np.testing.assert_allclose(found[nfe], wanted[nfe], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", SOLVERS)
def test_old_solvers_are_saved_to_the_same_bytes(name, tmp_path):
    save_solver(tmp_path / name, load_solver(OLD / "solvers" / name))
    assert (tmp_path / name).read_bytes() == (OLD / "solvers" / name).read_bytes()


def test_old_solvers_say_the_same_of_themselves(home):
    found = trainer("inspect", *(home / "solvers" / name for name in SOLVERS), home=home)
    wanted = expected()["inspect"]
    for name, entry in zip(SOLVERS, found, strict=True):
        assert missing(wanted[name], entry) == []


# Jobs


def test_old_jobs_are_listed_and_shown(home):
    wanted = expected()
    found = trainer("jobs", "list", home=home)["jobs"]
    assert [view["id"] for view in found] == [view["id"] for view in wanted["jobs"]]
    assert missing(wanted["jobs"], found) == []
    assert {view["status"] for view in found} == {"cancelled", "done"}
    for view in found:
        shown, before = trainer("jobs", "show", view["id"], home=home), wanted["show"][view["id"]]
        grid, grid_before = shown.pop("grid"), before.pop("grid")
        assert missing(before, shown) == []
        assert grid_before is None or Path(grid) == home / grid_before


def rounding():
    """How this CPU and this torch round functions of float64, as schedules and classical solvers
    use them: a hash of plain torch operations."""
    x = torch.linspace(0.01, 3, 4096, dtype=torch.float64).reshape(64, 64)
    results = [x, x.exp(), x.log(), x.sqrt(), x.expm1(), x**0.37, x**7.0]
    data = b"".join(each.contiguous().numpy().tobytes() for each in results)
    return hashlib.sha256(data).hexdigest()


PROBE = "import json, runpy, sys; print(json.dumps(runpy.run_path(sys.argv[1])['rounding']()))"
"""Prints `rounding` of a process with one thread, as the one that trains has."""

WITHOUT_A_QUEUE = """
import runpy, subprocess, sys

class NoProcess(subprocess.Popen):
    def __init__(self, *args, **options):
        self.pid = self.returncode = 0

    def __del__(self):
        pass

subprocess.Popen = NoProcess
sys.argv[0] = "s4s"
runpy.run_module("trainer", run_name="__main__", alter_sys=True)
"""
"""`python -m trainer ...` in a process that can start no other: nobody works through the queue."""


@pytest.fixture(scope="module")
def roundings(tmp_path_factory):
    """(that of the machine that wrote the fixtures, today's)"""
    home = tmp_path_factory.mktemp("rounding")
    then = expected()["rounding"]["teacher"]
    return then, json.loads(run("-c", PROBE, __file__, home=home))


def metrics(folder):
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines if line]


def histories(state):
    """{NFE: the history of each of its runs} in a saved run."""
    return {
        nfe: [each["history"] for each in part.get("runs") or [part["descent"]]]
        for nfe, part in state["nfes"].items()
    }


@pytest.mark.parametrize("id", CANCELLED)
def test_a_cancelled_job_of_the_old_version_goes_on_where_it_was(home, id, roundings):
    """No pair is drawn and no iteration made again, and what was finished stays as it was.

    The result is not that of version 0.1 byte for byte: Gauss-Newton makes better steps now. Where
    this machine rounds the teacher's own table otherwise than the one that wrote the fixtures, the
    saved run is refused, and rightly, as that of another teacher.
    """
    then, now = roundings
    if now != then:
        pytest.skip("this CPU or torch computes another teacher than the one of the fixtures")
    folder, reference = home / "jobs" / id, load_solver(OLD / "reference" / f"{id}.safetensors")
    saved, before = read_state(folder / "fit-state.safetensors"), metrics(folder)
    run("-c", WITHOUT_A_QUEUE, "jobs", "resume", id, home=home)
    run("-m", "trainer", "work", id, home=home)
    state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
    assert (state["status"], state["attempt"], state["exit_code"]) == ("done", 2, 0)
    result = folder / "result.safetensors"
    assert (home / "solvers" / state["result"]).read_bytes() == result.read_bytes()
    pack, lines = load_solver(result), metrics(folder)
    assert lines[: len(before)] == before and pack.nfes == reference.nfes
    later = lines[len(before) :]
    assert min(line["calls"] for line in later) >= saved["calls"] == before[-1]["calls"]
    trained = [line for line in later if line["loss"] is not None]
    assert (trained[0]["nfe"], trained[0]["step"]) == (before[-1]["nfe"], before[-1]["step"] + 1)
    assert "search" not in {line["phase"] for line in later}
    ended = histories(read_state(folder / "fit-state.safetensors"))
    for nfe, known in histories(saved).items():
        for old, new in zip(known, ended[nfe], strict=True):
            assert old and new[: len(old)] == old, "every saved step is kept"
    for nfe, scores in pack.metadata["scores"].items():
        done = saved["nfes"][nfe].get("scores")
        assert done is None or (scores == done and pack[int(nfe)] == reference[int(nfe)])
        assert scores["rmse"] <= min(scores["initial"], scores["classical"])


# The public surface

CHANGED = {
    "webui.samplers.0.2.scheduler is gone": "Automatic gives the host's levels: where runs begin",
    "library.functions.classical_table.parameters.space.default": "required: 've' was a trap",
    "library.functions.fit.parameters.start is gone": "fit(init=table) replaces fit(start=table)",
    "library.classes.Event.members lacks 'eta'": "nothing used it",
    "registries.config options.central is gone": "nothing used it",
    "registries.fit options.central is gone": "nothing used it",
    "registries.config.objective": "l2 left grain: look is the default for pictures",
    "registries.fit options.objective": "l2 left grain: look is the default for pictures",
    "registries.presets.thorough.options is gone": "pairs suit the budget by themselves",
    "registries.efforts": "a budget includes everything, and less is enough",
    **{
        f"registries.{options} options.{name} was": "0 is as many as suit the budget"
        for options in ("config", "fit")
        for name in ("samples", "validation", "held_out")
    },
    "registries.config options.consistent": "a name of steps; the old booleans are still read",
    "registries.fit options.consistent": "a name of steps; the old booleans are still read",
}
"""Deliberate changes since version 0.1: how their line begins, and why."""


def missing(old, new, where=""):
    """What `old` has and `new` lacks or has otherwise, as lines; `new` may have more."""
    if isinstance(old, dict) and isinstance(new, dict):
        lines = []
        for key, value in old.items():
            place = f"{where}.{key}".lstrip(".")
            lines += missing(value, new[key], place) if key in new else [f"{place} is gone"]
        return lines
    if isinstance(old, list) and isinstance(new, list):
        if all(isinstance(value, str) for value in old):  # names, in no order
            return [f"{where} lacks {each!r}" for each in old if each not in new]
        lines = [f"{where} has {len(new)} entries, not {len(old)}"] if len(new) < len(old) else []
        for number, pair in enumerate(zip(old, new, strict=False)):
            lines += missing(*pair, f"{where}.{number}")
        return lines
    return [] if old == new else [f"{where} was {old!r} and is {new!r}"]


def unforeseen(lines):
    return [line for line in lines if not line.startswith(tuple(CHANGED))]


@pytest.fixture(scope="module")
def surfaces(tmp_path_factory):
    home = tmp_path_factory.mktemp("surface") / "home"
    shutil.copytree(OLD / "home", home)
    now = json.loads(run(SURFACE, ROOT, home, OLD / "solvers", home=home))
    return json.loads((OLD / "surface.json").read_text(encoding="utf-8")), now


@pytest.mark.parametrize("part", ["library", "registries", "commands", "webui", "comfyui"])
def test_everything_public_is_still_there(surfaces, part):
    old, now = surfaces
    assert unforeseen(missing(old[part], now[part], part)) == []


def test_nothing_new_is_asked_of_callers(surfaces):
    """A new parameter has a default, a new input of a node or of a command is optional."""
    asked = []
    for surface in surfaces:
        library, nodes = surface["library"], surface["comfyui"]["nodes"]
        calls = library["functions"] | library["classes"]
        found = {
            f"{name}({parameter})"
            for name, call in calls.items()
            for parameter, about in call.get("parameters", {}).items()
            if "default" not in about
        }
        for name, node in nodes.items():
            found |= {f"{name}: {each['name']}" for each in node["inputs"]["required"].values()}
        for name, command in surface["commands"]["commands"].items():
            every = {**command["options"], **command["positional"]}
            required = [key for key, each in every.items() if each.get("required")]
            found |= {f"{name} {key}" for key in required}
        asked.append(found)
    old, now = asked
    assert old and now - old <= {"classical_table(space)"}


def test_a_lost_name_is_noticed():
    old = {"a": ["y", "x"], "b": {"c": 1}, "d": [3, 1]}
    assert missing(old, {"a": ["w", "x", "y"], "b": {"c": 1, "e": 2}, "d": [3, 1, 2]}) == []
    assert missing(old, {"a": ["y"], "b": {}, "d": [1]}) == [
        "a lacks 'x'",
        "b.c is gone",
        "d has 1 entries, not 2",
        "d.0 was 3 and is 1",
    ]
