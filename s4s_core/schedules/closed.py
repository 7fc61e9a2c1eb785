"""Schedules in closed form (app:disc-methods): uniform steps in a function of the noise level.

Each takes (n, model, low, high) and returns n + 1 float64 nodes from high to low; `schedule` sets
the two ends exactly.
"""

import torch

from ..errors import TableError
from ..model import Model, Times
from ..spaces import CLIP, alpha, log_snr, sigma_of_log_snr


def _linspace(start: torch.Tensor, end: torch.Tensor, n: int) -> torch.Tensor:
    return torch.linspace(float(start), float(end), n + 1, dtype=torch.float64)


def finite(space: str, sigma: float) -> torch.Tensor:
    """Return sigma as a tensor, with a flow model's sigma = 1 clipped to a finite lambda."""
    top = 1 - CLIP if space == "flow" else float("inf")
    return torch.tensor(min(sigma, top), dtype=torch.float64)


def _in_time(model: Model, low: float, high: float, n: int, power: int) -> torch.Tensor:
    """Place nodes uniformly in the power-th root of the model's time, or of sigma without one."""
    times: Times | None = getattr(model, "times", None)
    ends = [torch.tensor(v, dtype=torch.float64) for v in (high, low)]
    if times is None:
        first, last = (v ** (1 / power) for v in ends)
        return _linspace(first, last, n) ** power
    first, last = (times.time(v) ** (1 / power) for v in ends)
    return times.sigma(_linspace(first, last, n) ** power)


def uniform(n: int, model: Model, low: float, high: float) -> torch.Tensor:
    """Time uniform: t_n = T + (n/N)(eps - T)."""
    return _in_time(model, low, high, n, 1)


def quadratic(n: int, model: Model, low: float, high: float) -> torch.Tensor:
    """Time quadratic: uniform in sqrt(t). (The paper's printed formula clusters at T.)"""
    return _in_time(model, low, high, n, 2)


def edm_levels(space: str, high: float, low: float, n: int, rho: float = 7.0) -> torch.Tensor:
    """Return n + 1 levels from `high` to `low`, uniform in (sigma / alpha)^(1/rho)."""
    ends = (finite(space, v) for v in (high, low))
    first, last = ((v / alpha(space, v)) ** (1 / rho) for v in ends)
    kappa = _linspace(first, last, n) ** rho
    return kappa if space == "ve" else kappa / (1 + kappa)


def edm(n: int, model: Model, low: float, high: float, rho: float = 7.0) -> torch.Tensor:
    """Karras et al.: uniform in (sigma / alpha)^(1/rho)."""
    if not rho > 0:
        raise TableError("rho must be > 0.")
    return edm_levels(model.space, high, low, n, rho)


def logsnr(n: int, model: Model, low: float, high: float) -> torch.Tensor:
    """Uniform in lambda = log(alpha / sigma)."""
    first, last = (log_snr(model.space, finite(model.space, v)) for v in (high, low))
    return sigma_of_log_snr(model.space, _linspace(first, last, n))
