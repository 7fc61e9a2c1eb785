"""Checkpoints through a ComfyUI install's own loaders, in the process of the job.

Training works for whatever ComfyUI can load and sample, quantised or offloaded, and the model gets
exactly the numbers that it gets there. ComfyUI's modules are imported from its folder by the Python
that runs this: ComfyUI's own, or one with its requirements.
"""

import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from s4s_core.app.comfyui import (
    CLIP,
    CONDITIONING,
    MODEL,
    VAE,
    BaseModel,
    Prompt,
    Prompts,
    decode_latents,
    exact_model,
    identity,
    levels_of,
    model_family,
    pixels_per_latent,
    rows_by_guidance,
    space_of,
    times_of,
)
from s4s_core.app.folders import CHECKOUT
from s4s_core.errors import ModelError
from s4s_core.model import guided_scale

from . import ModelChoice
from .contract import about, choose_device, file_digest, fingerprint
from .prompts import PROMPTS

ENDINGS = (".safetensors", ".sft")
GUIDANCE = 3.5
PIXELS_PER_LATENT = 8
"""For models that do not say."""
SIZES = {"SD15": 512, "SD20": 768}
"""The side of the pictures that a model family was made for, in pixels; otherwise 1024."""


def open_checkpoint(choice: ModelChoice) -> "ComfyModel":
    """Open a checkpoint by path, or by its name in the user's ComfyUI."""
    comfy = ComfyUI(choice)
    path = comfy.checkpoint(choice.path)
    try:
        model, clip, vae = comfy.load(path, choice.dtype)
    except (OSError, RuntimeError, ValueError, KeyError, AttributeError, TypeError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ModelError(f"ComfyUI could not load {path}: {reason}") from error
    if model is None or clip is None:
        raise ModelError(f"{path} must contain a model and its text encoders.")
    return ComfyModel(comfy, model, clip, vae, choice, file_digest(path))


class ComfyUI:
    """ComfyUI's modules, imported from its folder with its default arguments."""

    def __init__(self, choice: ModelChoice) -> None:
        home = choice.host or os.environ.get("COMFYUI_PATH") or _around()
        if not home:
            raise ModelError(
                "Where is ComfyUI? Name the folder that contains its main.py with --host, or set "
                "COMFYUI_PATH to it."
            )
        folder = Path(os.path.expanduser(home)).absolute()
        if not os.path.isfile(folder / "comfy" / "sd.py"):
            raise ModelError(
                f"There is no ComfyUI in '{folder}'. Name the folder that contains main.py."
            )
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))
        try:
            self._set_arguments(choice)
            self.paths, self.sd, self.samplers, self.memory = map(
                importlib.import_module,
                ("folder_paths", "comfy.sd", "comfy.samplers", "comfy.model_management"),
            )
            self._read_extra_paths(folder / "extra_model_paths.yaml")
        except ImportError as error:
            raise ModelError(
                f"Could not import ComfyUI from {folder} ({error}). Run this with ComfyUI's Python."
            ) from error

    def _set_arguments(self, choice: ModelChoice) -> None:
        """Set ComfyUI's arguments, which its other modules read when they are imported."""
        device = choose_device(choice.device)
        arguments = importlib.import_module("comfy.cli_args").args
        arguments.cpu, arguments.lowvram = device.type == "cpu", choice.offload
        if choice.device.startswith("cuda:"):
            torch.cuda.set_device(device)

    def _read_extra_paths(self, file: Path) -> None:
        if file.is_file():
            importlib.import_module("utils.extra_config").load_extra_path_config(str(file))

    def checkpoint(self, name: str) -> str:
        """Return the path of a checkpoint, given by path or by its name in ComfyUI."""
        path = os.path.expanduser(name)
        file = path if os.path.isfile(path) else self.paths.get_full_path("checkpoints", name)
        if file is None:
            raise ModelError(f"ComfyUI has no checkpoint '{name}', and there is no such file.")
        if not file.lower().endswith(ENDINGS):
            raise ModelError(f"{file} is not a .safetensors file. Other formats can run code.")
        return str(file)

    def load(self, path: str, dtype: str) -> tuple[MODEL, CLIP, VAE]:
        """Load a checkpoint as the stock loader does."""
        options = {} if dtype == "auto" else {"dtype": getattr(torch, dtype)}
        embeddings = self.paths.get_folder_paths("embeddings")
        loaded = self.sd.load_checkpoint_guess_config(
            path, embedding_directory=embeddings, model_options=options
        )
        model, clip, vae = loaded[:3]
        return model, clip, vae


def _around() -> Path | None:
    """Return the ComfyUI that this checkout is installed in, if any."""
    return CHECKOUT.parents[1] if CHECKOUT.parent.name == "custom_nodes" else None


