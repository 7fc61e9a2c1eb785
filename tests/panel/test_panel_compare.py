"""The tab Compare, and the renderings that it shows."""

import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hostile import FORGED_NAMES, ODD_VALUES
from panels import ROOT

from s4s_core import load_solver
from s4s_core.app.folders import DEMO, DEMO_SOLVER
from s4s_core.errors import S4SError
from trainer import rendering
from trainer.cli import build_parser
from trainer.models import ModelChoice
from trainer.panel import compare, markup


def values(**changed):
    """Values of the fields of Compare, by name."""
    given = {
        **dict(kind="demo", path="", solver="a.safetensors", nfe="5", seed=0, count=4),
        **dict(prompts="", classical=next(iter(compare.CLASSICAL)), negative="", cfg=0),
        **dict(width=0, height=0, dtype="auto", offload=False),
    }
    assert tuple(given) == compare.NAMES
    return given | changed


def status():
    return compare.refresh({}, None, None)[2]


def test_fields_become_arguments_of_render(files):
    arguments = compare.render_arguments(
        values(kind="diffusers", path="/m", prompts="--out=x\ny", offload=True, seed=7)
    )
    assert f"--solver={files / 'a.safetensors'}" in arguments
    assert {"--model=diffusers:/m", "--seed=7", "--offload"} <= set(arguments)
    args = build_parser("render").parse_args(["render", *arguments, "--out=there"])
    assert args.prompt == ["--out=x y"] and args.out == "there" and args.nfe == 5


@pytest.mark.parametrize("field", compare.NAMES)
def test_any_value_of_a_field_gives_arguments_or_one_sentence(files, field):
    for odd in ODD_VALUES:
        try:
            compare.render_arguments(values(**{field: odd}))
        except S4SError as error:
            assert field == "solver" or str(error).isprintable()


@pytest.mark.parametrize(
    "changed",
    [
        *({"solver": name} for name in FORGED_NAMES if not isinstance(name, list)),
        *({"nfe": "6"}, {"nfe": None}, {"nfe": "x"}, {"seed": -1}, {"count": 17}, {"count": None}),
        *({"classical": "auto"}, {"classical": "evil"}, {"kind": "python", "path": "os:getcwd"}),
        *({"cfg": "x"}, {"cfg": -1}, {"dtype": "int1"}),
    ],
)
def test_bad_comparisons_start_nothing(files, home, changed):
    with pytest.raises(S4SError):
        compare.start_rendering(None, *values(**changed).values())
    assert not (home / "compare").exists()


def test_a_comparison_is_rendered_and_shown_with_what_differs_from_training(files):
    folder = rendering.compare_home()
    pack = load_solver(files / "a.safetensors")
    assert compare.refresh({}, None, None)[3].count("<img") == 0
    rendering.render(ModelChoice(cfg=7.0), pack, folder, 4, count=1)
    assert "CFG 4" in status() and "CFG 7" in status()
    rendering.render(ModelChoice(), pack, folder, 4, seed=1, count=2)
    named, steps, text, pictures, stop = compare.refresh({}, None, None)
    assert named["value"] == "a.safetensors" and steps["choices"] == ["3", "4", "5"]
    assert text == "" and not stop["interactive"]
    assert pictures.count("<img") == 5 and 'type="range"' in pictures
    done = rendering.rendering_state(folder)[0].done
    assert all(0 < done[name].rmse < 1 for name in ("solver", "classical"))
    assert done["teacher"] == rendering.RenderedPicture("teacher", 20, 0.0)


def test_a_failed_or_dead_rendering_says_why(files):
    folder, pack = rendering.compare_home(), load_solver(files / "a.safetensors")
    with pytest.raises(S4SError) as caught:
        rendering.render(ModelChoice("mixture"), pack, folder, 4)
    assert markup.note(str(caught.value), bad=True) == status()
    with pytest.raises(S4SError, match="no table"):
        rendering.render(ModelChoice(), pack, folder, 9)
    (folder / "state.json").write_text(json.dumps({"message": "Opening the model."}))
    for log, said in {
        "": "died unexpectedly",
        "Traceback\nMemoryError: none left\n\n": "MemoryError: none left",
        "error: This file is not a solver.\n": "This file is not a solver.",
    }.items():
        (folder / "log.txt").write_text(log)
        assert said in status() and "error:" not in status()


