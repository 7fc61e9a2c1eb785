"""ComfyUI's facts, once for its nodes and the trainer, so both see the same model.

ComfyUI is imported inside functions: this module imports without it.
"""

import hashlib
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import torch

from ..model import guided_scale
from ..spaces import DiscreteTimes, ShiftedTimes, listed_times

if TYPE_CHECKING:
    from PIL import Image

# ComfyUI has no types to check against; these names say which of its objects is meant.
MODEL = Any
"""A comfy.model_patcher.ModelPatcher: what the graph calls MODEL."""
BaseModel = Any
"""A comfy.model_base.BaseModel: the network with everything it needs to predict x0."""
ModelSampling = Any
"""A model's model_sampling: its noise levels, times and prediction type."""
VAE = Any
CLIP = Any
SAMPLER = Any
CONDITIONING = list[Any]
LATENT = dict[str, Any]
Guider = Any
"""A comfy.samplers.CFGGuider, or one of its kin, while it samples."""
Rows = torch.Tensor | slice
Prompt = list[dict[str, Any]]
"""A conditioning prepared for sampling: one entry per area or time range."""

_LATENT_PIXELS = {"ChromaRadiance": 1} | dict.fromkeys(
    ("SD15", "SDXL", "SDXL_Playground_2_5", "SD3", "Flux"), 8
)
"""Pixels per latent by latent format, for ComfyUI versions whose formats do not say."""

_SAMPLED, _VALUES = 24, 64
_SPECIAL = {"area", "mask", "control", "hooks", "gligen", "timestep_start", "timestep_end"}
_identities: WeakKeyDictionary[BaseModel, str] = WeakKeyDictionary()


