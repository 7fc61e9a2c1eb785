"""The models inside the doubles of the WebUIs, as each host wraps them.

The network is exact (a Gaussian mixture), so a wrong time or noise level shows in the result.
"""

import types

import torch

from s4s_core.mixture import GaussianMixture
from s4s_core.spaces import DiscreteTimes

SHAPE = (4, 4, 4)
TIMES = DiscreteTimes.scaled_linear()
GUIDANCE = 3.0


def mixture(space="ve", conditional=True):
    given = {"spread": 1.0, "scale": 0.5, "rank": 3, "space": space}
    return GaussianMixture.random(4, SHAPE, seed=3 if conditional else 4, **given)


def reference(x, sigma, scale=GUIDANCE, space="ve"):
    """Return the guided x0 at exactly the noise level asked for, as every host should."""
    with_prompt = mixture(space).denoise(x.double(), sigma.double())
    without = mixture(space, conditional=False).denoise(x.double(), sigma.double())
    return (without + scale * (with_prompt - without)).to(x.dtype)


class Network(torch.nn.Module):
    """Predicts the noise from the scaled input and the time, as Stable Diffusion's UNet does.

    A row of the context is 1 with the prompt, 0 without. `times` are those it was called at.
    """

    def __init__(self, flow=False):
        super().__init__()
        self.flow, self.times = flow, []

    def forward(self, x, timesteps=None, context=None, **_others):
        self.times.append(timesteps.detach().clone())
        space = "flow" if self.flow else "ve"
        sigma = timesteps.double() if self.flow else TIMES.sigma(timesteps.double())
        level = sigma.reshape(-1, 1, 1, 1)
        x = x.double() if self.flow else x.double() * (1 + level**2).sqrt()
        both = [mixture(space, flag).denoise(x, sigma) for flag in (False, True)]
        x0 = torch.where(context.reshape(-1, 1, 1, 1) > 0, both[1], both[0])
        return ((x - x0) / level).float()


class Predictor(torch.nn.Module):
    """Forge's predictor, and the model_sampling of reForge and Classic: times are rounded."""

    def __init__(self, flow=False):
        super().__init__()
        self.flow = flow
        levels = torch.arange(1, 1001) / 1000 if flow else TIMES.log_sigmas.exp().float()
        self.register_buffer("sigmas", levels)

    def sigma(self, time):
        return time if self.flow else TIMES.sigma(time)  # for Flux, where get_sigmas goes up to 999

    def timestep(self, sigma):
        if self.flow:
            return sigma
        return (sigma.log() - self.sigmas.log()[:, None]).abs().argmin(dim=0)

    def calculate_input(self, sigma, x):
        return x if self.flow else x / (sigma.reshape(-1, 1, 1, 1) ** 2 + 1) ** 0.5

    def noise_scaling(self, sigma, noise, latent):
        return sigma * noise + (1 - sigma if self.flow else 1) * latent


class PatchedModel(torch.nn.Module):
    """The model in `forge_objects.unet.model`."""

    def __init__(self, flow):
        super().__init__()
        self.predictor = self.model_sampling = Predictor(flow)
        self.diffusion_model = Network(flow)

    def apply_model(self, x, sigma, c_crossattn):
        scaled = self.predictor.calculate_input(sigma, x)
        time = self.predictor.timestep(sigma).float()
        out = self.diffusion_model(scaled, time, context=c_crossattn, transformer_options={})
        return x - out * sigma.reshape(-1, 1, 1, 1)


class Schedule(torch.nn.Module):
    """k-diffusion's levels for the schedule type Automatic: equal distances in time, and 0."""

    def get_sigmas(self, steps):
        times = torch.linspace(len(self.sigmas) - 1, 0, steps)
        return torch.cat([self.t_to_sigma(times), torch.zeros(1)]).float()


class ScheduleLinker(Schedule):
    """Forge's wrapper of the model, with the predictor's levels."""

    def __init__(self, model):
        super().__init__()
        self.inner_model, self.predictor = model, model.forge_objects.unet.model.predictor

    sigmas = property(lambda self: self.predictor.sigmas)

    def t_to_sigma(self, time):
        return self.predictor.sigma(time)


class CompVisDenoiser(Schedule):
    """k-diffusion's wrapper: rounds times only if it quantises."""

    def __init__(self, model, quantize):
        super().__init__()
        self.inner_model, self.quantize = model, quantize
        self.register_buffer("sigmas", TIMES.log_sigmas.exp().float())

    def t_to_sigma(self, time):
        return TIMES.sigma(time)

    def sigma_to_t(self, sigma):
        time = TIMES.time(sigma)
        return time.round() if self.quantize else time

    def forward(self, x, sigma, cond):
        level = sigma.reshape(-1, 1, 1, 1)
        eps = self.inner_model.apply_model(x / (level**2 + 1) ** 0.5, self.sigma_to_t(sigma), cond)
        return x - eps * level


class CompVisModel(torch.nn.Module):
    """A1111's model: times in half precision; SDXL passes them by keyword."""

    is_sdxl = False

    def __init__(self, sdxl):
        super().__init__()
        self.sdxl = sdxl
        self.model = torch.nn.Module()
        self.model.diffusion_model = Network()

    def apply_model(self, x, time, cond):
        network, time = self.model.diffusion_model, time.half()
        if self.sdxl:
            return network(x, timesteps=time, context=cond, y=None)
        return network(x, time, context=cond)


class PatchedHolder(torch.nn.Module):
    """The model of Forge and its relatives, with the network behind `forge_objects`."""

    is_sdxl = False

    def __init__(self, flow):
        super().__init__()
        unet = types.SimpleNamespace(model=PatchedModel(flow))
        self.forge_objects = types.SimpleNamespace(unet=unet)
