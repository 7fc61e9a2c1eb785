"""Noise spaces, forms of history, and the times of models.

A space fixes alpha(sigma) in x = alpha x0 + sigma eps:
    ve    alpha = 1            EPS, V-prediction and EDM models, as every host presents them
    flow  alpha = 1 - sigma    SD3, Flux and similar models
With lambda = log(alpha / sigma), a form is the quantity f that a solver keeps a history of. Each
form turns the diffusion ODE (eqn:diff-ODE) into an integral of f alone:
    noise     f = eps              d(x / alpha) = f d(sigma / alpha)      the paper's eq:solver
    data      f = x0               d(x / sigma) = f d(alpha / sigma)      for data prediction
    velocity  f = (x - x0)/sigma   d(x)         = f d(sigma)              flow models
so a step is x_i = A x_{i-1} + B * (weighted mean of f). Everything here is differentiable in sigma,
broadcasts, and has no singularity at sigma = 0 or, except in the noise form, at alpha = 0.
"""

import math

import numpy.typing as npt
import torch

from .errors import TableError

CLIP = 1e-3
"""Distance from alpha = 0 and sigma = 0, where lambda is infinite, at which spacings end."""


def alpha(space: str, sigma: torch.Tensor) -> torch.Tensor:
    """Return the scale of the data at noise level sigma."""
    return torch.ones_like(sigma) if space == "ve" else 1 - sigma


def log_snr(space: str, sigma: torch.Tensor) -> torch.Tensor:
    """Return lambda = log(alpha / sigma)."""
    return -sigma.log() if space == "ve" else torch.log1p(-sigma) - sigma.log()


def sigma_of_log_snr(space: str, lam: torch.Tensor) -> torch.Tensor:
    """Return the sigma of a lambda: the inverse of `log_snr`."""
    return torch.exp(-lam) if space == "ve" else torch.sigmoid(-lam)


def clip_ends(space: str, sigmas: torch.Tensor) -> torch.Tensor:
    """Move singular ends of decreasing nodes (sigma = 0, flow's sigma = 1) to a finite lambda.

    A final 0 becomes CLIP times the first node, or half the node before it if that is smaller. A
    flow model's first node above 1 - CLIP becomes that, or lies halfway between the second node and
    1 if that is larger. So nodes stay decreasing. Other nodes and their gradients are unchanged.
    """
    nodes = list(sigmas.unbind())
    if space == "flow" and nodes[0].item() > 1 - CLIP:
        nodes[0] = nodes[0].new_tensor(max(1 - CLIP, (1 + nodes[1].item()) / 2))
    if nodes[-1].item() == 0:
        nodes[-1] = torch.minimum(nodes[0].detach() * CLIP, nodes[-2] / 2)
    return torch.stack(nodes)


