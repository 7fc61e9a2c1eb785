"""The panel without a browser: its page under the installed gradio, and what its tabs do."""

import html
import json
import os
import re
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from corpus import picture_bomb, typical
from extreme_packs import EXTREMES, extreme_pack
from PIL import Image

os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"

from s4s_core import load_solver, save_solver
from s4s_core.app import processes
from s4s_core.app.description import describe
from s4s_core.app.folders import DEMO, DEMO_SOLVER, jobs_home, solver_files, solver_folders
from s4s_core.app.processes import is_alive
from s4s_core.demo import SOLVERS
from s4s_core.errors import ConfigError, JobError, ModelError, S4SError, SolverFileError
from s4s_core.solver_file import dump_solver
from s4s_core.table import SolverPack
from s4s_core.teacher import TEACHER_NFE
from trainer import jobs as job_store
from trainer import rendering
from trainer.config import TrainConfig
from trainer.estimate import Estimate
from trainer.panel import (
    build,
    charts,
    compare,
    compat,
    fields,
    jobs,
    markup,
    page,
    server,
    solvers,
    train,
)

ROOT = Path(__file__).resolve().parents[2]
EVIL = "<img src=x onerror=alert(1)>"
FORGED = ["../../etc/passwd", "/etc/passwd", "", None, 5, "nothing", ["a"], "..", "a\0b"]


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("S4S_HOME", str(tmp_path))
    monkeypatch.delenv("S4S_SOLVERS", raising=False)
    monkeypatch.setattr(job_store, "ensure_runner", lambda: None)
    return tmp_path


@pytest.fixture
def files(home):
    """Two solver files of the demo model: 3 to 5 steps, and 6."""
    folder = home / "solvers"
    folder.mkdir()
    pack = load_solver(SOLVERS["ve"])
    parts = {"few": (3, 4, 5), "six": (6,)}
    for name, nfes in parts.items():
        about = {**pack.metadata, "thumbnail": "data:image/png;base64,AAAA"}
        part = SolverPack({n: pack[n] for n in nfes}, about)
        save_solver(folder / f"{name}.safetensors", part)
    return folder


@pytest.fixture(scope="module")
def blocks():
    return build()


def values(**changed):
    """Values of the fields of Train, as the page has them when it is opened."""
    given = {
        **dict(kind="demo", path="", nfes=["5"], effort="normal", cfg=0, width=0, height=0),
        **dict(prompts="", name="", negative="", method=train.AS_PRESET, objective=train.AS_PRESET),
        **dict(teacher="auto", budget=0, seed=0, dtype="auto", device="auto", offload=False),
    }
    assert tuple(given) == train.NAMES
    return list((given | changed).values())


# The page


def components(blocks):
    return list(blocks.blocks.values())


def test_the_page_has_four_tabs(blocks):
    labels = [c.label for c in components(blocks) if type(c).__name__ in ("Tab", "TabItem")]
    assert labels == ["Train", "Jobs", "Solvers", "Compare"]


def test_every_input_has_help(blocks):
    kinds = ("Textbox", "Number", "Dropdown", "Radio", "Checkbox", "CheckboxGroup", "Slider")
    inputs = [c for c in components(blocks) if type(c).__name__ in kinds]
    assert len(inputs) > 25
    assert [c.label for c in inputs if not c.info] == []


def test_the_fields_are_in_the_order_that_their_readers_expect():
    import gradio as gr

    with gr.Blocks():
        assert tuple(train.TrainTab().inputs) == train.NAMES
        assert tuple(compare.CompareTab().inputs) == compare.NAMES


def test_a_look_answers_for_every_output(blocks, files):
    shown = page.look({}, None, None, None, None, None)
    events = blocks.get_config_file()["dependencies"]
    looks = [len(event["outputs"]) for event in events if len(event["inputs"]) == 6]
    assert looks == [len(shown)] * len(looks) and len(looks) > 10


def test_a_second_look_sends_nothing(files):
    job_store.add(TrainConfig(), start=False)
    seen = {}
    page.look(seen, None, None, None, None, None)
    id = job_store.core.job_ids()[0]
    again = page.look(seen, id, "few.safetensors", "3", "few.safetensors", "4")
    assert all(value == compat.UNCHANGED for value in again[:-1])


