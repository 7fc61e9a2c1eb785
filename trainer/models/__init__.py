"""Models to train for: which one (`ModelChoice`), and how to open it (`open_model`). No torch.

`contract.TrainerModel` says what an opened model provides.
"""

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from s4s_core.checks import between, check_fields, matching, one_of
from s4s_core.errors import ModelError, visible

if TYPE_CHECKING:
    from .contract import TrainerModel

MODELS = {
    "demo": "the bundled emoji model",
    "demo-vp": "the same with the discrete times of Stable Diffusion",
    "demo-flow": "the same as a flow model",
    "mixture": "an analytic Gaussian mixture, 64 components in 64 dimensions",
    "mixture-flow": "the same as a flow model",
    "diffusers": "a diffusers pipeline: its folder, or one .safetensors checkpoint",
    "comfyui": "a checkpoint loaded by your ComfyUI: its name there, or a path",
    "python": "your own: module:function or file.py:function that returns a model",
}
"""Kinds of models, each with a description."""

PATHS = {
    "diffusers": "a pipeline folder or a .safetensors file",
    "comfyui": "a checkpoint's name in ComfyUI or a .safetensors file",
    "python": "module:function or file.py:function",
}
"""Kinds that need a path, and what it is."""

DTYPES = ("auto", "float32", "float16", "bfloat16")
LARGEST_SIDE = 16384
PATH = matching(r"[^\x00-\x1f\x7f-\x9f]{0,4096}", "a path without control characters")
DEVICE = matching(r"[a-z]{1,20}(:[0-9]{1,3})?", "auto, or a torch device such as cuda:1 or cpu")

OPENERS = {
    "demo": "bundled:open_demo",
    "demo-vp": "bundled:open_demo",
    "demo-flow": "bundled:open_demo",
    "mixture": "bundled:open_mixture",
    "mixture-flow": "bundled:open_mixture",
    "diffusers": "pipeline:open_pipeline",
    "comfyui": "comfyui:open_checkpoint",
    "python": "python:open_function",
}


@dataclass(frozen=True)
class ModelChoice:
    """A model and how to run it. Zeros, "auto" and empty prompts mean the model's defaults.

    path: see PATHS. prompts: what training draws from, with guidance scale `cfg` against
    `negative`. width, height: in pixels. device: a torch device such as cuda:1. offload: keep only
    the part that computes on the GPU. host: ComfyUI's folder, for that kind.
    """

    kind: Annotated[str, one_of("model", MODELS)] = "demo"
    path: Annotated[str, PATH] = ""
    prompts: tuple[str, ...] = ()
    negative: str = ""
    cfg: Annotated[float, between(0, 1000)] = 0.0
    width: Annotated[int, between(0, LARGEST_SIDE)] = 0
    height: Annotated[int, between(0, LARGEST_SIDE)] = 0
    dtype: Annotated[str, one_of("precision", DTYPES)] = "auto"
    device: Annotated[str, DEVICE] = "auto"
    offload: bool = False
    host: Annotated[str, PATH] = ""

    def __post_init__(self) -> None:
        if isinstance(self.prompts, str):
            object.__setattr__(self, "prompts", (self.prompts,))
        check_fields(self, ModelError)
        if self.kind in PATHS and not self.path:
            raise ModelError(f"Models of kind '{self.kind}' need a path: {PATHS[self.kind]}.")

    @classmethod
    def parse(cls, text: str, **options: Any) -> "ModelChoice":
        """Parse KIND or KIND:PATH, such as diffusers:/models/sdxl."""
        kind, _, path = text.partition(":")
        return cls(kind, path, **options)

    @property
    def label(self) -> str:
        """A short name: the last part of the path, or the kind."""
        return visible(self.path.replace("\\", "/").rstrip("/").rpartition("/")[2]) or self.kind


def open_model(choice: ModelChoice) -> "TrainerModel":
    """Open a model, ready to compute; raise ModelError if that is not possible."""
    module, function = OPENERS[choice.kind].split(":")
    opener = getattr(importlib.import_module(f".{module}", __package__), function)
    model: TrainerModel = opener(choice)
    return model


def bundled_solver(kind: str) -> Path:
    """Return the path of the solver file that ships with a model."""
    from .bundled import solver_path

    return solver_path(kind)
