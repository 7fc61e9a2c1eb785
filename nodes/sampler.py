"""ComfyUI's sampler and scheduler `s4s`: a solver attached to a MODEL, and how it runs.

ComfyUI's scheduler sees only `model_sampling`, so the solver hangs on a copy of it, which is
patched onto a clone of the MODEL.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import comfy.k_diffusion.sampling
import comfy.sample
import comfy.samplers
import latent_preview
import torch

from ..s4s_core.app.comfyui import (
    CONDITIONING,
    LATENT,
    MODEL,
    BaseModel,
    Guider,
    ModelSampling,
    caching_node,
    exact_model,
    exact_sampling,
    guidance_scales,
    levels_of,
    rounds_times,
    scaled_guidance,
    space_of,
)
from ..s4s_core.errors import HostError
from ..s4s_core.hosting import follows, host_sigmas, require_space, run_in_host
from ..s4s_core.sampling import ModelCall
from ..s4s_core.table import SolverPack
from . import notices
from .inputs import SAMPLER_NAME

Callback = Callable[[dict[str, Any]], None]
SamplerFunction = Callable[..., torch.Tensor]

ATTRIBUTE = "s4s_solver"
NO_SOLVER = (
    "No solver is applied to this model. Connect Apply Solver (S4S) between the model and the "
    "sampler, after all nodes that change the model's sampling."
)
NEEDS_MODEL = (
    "Where a run below full strength begins depends on the model: connect the model to Sampler "
    "(S4S), or set denoise to 1."
)
NOT_CONNECTED = "No solver is connected. Connect Load Solver (S4S) or Train Solver (S4S)."

_RATIOS = {"downscale_ratio_spacial", "downscale_ratio_temporal"}
"""Keys of an empty latent that give its scale; a sampled latent has the model's scale."""


def register() -> None:
    """Add `s4s` to ComfyUI's samplers and schedulers; a reload replaces only what they run.

    Every node that offers the lists shares them, so names are appended in place.
    """
    setattr(comfy.k_diffusion.sampling, f"sample_{SAMPLER_NAME}", sample_s4s)
    handler = comfy.samplers.SchedulerHandler(scheduler_s4s, use_ms=True)
    comfy.samplers.SCHEDULER_HANDLERS[SAMPLER_NAME] = handler
    for names in (comfy.samplers.SAMPLER_NAMES, comfy.samplers.SCHEDULER_NAMES):
        if SAMPLER_NAME not in names:
            names.append(SAMPLER_NAME)


def require_solver(pack: SolverPack | None) -> SolverPack:
    """Return a connected solver; raise HostError if there is none."""
    if pack is None:
        raise HostError(NOT_CONNECTED)
    return pack


def check_solver(pack: SolverPack | None, sampling: ModelSampling) -> None:
    """Raise HostError unless `pack` is a solver for this kind of model."""
    require_space(require_solver(pack), space_of(sampling))


def attach_solver(model: MODEL, pack: SolverPack | None) -> MODEL:
    """Return a clone of a MODEL with a solver attached."""
    check_solver(pack, model.get_model_object("model_sampling"))
    return exact_model(model, **{ATTRIBUTE: pack})


def attached_solver(sampling: ModelSampling) -> SolverPack:
    """Return the solver attached to a model_sampling; raise HostError if there is none."""
    pack: SolverPack | None = getattr(sampling, ATTRIBUTE, None)
    if pack is None:
        raise HostError(NO_SOLVER)
    return pack


def scheduler_s4s(sampling: ModelSampling, steps: int) -> torch.Tensor:
    """The stock scheduler `s4s`: the levels of `simple`.

    They say where a run begins and how many calls it makes; the sampler puts the solver's own in
    between. Only it can: below full strength, ComfyUI asks for more steps than it runs.
    """
    attached_solver(sampling)
    return plain_sigmas(sampling, steps)


def plain_sigmas(sampling: ModelSampling, steps: int) -> torch.Tensor:
    """Return the levels of ComfyUI's scheduler `simple`."""
    sigmas: torch.Tensor = comfy.samplers.calculate_sigmas(sampling, "simple", steps)
    return sigmas


def solver_sigmas(
    pack: SolverPack | None, steps: int, denoise: float = 1.0, model: MODEL | None = None
) -> torch.Tensor:
    """Return the levels that a solver learned; below full strength those of `simple`, cut for
    `denoise` as ComfyUI's KSampler cuts them."""
    pack = require_solver(pack)
    if denoise <= 0:
        return torch.FloatTensor([])
    if denoise > 0.9999:
        table = pack[steps]
        return host_sigmas(pack, table.nfe).float()
    if model is None:
        raise HostError(NEEDS_MODEL)
    sampling = model.get_model_object("model_sampling")
    return plain_sigmas(sampling, int(steps / denoise))[-(steps + 1) :]


def sample_s4s(
    model: Any,
    x: torch.Tensor,
    sigmas: torch.Tensor,
    extra_args: dict[str, Any] | None = None,
    callback: Callback | None = None,
    disable: bool | None = None,
) -> torch.Tensor:
    """The stock sampler `s4s`: runs the solver attached to the MODEL."""
    pack = attached_solver(model.inner_model.inner_model.model_sampling)
    return run_solver(model, x, sigmas, pack, extra_args, callback)


