"""The tab Train: the settings of a job, an estimate, and the button that queues it."""

from dataclasses import asdict, replace
from functools import partial
from typing import Any

import gradio as gr

from s4s_core.app.estimate import IMG2IMG_COST, IMG2IMG_STRENGTHS, size
from s4s_core.app.jobs import Job
from s4s_core.app.progress import duration
from s4s_core.names import AUTO, METHODS, OBJECTIVES

from .. import jobs
from ..config import PRESETS, TrainConfig, with_preset
from ..estimate import Estimate, estimate
from ..models import PATHS
from . import PanelHost, fields, markup
from .compat import on

NFES = [*range(3, 11), 12, 15]
"""Fewer calls than the usual teacher's 20: with as many, the best start is the teacher itself."""

AS_PRESET = "set by effort"
_HINT = "Press Estimate to measure time and memory with a few model calls before you train."

NAMES = (
    *("kind", "path", "nfes", "img2img", "effort", "cfg", "width", "height", "prompts", "name"),
    *("negative", "method", "objective", "teacher", "budget", "seed", "dtype", "device", "offload"),
)
"""The fields in the order of TrainTab.inputs."""


class TrainTab:
    """The tab's components; page.py connects `button`."""

    def __init__(self, host: PanelHost | None = None) -> None:
        with gr.Row():
            with gr.Column(scale=3):
                self.inputs = self._basic() | self._advanced()
            with gr.Column(scale=2):
                self.estimate = gr.HTML(markup.card("Estimate", markup.empty(_HINT)))
                with gr.Row():
                    self.measure = gr.Button("Estimate", elem_id="s4s-estimate")
                    self.button = gr.Button("Train solver", variant="primary", elem_id="s4s-train")
        on(self.measure.click, partial(estimate_card, host), self.values, self.estimate)

    @property
    def values(self) -> list[Any]:
        """The components whose values `read_config` takes."""
        return list(self.inputs.values())

    def _basic(self) -> dict[str, Any]:
        inputs = {"kind": fields.kind_field()}
        inputs["path"] = fields.path_field(inputs["kind"])
        inputs["nfes"] = gr.CheckboxGroup(
            [str(n) for n in NFES],
            value=["5"],
            label="Steps",
            info="Model calls per picture. S4S trains one table for each; 4 to 8 gain most.",
        )
        strengths = ", ".join(map(str, IMG2IMG_STRENGTHS))
        inputs["img2img"] = gr.Checkbox(
            False,
            label="Also for img2img",
            info=f"Also trains tables for the strengths (denoise) {strengths}. {IMG2IMG_COST}",
        )
        inputs["effort"] = gr.Radio(
            list(PRESETS), value="normal", label="Effort", info=_effort_help("normal")
        )
        on(
            inputs["effort"].change,
            lambda effort: gr.update(info=_effort_help(effort)),
            inputs["effort"],
            inputs["effort"],
            quiet=True,
        )
        with gr.Row():
            inputs["cfg"] = fields.cfg_field()
            inputs["width"] = fields.side_field("Width")
            inputs["height"] = fields.side_field("Height")
        inputs["prompts"] = fields.prompts_field()
        return inputs

    def _advanced(self) -> dict[str, Any]:
        inputs: dict[str, Any] = {}
        with gr.Accordion("Advanced", open=False):
            with gr.Row():
                inputs["name"] = gr.Textbox(
                    "", label="Name", info="Name of the solver. Empty: the model's name."
                )
                inputs["negative"] = fields.negative_field()
            with gr.Row():
                inputs |= _method_fields()
            with gr.Row():
                inputs |= _run_fields()
            with gr.Row():
                inputs["dtype"] = fields.dtype_field()
                inputs["device"] = gr.Textbox(
                    "auto", label="Device", info="auto, cpu, cuda, cuda:1 or mps."
                )
                inputs["offload"] = fields.offload_field()
        return inputs


def _method_fields() -> dict[str, Any]:
    method = gr.Dropdown(
        [AS_PRESET, *METHODS],
        value=AS_PRESET,
        label="Method",
        info="gauss-newton needs no more memory than inference; the others are the paper's.",
    )
    objective = gr.Dropdown(
        [AS_PRESET, ("auto: look for pictures", AUTO), *OBJECTIVES],
        value=AS_PRESET,
        label="Objective",
        info="What counts as near the teacher's result. Efforts set auto, the paper's set LPIPS. "
        "look needs no network and no decoder; lpips compares decoded pictures. l1 and huber work "
        "only with the paper's methods.",
    )
    return {"method": method, "objective": objective}


