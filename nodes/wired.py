"""The core's model contract over a MODEL exactly as it is wired, and the host's samplers on it."""

import uuid

import comfy.model_management
import comfy.samplers
import torch

from ..s4s_core.errors import TrainingError
from ..s4s_core.spaces import listed_times
from ..s4s_core.teacher import default_teacher
from .attach import continuous, has_times, space_of
from .run import prepared

AUTO = "auto"
_SCHEDULERS = {"ve": "karras", "flow": "simple"}
_LARGEST_BATCH, _SHARE = 32, 0.3
_SPECIAL = {"area", "mask", "control", "hooks", "gligen", "timestep_start", "timestep_end"}


class Session(comfy.samplers.Sampler):
    """A sampler that samples nothing: it lends the loaded, patched, conditioned model to `work`.

    The host prepares a model for sampling (weights, LoRAs, ControlNets, hooks, offloading) and
    undoes all that behind it; whatever runs inside finds the model as any sampler does.
    """

    def __init__(self, work):
        self.work, self.result = work, None

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
        self.result = self.work(model_wrap, extra_args)
        return torch.zeros_like(noise)


def in_session(model, positives, negative, cfg, latent, seed, work):
    """work(WiredModel) with the model loaded and its times not rounded."""
    samples = prepared(model, latent)
    if samples.is_nested:
        raise TrainingError("Latents of several kinds (video with sound) cannot be used here.")
    clone = model.clone()
    sampling = continuous(model.get_model_object("model_sampling"))
    clone.add_object_patch("model_sampling", sampling)
    guider = comfy.samplers.CFGGuider(clone)
    names = ["positive", *(f"positive {k}" for k in range(1, len(positives)))]
    guider.inner_set_conds(dict(zip(names, positives, strict=True)) | {"negative": negative})
    guider.set_cfg(cfg)
    shape = samples.shape[1:]

    def lend(ready, extra_args):
        return work(WiredModel(ready, extra_args, names, shape))

    session, empty = Session(lend), torch.zeros(1, *shape)
    ends = torch.tensor([float(sampling.sigma_max), 0.0])
    guider.sample(empty.clone(), empty, session, ends, seed=seed)
    return session.result


class WiredModel:
    """The contract `denoise(x, sigma, cond) -> x0`; a condition is the number of a prompt."""

    def __init__(self, guider, extra_args, names, shape):
        self.guider, self.extra_args, self.shape = guider, extra_args, tuple(shape)
        self.prompts = [guider.conds[name] for name in names]
        self.stack = stacked(self.prompts)
        self.base = guider.inner_model
        sampling = self.base.model_sampling
        self.space, self.device = space_of(sampling), guider.model_patcher.load_device
        self.sigma_min, self.sigma_max = float(sampling.sigma_min), float(sampling.sigma_max)
        self.times = listed_times(self.space, sampling.sigmas) if has_times(sampling) else None

    def denoise(self, x, sigma, cond=None):
        """Guided x0 of x [batch, ...] at sigma [batch]; a run that was cancelled ends here."""
        options = {key: self.extra_args.get(key) for key in ("model_options", "seed")}
        out = torch.empty_like(x)
        for rows in self.prompted(cond, x):
            comfy.model_management.throw_exception_if_processing_interrupted()
            out[rows] = self.guider(x[rows], sigma[rows].to(x.device), **options).to(x.dtype)
        return out

    def conditions(self, batch, generator):
        """Prompts drawn evenly, int64 [batch]; None where there is only one."""
        if len(self.prompts) == 1:
            return None
        return torch.randint(len(self.prompts), (batch,), generator=generator)

    def prompted(self, cond, x):
        """Rows of a batch that run together, while the guider holds their prompts."""
        if cond is None:
            self.guider.conds["positive"] = self.prompts[0]
            yield slice(None)
        elif self.stack is not None:
            kinds, stack = self.stack
            rows = {key: kinds[key](value[cond.to(value.device)]) for key, value in stack.items()}
            entry = self.prompts[0][0] | {"model_conds": rows, "uuid": uuid.uuid4()}
            self.guider.conds["positive"] = [entry]
            yield slice(None)
        else:
            for number in cond.unique().tolist():
                self.guider.conds["positive"] = self.prompts[number]
                yield (cond == number).nonzero().squeeze(1).to(x.device)

    def batch(self):
        """How many latents one call takes at most: by the device's memory, not by what is free
        now, so that a run that is taken up again has the same."""
        total = comfy.model_management.get_total_memory(self.device)
        each = self.base.memory_required([2, *self.shape])
        fits = max(1.0, _SHARE * total / max(each, 1))
        return min(_LARGEST_BATCH, 1 << (int(fits).bit_length() - 1))


