"""Doubles of the WebUIs: as much of A1111 1.10, Forge, reForge and Forge Classic as S4S touches.

They follow the hosts' sources: which class wraps the network, how a noise level becomes a time,
where noise is added, what a mask does, which lists name samplers and schedule types.
"""

import functools
import importlib.machinery
import json
import re
import sys
import types
from contextlib import nullcontext

import torch
from webui_models import (
    GUIDANCE,
    SHAPE,
    CompVisDenoiser,
    CompVisModel,
    PatchedHolder,
    ScheduleLinker,
)

from s4s_core.app import folders

HOSTS = ("a1111", "a1111-sdxl", "a1111-quantized", "forge", "forge-flow", "reforge", "classic")


class Interrupted(BaseException):
    """sd_samplers_common.InterruptedException."""


class Job:
    """The host's processing object, with what samplers and scripts use."""

    def __init__(self, steps, sampler_name="S4S", batch=2, seed=0, **fields):
        self.steps, self.sampler_name, self.batch = steps, sampler_name, batch
        self.noise = torch.randn(batch, *SHAPE, generator=torch.Generator().manual_seed(seed))
        self.scheduler, self.hr_scheduler = "Automatic", None
        self.is_hr_pass, self.cfg_scale, self.width, self.height = False, GUIDANCE, 32, 32
        self.mask = self.nmask = None
        self.denoising_strength = 0.75
        self.extra_generation_params, self.comments = {}, {}
        vars(self).update(fields)
        self.hr_scheduler = self.hr_scheduler or self.scheduler

    def comment(self, text):
        self.comments[text] = 1


class Double:
    """One host: its modules as attributes, and `generate` like its processing."""

    def __init__(self, kind, monkeypatch):
        self.kind, self.flow = kind, kind == "forge-flow"
        self.patched = kind in ("forge", "forge-flow", "reforge", "classic")
        self.state = types.SimpleNamespace(interrupted=False, previews=[], sampling_step=0)
        self.passes_scale, self.state.scales = True, []
        self.model = PatchedHolder(self.flow) if self.patched else CompVisModel("sdxl" in kind)
        self.model.sd_checkpoint_info = types.SimpleNamespace(name_for_extra="tiny", sha256="ab")
        self.other_model = None  # what the refiner switches to, from `switch_at` on
        self.switch_at, self.device, self.tabs, self.before_ui = 0.8, "cuda", [], []
        self._install(monkeypatch)

    @property
    def network(self):
        inner = self.model.forge_objects.unet.model if self.patched else self.model.model
        return inner.diffusion_model

    def wrap(self):
        if self.kind.startswith("forge"):
            return ScheduleLinker(self.model)
        quantize = self.kind in ("a1111-quantized", "reforge", "classic")
        return CompVisDenoiser(self.model, quantize)

    def _install(self, monkeypatch):
        for name in [n for n in sys.modules if n.split(".")[0] in ("modules", "s4s_webui")]:
            monkeypatch.delitem(sys.modules, name)

        def module(name, **fields):
            made = types.ModuleType(name)
            made.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
            made.__path__ = []
            vars(made).update(fields)
            monkeypatch.setitem(sys.modules, name, made)
            parent, _, last = name.rpartition(".")
            if parent:
                setattr(sys.modules[parent], last, made)
            return made

        module("modules")
        SamplerData = type("SamplerData", (), {"__init__": _sampler_data})
        make = _kdiffusion_sampler(self)
        euler = SamplerData("Euler", lambda model: make(_euler, model), ["k_euler"], {})
        common = {"SamplerData": SamplerData, "InterruptedException": Interrupted}
        module("modules.sd_samplers_common", **common)
        module("modules.sd_samplers_kdiffusion", KDiffusionSampler=make)
        self.opts = types.SimpleNamespace(k_sched_type="Automatic")  # which only Classic reads
        module("modules.shared", opts=self.opts)
        if self.kind != "classic":
            known = {label: each for each in SCHEDULERS for label in (each.name, each.label)}
            lists = {"schedulers": [*SCHEDULERS], "schedulers_map": known}
            self.schedulers = module("modules.sd_schedulers", Scheduler=Scheduler, **lists)
        lists = {"all_samplers": [euler], "all_samplers_map": {"Euler": euler}, "samplers": []}
        self.samplers = module("modules.sd_samplers", **lists)
        self.samplers.set_samplers = lambda: vars(self.samplers).update(
            samplers=self.samplers.all_samplers
        )
        if self.kind != "classic":
            self.samplers.get_sampler_and_scheduler = functools.cache(self._known_names)
        module("modules.call_queue", queue_lock=nullcontext())

        def move(device):
            return lambda *_: setattr(self, "device", device)

        data = types.SimpleNamespace(sd_model=self.model)
        moves = {"send_model_to_cpu": move("cpu"), "send_model_to_device": move("cuda")}
        module("modules.sd_models", model_data=data, **moves)
        if self.patched:
            forge = self.kind.startswith("forge")
            parents = ["backend"] if forge else ["ldm_patched", "ldm_patched.modules"]
            for parent in parents:
                module(parent)
            manager = parents[-1] + (".memory_management" if forge else ".model_management")
            module(manager, soft_empty_cache=lambda: None, unload_all_models=move("cpu"))
        module("modules.ui_components", ToolButton=tool_button)
        module("modules.paths_internal", models_path="/host/models")
        monkeypatch.setattr(folders, "_registered", [])
        scripts = {"Script": Script, "AlwaysVisible": object(), "scripts_data": []}
        self.scripts = module("modules.scripts", **scripts)
        events = {"on_ui_tabs": self.tabs.append, "on_before_ui": self.before_ui.append}
        module("modules.script_callbacks", **events)

    def _known_names(self, sampler, scheduler):
        """Resolve names from a job or an infotext; unknown ones become the first."""
        known = self.samplers.all_samplers_map.get(sampler, self.samplers.all_samplers[0])
        listed = self.schedulers.schedulers_map
        found = listed.get(scheduler, self.schedulers.schedulers[0])
        if known.options.get("scheduler") == found.name:
            found = self.schedulers.schedulers[0]
        return known.name, found.label

    def generate(self, job, latent=None):
        """Run txt2img, or img2img of a latent; return the samples."""
        sampler = self.sampler_of(job)
        if latent is None:
            return sampler.sample(job, job.noise)
        return sampler.sample_img2img(job, latent, job.noise)

    def sampler_of(self, job):
        config = self.samplers.all_samplers_map[job.sampler_name]
        sampler = config.constructor(self.model)
        sampler.config = config
        return sampler