def step_factors(
    space: str, form: str, start: torch.Tensor, end: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (A, B) of a step from sigma `start` to sigma `end` (eq:solver without singularities).

    noise: A = alpha_i / alpha_{i-1}, B = -sigma_i (e^h - 1), written as sigma_i - A sigma_{i-1}.
    data:  A = sigma_i / sigma_{i-1}, B = -alpha_i (e^-h - 1), written as alpha_i - A alpha_{i-1}.
    velocity: A = 1, B = sigma_i - sigma_{i-1}.
    """
    if form == "velocity":
        return torch.ones_like(end), end - start
    if form == "data":
        scale = end / start
        return scale, alpha(space, end) - scale * alpha(space, start)
    scale = alpha(space, end) / alpha(space, start)
    return scale, end - scale * start


def history_data_scale(space: str, form: str, sigma: torch.Tensor) -> torch.Tensor | None:
    """Return q in f = (x - q x0) / sigma: alpha for noise, 1 for velocity, None if f is x0."""
    if form == "data":
        return None
    return torch.ones_like(sigma) if form == "velocity" else alpha(space, sigma)


class DiscreteTimes:
    """The map between the discrete times of a VP model and sigma of the ve space.

    sigma_t = sqrt((1 - abar_t) / abar_t) at integer times t = 0 .. T-1. In between, log sigma is
    linear in t, so the map is continuous, strictly increasing and has an exact inverse.
    """

    def __init__(self, alphas_cumprod: torch.Tensor | npt.ArrayLike) -> None:
        abar = torch.as_tensor(alphas_cumprod, dtype=torch.float64).cpu()
        ordered = abar.ndim == 1 and len(abar) > 1 and bool((abar[1:] < abar[:-1]).all())
        if not (ordered and float(abar[-1]) > 0 and float(abar[0]) < 1):
            raise TableError("alphas_cumprod must be strictly decreasing and lie between 0 and 1.")
        self.log_sigmas = 0.5 * ((1 - abar).log() - abar.log())

    @classmethod
    def scaled_linear(
        cls, start: float = 0.00085, end: float = 0.012, steps: int = 1000
    ) -> "DiscreteTimes":
        """Use the betas of Stable Diffusion: linear in their square roots."""
        roots = torch.linspace(math.sqrt(start), math.sqrt(end), steps, dtype=torch.float64)
        return cls((1 - roots**2).cumprod(0))

    @classmethod
    def linear(cls, start: float = 1e-4, end: float = 0.02, steps: int = 1000) -> "DiscreteTimes":
        """Use the linear betas of DDPM."""
        return cls((1 - torch.linspace(start, end, steps, dtype=torch.float64)).cumprod(0))

    @property
    def last(self) -> int:
        """The largest time, T - 1."""
        return len(self.log_sigmas) - 1

    @property
    def sigma_min(self) -> float:
        return float(self.log_sigmas[0].exp())

    @property
    def sigma_max(self) -> float:
        return float(self.log_sigmas[-1].exp())

    def sigma(self, time: torch.Tensor) -> torch.Tensor:
        """Return the sigmas (float64) of times, clamped to [0, T-1]."""
        time = as_float64(time).clamp(0, self.last)
        logs = self.log_sigmas.to(time.device)
        low = time.detach().floor().long().clamp(max=self.last - 1)
        part = time - low
        return ((1 - part) * logs[low] + part * logs[low + 1]).exp()

    def time(self, sigma: torch.Tensor) -> torch.Tensor:
        """Return the times (float64) of sigmas, clamped to [sigma_min, sigma_max]."""
        log = as_float64(sigma).clamp(min=1e-300).log()
        logs = self.log_sigmas.to(log.device)
        high = torch.searchsorted(logs, log.detach().contiguous()).clamp(1, self.last)
        gap = logs[high] - logs[high - 1]
        return (high - 1 + (log - logs[high - 1]) / gap).clamp(0, self.last)


class ShiftedTimes:
    """The times of a flow model: sigma = s t / (1 + (s - 1) t) for t in (0, 1]."""

    def __init__(self, shift: float, steps: int = 1000) -> None:
        self.shift = float(shift)
        self.sigma_min = float(self.sigma(torch.tensor(1 / steps, dtype=torch.float64)))

    def sigma(self, time: torch.Tensor) -> torch.Tensor:
        return self.shift * time / (1 + (self.shift - 1) * time)

    def time(self, sigma: torch.Tensor) -> torch.Tensor:
        return sigma / (self.shift - (self.shift - 1) * sigma)


def listed_times(space: str, sigmas: torch.Tensor) -> DiscreteTimes | ShiftedTimes:
    """Return the times of a model from a host's list of sigmas, ascending and uniform in time.

    A flow model's shift s follows from the middle of the list, where t = 1/2: sigma = s / (1 + s).
    """
    sigmas = sigmas.cpu().double()
    if space == "ve":
        return DiscreteTimes(1 / (1 + sigmas**2))
    middle = float(sigmas[len(sigmas) // 2 - 1])
    return ShiftedTimes(middle / (1 - middle), len(sigmas))


WITHOUT_FLOAT64 = ("mps",)
"""Device types that do not support float64 (Apple's GPUs)."""


def as_float64(x: torch.Tensor) -> torch.Tensor:
    """Return x in float64, moved to the CPU if its device has no float64."""
    return (x.cpu() if x.device.type in WITHOUT_FLOAT64 else x).double()