def stacked(prompts):
    """({key: class}, {key: tensor [prompts, ...]}) of plain prompts, which then share calls.

    None where one of them has an area, a mask, a ControlNet or another shape: these run apart.
    """
    first = prompts[0][0]["model_conds"]
    kinds = {key: type(value) for key, value in first.items()}
    for prompt in prompts:
        found = prompt[0]["model_conds"]
        if len(prompt) != 1 or set(prompt[0]) & _SPECIAL or set(found) != set(kinds):
            return None
        for key, value in found.items():
            held = getattr(value, "cond", None)
            like = isinstance(held, torch.Tensor) and held.shape == first[key].cond.shape
            if not like or len(held) != 1 or type(value) is not kinds[key]:
                return None
    rows = [prompt[0]["model_conds"] for prompt in prompts]
    return kinds, {key: torch.cat([row[key].cond for row in rows]) for key in kinds}


class HostTeacher:
    """The host's sampler as the core's teacher: (x, cond) -> result. Its NFE is counted."""

    def __init__(self, model, sampler, sigmas, name):
        self.model, self.sampler, self.sigmas = model, sampler, sigmas.to(model.device)
        self.name, self.nfe = name, 0
        self.key = f"{name} {[round(float(s), 6) for s in sigmas]}"

    def __call__(self, x, cond):
        out = torch.empty_like(x)
        for rows in self.model.prompted(cond, x):
            out[rows] = self._run(x[rows]).to(x.dtype)
        return out

    def _run(self, x):
        model, calls = self.model, 0

        class Counting(comfy.samplers.KSamplerX0Inpaint):
            def __call__(self, *args, **kwargs):
                nonlocal calls
                calls += 1
                comfy.model_management.throw_exception_if_processing_interrupted()
                return super().__call__(*args, **kwargs)

        point = Counting(model.guider, self.sigmas)
        point.latent_image, point.noise = torch.zeros_like(x), x / model.sigma_max
        result = self.sampler.sampler_function(
            point,
            x * (float(self.sigmas[0]) / model.sigma_max),
            self.sigmas,
            extra_args=model.extra_args | {"denoise_mask": None},
            callback=None,
            disable=True,
            **self.sampler.extra_options,
        )
        self.nfe = calls
        return result


def teacher_of(model, sampler, scheduler, steps):
    """The teacher that a node asks for.

    sampler: "auto", a stock name or a SAMPLER; scheduler: "auto", a stock name or SIGMAS. Two
    times "auto" is the core's own teacher.
    """
    if isinstance(sampler, str) and isinstance(scheduler, str) and {sampler, scheduler} == {AUTO}:
        return default_teacher(model, nfe=steps)
    name = sampler if isinstance(sampler, str) else type(sampler).__name__
    if isinstance(sampler, str):
        name = "uni_pc_bh2" if sampler == AUTO else sampler
        sampler = comfy.samplers.sampler_object(name)
    if not hasattr(sampler, "sampler_function"):
        raise TrainingError(
            "This SAMPLER cannot be a teacher: connect one from KSamplerSelect or leave it open."
        )
    return HostTeacher(model, sampler, sigmas_of(model, name, scheduler, steps), name)


def sigmas_of(model, sampler, scheduler, steps):
    """The noise levels that the host runs a sampler at."""
    if not isinstance(scheduler, str):
        if len(scheduler) < 2 or float(scheduler[0]) <= 0:
            raise TrainingError("The teacher's SIGMAS are empty: connect a scheduler to them.")
        return scheduler
    scheduler = _SCHEDULERS[model.space] if scheduler == AUTO else scheduler
    patcher, device = model.guider.model_patcher, model.device
    return comfy.samplers.KSampler(patcher, steps, device, sampler, scheduler, 1.0).sigmas
