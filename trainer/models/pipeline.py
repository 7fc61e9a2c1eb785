"""Diffusers pipelines as models: a folder, or one .safetensors checkpoint.

Prompts are encoded once, then the text encoders are released; the network, the VAE and a row of
embeddings per prompt stay. A condition is an int64 tensor of prompt indices [batch].
"""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from s4s_core.errors import ModelError, short
from s4s_core.model import guided_scale
from s4s_core.regular import read_whole
from s4s_core.spaces import DiscreteTimes, ShiftedTimes, as_float64

from ..extras import import_extras
from . import ModelChoice
from .contract import about, choose_device, file_digest, fingerprint, folder_digest
from .networks import NETWORKS, Texts, UNet
from .prediction import (
    denoised,
    discrete_times,
    flow_shift,
    like,
    network_input,
    network_time,
)
from .prompts import PROMPTS

ENCODED_AT_ONCE = 8
TEXTS, LARGEST_TEXT = (".json", ".txt", ".model"), 64 << 20
"""The files of a pipeline folder that are read as a whole, and the most bytes of one."""

# Pipeline class and a tensor name that identifies its checkpoints; the first match wins.
CHECKPOINTS = (
    ("FluxPipeline", "double_blocks.0.img_attn"),
    ("StableDiffusion3Pipeline", "joint_blocks.0.x_block"),
    ("StableDiffusionXLPipeline", "conditioner.embedders.1"),
    ("StableDiffusionPipeline", "model.diffusion_model.input_blocks.0"),
)


