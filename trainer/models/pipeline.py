"""Diffusers pipelines as models: a folder, or one .safetensors checkpoint.

Prompts are encoded once, then the text encoders are let go: what stays is the network, the VAE and
a row of embeddings per prompt. A condition is an int64 tensor of prompt numbers [batch].
"""

import json
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from s4s_core.errors import ModelError
from s4s_core.spaces import ShiftedTimes

from ..extras import import_extras
from .contract import about, choose_device, fingerprint
from .networks import NETWORKS
from .prediction import (
    denoised,
    discrete_times,
    flow_shift,
    network_input,
    network_time,
)
from .prompts import PROMPTS
from .weights import file_digest, folder_digest

ENCODED_AT_ONCE = 8

# Whose checkpoint a .safetensors file is, by tensors that only it has; the first that fits counts.
CHECKPOINTS = (
    ("FluxPipeline", "double_blocks.0.img_attn"),
    ("StableDiffusion3Pipeline", "joint_blocks.0.x_block"),
    ("StableDiffusionXLPipeline", "conditioner.embedders.1"),
    ("StableDiffusionPipeline", "model.diffusion_model.input_blocks.0"),
)


def open_pipeline(choice):
    """The model of a pipeline's folder or of a checkpoint file."""
    diffusers, _ = import_extras("diffusers", "transformers")
    path = Path(choice.path).expanduser()
    name = _folder_class(path) if path.is_dir() else _checkpoint_class(path)
    device = choose_device(choice.device)
    dtype = choose_dtype(choice.dtype, device, flow=NETWORKS[name].part == "transformer")
    diffusers.utils.logging.disable_progress_bar()
    pipe = _load(getattr(diffusers, name), path, dtype)
    digest = f"diffusers:{folder_digest(path)}" if path.is_dir() else file_digest(path)
    return PipelineModel(pipe, choice, device, digest)


def choose_dtype(name, device, flow):
    """The precision of a ModelChoice: half on a GPU, float32 on a CPU, unless one is named."""
    if name != "auto":
        return getattr(torch, name)
    if device.type == "cpu":
        return torch.float32
    return torch.bfloat16 if flow else torch.float16


def _known(name, path):
    if name not in NETWORKS:
        raise ModelError(
            f"{path} holds a {name}, which cannot be trained for: {', '.join(NETWORKS)} can."
        )
    return name


def _folder_class(path):
    """The pipeline's class that a folder names; custom code is never run."""
    index = path / "model_index.json"
    try:
        return _known(str(json.loads(index.read_text(encoding="utf-8"))["_class_name"]), path)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{path} is no pipeline's folder: it has no model_index.json.") from error


def _checkpoint_class(path):
    """The pipeline's class of a checkpoint, from the names of its tensors."""
    if not path.is_file():
        raise ModelError(f"There is no file or folder {path}.")
    if path.suffix.lower() != ".safetensors":
        raise ModelError(f"{path} is no .safetensors file: other formats can run foreign code.")
    try:
        with safe_open(path, "pt") as file:
            names = list(file.keys())
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{path} is damaged or no checkpoint: {error}") from error
    for pipeline, mark in CHECKPOINTS:
        if any(mark in name for name in names):
            return pipeline
    raise ModelError(f"{path} holds no whole SD 1, SD 2, SDXL, SD3 or Flux checkpoint.")