class ComfyModel:
    """A checkpoint as a model of `trainer.models`; conditions are prompt numbers."""

    def __init__(
        self,
        comfy: ComfyUI,
        model: MODEL,
        clip: CLIP,
        vae: VAE | None,
        choice: ModelChoice,
        digest: str,
    ) -> None:
        base, self.vae = model.model, vae
        self.comfy, self.device = comfy, model.load_device
        self.model = exact_model(model)
        sampling = self.model.get_model_object("model_sampling")
        self.space, self.times = space_of(sampling), times_of(sampling)
        self.sigma_min, self.sigma_max = levels_of(sampling)
        embedded = bool(base.model_config.unet_config.get("guidance_embed"))
        self.cfg = 1.0 if embedded else choice.cfg or (4.5 if self.space == "flow" else 7.0)
        self.takes_guidance = self.cfg != 1
        guidance = (choice.cfg or GUIDANCE) if embedded else None
        family = model_family(base)
        width, height = (side or SIZES.get(family, 1024) for side in (choice.width, choice.height))
        self.shape = _latent_shape(base, vae, width, height)
        prompts = choice.prompts or PROMPTS
        with torch.no_grad():
            encoded = [_encoded(clip, text, guidance) for text in (choice.negative, *prompts)]
            self.negative, *positives = self._prepared(encoded)
        self.prompts = Prompts(positives)
        self.name = choice.label
        facts: dict[str, Any] = {"architecture": family, "comfy": identity(base)}
        facts |= {"guidance": guidance} if guidance else {}
        self.about = about(self.name, digest, self.cfg, width, height, **facts)
        dtype = str(base.get_dtype())
        rest = [self.cfg, guidance, list(prompts), choice.negative, width, height, dtype]
        self.fingerprint = fingerprint(digest, "comfyui", *rest)

    def _prepared(self, encoded: Sequence[CONDITIONING]) -> list[Prompt]:
        """Return conditions as the network takes them: what a guider makes of them."""
        helpers = importlib.import_module("comfy.sampler_helpers")
        names = ["negative", *(f"positive {n}" for n in range(1, len(encoded)))]
        conds = {name: helpers.convert_cond(c) for name, c in zip(names, encoded, strict=True)}
        noise = torch.zeros(1, *self.shape, device=self.device)
        base = self._ready(1)
        conds = self.comfy.samplers.process_conds(base, noise, conds, self.device, noise, seed=0)
        return list(conds.values())

    def _ready(self, count: int) -> BaseModel:
        """Load the network for `count` latents, as other work may have pushed it out of memory."""
        memory = self.model.memory_required([2 * count, *self.shape])
        self.comfy.memory.load_models_gpu([self.model], memory_required=memory)
        self.model.pre_run()
        return self.model.model

    def conditions(self, batch: int, generator: torch.Generator) -> torch.Tensor:
        """Draw prompt numbers evenly, int64 [batch]."""
        device = generator.device
        return torch.randint(len(self.prompts), (batch,), generator=generator, device=device)

    def denoise(
        self,
        x: torch.Tensor,
        sigma: torch.Tensor,
        cond: torch.Tensor | None = None,
        guidance: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return x0 of latents x at sigma [batch]; without a condition, for the negative prompt.

        Rows with the same multiplier of guidance share calls of the network.
        """
        sigma = torch.as_tensor(sigma, device=x.device).expand(len(x)).float()
        if cond is None:
            return self._guided(x, sigma, self.negative, 1.0).to(x.dtype)
        numbers, out = torch.as_tensor(cond).expand(len(x)), torch.empty_like(x)
        for multiplier, rows in rows_by_guidance(guidance):
            cfg = guided_scale(self.cfg, multiplier)
            out[rows] = self._prompted(x[rows], sigma[rows], numbers[rows], cfg)
        return out

    def _prompted(
        self, x: torch.Tensor, sigma: torch.Tensor, numbers: torch.Tensor, cfg: float
    ) -> torch.Tensor:
        """Return x0 for prompt numbers [batch] at one guidance scale."""
        out = torch.empty_like(x)
        for rows, positive in self.prompts.calls(numbers):
            rows = rows if isinstance(rows, slice) else rows.to(x.device)
            out[rows] = self._guided(x[rows], sigma[rows], positive, cfg).to(x.dtype)
        return out

    def _guided(
        self, x: torch.Tensor, sigma: torch.Tensor, positive: Prompt, cfg: float
    ) -> torch.Tensor:
        base, options = self._ready(len(x)), self.model.model_options
        result: torch.Tensor = self.comfy.samplers.sampling_function(
            base, x.float(), sigma, self.negative, positive, cfg, model_options=options
        )
        return result

    def decode(self, x: torch.Tensor) -> torch.Tensor | None:
        """Return pictures [batch, 3, h, w] in [0, 1] of latents, or None without a VAE."""
        if self.vae is None or self.vae.first_stage_model is None:
            return None
        return decode_latents(self.model.model, x, self.vae)


def _latent_shape(
    base: BaseModel, vae: VAE | None, width: int, height: int
) -> tuple[int, int, int]:
    """Return the shape of latents for pictures of a size in pixels."""
    form = base.latent_format
    if form.latent_dimensions != 2:
        raise ModelError("Training for video or audio models is not supported.")
    unit = pixels_per_latent(base, vae) or PIXELS_PER_LATENT
    if width % unit or height % unit:
        raise ModelError(f"Width and height must be multiples of {unit}, not {width}x{height}.")
    return form.latent_channels, height // unit, width // unit


def _encoded(clip: CLIP, text: str, guidance: float | None) -> CONDITIONING:
    """Encode a text, with the guidance scale that some networks take as an input."""
    encoded = clip.encode_from_tokens_scheduled(clip.tokenize(text))
    extra = {} if guidance is None else {"guidance": guidance}
    return [[tensor, values | extra] for tensor, values in encoded]
