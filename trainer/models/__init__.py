"""Models to train for: which one (`ModelChoice`), and how to open it (`open_model`). No torch.

`contract.TrainerModel` says what an opened model provides.
"""

import importlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from s4s_core.errors import ModelError

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

    kind: str = "demo"
    path: str = ""
    prompts: tuple[str, ...] = ()
    negative: str = ""
    cfg: float = 0.0
    width: int = 0
    height: int = 0
    dtype: str = "auto"
    device: str = "auto"
    offload: bool = False
    host: str = ""

    def __post_init__(self) -> None:
        prompts = (self.prompts,) if isinstance(self.prompts, str) else self.prompts
        object.__setattr__(self, "prompts", tuple(prompts))
        self._check_types()
        if self.kind not in MODELS:
            raise ModelError(f"Unknown model '{self.kind}'. Choose one of {', '.join(MODELS)}.")
        if self.kind in PATHS and not self.path:
            raise ModelError(f"Models of kind '{self.kind}' need a path: {PATHS[self.kind]}.")
        if self.dtype not in DTYPES:
            raise ModelError(f"Unknown precision '{self.dtype}'. Choose {', '.join(DTYPES)}.")
        if not 0 <= self.cfg <= 1000:
            raise ModelError(f"cfg must be between 0 and 1000, not {self.cfg:g}.")
        for side in (self.width, self.height):
            if not 0 <= side <= 16384:
                raise ModelError(f"width and height must be between 1 and 16384, not {side}.")

    def _check_types(self) -> None:
        """Raise ModelError unless every field has the type of its default."""
        object.__setattr__(self, "cfg", _number(self.cfg))
        for field, value in vars(self).items():
            if type(value) is not type(getattr(ModelChoice, field)):
                raise ModelError(f"The model's {field} cannot be {value!r}.")
        if not all(isinstance(prompt, str) for prompt in self.prompts):
            raise ModelError("The model's prompts must all be text.")

    @classmethod
    def parse(cls, text: str, **options: Any) -> "ModelChoice":
        """Parse KIND or KIND:PATH, such as diffusers:/models/sdxl."""
        kind, _, path = text.partition(":")
        return cls(kind, path, **options)

    @property
    def label(self) -> str:
        """A short name: the last part of the path, or the kind."""
        return self.path.replace("\\", "/").rstrip("/").rpartition("/")[2] or self.kind


def _number(value: object) -> float | str:
    """Return a finite number as a float, and anything else as text, to be refused."""
    if type(value) in (int, float):
        number = float(value)  # type: ignore[arg-type]  # narrowed by type(): a bool is no number
        if math.isfinite(number):
            return number
    return f"{value}"


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