def sampler_function(pack: SolverPack) -> SamplerFunction:
    """Return a sampler function that runs this solver, whatever is attached to the MODEL."""

    def sample_solver(
        model: Any,
        x: torch.Tensor,
        sigmas: torch.Tensor,
        extra_args: dict[str, Any] | None = None,
        callback: Callback | None = None,
        disable: bool | None = None,
    ) -> torch.Tensor:
        return run_solver(model, x, sigmas, pack, extra_args, callback)

    return sample_solver


def run_solver(
    model: Any,
    x: torch.Tensor,
    sigmas: torch.Tensor,
    pack: SolverPack,
    extra_args: dict[str, Any] | None = None,
    callback: Callback | None = None,
) -> torch.Tensor:
    """Sample from noised x along sigmas with the pack's table that fits them.

    Sigmas that are not those of the scheduler `s4s`, which are those of `simple`, run as given.

    `model(x, sigma, **extra_args)` returns the guided x0; `model.inner_model` is its guider, which
    is told the scale of each call. The callback is called after every model call; ComfyUI shows
    progress and previews and interrupts runs in it.
    """
    if len(sigmas) < 2:
        return x
    guider = model.inner_model
    extra_args = _evaluating_both(extra_args or {}, pack, guider)
    base = guider.inner_model
    check_solver(pack, base.model_sampling)
    check_latent(base, x)
    notices.warn_about_mismatches(pack, guider, x)
    mask = extra_args.get("denoise_mask")
    original = getattr(model, "latent_image", None)  # wrappers of other packs are plain functions
    keep = None if mask is None or original is None else (mask, original)

    def denoise(
        point: torch.Tensor,
        sigma: torch.Tensor,
        cond: None = None,
        guidance: torch.Tensor | None = None,
    ) -> torch.Tensor:
        with scaled_guidance(guider, 1.0 if guidance is None else float(guidance[0])):
            result: torch.Tensor = model(point, sigma, **extra_args)
            return result

    def report(progress: ModelCall) -> None:
        if callback is not None:
            level = {"sigma": progress.sigma[0], "sigma_hat": progress.sigma[0]}
            state = {"x": progress.x, "i": progress.call, "denoised": progress.denoised}
            callback(state | level)

    with _exact_times(base):
        guided = bool(guidance_scales(guider))
        return run_in_host(
            denoise,
            x,
            pack,
            sigmas,
            lowest=levels_of(base.model_sampling)[0],
            callback=report,
            keep=keep,
            guided=guided,
            plain=follows(base.model_sampling.sigmas, sigmas),
            tell=notices.warn,
        )


def _evaluating_both(
    extra_args: dict[str, Any], pack: SolverPack, guider: Guider
) -> dict[str, Any]:
    """Let ComfyUI evaluate the negative prompt at scale 1 too, if EasyCache may ask for its result.

    EasyCache fails where it skips a call whose negative prompt it has not seen before.
    """
    options = extra_args.get("model_options") or {}
    guided = any(scale != 1 for scale in guidance_scales(guider).values())
    if not (pack.sets_guidance and guided and caching_node(options)):
        return extra_args
    return extra_args | {"model_options": options | {"disable_cfg1_optimization": True}}


@contextmanager
def _exact_times(base: BaseModel) -> Iterator[None]:
    """Let a model be called at times that are not rounded."""
    sampling = base.model_sampling
    if not rounds_times(sampling):
        yield
        return
    base.model_sampling = exact_sampling(sampling)
    try:
        yield
    finally:
        base.model_sampling = sampling


def check_latent(base: BaseModel, x: torch.Tensor) -> None:
    """Raise HostError if a latent has the wrong number of channels."""
    expected, channels = base.latent_format.latent_channels, x.shape[1]
    if expected != channels and x.ndim > 3:  # ComfyUI packs mixed latents into three dimensions
        raise HostError(
            f"This latent has {channels} channels, but the model needs {expected}. Use the empty "
            "latent node or the VAE that belongs to the model."
        )


def prepare_latent(model: MODEL, latent: LATENT) -> torch.Tensor:
    """Return a LATENT's samples in the model's channels and size.

    Raise HostError if they do not fit. Newer versions of ComfyUI also ask for the scale that an
    empty latent was made at.
    """
    fix = comfy.sample.fix_empty_latent_channels
    asked = _RATIOS & inspect.signature(fix).parameters.keys()
    samples: torch.Tensor = fix(
        model, latent["samples"], **{name: latent.get(name) for name in asked}
    )
    if not samples.is_nested:
        check_latent(model.model, samples)
    return samples


def ksample(
    model: MODEL,
    seed: int,
    steps: int,
    cfg: float,
    positive: CONDITIONING,
    negative: CONDITIONING,
    latent: LATENT,
    denoise: float,
) -> LATENT:
    """Sample a LATENT as the stock KSampler does, with sampler and scheduler `s4s`."""
    samples = prepare_latent(model, latent)
    noise = comfy.sample.prepare_noise(samples, seed, latent.get("batch_index"))
    result = comfy.sample.sample(
        model,
        noise,
        steps,
        cfg,
        SAMPLER_NAME,
        SAMPLER_NAME,
        positive,
        negative,
        samples,
        denoise=denoise,
        noise_mask=latent.get("noise_mask"),
        callback=latent_preview.prepare_callback(model, steps),
        disable_pbar=True,
        seed=seed,
    )
    rest = {name: value for name, value in latent.items() if name not in _RATIOS}
    return rest | {"samples": result}