def identity(base: BaseModel) -> str:
    """Return a name for a model's weights, the same in every session and precision.

    It hashes some vectors (norms and biases) in bfloat16; reading all weights would take as long
    as loading them. LoRAs and merges are ignored: while they are applied, ComfyUI keeps the
    checkpoint's weights in a backup.
    """
    if base not in _identities:
        backup = getattr(getattr(base, "current_patcher", None), "backup", {})
        vectors = [(n, p) for n, p in base.named_parameters() if p.ndim == 1 and p.numel() > 1]
        stride = max(1, len(vectors) // _SAMPLED)
        digest = hashlib.sha256(model_family(base).encode())
        for name, vector in vectors[::stride]:
            digest.update(f"{name} {vector.numel()} ".encode())
            own = backup[name].weight if name in backup else vector
            digest.update(_bits(own[:_VALUES]))
        _identities[base] = f"comfy:{digest.hexdigest()[:16]}"
    return _identities[base]


def _bits(values: torch.Tensor) -> bytes:
    values = values.detach().to("cpu", torch.float32).to(torch.bfloat16)
    return values.view(torch.int16).numpy().tobytes()


def model_family(base: BaseModel) -> str:
    """Return the family of a model, such as SD15 or Flux."""
    return type(base.model_config).__name__


def pixels_per_latent(base: BaseModel, vae: VAE | None = None) -> int | None:
    """Return how many pixels one latent covers along a side; None if unknown."""
    if vae is not None:
        return int(vae.spacial_compression_decode())
    form = base.latent_format
    factor = getattr(form, "spacial_downscale_ratio", _LATENT_PIXELS.get(type(form).__name__))
    return None if factor is None else int(factor)


def space_of(sampling: ModelSampling) -> str:
    """Return the space ("ve" or "flow") of a model_sampling."""
    from comfy.model_sampling import CONST

    return "flow" if isinstance(sampling, CONST) else "ve"


def levels_of(sampling: ModelSampling) -> tuple[float, float]:
    """Return the lowest and the highest noise level of a model_sampling.

    A flow model's shift is computed in float32, where its highest level, 1, may be 1.0000001.
    """
    low, high = float(sampling.sigma_min), float(sampling.sigma_max)
    return low, min(high, 1.0) if space_of(sampling) == "flow" else high


def times_of(sampling: ModelSampling) -> DiscreteTimes | ShiftedTimes | None:
    """Return the times a model counts in, or None if its time is the noise level itself (EDM)."""
    from comfy.model_sampling import CONST, ModelSamplingDiscrete

    if not isinstance(sampling, CONST | ModelSamplingDiscrete):
        return None
    return listed_times(space_of(sampling), sampling.sigmas)


class _ExactTimes:
    """A mixin for a discrete model_sampling: log sigma is linear between whole times.

    ComfyUI rounds to the nearest whole time, 812.4 to 812; a solver's times must not be rounded.
    """

    log_sigmas: torch.Tensor

    def timestep(self, sigma: torch.Tensor) -> torch.Tensor:
        logs = self.log_sigmas
        log = sigma.to(logs.device, torch.float32).log()
        high = torch.searchsorted(logs, log.contiguous()).clamp(1, len(logs) - 1)
        low = logs[high - 1]
        time = high - 1 + (log - low) / (logs[high] - low)
        return time.clamp(0, len(logs) - 1).view(sigma.shape).to(sigma.device)


def rounds_times(sampling: ModelSampling) -> bool:
    """Does this model_sampling round its times?"""
    from comfy.model_sampling import ModelSamplingDiscrete

    return getattr(type(sampling), "timestep", None) is ModelSamplingDiscrete.timestep


def exact_sampling(sampling: ModelSampling, **attributes: object) -> ModelSampling:
    """Return a copy of a model_sampling that does not round times, with further attributes.

    Tensors are shared with the original, which is unchanged.
    """
    kind: Any = type(sampling)
    if rounds_times(sampling):
        kind = type(f"Exact{kind.__name__}", (_ExactTimes, kind), {})
    copy = kind.__new__(kind)
    copy.__dict__.update(sampling.__dict__)
    copy.__dict__["_buffers"] = dict(sampling._buffers)
    for name, value in attributes.items():
        object.__setattr__(copy, name, value)
    return copy


def exact_model(model: MODEL, **attributes: object) -> MODEL:
    """Return a clone of a MODEL that does not round times; see `exact_sampling`."""
    sampling = exact_sampling(model.get_model_object("model_sampling"), **attributes)
    clone = model.clone()
    clone.add_object_patch("model_sampling", sampling)
    return clone


def caching_node(options: dict[str, Any]) -> str | None:
    """Return which node (EasyCache or LazyCache) lets a model reuse results of earlier calls.

    `options` are model_options; None if there is no such node.
    """
    holder = options.get("transformer_options", {}).get("easycache")
    return None if holder is None else str(getattr(holder, "name", "EasyCache"))


def guidance_scales(guider: Guider) -> dict[str, float]:
    """Return a guider's guidance scales by attribute, or none if there is nothing to scale.

    DualCFG has two. BasicGuider has only one prompt, and a wrapper holds no scale of its own.
    """
    held = getattr(guider, "__dict__", {})
    if len(held.get("conds") or ()) < 2:
        return {}
    names = ("cfg1", "cfg2") if "cfg1" in held else ("cfg",)
    return {name: held[name] for name in names if isinstance(held.get(name), int | float)}


@contextmanager
def scaled_guidance(guider: Guider, multiplier: float) -> Iterator[None]:
    """Let a guider work at `guided_scale(cfg, multiplier)`, and put its scales back afterwards."""
    scales = guidance_scales(guider)
    try:
        for name, cfg in scales.items():
            setattr(guider, name, guided_scale(cfg, multiplier))
        yield
    finally:
        for name, cfg in scales.items():
            setattr(guider, name, cfg)


def rows_by_guidance(guidance: torch.Tensor | None) -> Iterator[tuple[float, Rows]]:
    """Yield (multiplier, its rows) for the multipliers [batch] of a batch; None is 1 for all."""
    values = [1.0] if guidance is None else guidance.tolist()
    for value in dict.fromkeys(values):
        same = torch.tensor([other == value for other in values])
        yield value, slice(None) if bool(same.all()) else same.nonzero().squeeze(1)


class Prompts:
    """Prepared prompts; rows of a batch share a model call where their prompts allow it.

    Prompts share calls if they are plain (no area, mask, ControlNet, hooks or time range) and
    their tensors have equal shapes.
    """

    def __init__(self, prompts: Sequence[Prompt]) -> None:
        self.prompts = list(prompts)
        self._places: list[tuple[int, int]] = []
        members: dict[object, list[Prompt]] = {}
        for number, prompt in enumerate(self.prompts):
            key = _sharing_key(prompt) or number
            group = members.setdefault(key, [])
            self._places.append((list(members).index(key), len(group)))
            group.append(prompt)
        self.groups = [_Group(group) for group in members.values()]

    def __len__(self) -> int:
        return len(self.prompts)

    def calls(self, numbers: torch.Tensor) -> Iterator[tuple[Rows, Prompt]]:
        """Yield (rows, prompt of these rows) for the prompt numbers [batch] of a batch."""
        if len(self.groups) == 1:
            yield slice(None), self.groups[0].prompt(numbers)
            return
        places = torch.tensor([self._places[number] for number in numbers.tolist()])
        for number, group in enumerate(self.groups):
            rows = (places[:, 0] == number).nonzero().squeeze(1)
            if len(rows):
                yield rows, group.prompt(places[rows, 1])


class _Group:
    """Prompts that share calls, their tensors stacked."""

    def __init__(self, prompts: Sequence[Prompt]) -> None:
        self._first = prompts[0]
        self._stacks: dict[str, torch.Tensor] = {}
        if len(prompts) > 1:
            conds = [prompt[0]["model_conds"] for prompt in prompts]
            for name, part in conds[0].items():
                if isinstance(part.cond, torch.Tensor):
                    self._stacks[name] = torch.cat([cond[name].cond for cond in conds])

    def prompt(self, members: torch.Tensor) -> Prompt:
        """Return one prompt with a row for each of the members [rows]."""
        if not self._stacks:
            return self._first
        entry = self._first[0]
        parts = dict(entry["model_conds"])
        for name, stack in self._stacks.items():
            parts[name] = type(parts[name])(stack[members.to(stack.device)])
        return [entry | {"model_conds": parts, "uuid": uuid.uuid4()}]


def _sharing_key(prompt: Prompt) -> tuple[object, ...] | None:
    """Return what must be equal for prompts to share calls; None for a prompt that cannot."""
    if len(prompt) != 1 or set(prompt[0]) & _SPECIAL:
        return None
    key: list[object] = []
    for name, part in sorted(prompt[0]["model_conds"].items()):
        value = getattr(part, "cond", None)
        if isinstance(value, torch.Tensor) and len(value) == 1:
            key.append((name, type(part), tuple(value.shape)))
        elif isinstance(value, bool | int | float | str):
            key.append((name, type(part), value))
        else:
            return None
    return tuple(key)


def decode_latents(base: BaseModel, x: torch.Tensor, vae: VAE) -> torch.Tensor:
    """Decode results x to pictures [n, 3, h, w] in [0, 1]; of a video only the first frame."""
    images = vae.decode(base.process_latent_out(x.float()))
    images = images[:, 0] if images.ndim == 5 else images
    pictures: torch.Tensor = images.movedim(-1, 1)[:, :3].float().clamp(0, 1)
    return pictures


def pictures_of(base: BaseModel, x: torch.Tensor, vae: VAE | None = None) -> torch.Tensor:
    """Return results x of a model as pictures [n, 3, h, w] in [0, 1], on the CPU.

    Without a VAE they are a rough preview: the latent format's own colours, or its first channel
    in grey. Of a video the first frame is shown.
    """
    if vae is not None:
        return decode_latents(base, x, vae).cpu()
    x = {3: x[:, :, None], 5: x[:, :, 0]}.get(x.ndim, x).float().cpu()
    factors = getattr(base.latent_format, "latent_rgb_factors", None)
    if factors is None or len(factors) != x.shape[1]:
        factors = [[1.0] * 3] + [[0.0] * 3] * (x.shape[1] - 1)
    colours = torch.nn.functional.linear(x.movedim(1, -1), torch.tensor(factors).T)
    bias = getattr(base.latent_format, "latent_rgb_factors_bias", None)
    if bias is not None:
        colours = colours + torch.tensor(bias)
    return (colours / 2 + 0.5).clamp(0, 1).movedim(-1, 1)


def as_image(picture: "Image.Image") -> torch.Tensor:
    """Convert a PIL image to ComfyUI's IMAGE [1, h, w, 3]."""
    return torch.from_numpy(np.asarray(picture.convert("RGB"), dtype=np.float32) / 255)[None]