def _load(kind, path, dtype):
    """The pipeline, on the CPU. A file takes its configuration from a folder of its own name."""
    options = {"torch_dtype": dtype}
    if kind.__name__ == "StableDiffusionPipeline":
        options |= {"safety_checker": None, "requires_safety_checker": False}
    beside, hint = path.with_suffix(""), ""
    try:
        if path.is_dir():
            options |= {"use_safetensors": True, "local_files_only": True}
            return kind.from_pretrained(path, **options)
        if beside.is_dir():
            options |= {"config": str(beside), "local_files_only": True}
        else:
            hint = f" (without internet it takes its configuration from a folder {beside})"
        return kind.from_single_file(str(path), **options)
    except (OSError, ValueError, KeyError, ImportError, RuntimeError, AttributeError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ModelError(f"diffusers cannot load {path}: {reason}{hint}") from error


class PipelineModel:
    """A pipeline's network and VAE behind the contract of `trainer.models`."""

    def __init__(self, pipe, choice, device, digest):
        kind = NETWORKS[type(pipe).__name__]
        height, width = self._size(pipe, kind, choice)
        self.net = kind(pipe, height, width)
        self.network, self.vae = self.net.network, pipe.vae
        self.device, self.dtype, self.offload = device, self.network.dtype, choice.offload
        scale = pipe.vae_scale_factor
        self.shape = self.net.channels, height // scale, width // scale
        self.cfg = self.net.take(choice.cfg)
        self._take_times(pipe.scheduler.config)
        prompts = choice.prompts or PROMPTS
        with torch.no_grad():
            self.texts, self.negatives = self._encode(pipe, prompts, choice.negative)
        self._settle()
        guidance = getattr(self.net, "guidance", 0.0)
        self.name = choice.label
        self.about = about(
            self.name,
            digest,
            self.cfg,
            width,
            height,
            architecture=type(pipe).__name__,
            prediction=self.prediction,
            **({"guidance": guidance} if guidance else {}),
        )
        facts = [self.cfg, guidance, list(prompts), choice.negative, width, height]
        self.fingerprint = fingerprint(digest, *facts, str(self.dtype))

    @staticmethod
    def _size(pipe, kind, choice):
        """(height, width) in pixels: the choice's, or the pipeline's own."""
        own = kind.default_size(pipe)
        height, width = choice.height or own[0], choice.width or own[1]
        unit = pipe.vae_scale_factor * kind.patch
        if height % unit or width % unit:
            raise ModelError(f"{width}x{height}: this model's sides are multiples of {unit}.")
        return height, width

    def _take_times(self, config):
        """Space, prediction and times of the pipeline's scheduler."""
        if self.net.part == "unet":
            self.space, self.prediction = "ve", config.get("prediction_type", "epsilon")
            self.times = discrete_times(config)
            self.sigma_min, self.sigma_max = self.times.sigma_min, self.times.sigma_max
            return
        _, height, width = self.shape
        self.space, self.prediction = "flow", "flow"
        self.times = ShiftedTimes(flow_shift(config, height * width // self.net.patch**2))
        self.sigma_min, self.sigma_max = self.times.sigma_min, 1.0

    def _encode(self, pipe, prompts, negative):
        """Embeddings of all prompts and of the negative one, on the device.

        The encoders leave it again, so that it need not hold them beside the network.
        """
        named = pipe.components.items()
        encoders = [part for name, part in named if "text_encoder" in name and part is not None]
        for part in encoders:
            part.to(self.device)
        parts = []
        for start in range(0, len(prompts), ENCODED_AT_ONCE):
            some = list(prompts[start : start + ENCODED_AT_ONCE])
            against = [negative] * len(some) if negative else None
            parts.append(self.net.encode(pipe, some, against, self.device))
        for part in encoders:
            part.to("cpu")
        texts = {name: torch.cat([part[0][name] for part in parts]) for name in parts[0][0]}
        return texts, parts[0][1]

    def _settle(self):
        """Put the network and the VAE where they work; float16 is too narrow for some VAEs."""
        if self.vae.dtype == torch.float16 and getattr(self.vae.config, "force_upcast", True):
            self.vae.float()
        for part in (self.network, self.vae):
            part.eval().requires_grad_(False)
            if not self.offload:
                part.to(self.device)

    def _bring(self, part):
        """Under offload, only the part that computes is on the device."""
        if self.offload and next(part.parameters()).device != self.device:
            other = self.vae if part is self.network else self.network
            other.to("cpu")
            part.to(self.device)

    def conditions(self, batch, generator):
        """Prompt numbers drawn evenly, int64 [batch]."""
        count = len(self.texts["text"])
        return torch.randint(count, (batch,), generator=generator, device=generator.device)

    def denoise(self, x, sigma, cond=None):
        """x0 of latents x at noise level sigma [batch]; `cond` are prompt numbers.

        Without a condition, the negative prompt is all that the network is told.
        """
        self._bring(self.network)
        sigma = torch.as_tensor(sigma, device=x.device).expand(len(x))
        point = network_input(self.space, x, sigma)
        output = self._guided(point, sigma, cond).to(torch.promote_types(x.dtype, torch.float32))
        return denoised(self.prediction, x, output, sigma).to(x.dtype)

    def _guided(self, x, sigma, cond):
        """The network's prediction with classifier-free guidance, in one doubled batch."""
        negatives = {k: v.expand(len(x), *v.shape[1:]) for k, v in self.negatives.items()}
        if cond is None:
            return self._predict(x, sigma, negatives)
        index = torch.as_tensor(cond, device=self.device).expand(len(x))
        texts = {name: rows[index] for name, rows in self.texts.items()}
        if self.cfg == 1:
            return self._predict(x, sigma, texts)
        both = {name: torch.cat([negatives[name], texts[name]]) for name in texts}
        doubled = x.repeat(2, *[1] * (x.ndim - 1)), sigma.repeat(2)
        free, told = self._predict(*doubled, both).chunk(2)
        return free + self.cfg * (told - free)

    def _predict(self, x, sigma, texts):
        sigma = sigma.float()
        time = network_time(self.times, sigma) if self.space == "ve" else 1000 * sigma
        return self.net.predict(x.to(self.dtype), sigma, time, texts)

    def decode(self, x):
        """Pictures [batch, 3, h, w] in [0, 1] of latents x, one at a time."""
        self._bring(self.vae)
        config = self.vae.config
        scale, shift = 1 / config.scaling_factor, getattr(config, "shift_factor", None) or 0.0
        mean, spread = (getattr(config, f"latents_{name}", None) for name in ("mean", "std"))
        if mean is not None and spread is not None:
            scale, shift = (
                x.new_tensor(values).reshape(-1, 1, 1)
                for values in ([s * scale for s in spread], mean)
            )
        latents = (x * scale + shift).to(self.device, self.vae.dtype)
        parts = [self.vae.decode(part, return_dict=False)[0] for part in latents.split(1)]
        return (torch.cat(parts).float() / 2 + 0.5).clamp(0, 1)
