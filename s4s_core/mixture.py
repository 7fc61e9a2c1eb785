"""A Gaussian mixture with its exact denoiser: a model without a network, for tests and demos."""

import math

import torch

from .model import Condition, Model
from .names import check_space
from .spaces import alpha


class GaussianMixture:
    """A mixture of isotropic Gaussians that satisfies `s4s_core.Model` in either space.

    means [K, *shape], scales [K] (standard deviations), weights [K]. The posterior mean of x0
    given x = alpha x0 + sigma eps is exact for every sigma, and so is the diffusion ODE.
    """

    times = None

    def __init__(
        self,
        means: torch.Tensor,
        scales: torch.Tensor,
        weights: torch.Tensor | None = None,
        space: str = "ve",
        sigma_min: float = 0.002,
        sigma_max: float = 80.0,
    ) -> None:
        check_space(space)
        self.space, self.sigma_min, self.sigma_max = space, sigma_min, sigma_max
        self.shape = tuple(means.shape[1:])
        self.means = means.flatten(1)
        self.scales = scales.to(means)
        weights = torch.ones_like(self.scales) if weights is None else weights.to(means)
        self.log_weights = (weights / weights.sum()).log()

    @classmethod
    def random(
        cls,
        components: int,
        shape: tuple[int, ...],
        seed: int = 0,
        spread: float = 1.0,
        scale: float = 0.1,
        space: str = "ve",
        rank: int | None = None,
        **options: float,
    ) -> "GaussianMixture":
        """Draw the components from a seeded normal distribution, in float64.

        With a `rank`, the means lie in a random subspace of that dimension: components overlap and
        the denoiser is smooth even in many dimensions, as it is for images.
        """
        generator = torch.Generator().manual_seed(seed)
        size = math.prod(shape)
        means = torch.randn(components, rank or size, generator=generator, dtype=torch.float64)
        if rank is not None:
            basis = torch.randn(size, rank, generator=generator, dtype=torch.float64)
            means = means @ torch.linalg.qr(basis)[0].T
        means = spread * means.reshape(components, *shape)
        draws = torch.rand(components, generator=generator, dtype=torch.float64)
        if space == "flow":
            options = {"sigma_min": 0.001, "sigma_max": 1.0, **options}
        return cls(means, scale * (0.5 + draws), 0.5 + draws.flip(0), space, **options)

    def denoise(
        self, x: torch.Tensor, sigma: torch.Tensor, cond: Condition | None = None
    ) -> torch.Tensor:
        """Return E[x0 | x] at noise level sigma [batch]; `cond` is ignored."""
        flat, sigma = x.flatten(1), sigma.to(x).reshape(-1, 1)
        means, scales = self.means.to(x), self.scales.to(x)
        scale = alpha(self.space, sigma)
        variance = scale**2 * scales**2 + sigma**2
        gap = flat.unsqueeze(1) - scale.unsqueeze(2) * means
        distance = gap.square().sum(2)
        logits = self.log_weights.to(x) - 0.5 * (
            distance / variance + flat.shape[1] * variance.log()
        )
        gain = scale * scales**2 / variance
        posterior = means + gain.unsqueeze(2) * gap
        return (logits.softmax(1).unsqueeze(2) * posterior).sum(1).reshape(x.shape)

    def conditions(self, batch: int, generator: torch.Generator) -> None:
        """Return None: the mixture takes no conditions."""


_CONTRACT: type[Model] = GaussianMixture  # checked by mypy
