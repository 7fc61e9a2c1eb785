"""Noise spaces, forms of history, and the times of models.

A space fixes alpha(sigma) in x = alpha x0 + sigma eps:
    ve    alpha = 1            EPS, V-prediction and EDM models as every host shows them
    flow  alpha = 1 - sigma    SD3, Flux and their kin
With lambda = log(alpha / sigma), a form says which quantity f a solver keeps a history of. Each
makes the diffusion ODE (eqn:diff-ODE) an integral of f alone over a variable of its own:
    noise     f = eps              d(x / alpha) = f d(sigma / alpha)      the paper's eq:solver
    data      f = x0               d(x / sigma) = f d(alpha / sigma)      its data-prediction twin
    velocity  f = (x - x0)/sigma   d(x)         = f d(sigma)              flow models
so that a step is x_i = A x_{i-1} + B * (weighted mean of f). Everything here is differentiable in
sigma, broadcasts, and has no singularity at sigma = 0 or, but for the noise form, at alpha = 0.
"""

import math

import torch

from .errors import TableError

# Spacings in lambda are infinite at the ends alpha = 0 and sigma = 0; they are measured from here.
CLIP = 1e-3


def alpha(space, sigma):
    """Scale of the data at noise level sigma."""
    return torch.ones_like(sigma) if space == "ve" else 1 - sigma


def log_snr(space, sigma):
    """lambda = log(alpha / sigma)."""
    return -sigma.log() if space == "ve" else torch.log1p(-sigma) - sigma.log()


def sigma_of_log_snr(space, lam):
    """Inverse of `log_snr`."""
    return torch.exp(-lam) if space == "ve" else torch.sigmoid(-lam)


def clip_ends(space, sigmas):
    """Decreasing nodes with singular ends (sigma = 0, flow's sigma = 1) moved to a finite lambda.

    A final 0 becomes CLIP of the first node, or half of the node before it where that is smaller,
    so that the result stays decreasing. A flow's first node above 1 - CLIP moves to that, or
    halfway from the second to 1 where that is more. Other nodes come back unchanged, gradients
    included.
    """
    nodes = list(sigmas.unbind())
    if space == "flow" and nodes[0].item() > 1 - CLIP:
        nodes[0] = nodes[0].new_tensor(max(1 - CLIP, (1 + nodes[1].item()) / 2))
    if nodes[-1].item() == 0:
        nodes[-1] = torch.minimum(nodes[0].detach() * CLIP, nodes[-2] / 2)
    return torch.stack(nodes)


def step_factors(space, form, start, end):
    """(A, B) of one step from sigma `start` to sigma `end` (eq:solver, without singularities).

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


def history_data_scale(space, form, sigma):
    """q in f = (x - q x0) / sigma: alpha for noise, one for velocity; None where f is x0 itself."""
    if form == "data":
        return None
    return torch.ones_like(sigma) if form == "velocity" else alpha(space, sigma)


class DiscreteTimes:
    """The map between the discrete times of a VP model and sigma of the ve space.

    sigma_t = sqrt((1 - abar_t) / abar_t) at whole times t = 0 .. T-1; between them log sigma is
    linear in t, so the map is continuous, strictly increasing and has an exact inverse.
    """

    def __init__(self, alphas_cumprod):
        abar = torch.as_tensor(alphas_cumprod, dtype=torch.float64).cpu()
        ordered = abar.ndim == 1 and len(abar) > 1 and bool((abar[1:] < abar[:-1]).all())
        if not (ordered and float(abar[-1]) > 0 and float(abar[0]) < 1):
            raise TableError("alphas_cumprod must be a strictly decreasing list within (0, 1).")
        self.log_sigmas = 0.5 * ((1 - abar).log() - abar.log())

    @classmethod
    def scaled_linear(cls, start=0.00085, end=0.012, steps=1000):
        """Betas of Stable Diffusion: linear in their square roots."""
        roots = torch.linspace(math.sqrt(start), math.sqrt(end), steps, dtype=torch.float64)
        return cls((1 - roots**2).cumprod(0))

    @classmethod
    def linear(cls, start=1e-4, end=0.02, steps=1000):
        """Betas of DDPM: linear."""
        return cls((1 - torch.linspace(start, end, steps, dtype=torch.float64)).cumprod(0))

    @property
    def last(self):
        """The largest time, T - 1."""
        return len(self.log_sigmas) - 1

    @property
    def sigma_min(self):
        return float(self.log_sigmas[0].exp())

    @property
    def sigma_max(self):
        return float(self.log_sigmas[-1].exp())

    def sigma(self, time):
        """Sigma (float64) of times in [0, T-1]; times outside are clamped."""
        time = as_float64(time).clamp(0, self.last)
        logs = self.log_sigmas.to(time.device)
        low = time.detach().floor().long().clamp(max=self.last - 1)
        part = time - low
        return ((1 - part) * logs[low] + part * logs[low + 1]).exp()

    def time(self, sigma):
        """Time (float64) of sigmas in [sigma_min, sigma_max]; sigmas outside are clamped."""
        log = as_float64(sigma).clamp(min=1e-300).log()
        logs = self.log_sigmas.to(log.device)
        high = torch.searchsorted(logs, log.detach().contiguous()).clamp(1, self.last)
        gap = logs[high] - logs[high - 1]
        return (high - 1 + (log - logs[high - 1]) / gap).clamp(0, self.last)


class ShiftedTimes:
    """The times of a flow model: sigma = s t / (1 + (s - 1) t) for t in (0, 1]."""

    def __init__(self, shift, steps=1000):
        self.shift = float(shift)
        self.sigma_min = float(self.sigma(torch.tensor(1 / steps, dtype=torch.float64)))

    def sigma(self, time):
        return self.shift * time / (1 + (self.shift - 1) * time)

    def time(self, sigma):
        return sigma / (self.shift - (self.shift - 1) * sigma)


def listed_times(space, sigmas):
    """The times of a model that a host knows by a list of sigmas, ascending and even in time.

    A flow model's shift s follows from the middle of its list, where t = 1/2: sigma = s / (1 + s).
    """
    sigmas = sigmas.cpu().double()
    if space == "ve":
        return DiscreteTimes(1 / (1 + sigmas**2))
    middle = float(sigmas[len(sigmas) // 2 - 1])
    return ShiftedTimes(middle / (1 - middle), len(sigmas))


WITHOUT_FLOAT64 = ("mps",)
"""Types of devices, Apple's, that raise an error where float64 is asked of them."""


def as_float64(x):
    """x in float64: where it is, or on the CPU if its device has no float64."""
    return (x.cpu() if x.device.type in WITHOUT_FLOAT64 else x).double()
