"""The fields that choose a model, shared by Train and Compare."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import gradio as gr

from s4s_core.app.folders import CHECKOUT, Listing, list_folders, showable
from s4s_core.errors import ConfigError, ModelError, short

from ..models import DTYPES, MODELS, PATHS, ModelChoice
from . import PanelHost
from .compat import on

KINDS = [kind for kind in MODELS if kind != "python"]
"""Kinds of models that the page offers; it must not run code, so `python` is not among them."""

CHECKPOINT_FOLDERS = {"custom_nodes": "checkpoints", "extensions": "Stable-diffusion"}
MOST_CHECKPOINTS, MOST_REMARKS = 500, 5

Number = TypeVar("Number", int, float)


def host_folder() -> Path | None:
    """Return the folder of the ComfyUI or WebUI that contains this checkout, or None."""
    return CHECKOUT.parents[1] if CHECKOUT.parent.name in CHECKPOINT_FOLDERS else None


def checkpoints() -> Listing:
    """Return the checkpoint files of the host that contains this checkout."""
    host = host_folder()
    if host is None:
        return Listing({}, {})
    return list_folders([host / "models" / CHECKPOINT_FOLDERS[CHECKOUT.parent.name]])


def comfy_folder() -> str:
    """Return ComfyUI's folder if it contains this checkout, else ""."""
    return str(host_folder()) if CHECKOUT.parent.name == "custom_nodes" else ""


def kind_field() -> Any:
    return gr.Dropdown(
        choices=[(f"{kind}: {MODELS[kind]}", kind) for kind in KINDS],
        value="demo",
        label="Model",
        info="The demo needs no file and trains on any machine within minutes.",
    )


def path_field(kind: Any) -> Any:
    """Make the field for a checkpoint; it is visible only for kinds that need one."""
    found = checkpoints()
    info = ["Choose a .safetensors file, or enter the full path of one or of a diffusers folder."]
    if len(found.files) > MOST_CHECKPOINTS:
        info.append(f"Listed are {MOST_CHECKPOINTS} of {len(found.files):,} files.")
    info += [f"Not listed is {short(name)}: {why}" for name, why in found.faults.items()]
    field = gr.Dropdown(
        choices=[showable(path) for path in found.files.values()][:MOST_CHECKPOINTS],
        value="",
        allow_custom_value=True,
        visible=False,
        label="Checkpoint",
        info=" ".join(info[:MOST_REMARKS]),
    )
    on(kind.change, lambda kind: gr.update(visible=kind in list(PATHS)), kind, field, quiet=True)
    return field


def prompts_field() -> Any:
    return gr.Textbox(
        "",
        lines=4,
        label="Prompts",
        info="One per line. Leave empty to use the varied prompts that come with S4S. "
        "The demo uses none.",
    )


def cfg_field() -> Any:
    return gr.Number(0, label="CFG", info="Guidance scale. 0 uses the model's default.")


def side_field(label: str) -> Any:
    return gr.Number(0, precision=0, label=label, info="In pixels. 0 uses the model's default.")


def negative_field() -> Any:
    return gr.Textbox("", label="Negative prompt", info="What the pictures must not show.")


def dtype_field() -> Any:
    return gr.Dropdown(
        list(DTYPES), value="auto", label="Precision", info="Data type of the model's weights."
    )


def offload_field() -> Any:
    return gr.Checkbox(
        False,
        label="Offload to main memory",
        info="Keeps only the active part of the model on the GPU. Slower.",
    )


def free_memory(host: PanelHost | None) -> None:
    """Let the host free its memory before another process opens a model."""
    if host is not None:
        host.before_training()


def text(values: Mapping[str, Any], name: str, default: str = "") -> str:
    """Return the text in a field; raise ConfigError for any other value from a browser."""
    value = values.get(name) or default
    if not isinstance(value, str):
        raise ConfigError(f"{name} must be text.")
    return value


def number(values: Mapping[str, Any], name: str, kind: type[Number]) -> Number:
    """Return the number in a field, 0 if it is empty; raise ConfigError for any other value."""
    try:
        return kind(values.get(name) or 0)
    except (TypeError, ValueError, OverflowError):
        raise ConfigError(f"{name} must be a number.") from None


def model_choice(values: Mapping[str, Any]) -> ModelChoice:
    """Return the chosen model; `values` are fields by name, others than the model's are ignored."""
    kind = text(values, "kind")
    if kind not in KINDS:
        raise ModelError(f"Unknown model '{short(kind)}'. Choose one of {', '.join(KINDS)}.")
    prompts = [line.strip() for line in text(values, "prompts").splitlines()]
    return ModelChoice(
        kind=kind,
        path=text(values, "path").strip() if kind in PATHS else "",
        prompts=tuple(prompt for prompt in prompts if prompt),
        negative=text(values, "negative"),
        cfg=number(values, "cfg", float),
        width=number(values, "width", int),
        height=number(values, "height", int),
        dtype=text(values, "dtype", "auto"),
        device=text(values, "device", "auto"),
        offload=bool(values.get("offload")),
        host=comfy_folder() if kind == "comfyui" else "",
    )