def _sampler_data(self, name, constructor, aliases, options):
    self.name, self.constructor, self.aliases, self.options = name, constructor, aliases, options


def tool_button(value, elem_id):
    import gradio as gr

    return gr.Button(value, elem_id=elem_id)


class Scheduler:
    def __init__(self, name, label, function, default_rho=-1, need_inner_model=False, aliases=None):
        self.name, self.label, self.function = name, label, function
        self.default_rho, self.need_inner_model, self.aliases = default_rho, need_inner_model, None


class Script:
    """modules.scripts.Script."""

    infotext_fields = paste_field_names = None

    def elem_id(self, item):
        return f"script_{item}"


def _uniform(n, sigma_min, sigma_max, inner_model, device):
    return inner_model.get_sigmas(n)


def _simple(n, sigma_min, sigma_max, inner_model, device):
    gap = len(inner_model.sigmas) / n
    levels = [float(inner_model.sigmas[-(1 + int(k * gap))]) for k in range(n)]
    return torch.tensor([*levels, 0.0])


def _karras(n, sigma_min, sigma_max, device):
    levels = torch.linspace(sigma_max ** (1 / 7), sigma_min ** (1 / 7), n) ** 7
    return torch.cat([levels, torch.zeros(1)])


def _rising(n, sigma_min, sigma_max, device):
    return _karras(n, sigma_min, sigma_max, device).flip(0)


SCHEDULERS = (
    Scheduler("automatic", "Automatic", None),
    Scheduler("uniform", "Uniform", _uniform, need_inner_model=True),
    Scheduler("karras", "Karras", _karras, default_rho=7.0),
    Scheduler("simple", "Simple", _simple, need_inner_model=True),
    Scheduler("rising", "Rising", _rising),  # of an extension
)


def _euler(model, x, sigmas, extra_args=None, callback=None, disable=None):
    for step, (sigma, after) in enumerate(zip(sigmas[:-1], sigmas[1:], strict=True)):
        x0 = model(x, sigma * x.new_ones(len(x)), **extra_args)
        callback({"x": x, "i": step, "sigma": sigma, "sigma_hat": sigma, "denoised": x0})
        x = x + (x - x0) / sigma * (after - sigma)
    return x


class CFGDenoiser(torch.nn.Module):
    """The model that a k-diffusion sampler gets."""

    def __init__(self, host, sampler):
        super().__init__()
        self.host, self.sampler = host, [sampler]
        self.wrapped, self.step, self.total_steps = None, 0, None
        self.p = self.mask = self.nmask = self.init_latent = None

    @property
    def inner_model(self):
        if self.wrapped is None:
            self.wrapped = self.host.wrap()
        return self.wrapped

    def _refine(self):
        host = self.host
        if host.other_model is not None and self.step / self.total_steps >= host.switch_at:
            host.model, host.other_model, self.wrapped = host.other_model, None, None
            self.sampler[0].sampler_extra_args["cond"] = "refined"

    def forward(self, x, sigma, cond, uncond, s_min_uncond, image_cond, cond_scale=GUIDANCE):
        host = self.host
        if host.patched and self.p.is_hr_pass:
            cond_scale = getattr(self.p, "hr_cfg", cond_scale)
        host.state.scales.append(cond_scale)
        host.state.levels.append(float(sigma[0]))
        if host.state.interrupted:
            raise Interrupted
        self._refine()
        if self.mask is not None and host.patched:
            predictor = host.model.forge_objects.unet.model.predictor
            noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(self.step))
            noisy = predictor.noise_scaling(sigma.reshape(-1, 1, 1, 1), noise, self.init_latent)
            x = x * self.nmask + noisy * self.mask
        denoised = self._guided(x, sigma, cond_scale)
        if self.mask is not None:
            denoised = denoised * self.nmask + self.init_latent * self.mask
        self.sampler[0].last_latent = denoised
        host.state.previews.append(denoised)
        self.step += 1
        return denoised

    def _guided(self, x, sigma, scale):
        """Forge and its relatives skip the empty prompt at a scale of 1."""
        if self.host.patched and scale == 1:
            return self._predict(x, sigma, torch.ones(len(x)))
        rows = torch.cat([torch.ones(len(x)), torch.zeros(len(x))])
        prompted, plain = self._predict(x.repeat(2, 1, 1, 1), sigma.repeat(2), rows).chunk(2)
        return plain + scale * (prompted - plain)

    def _predict(self, x, sigma, rows):
        if self.host.patched:
            return self.host.model.forge_objects.unet.model.apply_model(x, sigma, rows)
        return self.inner_model(x, sigma, cond=rows)


