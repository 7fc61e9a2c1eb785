"""Schedules in closed form (app:disc-methods): uniform steps in a warped noise level.

Each takes (n, model, low, high) and returns n + 1 float64 nodes from high to low; `schedule` sets
the two ends exactly.
"""

import torch

from ..errors import TableError
from ..spaces import CLIP, alpha, log_snr, sigma_of_log_snr


def linspace(start, end, n):
    return torch.linspace(float(start), float(end), n + 1, dtype=torch.float64)


def finite(space, sigma):
    """A level as a tensor, a flow model's sigma = 1 clipped to where lambda is finite."""
    top = 1 - CLIP if space == "flow" else float("inf")
    return torch.tensor(min(sigma, top), dtype=torch.float64)


def _in_time(model, low, high, n, power):
    """Uniform in the power-th root of the model's own time, or of sigma where it has none."""
    times = getattr(model, "times", None)
    ends = [torch.tensor(v, dtype=torch.float64) for v in (high, low)]
    if times is None:
        return linspace(*(v ** (1 / power) for v in ends), n) ** power
    return times.sigma(linspace(*(times.time(v) ** (1 / power) for v in ends), n) ** power)


def uniform(n, model, low, high):
    """Time uniform: t_n = T + (n/N)(eps - T)."""
    return _in_time(model, low, high, n, 1)


def quadratic(n, model, low, high):
    """Time quadratic: uniform in sqrt(t). (The paper's printed formula clusters at T.)"""
    return _in_time(model, low, high, n, 2)


def edm(n, model, low, high, rho=7.0):
    """Karras et al.: uniform in (sigma / alpha)^(1/rho)."""
    if not rho > 0:
        raise TableError("edm needs a rho above 0.")
    ends = [finite(model.space, v) for v in (high, low)]
    kappa = linspace(*((v / alpha(model.space, v)) ** (1 / rho) for v in ends), n) ** rho
    return kappa if model.space == "ve" else kappa / (1 + kappa)


def logsnr(n, model, low, high):
    """Uniform in lambda = log(alpha / sigma)."""
    ends = [log_snr(model.space, finite(model.space, v)) for v in (high, low)]
    return sigma_of_log_snr(model.space, linspace(*ends, n))