def _run_fields() -> dict[str, Any]:
    teacher = gr.Textbox(
        "auto",
        label="Teacher",
        info="auto, or solver:order:schedule:calls such as unipc-bh2:3:logsnr:20.",
    )
    budget = gr.Number(
        0,
        precision=0,
        label="Budget",
        info="All model calls for the first step count. 0: set by effort.",
    )
    seed = gr.Number(
        0, precision=0, label="Seed", info="The same seed and settings give the same solver."
    )
    return {"teacher": teacher, "budget": budget, "seed": seed}


def _effort_help(effort: Any) -> str:
    text = PRESETS[effort].help if effort in list(PRESETS) else ""
    return f"{text[:1].upper()}{text[1:]}."


def read_config(*values: Any) -> TrainConfig:
    """Return the config for the values of the fields; raise ConfigError or ModelError."""
    given = dict(zip(NAMES, values, strict=True))
    counts = given["nfes"] if isinstance(given["nfes"], list) else []
    nfes = tuple(fields.number({"steps": count}, "steps", int) for count in counts)
    model, name = fields.model_choice(given), fields.text(given, "name").strip()
    options = {"strengths": IMG2IMG_STRENGTHS} if given["img2img"] else {}
    config = TrainConfig(model=model, name=name, nfes=nfes, options=options)
    config = with_preset(config, fields.text(given, "effort"))
    for key in ("method", "objective"):
        if given[key] != AS_PRESET:
            config = replace(config, **{key: given[key]})
    teacher = fields.text(given, "teacher", "auto")
    if teacher != "auto":
        config = replace(config, teacher=teacher.strip())
    budget, seed = (fields.number(given, key, int) for key in ("budget", "seed"))
    return replace(config, budget=budget, seed=seed)


def field_values(config: TrainConfig) -> dict[str, Any]:
    """Return values of the fields, in the order of NAMES, that give this config.

    Options that no effort sets have no field and are left out; of strengths, whether there are any.
    """
    presets = {name: with_preset(config, name) for name in PRESETS}
    effort = next(
        (
            name
            for name, preset in presets.items()
            if (preset.effort, preset.options) == (config.effort, config.options)
        ),
        config.effort,
    )
    preset = presets[effort]
    model = asdict(config.model) | {"prompts": "\n".join(config.model.prompts)}
    own = {
        "effort": effort,
        "nfes": [str(n) for n in config.nfes],
        "img2img": bool(config.options.get("strengths")),
        "name": config.name,
        "method": AS_PRESET if config.method == preset.method else config.method,
        "objective": AS_PRESET if config.objective == preset.objective else config.objective,
        "teacher": "auto" if config.teacher == preset.teacher else config.teacher,
        "budget": config.budget,
        "seed": config.seed,
    }
    return {name: (model | own)[name] for name in NAMES}


def field_updates(job: Job) -> list[Any]:
    """Return updates that fill all fields with the settings of a job."""
    values = field_values(jobs.job_config(job))
    updates = {name: gr.update(value=value) for name, value in values.items()}
    updates["path"] = gr.update(value=values["path"], visible=values["kind"] in PATHS)
    return list(updates.values())


def queue_training(host: PanelHost | None, *values: Any) -> str:
    """Queue a job for the values of the fields and return its id."""
    config = read_config(*values)
    fields.free_memory(host)
    return jobs.queue_job(config).id


def estimate_card(host: PanelHost | None, *values: Any) -> str:
    """Measure in another process what a job would take, and show it."""
    config = read_config(*values)
    fields.free_memory(host)
    return _estimate_markup(estimate(config))


def _estimate_markup(result: Estimate) -> str:
    facts = {
        "Time": f"at most {duration(result.seconds)}",
        "Peak memory": f"about {size(result.memory_bytes)}",
        "Model calls": f"{result.calls:,}",
        "Device": result.device,
    }
    notes = "".join(map(markup.note, result.warnings))
    return markup.card("Estimate", markup.fact_list(facts) + notes)
