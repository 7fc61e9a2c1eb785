"""The tab Train: a few fields, an estimate, and the button that queues a job."""

from dataclasses import asdict, replace
from functools import partial

import gradio as gr

from s4s_core.app.jobs import Job
from s4s_core.app.progress import duration
from s4s_core.errors import ConfigError
from s4s_core.names import METHODS, OBJECTIVES

from .. import jobs
from ..config import PRESETS, TrainConfig, with_preset
from ..estimate import estimate, size
from ..models import PATHS
from . import fields
from .compat import on
from .markup import card, empty, facts, note

NFES = [*range(3, 11), 12, 15]
"""Below the calls of the usual teacher: at 20 the best classical start is the teacher itself."""

AS_PRESET = "as the effort says"
_HINT = "Press Estimate to measure time and memory with a few model calls, before training."


class TrainTab:
    """Builds the fields; `button` queues a job, see page.py."""

    def __init__(self, hooks=None):
        with gr.Row():
            with gr.Column(scale=3):
                self.inputs = self._basic() | self._advanced()
            with gr.Column(scale=2):
                self.estimate = gr.HTML(card("Estimate", empty(_HINT)))
                with gr.Row():
                    self.measure = gr.Button("Estimate", elem_id="s4s-estimate")
                    self.button = gr.Button("Train solver", variant="primary", elem_id="s4s-train")
        on(self.measure.click, partial(estimate_card, hooks), self.values, self.estimate)

    @property
    def values(self):
        """The components whose values `config_of` takes, in its order."""
        return list(self.inputs.values())

    def _basic(self):
        found = {"kind": fields.kind_field()}
        found["path"] = fields.path_field(found["kind"])
        found["nfes"] = gr.CheckboxGroup(
            [str(n) for n in NFES],
            value=["5"],
            label="Steps (NFE)",
            info="Model calls a picture may take. One table is learned for each; 4 to 8 pay most.",
        )
        found["effort"] = gr.Radio(
            list(PRESETS),
            value="normal",
            label="Effort",
            info=_help("normal"),
        )
        on(found["effort"].change, _effort_help, found["effort"], found["effort"], quiet=True)
        with gr.Row():
            found["cfg"] = fields.cfg_field()
            found["width"] = fields.side_field("Width")
            found["height"] = fields.side_field("Height")
        found["prompts"] = fields.prompts_field()
        return found

    def _advanced(self):
        found = {}
        with gr.Accordion("Advanced", open=False):
            with gr.Row():
                found["name"] = gr.Textbox(
                    "", label="Name", info="Of the solver. Empty: named after the model."
                )
                found["negative"] = fields.negative_field()
            with gr.Row():
                found["method"] = gr.Dropdown(
                    [AS_PRESET, *METHODS],
                    value=AS_PRESET,
                    label="Method",
                    info="gauss-newton needs inference memory only; the others are the paper's.",
                )
                found["objective"] = gr.Dropdown(
                    [AS_PRESET, *OBJECTIVES],
                    value=AS_PRESET,
                    label="Objective",
                    info="How the distance to the teacher's picture is measured; "
                    "l1 and huber only with the paper's methods.",
                )
            with gr.Row():
                found["teacher"] = gr.Textbox(
                    "auto",
                    label="Teacher",
                    info="auto, or solver:order:schedule:calls such as unipc-bh2:3:logsnr:20.",
                )
                found["budget"] = gr.Number(
                    0, precision=0, label="Budget", info="Model calls per NFE. 0: by the effort."
                )
                found["seed"] = gr.Number(
                    0, precision=0, label="Seed", info="The same seed gives the same solver."
                )
            with gr.Row():
                found["dtype"] = fields.dtype_field()
                found["device"] = gr.Textbox(
                    "auto", label="Device", info="auto, cpu, cuda, cuda:1 or mps."
                )
                found["offload"] = fields.offload_field()
        return found


def _help(effort):
    text = PRESETS[effort].help if effort in PRESETS else ""
    return f"{text[:1].upper()}{text[1:]}."


def _effort_help(effort):
    return gr.update(info=_help(effort))


NAMES = (
    *("kind", "path", "nfes", "effort", "cfg", "width", "height", "prompts", "name", "negative"),
    *("method", "objective", "teacher", "budget", "seed", "dtype", "device", "offload"),
)
"""The fields in the order of TrainTab.inputs; a test holds the two together."""


def config_of(*values):
    """The TrainConfig of the fields' values; ConfigError and ModelError say what is wrong."""
    given = dict(zip(NAMES, values, strict=True))
    try:
        nfes = tuple(int(n) for n in given["nfes"] or ())
        whole = {key: int(given[key] or 0) for key in ("budget", "seed")}
        model = fields.model_choice(given)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"A field that takes a number holds something else ({error}).") from None
    config = TrainConfig(model=model, name=(given["name"] or "").strip(), nfes=nfes)
    config = with_preset(config, given["effort"])
    for key in ("method", "objective"):
        if given[key] != AS_PRESET:
            config = replace(config, **{key: given[key]})
    if given["teacher"] not in (None, "", "auto"):
        config = replace(config, teacher=given["teacher"].strip())
    return replace(config, **whole)


def _hard(config):
    """What says how hard a config tries."""
    return config.effort, config.options


def values_of(config):
    """Values of the fields that make a config again, in the order of NAMES.

    Options that no effort sets have no field, and are left out.
    """
    presets = {name: with_preset(config, name) for name in PRESETS}
    same = (name for name, made in presets.items() if _hard(made) == _hard(config))
    effort = next(same, config.effort)
    ready = presets[effort]
    model = asdict(config.model) | {"prompts": "\n".join(config.model.prompts)}
    own = {
        "effort": effort,
        "nfes": [str(n) for n in config.nfes],
        "name": config.name,
        "method": AS_PRESET if config.method == ready.method else config.method,
        "objective": AS_PRESET if config.objective == ready.objective else config.objective,
        "teacher": "auto" if config.teacher == ready.teacher else config.teacher,
        "budget": config.budget,
        "seed": config.seed,
    }
    return [(model | own)[name] for name in NAMES]


def refill(id):
    """Updates of all fields: the settings of a job."""
    values = dict(zip(NAMES, values_of(jobs.job_config(Job(id))), strict=True))
    updates = {name: gr.update(value=value) for name, value in values.items()}
    updates["path"] = gr.update(value=values["path"], visible=values["kind"] in PATHS)
    return list(updates.values())


def queue_job(hooks, *values):
    """Queue a job of the fields' values and return its id."""
    config = config_of(*values)
    fields.make_room(hooks)
    return jobs.queue_job(config).id


def estimate_card(hooks, *values):
    """What a job would take, measured by a process of its own."""
    config = config_of(*values)
    fields.make_room(hooks)
    return estimate_markup(estimate(config))


def estimate_markup(found):
    """An Estimate for people."""
    known = {
        "Time": f"{duration(found.seconds)} at most",
        "Memory": f"about {size(found.memory_bytes)} at the peak",
        "Model calls": f"{found.calls:,}",
        "Computed on": found.device,
    }
    return card("Estimate", facts(known) + "".join(map(note, found.warnings)))