def test_the_panel_does_not_import_torch(home):
    code = (
        "import sys; from trainer.panel import build, page; build(); import trainer.panel.server; "
        "page.look({}, None, None, None, None, None); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def test_errors_become_sentences():
    import gradio as gr

    def fail():
        raise S4SError(f"No {EVIL} & more.")

    with pytest.raises(gr.Error) as caught:
        compat._telling(fail)()
    assert "<img" not in str(caught.value) and "&lt;img" in str(caught.value)


# Train


def test_the_page_as_it_is_makes_the_default_config():
    assert train.config_of(*values()) == TrainConfig()


def test_fields_reach_the_config():
    config = train.config_of(
        *values(
            kind="diffusers",
            path=" /models/a.safetensors ",
            nfes=["8", "4"],
            effort="quick",
            cfg=7.5,
            width=512,
            height=768,
            prompts="a cat\n\n a dog \n",
            name=" mine ",
            negative="rain",
            seed=3,
            budget=99,
            dtype="float16",
            device="cuda:1",
            offload=True,
        )
    )
    model = config.model
    assert (model.kind, model.path, model.prompts) == (
        *("diffusers", "/models/a.safetensors"),
        ("a cat", "a dog"),
    )
    assert (model.cfg, model.width, model.height, model.negative) == (7.5, 512, 768, "rain")
    assert (model.dtype, model.device, model.offload) == ("float16", "cuda:1", True)
    assert (config.name, config.nfes, config.effort) == ("mine", (4, 8), "quick")
    assert (config.seed, config.budget) == (3, 99)


def test_a_preset_sets_what_advanced_leaves_to_it():
    paper = train.config_of(*values(effort="paper: S4S"))
    assert paper.method == "s4s" and paper.objective.startswith("lpips")
    changed = train.config_of(*values(effort="paper: S4S", objective="l2"))
    assert changed == replace(paper, objective="l2")


@pytest.mark.parametrize(
    "changed, error",
    [
        (dict(kind="python", path="os:getcwd"), ModelError),
        (dict(kind="nothing"), ModelError),
        (dict(kind=None), ModelError),
        (dict(kind="diffusers", path=""), ModelError),
        (dict(nfes=[]), ConfigError),
        (dict(nfes=["x"]), ConfigError),
        (dict(nfes=None), ConfigError),
        (dict(cfg="x"), ConfigError),
        (dict(cfg=-1), ModelError),
        (dict(effort="endless"), ConfigError),
        (dict(method="magic"), S4SError),
        (dict(objective="magic"), ConfigError),
        (dict(teacher="magic"), ConfigError),
        (dict(teacher="magic:3:edm:20"), ConfigError),
        (dict(objective="huber"), ConfigError),
        (dict(seed=-1), ConfigError),
        (dict(dtype="int1"), ModelError),
        (dict(name="a\nb"), ConfigError),
    ],
)
def test_bad_fields_are_one_sentence_and_queue_nothing(changed, error):
    with pytest.raises(error) as caught:
        train.queue_job(None, *values(**changed))
    assert "\n" not in str(caught.value) and job_store.core.job_ids() == []


@pytest.mark.parametrize(
    "changed",
    [
        {},
        dict(effort="quick", nfes=["4", "8"], seed=7, budget=5, name="n", prompts="a\nb"),
        dict(effort="thorough", method="ld3", objective="l1"),
        dict(effort="paper: S4S-Alt", teacher="ipndm:3:edm:30", kind="diffusers", path="/m"),
        dict(effort="paper: S4S", objective="l2", cfg=7.5, width=512, height=768, offload=True),
    ],
)
def test_the_settings_of_a_job_fill_the_fields_again(changed):
    config = train.config_of(*values(**changed))
    assert train.config_of(*train.values_of(config)) == config
    id = job_store.add(config, start=False)
    tabs, *updates = page.use_settings(id)
    assert tabs["selected"] == "train" and len(updates) == len(train.NAMES)
    again = train.config_of(*(update["value"] for update in updates))
    assert again == job_store.job(id).config
    assert updates[train.NAMES.index("path")]["visible"] == (config.model.kind == "diffusers")


def test_options_without_a_field_do_not_keep_settings_from_being_used():
    config = TrainConfig(options={"samples": 7})
    assert train.config_of(*train.values_of(config)) == replace(config, options={})


class Hooks:
    """A host that notes which jobs there were when it was asked for its memory."""

    host = "test"

    def __init__(self):
        self.called = []

    def before_training(self):
        self.called.append(job_store.core.job_ids())


def test_the_button_frees_the_host_queues_a_job_and_turns_to_it():
    hooks = Hooks()
    tabs, listed = page.queue_job(hooks, *values(name="mine"))
    assert hooks.called == [[]] and tabs["selected"] == "jobs"
    assert listed["choices"] == [("mine · queued", listed["value"])]
    assert job_store.job(listed["value"]).config.name == "mine"


def test_every_way_to_start_a_job_frees_the_host(monkeypatch):
    monkeypatch.setattr(job_store, "ensure_runner", lambda: None)
    hooks, id = Hooks(), job_store.add(TrainConfig(), start=False)
    jobs.wake(hooks)
    assert hooks.called == [[id]]
    monkeypatch.setattr(job_store, "is_running", lambda: True)
    jobs.wake(hooks)  # a job computes already: the host has what is left
    assert hooks.called == [[id]]
    job_store.cancel(id)
    jobs.resume(hooks, id)
    assert hooks.called == [[id], [id]] and job_store.job(id).view()["status"] == "queued"
    with pytest.raises(JobError):
        jobs.resume(hooks, "no such job")
    assert len(hooks.called) == 2


def test_no_offered_steps_are_as_many_as_the_usual_teacher_makes():
    assert max(train.NFES) < TEACHER_NFE


def test_an_estimate_is_shown(monkeypatch):
    found = Estimate(75, 3 << 30, 1234, "cuda:0", (f"Too little {EVIL}.",))
    monkeypatch.setattr(train, "estimate", lambda config: found)
    text = train.estimate_card(None, *values())
    for part in ("1:15", "3.2 GB", "1,234", "cuda:0", "Too little"):
        assert part in text
    assert EVIL not in text


def test_checkpoints_of_the_host_are_offered(tmp_path, monkeypatch):
    monkeypatch.setattr(fields, "CHECKOUT", tmp_path / "custom_nodes" / "s4s")
    folder = tmp_path / "models" / "checkpoints" / "sub"
    folder.mkdir(parents=True)
    (folder / "a.safetensors").touch()
    (folder / "b.ckpt").touch()
    assert fields.checkpoints() == [str(folder / "a.safetensors")]
    assert fields.comfy_folder() == str(tmp_path)


# Jobs


def with_run(id, status="running", **facts):
    """Give a job what a worker would have written."""
    folder = job_store.core.job_folder(id)
    lines = [
        {"nfe": n, "step": k, "loss": 1 / (k + 1), "validation": 2 / (k + 1), "calls": 100 * k}
        | {"progress": 0.5, "eta": 65, "message": "5 NFE, step 3"}
        for n in (4, 5)
        for k in range(5)
    ]
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (folder / "log.txt").write_text(f"first line\n{EVIL}\n")
    (folder / "samples").mkdir()
    (folder / "samples" / "0001.png").write_bytes(b"a picture")
    state = job_store.core.read_state(folder)
    job_store.core.write_state(folder, state | {"status": status, **facts})
    return folder


def test_a_job_is_shown_with_everything():
    id = job_store.add(TrainConfig(name="mine", nfes=(4, 5)), start=False)
    folder = with_run(id, "failed", error=f"It broke {EVIL}.", exit_code=7)
    listed, card, grid, curves, log, cancel, resume, delete, again, confirm = jobs.look({}, None)
    assert listed["value"] == id and listed["choices"] == [("mine · failed", id)]
    assert "50%" in card and "exit code 7" in card and "It broke" in card and EVIL not in card
    assert "data:image/png;base64,YSBwaWN0dXJl" in grid
    assert curves.count("<polyline") == 4 and "4 steps" in curves and "NaN" not in curves
    assert "Error on validation noise" in curves
    assert "first line" in log and EVIL not in log
    assert (cancel["interactive"], resume["interactive"]) == (False, True)
    assert delete["interactive"] and again["interactive"] and not confirm["visible"]
    (folder / "samples" / "0002.png").write_bytes(b"another")
    seen = {}
    jobs.look(seen, id)
    (folder / "samples" / "0003.png").write_bytes(b"the newest")
    later = jobs.look(seen, id)
    assert "dGhlIG5ld2VzdA" in later[2] and later[1] == compat.UNCHANGED


def test_jobs_that_wait_after_a_reboot_go_on(monkeypatch):
    called = []
    monkeypatch.setattr(job_store, "ensure_runner", lambda: called.append(1))
    jobs.wake(None)
    id = job_store.add(TrainConfig(), start=False)
    assert called == []
    jobs.wake(None)
    assert called == [1]
    job_store.cancel(id)
    jobs.wake(None)
    assert called == [1]


def test_buttons_act_on_the_chosen_job():
    first, second = (job_store.add(TrainConfig(name=n), start=False) for n in "ab")
    job_store.cancel(jobs.known(first))
    assert job_store.job(first).view()["status"] == "cancelled"
    assert job_store.job(second).view()["status"] == "queued"
    job_store.resume(jobs.known(first))
    assert job_store.job(first).view()["status"] == "queued"
    job_store.delete(jobs.known(first))
    assert job_store.core.job_ids() == [second]


@pytest.mark.parametrize("id", FORGED)
def test_forged_jobs_are_refused(id, home):
    kept = job_store.add(TrainConfig(), start=False)
    with pytest.raises(JobError):
        jobs.known(id)
    assert jobs.look({}, id)[0]["value"] == kept


def test_no_jobs_and_damaged_jobs_are_no_error():
    assert "No jobs yet" in jobs.look({}, None)[1]
    id = job_store.add(TrainConfig(), start=False)
    (job_store.core.job_folder(id) / "state.json").write_text("{")
    assert "delete the job" in jobs.look({}, id)[1]


# Solvers


def test_a_solver_is_shown_with_everything(files):
    listed, parts, card, link, nfes, plot, drop, sure = solvers.look({}, None, None)
    names = ["few.safetensors", "six.safetensors"]
    assert listed["choices"] == names and listed["value"] == names[0] == parts["choices"][0]
    assert "3, 4, 5" in card and "data:image/" in card and "S4S / classical" in card
    assert 'download="few.safetensors"' in link
    assert nfes["choices"] == ["3", "4", "5"] and nfes["value"] == "3"
    assert plot.count("<svg") >= 2 and drop["interactive"] and not sure["visible"]


@pytest.mark.parametrize("sigmas", EXTREMES)
def test_a_solver_of_extreme_numbers_is_drawn(files, sigmas):
    """A file may hold any finite number: its card and its charts are shown, and the tab lives."""
    pack = extreme_pack(sigmas)
    (files / "extreme.safetensors").write_bytes(dump_solver(pack))
    shown = solvers.look({}, "extreme.safetensors", None)
    assert shown[4]["choices"] == [str(pack.nfes[0])]
    assert shown[5].count("<svg") == 2
    assert not re.search(r"\b(nan|inf)\b", shown[5])
    assert shown[5].count("<text") < 100


def test_the_download_is_the_file(files):
    import base64

    code = re.search('base64,([^"]*)', solvers.link("six.safetensors"))[1]
    assert base64.b64decode(code) == (files / "six.safetensors").read_bytes()


def test_uploads_are_checked_and_never_replace_a_file(files):
    data = SOLVERS["ve"].read_bytes()
    before = set(solver_files())
    cleared, listed = solvers.add(data)
    assert cleared is None and (files / listed["value"]).read_bytes() == data
    solvers.add(data)  # the same file once more is the same file
    assert set(solver_files()) == before | {listed["value"]}


@pytest.mark.parametrize(
    "data",
    [b"", b"x" * 100, None, "text", bytes(2 << 20), SOLVERS["ve"].read_bytes()[:-1]],
    ids=["empty", "noise", "none", "text", "large", "cut"],
)
def test_bad_uploads_are_refused_without_a_trace(files, data):
    before = sorted(files.iterdir())
    with pytest.raises(SolverFileError):
        solvers.add(data)
    assert sorted(files.iterdir()) == before


def test_an_upload_cannot_choose_its_path(files):
    pack = load_solver(files / "six.safetensors")
    evil = SolverPack(pack.tables, {**pack.metadata, "name": "../../../evil"})
    from s4s_core.solver_file import dump_solver

    _, listed = solvers.add(dump_solver(evil))
    assert (files / listed["value"]).parent == files and listed["value"] in solver_files()


@pytest.mark.parametrize("name", FORGED)
def test_forged_solvers_are_refused(files, name):
    before = sorted(files.iterdir())
    for act in (solvers.delete, solvers.link, lambda n: solvers.merge([n, n], "")):
        with pytest.raises((SolverFileError, TypeError)):
            act(name)
    assert sorted(files.iterdir()) == before
    solvers.look({}, name, name)


def test_files_are_deleted_and_merged(files):
    listed = solvers.merge(["few.safetensors", "six.safetensors"], "both")
    assert load_solver(files / listed["value"]).nfes == (3, 4, 5, 6) and listed["value"] == (
        "both.safetensors"
    )
    with pytest.raises(SolverFileError, match="two or more"):
        solvers.merge(["few.safetensors"], "")
    solvers.delete("few.safetensors")
    assert sorted(solver_files()) == ["both.safetensors", "six.safetensors"]


@pytest.mark.parametrize("case", typical(), ids=lambda case: case.name)
def test_every_kind_of_bad_file_says_why(files, case):
    """In the list, shown in one sentence without a table or a link; as an upload, refused."""
    (files / "bad.safetensors").write_bytes(case.data)
    before = sorted(files.iterdir())
    shown = solvers.look({}, "bad.safetensors", None)
    text = html.unescape(shown[2])
    assert "cannot be used" in text and case.fault in text and text.count(str(files)) == 1
    assert text.isprintable() and len(text) < 1000
    assert shown[3] == shown[5] == "" and shown[4]["choices"] == []
    with pytest.raises(SolverFileError) as caught:
        solvers.add(case.data)
    text = str(caught.value)
    assert text.startswith("This file: cannot be used: ") and case.fault in text
    assert text.isprintable() and len(text) < 500
    assert sorted(files.iterdir()) == before


def test_a_bomb_of_a_thumbnail_is_never_opened(files, monkeypatch):
    pack = load_solver(files / "six.safetensors")
    save_solver(files / "bomb.safetensors", SolverPack(pack.tables, {"thumbnail": picture_bomb()}))
    monkeypatch.setattr(Image, "open", lambda *_: pytest.fail("the thumbnail was opened"))
    shown = solvers.look({}, "bomb.safetensors", None)
    assert picture_bomb() in shown[2] and "cannot be used" not in shown[2]


def test_texts_of_a_file_are_escaped(files):
    pack = load_solver(files / "six.safetensors")
    about = {"name": EVIL, "model": {"name": EVIL}, "notes": EVIL, "training": {EVIL: EVIL}}
    text = markup.solver_card(EVIL, describe(SolverPack(pack.tables, about)).plain())
    assert "<img" not in text and "&lt;img" in text


# Compare


def fields_of_compare(**changed):
    given = {
        **dict(kind="demo", path="", solver="few.safetensors", nfe="5", seed=0, count=4),
        **dict(prompts="", classical=next(iter(compare.CLASSICAL)), negative="", cfg=0),
        **dict(width=0, height=0, dtype="auto", offload=False),
    }
    assert tuple(given) == compare.NAMES
    return given | changed


def test_the_fields_become_arguments_of_render(files):
    found = compare.arguments(
        fields_of_compare(kind="diffusers", path="/m", prompts="--out=x\ny", offload=True, seed=7)
    )
    assert f"--solver={files / 'few.safetensors'}" in found and "--model=diffusers:/m" in found
    assert "--prompt=--out=x y" in found and "--seed=7" in found and "--offload" in found
    from trainer.cli import build_parser

    args = build_parser("render").parse_args(["render", *found, "--out=there"])
    assert args.prompt == ["--out=x y"] and args.out == "there" and args.nfe == 5


@pytest.mark.parametrize(
    "changed",
    [
        *({"solver": name} for name in FORGED if not isinstance(name, list)),
        *({"nfe": "6"}, {"nfe": None}, {"nfe": "x"}, {"seed": -1}, {"count": 17}, {"count": None}),
        *({"classical": "auto"}, {"classical": "evil"}, {"kind": "python", "path": "os:getcwd"}),
        *({"cfg": "x"}, {"cfg": -1}, {"dtype": "int1"}),
    ],
)
def test_bad_comparisons_start_nothing(files, home, changed):
    with pytest.raises(S4SError):
        compare.begin(None, *fields_of_compare(**changed).values())
    assert not (home / "compare").exists()


def test_a_comparison_is_rendered_and_shown(files, home):
    folder = rendering.compare_home()
    pack = load_solver(files / "few.safetensors")
    from trainer.models import ModelChoice

    assert compare.look({}, None, None)[3].count("<img") == 0
    rendering.render(ModelChoice(), pack, folder, 4, seed=1, count=2)
    named, steps, status, pictures, stop = compare.look({}, None, None)
    assert named["value"] == "few.safetensors" and steps["choices"] == ["3", "4", "5"]
    assert status == "" and not stop["interactive"]
    assert pictures.count("<img") == 5 and 'type="range"' in pictures
    done = rendering.look(folder)["done"]
    assert all(0 < done[name]["rmse"] < 1 for name in ("solver", "classical"))
    assert done["teacher"] == {"label": "teacher", "nfe": 20, "rmse": 0.0}


def test_what_differs_from_the_training_is_noted(files, home):
    from trainer.models import ModelChoice

    pack = load_solver(files / "few.safetensors")
    rendering.render(ModelChoice(cfg=7.0), pack, rendering.compare_home(), 4, count=1)
    assert "trained for CFG 2, this run has CFG 7." in compare.look({}, None, None)[2]


def test_a_failed_rendering_says_why(files, home):
    folder = rendering.compare_home()
    from trainer.models import ModelChoice

    pack = load_solver(files / "few.safetensors")
    with pytest.raises(S4SError):
        rendering.render(ModelChoice("mixture"), pack, folder, 4)
    assert "nothing that can be shown" in compare.look({}, None, None)[2]
    with pytest.raises(S4SError, match="no table of 9"):
        rendering.render(ModelChoice(), pack, folder, 9)


def test_a_rendering_that_died_says_so(home):
    folder = rendering.compare_home()
    folder.mkdir()
    (folder / "state.json").write_text(json.dumps(rendering._state("Opening the model.")))
    assert "without a word" in compare.look({}, None, None)[2]
    (folder / "log.txt").write_text("Traceback\nMemoryError: none left\n\n")
    assert "last words: MemoryError: none left" in compare.look({}, None, None)[2]
    (folder / "log.txt").write_text("error: Such a file is no solver.\n")
    assert "Such a file is no solver." in compare.look({}, None, None)[2]
    assert "error:" not in compare.look({}, None, None)[2]


RENDERER = f"""
import sys, time
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from s4s_core.lock import Lock
from trainer.rendering import Teller
if sys.argv[1] == "late":
    folder = Path(sys.argv[2])
    Lock(folder / "lock").take()
    print("loaded completely 9.5 4897.0 True", flush=True)
    Teller(folder).tell("teacher: call 3 of 20", 0.1)
time.sleep(600)
"""


@pytest.mark.parametrize("when", ["early", "late"])
def test_a_rendering_that_was_stopped_is_no_error(home, monkeypatch, when):
    """Early: its process has not taken the lock yet, as while it imports torch."""
    folder = rendering.compare_home()
    line = [sys.executable, "-c", RENDERER, when, str(folder)]
    monkeypatch.setattr(rendering, "trainer_command", lambda *a: line)
    process = rendering.start(folder, [])
    deadline = time.monotonic() + 120
    while when == "late" and rendering.look(folder)["progress"] == 0:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert "Rendering" in compare.look({}, None, None)[2]
    rendering.stop(folder)
    assert process.wait(60) != 0 and not rendering.is_rendering(folder)
    *_, status, _, stop = compare.look({}, None, None)
    assert status == markup.note("Stopped.") and not stop["interactive"]
    rendering.stop(folder)  # once more does no harm
    assert rendering.look(folder)["message"] == "Stopped."


def test_the_first_solver_of_ones_own_takes_the_demos_place(home):
    seen = {}
    compare.look(seen, None, None)
    (home / "solvers").mkdir()
    (home / "solvers" / "mine.safetensors").write_bytes(DEMO_SOLVER.read_bytes())
    named = compare.look(seen, DEMO, "5")[0]
    assert (named["choices"], named["value"]) == (["mine.safetensors", DEMO], "mine.safetensors")
    assert "value" not in compare.look(seen, DEMO, "5")[0]  # now it was chosen


def test_a_fresh_machine_can_compare_the_demos_solver(home):
    named, steps, *_ = compare.look({}, None, None)
    assert (named["choices"], named["value"]) == ([DEMO], DEMO)
    given = fields_of_compare(solver=DEMO, nfe=steps["value"])
    assert f"--solver={DEMO_SOLVER}" in compare.arguments(given)
    with pytest.raises(S4SError, match="^Choose a solver first.$"):
        compare.begin(None, *fields_of_compare(solver=None).values())


# The server


def test_a_port_that_is_taken_is_one_sentence_unless_nobody_asked_for_it(monkeypatch):
    with server.open_socket(0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(S4SError, match=f"Port {port} cannot be used"):
            server.open_socket(port)
        monkeypatch.setattr(server, "PORT", port)
        with server.open_socket() as other:
            assert other.getsockname()[0] == "127.0.0.1" and other.getsockname()[1] != port
    for impossible in (-1, 70_000):
        with pytest.raises(S4SError, match="choose another"):
            server.open_socket(impossible)


def test_the_environment_cannot_open_the_panel(monkeypatch, tmp_path):
    for name in ("GRADIO_SHARE", "GRADIO_ALLOWED_PATHS", "GRADIO_SERVER_NAME", "GRADIO_ROOT_PATH"):
        monkeypatch.setenv(name, "evil")
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(processes, "DETACHED_IN", None)
    monkeypatch.chdir(tmp_path)
    server.prepare_environment(tmp_path)
    left = {name: value for name, value in os.environ.items() if name.startswith("GRADIO_")}
    assert left == {"GRADIO_ANALYTICS_ENABLED": "False", "GRADIO_TEMP_DIR": str(tmp_path)}


def test_jobs_outlive_the_panels_own_folder(monkeypatch, tmp_path):
    """A job that starts in a folder that is gone cannot load torch; one in it holds it."""
    own, start = tmp_path / "own", tmp_path / "start"
    own.mkdir(), start.mkdir()
    monkeypatch.chdir(start)
    named = {"S4S_HOME": "h", "S4S_SOLVERS": os.pathsep.join("ab")}
    monkeypatch.setattr(os, "environ", dict(os.environ) | named)
    monkeypatch.setattr(processes, "DETACHED_IN", None)
    server.prepare_environment(own)
    assert jobs_home() == start / "h" / "jobs"
    assert solver_folders() == [start / "a", start / "b"]
    command = [sys.executable, "-c", "import os; print(os.getcwd())"]
    assert processes.start_detached(command, tmp_path / "log").wait(120) == 0
    assert Path((tmp_path / "log").read_text().strip()) == start


def test_the_server_ends_with_the_process_that_it_follows():
    class Server:
        should_exit = False

    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert is_alive(process.pid) and is_alive(os.getpid())
    follower = threading.Thread(target=server._follow, args=[process.pid, Server], daemon=True)
    follower.start()
    process.kill()
    process.communicate()
    follower.join(60)
    assert Server.should_exit and not is_alive(process.pid)


# Charts


def test_charts_leave_out_what_cannot_be_drawn():
    points = [(0, 1.0), (1, float("nan")), (2, -1), (3, None), (4, 0.5), (5, float("inf"))]
    text = charts.line_chart("t", {EVIL: points}, "x")
    assert "nan" not in text and EVIL not in text
    assert [len(p.split()) for p in re.findall('points="([^"]*)"', text)] == [1, 1]
    assert "nothing to draw" in charts.line_chart("t", {"a": []}, "x")


@pytest.mark.parametrize(
    "values", [[1.0], [3.0, 3.0], [1e-8, 1e8], [5, 5.0001], [0.049, 0.052], *EXTREMES]
)
@pytest.mark.parametrize("log", [True, False])
def test_axes_hold_their_values_and_have_few_ticks(values, log):
    values = [value for value in values if value > 0]
    axis = charts.Axis(values, 0, 100, log)
    assert all(-1e-6 <= axis(v) <= 100 + 1e-6 for v in values)
    assert len(axis.ticks()) <= 25 and all(-1e-6 <= axis(t) <= 100 + 1e-6 for t in axis.ticks())
