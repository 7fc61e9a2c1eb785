"""Guiders, samplers, schedulers."""

import math
from typing import NamedTuple

import torch

from . import sampler_helpers
from .k_diffusion import sampling as k_diffusion


class SchedulerHandler(NamedTuple):
    handler: object
    use_ms: bool = True


def _simple(sampling, steps):
    stride = len(sampling.sigmas) / steps
    found = [float(sampling.sigmas[-(1 + int(k * stride))]) for k in range(steps)]
    return torch.FloatTensor([*found, 0.0])


def _karras(n, sigma_min, sigma_max):
    ends = sigma_max ** (1 / 7), sigma_min ** (1 / 7)
    return torch.cat([torch.linspace(*ends, n) ** 7, torch.zeros(1)])


SAMPLER_NAMES = ["euler", "euler_ancestral", "heun", "dpmpp_2m", "ipndm", "uni_pc_bh2"]
SCHEDULER_HANDLERS = {
    "simple": SchedulerHandler(_simple),
    "karras": SchedulerHandler(_karras, use_ms=False),
}
SCHEDULER_NAMES = list(SCHEDULER_HANDLERS)


def calculate_sigmas(sampling, name, steps):
    handler, whole = SCHEDULER_HANDLERS[name]
    if whole:
        return handler(sampling, steps)
    ends = {"sigma_min": float(sampling.sigma_min), "sigma_max": float(sampling.sigma_max)}
    return handler(n=steps, **ends)


class Sampler:
    pass


class KSamplerX0Inpaint:
    def __init__(self, model, sigmas):
        self.inner_model, self.sigmas = model, sigmas

    def __call__(self, x, sigma, denoise_mask=None, model_options=None, seed=None):
        if denoise_mask is None:
            return self.inner_model(x, sigma, model_options=model_options, seed=seed)
        kept = self.inner_model.inner_model.scale_latent_inpaint(
            x=x, sigma=sigma, noise=self.noise, latent_image=self.latent_image
        )
        x = x * denoise_mask + kept * (1 - denoise_mask)
        out = self.inner_model(x, sigma, model_options=model_options, seed=seed)
        return out * denoise_mask + self.latent_image * (1 - denoise_mask)


class KSAMPLER(Sampler):
    def __init__(self, sampler_function, extra_options=None, inpaint_options=None):
        self.sampler_function, self.extra_options = sampler_function, extra_options or {}

    def sample(
        self,
        model_wrap,
        sigmas,
        extra_args,
        callback,
        noise,
        latent_image=None,
        denoise_mask=None,
        disable_pbar=False,
    ):
        extra_args["denoise_mask"] = denoise_mask
        model = KSamplerX0Inpaint(model_wrap, sigmas)
        model.latent_image, model.noise = latent_image, noise
        sampling, steps = model_wrap.inner_model.model_sampling, len(sigmas) - 1
        largest = float(sampling.sigma_max)
        full = math.isclose(largest, float(sigmas[0]), rel_tol=1e-5) or sigmas[0] > largest
        x = sampling.noise_scaling(sigmas[0], noise, latent_image, full)

        def report(step):
            callback(step["i"], step["denoised"], step["x"], steps)

        given = {"extra_args": extra_args, "callback": callback and report, "disable": disable_pbar}
        result = self.sampler_function(model, x, sigmas, **given, **self.extra_options)
        return sampling.inverse_noise_scaling(sigmas[-1], result)


def sampler_object(name):
    return KSAMPLER(getattr(k_diffusion, f"sample_{name}"))


class CFGGuider:
    def __init__(self, model_patcher):
        self.model_patcher, self.model_options = model_patcher, model_patcher.model_options
        self.original_conds, self.cfg = {}, 1.0

    def inner_set_conds(self, conds):
        for name, entries in conds.items():
            self.original_conds[name] = [{**extra, "cross_attn": c} for c, extra in entries]

    def set_conds(self, positive, negative):
        self.inner_set_conds({"positive": positive, "negative": negative})

    def set_cfg(self, cfg):
        self.cfg = cfg

    def __call__(self, x, sigma, model_options=None, seed=None):
        def predict(name):
            extra = self.conds[name][0]["model_conds"]
            repeated = {key: c.cond.expand(len(x), *c.cond.shape[1:]) for key, c in extra.items()}
            return self.inner_model.apply_model(x, sigma, **repeated)

        wanted = predict("positive")
        if math.isclose(self.cfg, 1.0):
            return wanted
        free = predict("negative")
        return free + (wanted - free) * self.cfg

    def sample(
        self,
        noise,
        latent_image,
        sampler,
        sigmas,
        denoise_mask=None,
        callback=None,
        disable_pbar=False,
        seed=None,
    ):
        if sigmas.shape[-1] == 0:
            return latent_image
        if denoise_mask is not None:
            size = latent_image.shape[2:]
            mask = denoise_mask.reshape(-1, 1, *denoise_mask.shape[-2:])
            mask = torch.nn.functional.interpolate(mask, size=size, mode="bilinear")
            denoise_mask = mask.expand(latent_image.shape)
        self.conds = {name: list(entries) for name, entries in self.original_conds.items()}
        given = self.model_patcher, noise.shape, self.conds, self.model_options
        self.inner_model, self.conds, _ = sampler_helpers.prepare_sampling(*given)
        with self.model_patcher.loaded():
            for entries in self.conds.values():
                entries[:] = [
                    e | {"model_conds": self.inner_model.extra_conds(**e)} for e in entries
                ]
            inner = self.model_options["transformer_options"] | {"sample_sigmas": sigmas}
            options = {**self.model_options, "transformer_options": inner}
            given = self, sigmas, {"model_options": options, "seed": seed}, callback, noise
            start = self.inner_model.process_latent_in(latent_image)
            out = sampler.sample(*given, start, denoise_mask, disable_pbar)
            return self.inner_model.process_latent_out(out.float())


class KSampler:
    SCHEDULERS = SCHEDULER_NAMES
    SAMPLERS = SAMPLER_NAMES

    def __init__(
        self, model, steps, device, sampler=None, scheduler=None, denoise=None, model_options=None
    ):
        self.sampler = sampler if sampler in self.SAMPLERS else self.SAMPLERS[0]
        scheduler = scheduler if scheduler in self.SCHEDULERS else self.SCHEDULERS[0]
        sampling = model.get_model_object("model_sampling")
        if denoise is not None and denoise <= 0:
            self.sigmas = torch.FloatTensor([])
            return
        full = denoise is None or denoise > 0.9999
        count = steps if full else int(steps / denoise)
        self.sigmas = calculate_sigmas(sampling, scheduler, count)[-(steps + 1) :]

    def piece(self, start_step, last_step, force_full_denoise):
        """What `sample` does with its steps."""
        sigmas = self.sigmas
        if last_step is not None and last_step < len(sigmas) - 1:
            sigmas = sigmas[: last_step + 1]
            if force_full_denoise:
                sigmas[-1] = 0
        return sigmas if start_step is None else sigmas[start_step:]