def open_pipeline(choice: ModelChoice) -> "PipelineModel":
    """Open a pipeline folder or a checkpoint file."""
    diffusers, _ = import_extras("diffusers", "transformers")
    path = Path(os.path.expanduser(choice.path))
    is_folder = os.path.isdir(path)
    name = _folder_class(path) if is_folder else _checkpoint_class(path)
    check_files(path if is_folder else path.with_suffix(""))
    device = choose_device(choice.device)
    dtype = choose_dtype(choice.dtype, device, flow=NETWORKS[name].part == "transformer")
    diffusers.utils.logging.disable_progress_bar()
    pipe = _load(getattr(diffusers, name), path, dtype)
    digest = f"diffusers:{folder_digest(path)}" if is_folder else file_digest(path)
    try:
        return PipelineModel(pipe, choice, device, digest)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise ModelError(f"The configuration in {path} cannot be used: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """Return the first line of an error that may quote a stranger's files."""
    return short(str(error).strip().partition("\n")[0], 300)


def choose_dtype(name: str, device: torch.device, flow: bool) -> torch.dtype:
    """Return the precision of a ModelChoice; "auto" is half on a GPU and float32 on a CPU."""
    if name != "auto":
        dtype: torch.dtype = getattr(torch, name)
        return dtype
    if device.type == "cpu":
        return torch.float32
    return torch.bfloat16 if flow else torch.float16


def _supported(name: str, path: Path) -> str:
    if name not in NETWORKS:
        raise ModelError(
            f"{path} is a {name}, which is not supported. Use one of {', '.join(NETWORKS)}."
        )
    return name


def _folder_class(path: Path) -> str:
    """Return the class name of a pipeline folder; its custom code is never run."""
    index = os.path.realpath(path / "model_index.json")  # the Hugging Face cache has links to files
    try:
        return _supported(str(json.loads(read_whole(index, LARGEST_TEXT))["_class_name"]), path)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ModelError(
            f"'{path}' is not a diffusers pipeline folder: it has no valid model_index.json."
        ) from error


def check_files(folder: Path) -> None:
    """Raise ModelError if diffusers could read without end in a folder: pipes, devices, huge texts.

    A folder that does not exist is empty.
    """
    for pattern in ("*", "*/*"):  # it looks no deeper
        for path in folder.glob(pattern):
            if os.path.isfile(path):
                if path.suffix in TEXTS and path.stat().st_size > LARGEST_TEXT:
                    raise ModelError(f"{path} is larger than {LARGEST_TEXT:,} bytes.")
            elif os.path.exists(path) and not os.path.isdir(path):
                raise ModelError(f"{path} is a pipe or a device, not a file. Remove it.")


def _checkpoint_class(path: Path) -> str:
    """Return the pipeline class of a checkpoint, from its tensor names."""
    if not os.path.isfile(path):
        raise ModelError(f"There is no file or folder '{path}'.")
    if path.suffix.lower() != ".safetensors":
        raise ModelError(f"{path} is not a .safetensors file. Other formats can run code.")
    try:
        with safe_open(path, "pt") as file:
            names = list(file.keys())
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{path} is damaged or not a checkpoint: {error}") from error
    for pipeline, mark in CHECKPOINTS:
        if any(mark in name for name in names):
            return pipeline
    raise ModelError(f"{path} is not a complete SD 1, SD 2, SDXL, SD3 or Flux checkpoint.")


def _load(kind: Any, path: Path, dtype: torch.dtype) -> Any:
    """Load a pipeline on the CPU. A file is configured by the folder of the same name, if any."""
    options: dict[str, Any] = {"torch_dtype": dtype}
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
            hint = f" (to load it offline, put its configuration into the folder {beside})"
        return kind.from_single_file(str(path), **options)
    except Exception as error:  # whatever the library raises for a stranger's files
        raise ModelError(f"diffusers could not load {path}: {_reason(error)}{hint}") from error


class PipelineModel:
    """A pipeline's network and VAE as a TrainerModel."""

    def __init__(self, pipe: Any, choice: ModelChoice, device: torch.device, digest: str) -> None:
        kind = NETWORKS[type(pipe).__name__]
        height, width = self._size(pipe, kind, choice)
        self.net = kind(pipe, height, width)
        self.network, self.vae = self.net.network, pipe.vae
        self.device, self.dtype, self.offload = device, self.network.dtype, choice.offload
        scale = pipe.vae_scale_factor
        self.shape: tuple[int, ...] = self.net.channels, height // scale, width // scale
        self.cfg = self.net.take(choice.cfg)
        self._take_times(pipe.scheduler.config)
        prompts = choice.prompts or PROMPTS
        with torch.no_grad():
            self.texts, self.negatives = self._encode(pipe, prompts, choice.negative)
        self._place()
        guidance = self.net.guidance
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
    def _size(pipe: Any, kind: type[UNet], choice: ModelChoice) -> tuple[int, int]:
        """Return (height, width) in pixels."""
        default = kind.default_size(pipe)
        height, width = choice.height or default[0], choice.width or default[1]
        unit = int(pipe.vae_scale_factor) * kind.patch
        if height % unit or width % unit:
            raise ModelError(f"{width}x{height}: width and height must be multiples of {unit}.")
        return height, width

    def _take_times(self, config: Mapping[str, Any]) -> None:
        """Take space, prediction and times from the pipeline's scheduler."""
        self.times: DiscreteTimes | ShiftedTimes
        if self.net.part == "unet":
            self.space, self.prediction = "ve", config.get("prediction_type", "epsilon")
            self.times = discrete_times(config)
            self.sigma_min, self.sigma_max = self.times.sigma_min, self.times.sigma_max
            return
        _, height, width = self.shape
        self.space, self.prediction = "flow", "flow"
        self.times = ShiftedTimes(flow_shift(config, height * width // self.net.patch**2))
        self.sigma_min, self.sigma_max = self.times.sigma_min, 1.0

    def _encode(self, pipe: Any, prompts: Sequence[str], negative: str) -> tuple[Texts, Texts]:
        """Return the embeddings of all prompts and of the negative one, on the device.

        The encoders leave the device afterwards, so it never holds them beside the network.
        """
        named = pipe.components.items()
        encoders = [part for name, part in named if "text_encoder" in name and part is not None]
        for part in encoders:
            part.to(self.device)
        encoded = []
        for start in range(0, len(prompts), ENCODED_AT_ONCE):
            batch = list(prompts[start : start + ENCODED_AT_ONCE])
            negatives = [negative] * len(batch) if negative else None
            encoded.append(self.net.encode(pipe, batch, negatives, self.device))
        for part in encoders:
            part.to("cpu")
        names = encoded[0][0]
        texts = {name: torch.cat([rows[name] for rows, _ in encoded]) for name in names}
        return texts, encoded[0][1]

    def _place(self) -> None:
        """Put the network and the VAE on the device; some VAEs overflow in float16."""
        if self.vae.dtype == torch.float16 and getattr(self.vae.config, "force_upcast", True):
            self.vae.float()
        for part in (self.network, self.vae):
            part.eval().requires_grad_(False)
            if not self.offload:
                part.to(self.device)

    def _bring(self, part: torch.nn.Module) -> None:
        """With offload, swap the part that computes onto the device."""
        if self.offload and next(part.parameters()).device != self.device:
            other = self.vae if part is self.network else self.network
            other.to("cpu")
            part.to(self.device)

    def conditions(self, batch: int, generator: torch.Generator) -> torch.Tensor:
        """Draw prompt indices evenly, int64 [batch]."""
        count = len(self.texts["text"])
        return torch.randint(count, (batch,), generator=generator, device=generator.device)

    @property
    def takes_guidance(self) -> bool:
        """Does a call use classifier-free guidance? Flux's own guidance is not one."""
        return self.cfg != 1

    def denoise(
        self,
        x: torch.Tensor,
        sigma: torch.Tensor,
        cond: torch.Tensor | None = None,
        guidance: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Predict x0 from latents x at noise levels sigma [batch]; `cond` are prompt indices.

        Without a condition, only the negative prompt is used. `guidance` [batch] multiplies the
        guidance, see `s4s_core.model.Denoiser`.
        """
        self._bring(self.network)
        sigma = torch.as_tensor(sigma, device=x.device).expand(len(x))
        point = network_input(self.space, x, sigma)
        output = self._guided(point, sigma, cond, self._scale(guidance))
        return denoised(self.prediction, x, output, sigma).to(x.dtype)

    def _scale(self, guidance: torch.Tensor | None) -> torch.Tensor:
        """Return the guidance scale of each row, or one for all, on the CPU."""
        cfg = torch.tensor(self.cfg, dtype=torch.float64)
        return cfg if guidance is None else guided_scale(cfg, as_float64(guidance.cpu()))

    def _guided(
        self, x: torch.Tensor, sigma: torch.Tensor, cond: torch.Tensor | None, scale: torch.Tensor
    ) -> torch.Tensor:
        """Predict with classifier-free guidance, in one doubled batch unless all scales are 1."""
        negatives = {k: v.expand(len(x), *v.shape[1:]) for k, v in self.negatives.items()}
        if cond is None:
            return self._predict(x, sigma, negatives)
        index = torch.as_tensor(cond, device=self.device).expand(len(x))
        texts = {name: rows[index] for name, rows in self.texts.items()}
        if bool((scale == 1).all()):
            return self._predict(x, sigma, texts)
        both = {name: torch.cat([negatives[name], texts[name]]) for name in texts}
        doubled = x.repeat(2, *[1] * (x.ndim - 1)), sigma.repeat(2)
        unconditional, conditional = self._predict(*doubled, both).chunk(2)
        return unconditional + like(scale, x).to(x.device) * (conditional - unconditional)

    def _predict(self, x: torch.Tensor, sigma: torch.Tensor, texts: Texts) -> torch.Tensor:
        """Call the network in its own precision; return what it predicts in float32 or better."""
        sigma = sigma.float()
        time = network_time(self.times, sigma) if self.space == "ve" else 1000 * sigma
        output = self.net.predict(x.to(self.dtype), sigma, time, texts)
        return output.to(torch.promote_types(x.dtype, torch.float32))

    def decode(self, x: torch.Tensor) -> torch.Tensor:
        """Decode latents into pictures [batch, 3, h, w] in [0, 1], one at a time."""
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
