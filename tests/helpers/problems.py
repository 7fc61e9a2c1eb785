"""Analytic problems: Gaussian mixtures and the exact solutions of their ODEs."""

from dataclasses import dataclass
from functools import cache

import torch
from scipy.integrate import solve_ivp

from s4s_core.mixture import GaussianMixture
from s4s_core.names import FORMS, SPACES

# Every (space, form) pair, and those of the exponential rules.
SPACE_FORMS = [(space, form) for space in SPACES for form in FORMS[space]]
EXPONENTIAL = [(space, form) for space, form in SPACE_FORMS if form != "velocity"]

POWER = 5


@dataclass(frozen=True)
class Problem:
    """A mixture, a range of noise levels without singular ends, and samples at its start."""

    name: str
    model: GaussianMixture
    start: float
    end: float

    @property
    def x(self):
        """Four samples at the starting level, always the same."""
        generator = torch.Generator().manual_seed(5)
        noise = torch.randn(4, *self.model.shape, generator=generator, dtype=torch.float64)
        return self.start * noise

    def nodes(self, n, spacing="smooth"):
        """Return n + 1 nodes: `uniform` in sigma, or `smooth`, uniform in neither variable."""
        if spacing == "uniform":
            return torch.linspace(self.start, self.end, n + 1, dtype=torch.float64)
        ends = torch.tensor([self.start, self.end], dtype=torch.float64)
        flow = self.model.space == "flow"
        high, low = (ends / (1 - ends) if flow else ends) ** (1 / POWER)
        ratio = (high + (low - high) * torch.linspace(0, 1, n + 1, dtype=torch.float64)) ** POWER
        nodes = ratio / (1 + ratio) if flow else ratio
        nodes[0], nodes[-1] = self.start, self.end
        return nodes

    def truth(self, sigmas):
        """Return the exact solution from x at some noise levels, float64 [len, batch, ...]."""
        return torch.stack([_truth(self.name, float(sigma)) for sigma in sigmas])

    def denoise(self, x, sigma):
        """Call the exact denoiser at one noise level."""
        return self.model.denoise(x, x.new_full((len(x),), float(sigma)))


@cache
def _truth(name, sigma):
    """Integrate with DOP853 at 1e-12; in both spaces dx/dsigma = (x - x0) / sigma."""
    problem = PROBLEMS[name]
    x = problem.x

    def slope(at, flat):
        point = torch.from_numpy(flat).reshape(x.shape)
        return ((point - problem.denoise(point, at)) / at).flatten().numpy()

    if sigma == problem.start:
        return x
    span = (problem.start, sigma)
    result = solve_ivp(slope, span, x.flatten().numpy(), method="DOP853", rtol=1e-12, atol=1e-12)
    assert result.success, result.message
    return torch.from_numpy(result.y[:, -1].copy()).reshape(x.shape)


def mixture(space, shape=(2,), seed=1, dtype=torch.float64):
    """Return a mixture of three well separated components."""
    model = GaussianMixture.random(3, shape, seed=seed, spread=2.0, scale=0.5, space=space)
    model.means = model.means.to(dtype)
    return model


# Chosen by search so that every method is in its asymptotic regime at N = 256 .. 512. On most other
# mixtures, methods with a tiny h^2 error (iPNDM-3, 3M) still show orders of 1.4 to 1.9 there and
# reach 1.95 to 1.99 only at N = 4096.
PROBLEMS = {
    "ve": Problem("ve", mixture("ve", seed=1), start=4.0, end=1.0),
    "flow": Problem("flow", mixture("flow", seed=6), start=0.8, end=0.2),
}
