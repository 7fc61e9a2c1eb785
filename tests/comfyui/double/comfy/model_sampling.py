"""Noise levels, times and prediction types."""

import math

import torch


def _wide(sigma, x):
    return sigma.reshape(sigma.shape[:1] + (1,) * (x.ndim - 1)) if sigma.numel() > 1 else sigma


class EPS:
    def calculate_input(self, sigma, x):
        return x / (_wide(sigma, x) ** 2 + self.sigma_data**2) ** 0.5

    def calculate_denoised(self, sigma, output, x):
        return x - output * _wide(sigma, x)

    def noise_scaling(self, sigma, noise, latent, max_denoise=False):
        return noise * ((1 + sigma**2) ** 0.5 if max_denoise else sigma) + latent

    def inverse_noise_scaling(self, sigma, latent):
        return latent


class EDM(EPS):
    def calculate_denoised(self, sigma, output, x):
        sigma, data = _wide(sigma, x), self.sigma_data
        total = sigma**2 + data**2
        return x * data**2 / total + output * sigma * data / total**0.5


class CONST:
    def calculate_input(self, sigma, x):
        return x

    def calculate_denoised(self, sigma, output, x):
        return x - output * _wide(sigma, x)

    def noise_scaling(self, sigma, noise, latent, max_denoise=False):
        return sigma * noise + (1 - sigma) * latent

    def inverse_noise_scaling(self, sigma, latent):
        return latent / (1 - sigma)


class _Sampling(torch.nn.Module):
    @property
    def sigma_min(self):
        return self.sigmas[0]

    @property
    def sigma_max(self):
        return self.sigmas[-1]


class ModelSamplingDiscrete(_Sampling):
    def __init__(self, config):
        super().__init__()
        self.sigma_data = 1.0
        roots = torch.linspace(0.00085**0.5, 0.012**0.5, 1000, dtype=torch.float64)
        kept = (1 - roots**2).cumprod(0)
        sigmas = ((1 - kept) / kept) ** 0.5
        self.register_buffer("sigmas", sigmas.float())
        self.register_buffer("log_sigmas", sigmas.log().float())

    def timestep(self, sigma):
        return (sigma.log() - self.log_sigmas[:, None]).abs().argmin(0).view(sigma.shape)

    def sigma(self, time):
        low = time.floor().long().clamp(0, 999)
        high, part = time.ceil().long().clamp(0, 999), time.frac()
        return ((1 - part) * self.log_sigmas[low] + part * self.log_sigmas[high]).exp()


class ModelSamplingContinuousEDM(_Sampling):
    def __init__(self, config):
        super().__init__()
        settings = config.sampling_settings
        self.sigma_data = settings.get("sigma_data", 1.0)
        ends = [math.log(settings.get(f"sigma_{k}", d)) for k, d in (("min", 0.002), ("max", 120))]
        self.register_buffer("sigmas", torch.linspace(*ends, 1000).exp())

    def timestep(self, sigma):
        return 0.25 * sigma.log()

    def sigma(self, time):
        return (time / 0.25).exp()


class ModelSamplingDiscreteFlow(_Sampling):
    def __init__(self, config):
        super().__init__()
        self.shift = config.sampling_settings.get("shift", 1.0)
        self.register_buffer("sigmas", self.sigma(torch.arange(1, 1001)))

    def timestep(self, sigma):
        return sigma * 1000

    def sigma(self, time):
        time = time / 1000
        return self.shift * time / (1 + (self.shift - 1) * time)