def _kdiffusion_sampler(host):
    class KDiffusionSampler:
        """modules.sd_samplers_kdiffusion.KDiffusionSampler."""

        def __init__(self, func, model, options=None):
            self.func, self.p, self.config, self.last_latent = func, None, None, None
            self.model_wrap_cfg = CFGDenoiser(host, self)
            self.model_wrap = self.model_wrap_cfg.inner_model

        def get_sigmas(self, p, steps):
            low, high = (float(self.model_wrap.sigmas[end]) for end in (0, -1))
            ends = {"sigma_min": low, "sigma_max": high, "device": "cpu"}
            if host.kind == "classic":
                karras = host.opts.k_sched_type == "karras"
                return _karras(steps, **ends) if karras else self.model_wrap.get_sigmas(steps)
            name = (p.hr_scheduler if p.is_hr_pass else p.scheduler) or "Automatic"
            if name == "Automatic":
                name = self.config.options.get("scheduler")
            found = host.schedulers.schedulers_map.get(name)
            if found is None or found.function is None:
                return self.model_wrap.get_sigmas(steps)
            p.extra_generation_params["Schedule type"] = found.label
            inner = {"inner_model": self.model_wrap} if found.need_inner_model else {}
            return found.function(n=steps, **ends, **inner)

        def initialize(self, p):
            self.p = self.model_wrap_cfg.p = p
            self.model_wrap_cfg.mask, self.model_wrap_cfg.nmask = p.mask, p.nmask
            self.model_wrap_cfg.step = 0

        def callback_state(self, d):
            host.state.sampling_step = d["i"]

        def _launch(self, p, steps, x, sigmas):
            self.initialize(p)
            self.model_wrap_cfg.total_steps = host.state.sampling_steps = steps
            host.state.levels = []
            given = dict.fromkeys(("cond", "uncond", "image_cond"))
            scale = {"cond_scale": p.cfg_scale} if host.passes_scale else {}
            self.sampler_extra_args = given | scale | {"s_min_uncond": 0}
            call = {"extra_args": self.sampler_extra_args, "callback": self.callback_state}
            try:
                return self.func(self.model_wrap_cfg, x, sigmas=sigmas, disable=False, **call)
            except Interrupted:
                return self.last_latent

        def _noised(self, latent, noise, sigma):
            if host.kind.startswith("forge"):
                return self.model_wrap.predictor.noise_scaling(sigma, noise, latent)
            return latent + noise * sigma

        def sample(self, p, x):
            sigmas = self.get_sigmas(p, p.steps)
            start = self._noised(torch.zeros_like(x), x, sigmas[0])
            return self._launch(p, p.steps, start, sigmas)

        def sample_img2img(self, p, latent, noise, steps=None):
            strength = min(p.denoising_strength, 0.999)
            if steps is None:
                steps, last = p.steps, int(strength * p.steps)
            else:  # hires fix: as many steps as asked for remain
                steps, last = int(steps / strength), steps - 1
            sigmas = self.get_sigmas(p, steps)[steps - last - 1 :]
            self.model_wrap_cfg.init_latent = self.last_latent = latent
            out = self._launch(p, last + 1, self._noised(latent, noise, sigmas[0]), sigmas)
            return out if p.mask is None else out * p.nmask + latent * p.mask

    return KDiffusionSampler


def infotext_of(job):
    """Return a picture's infotext: names and values, quoted if they hold a comma or a colon."""
    values = {"Steps": job.steps, "Sampler": job.sampler_name, **job.extra_generation_params}
    quoted = ((k, json.dumps(v) if re.search(r"[,:\n]", str(v)) else v) for k, v in values.items())
    return ", ".join(f"{key}: {value}" for key, value in quoted)


def parse_infotext(line):
    found = re.findall(r'\s*(\w[\w \-/]+):\s*("(?:\\.|[^\\"])+"|[^,]*)(?:,|$)', line)
    return {key: json.loads(v) if v.startswith('"') else v for key, v in found}