RENDERER = f"""
import sys, time
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from s4s_core.lock import Lock
from trainer.rendering import RenderingReport
if sys.argv[1] == "late":
    folder = Path(sys.argv[2])
    Lock(folder / "lock").take()
    print("loaded completely 9.5 4897.0 True", flush=True)
    RenderingReport(folder).write("teacher: call 3 of 20", 0.1)
time.sleep(600)
"""


def test_one_comparison_starts_however_often_render_is_pressed(home, monkeypatch):
    folder = rendering.compare_home()
    line = [sys.executable, "-c", RENDERER, "early", str(folder)]
    monkeypatch.setattr(rendering, "trainer_command", lambda *_: line)
    with ThreadPoolExecutor(4) as pool:
        pressed = [pool.submit(rendering.start, folder, []) for _ in range(4)]
    refused = [each.exception() for each in pressed if each.exception()]
    assert len(refused) == 3 and all("already being rendered" in str(each) for each in refused)
    rendering._started.clear()  # as another panel sees it
    with pytest.raises(S4SError, match="already being rendered"):
        rendering.start(folder, [])
    (process,) = (each.result() for each in pressed if not each.exception())
    process.kill()
    process.wait()
    os.utime(folder / "state.json", (0, time.time() + 9999))  # as after a clock was set back
    assert not rendering.rendering_state(folder)[1]


@pytest.mark.parametrize("prompt", ["x" * 300_000, "a\0b"])
def test_a_prompt_that_no_process_can_be_given_is_refused(files, home, prompt):
    with pytest.raises(S4SError, match="A prompt must have at most"):
        rendering.start(rendering.compare_home(), [f"--prompt={prompt}"])
    assert rendering.rendering_state(rendering.compare_home()) == (None, False)


@pytest.mark.parametrize("when", ["early", "late"])
def test_a_stopped_rendering_is_not_an_error(home, monkeypatch, when):
    """Early: its process has not taken the lock yet, as while it imports torch."""
    folder = rendering.compare_home()
    line = [sys.executable, "-c", RENDERER, when, str(folder)]
    monkeypatch.setattr(rendering, "trainer_command", lambda *_: line)
    process = rendering.start(folder, [])
    deadline = time.monotonic() + 120
    while when == "late" and rendering.rendering_state(folder)[0].progress == 0:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert "Rendering" in status()
    rendering.stop(folder)
    assert process.wait(60) != 0 and not rendering.ProcessFolder(folder).is_running()
    *_, text, _, stop = compare.refresh({}, None, None)
    assert text == markup.note(rendering.STOPPED) and not stop["interactive"]
    rendering.stop(folder)  # stopping twice does no harm
    assert rendering.rendering_state(folder)[0].message == rendering.STOPPED


def test_a_fresh_machine_compares_the_demo_solver_until_one_is_trained(home):
    shown = {}
    named, steps, *_ = compare.refresh(shown, None, None)
    assert (named["choices"], named["value"]) == ([DEMO], DEMO)
    arguments = compare.render_arguments(values(solver=DEMO, nfe=steps["value"]))
    assert f"--solver={DEMO_SOLVER}" in arguments
    (home / "solvers").mkdir()
    (home / "solvers" / "mine.safetensors").write_bytes(DEMO_SOLVER.read_bytes())
    named = compare.refresh(shown, DEMO, "5")[0]
    assert (named["choices"], named["value"]) == (["mine.safetensors", DEMO], "mine.safetensors")
    assert "value" not in compare.refresh(shown, DEMO, "5")[0]  # now somebody has chosen it
