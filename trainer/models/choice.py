"""Which model to train for, as plain data: what configs store and panels fill in. No torch."""

import math
from dataclasses import dataclass

from s4s_core.errors import ModelError

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
"""Kinds of models and what each one is."""

PATHS = {
    "diffusers": "a pipeline's folder or a .safetensors file",
    "comfyui": "a checkpoint's name in ComfyUI or a .safetensors file",
    "python": "module:function or file.py:function",
}
"""Kinds that need a path, and what it names."""

DTYPES = ("auto", "float32", "float16", "bfloat16")


@dataclass(frozen=True)
class ModelChoice:
    """A model and how to run it; zeros, "auto" and no prompts stand for the model's own defaults.

    `path` is what PATHS says for the kind. `prompts` are drawn from in training, under the guidance
    scale `cfg` against `negative`. `width` and `height` are in pixels. `device` is a name of
    torch's, such as cuda:1. `offload` keeps only the part that is computing on the GPU. `host` is
    ComfyUI's folder, for that kind.
    """

    kind: str = "demo"
    path: str = ""
    prompts: tuple = ()
    negative: str = ""
    cfg: float = 0.0
    width: int = 0
    height: int = 0
    dtype: str = "auto"
    device: str = "auto"
    offload: bool = False
    host: str = ""

    def __post_init__(self):
        prompts = (self.prompts,) if isinstance(self.prompts, str) else self.prompts
        object.__setattr__(self, "prompts", tuple(prompts))
        self._check_types()
        if self.kind not in MODELS:
            raise ModelError(f"Unknown model '{self.kind}': choose one of {', '.join(MODELS)}.")
        if self.kind in PATHS and not self.path:
            raise ModelError(f"The model kind '{self.kind}' needs a path: {PATHS[self.kind]}.")
        if self.dtype not in DTYPES:
            raise ModelError(f"Unknown precision '{self.dtype}': choose {', '.join(DTYPES)}.")
        if not 0 <= self.cfg <= 1000:
            raise ModelError(f"A guidance scale lies between 0 and 1000, not at {self.cfg:g}.")
        for side in (self.width, self.height):
            if not 0 <= side <= 16384:
                raise ModelError(f"A picture's sides lie between 1 and 16384, not at {side}.")

    def _check_types(self):
        """ModelError unless every field has the type of its default."""
        object.__setattr__(self, "cfg", _number(self.cfg))
        for field, value in vars(self).items():
            if type(value) is not type(getattr(ModelChoice, field)):
                raise ModelError(f"The model's {field} cannot be {value!r}.")
        if not all(isinstance(prompt, str) for prompt in self.prompts):
            raise ModelError("The model's prompts must all be text.")

    @classmethod
    def parse(cls, text, **options):
        """The choice of a command line's KIND or KIND:PATH, such as diffusers:/models/sdxl."""
        kind, _, path = text.partition(":")
        return cls(kind, path, **options)

    @property
    def label(self):
        """A short name for people: the path's last part, or the kind."""
        return self.path.replace("\\", "/").rstrip("/").rpartition("/")[2] or self.kind


def _number(value):
    """An int or a finite float as a float; anything else unchanged, to be refused."""
    plain = type(value) in (int, float) and math.isfinite(value)
    return float(value) if plain else f"{value}"
