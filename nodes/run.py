"""The sampler function: the core's loop as ComfyUI calls it."""

import inspect
from contextlib import contextmanager

import comfy.sample
import latent_preview

from ..s4s_core.errors import HostError
from ..s4s_core.hosting import run_in_host
from . import notices
from .attach import check_solver, continuous, is_rounding, solver_on

_RATIOS = {"downscale_ratio_spacial", "downscale_ratio_temporal"}
"""What an empty latent says of its size; one that was sampled has the model's."""


def sample_s4s(model, x, sigmas, extra_args=None, callback=None, disable=None):
    """The stock sampler `s4s`: runs the solver that rides on the MODEL."""
    pack = solver_on(model.inner_model.inner_model.model_sampling)
    return run(model, x, sigmas, pack, extra_args, callback)


def sampler_of(pack):
    """A sampler function that runs one given solver, whatever rides on the MODEL."""

    def sample_solver(model, x, sigmas, extra_args=None, callback=None, disable=None):
        return run(model, x, sigmas, pack, extra_args, callback)

    return sample_solver


def run(model, x, sigmas, pack, extra_args=None, callback=None):
    """Sample from noised x along sigmas with the table of a pack that fits them.

    `model(x, sigma, **extra_args)` gives the guided x0. The callback hears of every model call: it
    drives progress, preview and interruption.
    """
    if len(sigmas) < 2:
        return x
    extra_args = extra_args or {}
    base = model.inner_model.inner_model
    check_solver(pack, base.model_sampling)
    check_latent(base, x)
    notices.warn_of_mismatches(pack, model.inner_model, x)
    mask = extra_args.get("denoise_mask")
    original = getattr(model, "latent_image", None)  # wrappers of other packs are bare functions
    keep = None if mask is None or original is None else (mask, original)

    def tell(progress):
        if callback is not None:
            callback(
                {
                    "x": progress.x,
                    "i": progress.call,
                    "sigma": progress.sigma[0],
                    "sigma_hat": progress.sigma[0],
                    "denoised": progress.denoised,
                }
            )

    with unrounded(base):
        return run_in_host(
            lambda point, sigma: model(point, sigma, **extra_args), x, pack, sigmas, tell, keep
        )


@contextmanager
def unrounded(base):
    """Let a host's model be called at times that are not rounded, for as long as this lasts."""
    sampling = base.model_sampling
    if not is_rounding(sampling):
        yield
        return
    base.model_sampling = continuous(sampling)
    try:
        yield
    finally:
        base.model_sampling = sampling


def check_latent(base, x):
    """HostError, in a sentence, if a latent has not the channels that the model works on."""
    want, got = base.latent_format.latent_channels, x.shape[1]
    if want != got and x.ndim > 3:  # the host packs mixed latents into three dimensions
        raise HostError(
            f"This latent has {got} channels, the model works on {want}: make it with the empty "
            "latent node or the VAE that belongs to the model."
        )


def prepared(model, latent):
    """The samples of a LATENT in the model's channels and size; a wrong shape is refused in a
    sentence.

    Newer hosts also ask how many pixels an empty latent was made for, which it says itself.
    """
    fix = comfy.sample.fix_empty_latent_channels
    asked = _RATIOS & inspect.signature(fix).parameters.keys()
    samples = fix(model, latent["samples"], **{name: latent.get(name) for name in asked})
    if not samples.is_nested:
        check_latent(model.model, samples)
    return samples


def ksampler(model, seed, steps, cfg, positive, negative, latent, denoise):
    """What the stock KSampler does with a LATENT, at sampler and scheduler `s4s`."""
    samples = prepared(model, latent)
    noise = comfy.sample.prepare_noise(samples, seed, latent.get("batch_index"))
    result = comfy.sample.sample(
        model,
        noise,
        steps,
        cfg,
        "s4s",
        "s4s",
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
    return (rest | {"samples": result},)
