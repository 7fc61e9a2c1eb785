"""Input fields that say which model to use, shared by Train and Compare."""

import gradio as gr

from s4s_core.app.folders import CHECKOUT
from s4s_core.errors import ModelError

from ..models import DTYPES, MODELS, PATHS, ModelChoice
from .compat import on

OFFERED = [kind for kind in MODELS if kind != "python"]
"""A page must not be able to run code: functions are for the command line."""

CHECKPOINT_FOLDERS = {"custom_nodes": "checkpoints", "extensions": "Stable-diffusion"}
MOST_CHECKPOINTS = 500


def host_folder():
    """The ComfyUI or WebUI that this checkout stands in, or None."""
    return CHECKOUT.parents[1] if CHECKOUT.parent.name in CHECKPOINT_FOLDERS else None


def checkpoints():
    """Checkpoint files of the host that this checkout stands in."""
    host = host_folder()
    if host is None:
        return []
    folder = host / "models" / CHECKPOINT_FOLDERS[CHECKOUT.parent.name]
    found = sorted(path for path in folder.rglob("*.safetensors") if path.is_file())
    return [str(path) for path in found[:MOST_CHECKPOINTS]]


def comfy_folder():
    """ComfyUI's folder, if this checkout stands in one, else ""."""
    return str(host_folder()) if CHECKOUT.parent.name == "custom_nodes" else ""


def kind_field():
    return gr.Dropdown(
        choices=[(f"{kind}: {MODELS[kind]}", kind) for kind in OFFERED],
        value="demo",
        label="Model",
        info="What to open. The demo needs no file and runs on any machine in minutes.",
    )


def path_field(kind):
    """The checkpoint; shown only for kinds that have one."""
    field = gr.Dropdown(
        choices=checkpoints(),
        value="",
        allow_custom_value=True,
        visible=False,
        label="Checkpoint",
        info="A .safetensors file or a diffusers folder: choose one, or enter its full path.",
    )
    on(kind.change, lambda kind: gr.update(visible=kind in PATHS), kind, field, quiet=True)
    return field


def prompts_field(lines=4, value=""):
    return gr.Textbox(
        value,
        lines=lines,
        label="Prompts",
        info="One a line. Empty: a varied list that ships with S4S. The demo has none.",
    )


def cfg_field():
    return gr.Number(0, label="CFG", info="Guidance. 0: the model's own.")


def side_field(label):
    return gr.Number(0, precision=0, label=label, info="In pixels. 0: the model's own.")


def negative_field():
    return gr.Textbox("", label="Negative prompt", info="What the pictures shall not show.")


def dtype_field():
    return gr.Dropdown(
        list(DTYPES), value="auto", label="Precision", info="Of the model's numbers."
    )


def offload_field():
    return gr.Checkbox(
        False,
        label="Offload to main memory",
        info="Slower; keeps only the part that is computing on the GPU.",
    )


def make_room(hooks):
    """Let the host free its memory: another process is about to open a model."""
    if hooks is not None:
        hooks.before_training()


def model_choice(values):
    """The ModelChoice of fields by name; whatever else stands in `values` is left out."""
    kind = values["kind"]
    if kind not in OFFERED:
        raise ModelError(f"Unknown model '{str(kind)[:40]}': choose one of {', '.join(OFFERED)}.")
    prompts = [line.strip() for line in (values.get("prompts") or "").splitlines()]
    return ModelChoice(
        kind=kind,
        path=str(values.get("path") or "").strip() if kind in PATHS else "",
        prompts=tuple(prompt for prompt in prompts if prompt),
        negative=values.get("negative") or "",
        cfg=float(values.get("cfg") or 0),
        width=int(values.get("width") or 0),
        height=int(values.get("height") or 0),
        dtype=values.get("dtype") or "auto",
        device=str(values.get("device") or "auto"),
        offload=bool(values.get("offload")),
        host=comfy_folder() if kind == "comfyui" else "",
    )
