"""The page under the installed gradio, and its tabs Train and Jobs, without a browser."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace

import gradio as gr
import pytest
from fastapi import FastAPI
from hostile import EVIL, FORGED_NAMES, ODD_VALUES
from panels import ROOT

from s4s_core import load_solver
from s4s_core.app import jobs as store
from s4s_core.app.description import describe
from s4s_core.app.estimate import IMG2IMG_STRENGTHS
from s4s_core.demo import SOLVERS
from s4s_core.errors import ConfigError, JobError, ModelError, S4SError
from trainer.config import TrainConfig, from_toml, to_toml
from trainer.estimate import Estimate
from trainer.jobs import queue_job
from trainer.panel import build, compare, compat, fields, jobs, markup, page, train

pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture(scope="module")
def blocks():
    return build()


class Host:
    """A host that notes which jobs there were when it was asked to free memory."""

    def __init__(self):
        self.calls = []

    def before_training(self):
        self.calls.append(store.job_ids())


def values(**changed):
    """Values of the fields of Train as the page has them at first."""
    given = {
        **dict(kind="demo", path="", nfes=["5"], img2img=False, effort="normal", cfg=0, width=0),
        **dict(height=0, prompts="", name="", negative=""),
        **dict(method=train.AS_PRESET, objective=train.AS_PRESET),
        **dict(teacher="auto", budget=0, seed=0, dtype="auto", device="auto", offload=False),
    }
    assert tuple(given) == train.NAMES
    return list((given | changed).values())


# The page


def test_the_page_has_four_tabs_and_every_input_has_help(blocks):
    components = list(blocks.blocks.values())
    labels = [c.label for c in components if type(c).__name__ in ("Tab", "TabItem")]
    assert labels == ["Train", "Jobs", "Solvers", "Compare"]
    kinds = ("Textbox", "Number", "Dropdown", "Radio", "Checkbox", "CheckboxGroup", "Slider")
    inputs = [c for c in components if type(c).__name__ in kinds]
    assert len(inputs) > 25 and [c.label for c in inputs if not c.info] == []
    with gr.Blocks():  # fields are in the order that their readers expect
        assert tuple(train.TrainTab().inputs) == train.NAMES
        assert tuple(compare.CompareTab().inputs) == compare.NAMES


def test_a_refresh_has_a_value_for_every_output_and_a_second_one_sends_nothing(blocks, files):
    id = queue_job(TrainConfig(), start=False).id
    updates = page.refresh("{}", None, None, None, None, None)
    events = blocks.get_config_file()["dependencies"]
    counts = [len(event["outputs"]) for event in events if len(event["inputs"]) == 6]
    assert counts == [len(updates)] * len(counts) and len(counts) > 10
    again = page.refresh(updates[-1], id, "a.safetensors", "3", "a.safetensors", "4")
    assert all(value == compat.UNCHANGED for value in again[:-1])


def test_the_panel_does_not_import_torch():
    code = (
        "import sys; from trainer.panel import build, page; build(); import trainer.panel.server; "
        "page.refresh('{}', None, None, None, None, None); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def test_the_pages_that_gradio_remembers_are_few():
    """Each takes up to megabytes, and every page load is a new one."""
    page = build()
    compat.mount(FastAPI(), page, 1)
    for n in range(3 * compat.MOST_SESSIONS):
        page.state_holder[str(n)]
    assert len(page.state_holder.session_data) == compat.MOST_SESSIONS


# Train


def test_fields_reach_the_config():
    assert train.read_config(*values()) == TrainConfig()
    given = dict(kind="diffusers", path=" /models/a.safetensors ", nfes=["8", "4"], name=" mine ")
    given |= dict(effort="quick", cfg=7.5, width=512, height=768, prompts="a cat\n\n a dog \n")
    given |= dict(negative="rain", seed=3, budget=99, dtype="float16", device="cuda:1")
    config = train.read_config(*values(**given, offload=True))
    model = config.model
    assert (model.kind, model.path) == ("diffusers", "/models/a.safetensors")
    assert (model.prompts, model.negative) == (("a cat", "a dog"), "rain")
    assert (model.cfg, model.width, model.height) == (7.5, 512, 768)
    assert (model.dtype, model.device, model.offload) == ("float16", "cuda:1", True)
    assert (config.name, config.nfes, config.effort) == ("mine", (4, 8), "quick")
    assert (config.seed, config.budget) == (3, 99)
    paper = train.read_config(*values(effort="paper: S4S"))
    assert paper.method == "s4s" and paper.objective.startswith("lpips")
    changed = train.read_config(*values(effort="paper: S4S", objective="l2"))
    assert changed == replace(paper, objective="l2")  # advanced fields override the preset
    both = train.read_config(*values(effort="paper: S4S", img2img=True))
    assert both.options == {**paper.options, "strengths": list(IMG2IMG_STRENGTHS)}


@pytest.mark.parametrize(
    "changed, error",
    [
        (dict(kind="python", path="os:getcwd"), ModelError),
        (dict(kind=None), ModelError),
        (dict(kind="diffusers", path=""), ModelError),
        (dict(nfes=["x"]), ConfigError),
        (dict(nfes=[]), ConfigError),
        (dict(nfes=None), ConfigError),
        (dict(cfg="x"), ConfigError),
        (dict(effort="endless"), ConfigError),
        (dict(method="magic"), S4SError),
        (dict(objective="huber"), ConfigError),
        (dict(teacher="magic:3:edm:20"), ConfigError),
        (dict(seed=-1), ConfigError),
        (dict(dtype="int1"), ModelError),
        (dict(name="a\nb"), ConfigError),
    ],
)
def test_bad_fields_give_a_one_line_error_and_queue_nothing(changed, error):
    with pytest.raises(error) as caught:
        train.queue_training(None, *values(**changed))
    assert "\n" not in str(caught.value) and store.job_ids() == []


@pytest.mark.parametrize("field", train.NAMES)
def test_any_value_of_a_field_gives_a_config_or_one_sentence(field):
    for odd in ODD_VALUES:
        try:
            config = train.read_config(*values(**{"kind": "diffusers", "path": "x", field: odd}))
        except S4SError as error:
            assert str(error).isprintable() and len(str(error)) < 400
        else:
            assert from_toml(to_toml(config)) == config
        assert train._effort_help(odd) == "."


@pytest.mark.parametrize(
    "changed",
    [
        {},
        dict(effort="quick", nfes=["4", "8"], seed=7, budget=5, name="n", prompts="a\nb"),
        dict(effort="thorough", nfes=["4", "8"], img2img=True),
        dict(effort="thorough", method="ld3", objective="l1"),
        dict(effort="paper: S4S-Alt", teacher="ipndm:3:edm:30", kind="diffusers", path="/m"),
        dict(effort="paper: S4S", objective="auto"),
        dict(effort="paper: S4S", objective="l2", cfg=7.5, width=512, height=768, offload=True),
    ],
)
def test_the_settings_of_a_job_fill_the_fields_again(changed):
    config = train.read_config(*values(**changed))
    job = queue_job(config, start=False)
    tabs, *updates = page.reuse_settings(job.id)
    assert tabs["selected"] == "train" and len(updates) == len(train.NAMES)
    again = train.read_config(*(update["value"] for update in updates))
    assert again == from_toml(job.config_text())
    assert updates[train.NAMES.index("path")]["visible"] == (config.model.kind == "diffusers")


def test_the_button_frees_the_host_queues_a_job_and_switches_to_it():
    host = Host()
    tabs, listed = page.start_training(host, *values(name="mine"))
    assert host.calls == [[]] and tabs["selected"] == "jobs"
    assert listed["choices"] == [("mine · queued", listed["value"])]
    assert from_toml(store.Job(listed["value"]).config_text()).name == "mine"


def test_an_estimate_and_errors_are_shown_as_escaped_text(monkeypatch):
    result = Estimate(75, 3 << 30, 1234, "cuda:0", (f"Too little {EVIL}.",))
    monkeypatch.setattr(train, "estimate", lambda config: result)
    text = train.estimate_card(None, *values())
    assert all(part in text for part in ("1:15", "3.2 GB", "1,234", "cuda:0", "Too little"))
    assert EVIL not in text

    def fail():
        raise S4SError(f"No {EVIL} & more.")

    with pytest.raises(gr.Error) as caught:
        compat._show_errors(fail)()
    assert "<img" not in str(caught.value) and "&lt;img" in str(caught.value)


def test_checkpoints_of_the_host_are_offered(tmp_path, monkeypatch):
    monkeypatch.setattr(fields, "CHECKOUT", tmp_path / "custom_nodes" / "s4s")
    folder = tmp_path / "models" / "checkpoints" / "sub"
    folder.mkdir(parents=True)
    (folder / "a.safetensors").touch()
    (folder / "b.ckpt").touch()
    assert fields.checkpoints().files == {"sub/a.safetensors": folder / "a.safetensors"}
    assert fields.comfy_folder() == str(tmp_path)


# Jobs


def test_a_job_is_shown_with_progress_samples_curves_and_log():
    job = queue_job(TrainConfig(name="mine", nfes=(4, 5)), start=False)
    row = {"loss": 1.0, "validation": 2.0, "progress": 0.5, "eta": 65, "message": "iteration 3"}
    rows = [row | {"nfe": n, "step": k, "calls": 100 * k} for n in (4, 5) for k in range(5)]
    (job.path / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (job.path / "log.txt").write_text(f"first line\n{EVIL}\n")
    (job.path / "samples").mkdir()
    (job.path / "samples" / "0001.png").write_bytes(b"a picture")
    job.save(replace(job.state(), status="failed", error=f"It broke {EVIL}.", exit_code=7))
    shown = {}
    listed, card, samples, curves, log, *buttons, confirm = jobs.refresh(shown, None)
    assert listed["value"] == job.id and listed["choices"] == [("mine · failed", job.id)]
    assert "50%" in card and "exit code 7" in card and "It broke" in card and EVIL not in card
    assert "data:image/png;base64,YSBwaWN0dXJl" in samples
    assert curves.count("<polyline") == 4 and "4 steps" in curves and "NaN" not in curves
    assert curves.count("<svg") == 2 and "strength" not in curves
    assert "first line" in log and EVIL not in log
    assert [button["interactive"] for button in buttons] == [False, True, True, True]
    assert not confirm["visible"]
    (job.path / "samples" / "0002.png").write_bytes(b"the newest")
    rows += [{**row, "strength": 0.5} for row in rows]
    (job.path / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)))
    later = jobs.refresh(shown, job.id)
    assert "dGhlIG5ld2VzdA" in later[2] and later[1] == compat.UNCHANGED
    assert later[3].count("<svg") == 4 and "Training loss, strength 0.5" in later[3]
    assert "s4s-scores" not in card
    shutil.copy(SOLVERS["ve"], job.path / "result.safetensors")
    scores = markup.score_table(describe(load_solver(SOLVERS["ve"])))
    assert "Median error" in scores and scores in jobs.refresh(shown, job.id)[1]


def test_waiting_jobs_continue_after_a_reboot_once_the_host_has_freed_memory(monkeypatch):
    host, started = Host(), []
    monkeypatch.setattr(jobs, "ensure_runner", lambda: started.append(1))
    jobs.restart_queue(host)
    job = queue_job(TrainConfig(), start=False)
    assert (host.calls, started) == ([], [])
    jobs.restart_queue(host)
    assert (host.calls, started) == ([[job.id]], [1])
    with monkeypatch.context() as patch:
        patch.setattr(jobs, "runner_is_alive", lambda: True)
        jobs.restart_queue(host)
    job.cancel()
    jobs.restart_queue(host)
    assert (host.calls, started) == ([[job.id]], [1])


@pytest.fixture
def buttons():
    """(the host, {button: what its click does}) of the tab Jobs."""
    host = Host()
    with gr.Blocks() as shown:
        tab = jobs.JobsTab(host)
        tab.listen(lambda event: None)
    clicks = {}
    for event in shown.fns.values():
        if tab.list in event.inputs:
            ((id, _),) = event.targets
            clicks[shown.blocks[id].value] = event.fn
    return host, clicks


def test_buttons_act_on_the_selected_job(buttons):
    host, clicks = buttons
    first, second = (queue_job(TrainConfig(name=name), start=False) for name in "ab")
    clicks["Cancel"](first.id)
    assert (first.view().status, second.view().status) == ("cancelled", "queued")
    assert host.calls == []
    clicks["Resume"](first.id)
    assert first.view().status == "queued" and sorted(host.calls[0]) == sorted(store.job_ids())
    clicks["Yes, delete this job"](first.id)
    assert store.job_ids() == [second.id]


def test_forged_jobs_are_refused(buttons):
    host, clicks = buttons
    job = queue_job(TrainConfig(), start=False)
    assert set(clicks) == {"Cancel", "Resume", "Yes, delete this job"}
    for forged in (*FORGED_NAMES, *ODD_VALUES):
        for click in clicks.values():
            with pytest.raises((JobError, gr.Error)):
                click(forged)
        assert jobs.refresh({}, forged)[0]["value"] == job.id
    assert host.calls == [] and job.view().status == "queued"


def test_no_jobs_and_damaged_jobs_are_shown():
    assert "No jobs yet" in jobs.refresh({}, None)[1]
    job = queue_job(TrainConfig(), start=False)
    (job.path / "state.json").write_text("{")
    assert "Delete the job" in jobs.refresh({}, job.id)[1]
