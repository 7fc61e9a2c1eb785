"""A convolutional denoiser with random weights, for measuring memory.

It has 80 channels for each one of its input, as the first level of Stable Diffusion has, and keeps
one skip connection alive.
"""

import torch
from torch import nn

from s4s_core import classical_table, sample, schedule


class SmallConv:
    """Fulfils the model contract; the network is random but the same in every process."""

    space, sigma_min, sigma_max, shape, times = "ve", 0.002, 80.0, (3, 32, 32), None

    def __init__(self, width=240):
        torch.manual_seed(0)
        self.inward = nn.Conv2d(3, width, 3, padding=1).requires_grad_(False)
        self.middle = nn.Conv2d(width, width, 3, padding=1).requires_grad_(False)
        self.outward = nn.Conv2d(width, 3, 3, padding=1).requires_grad_(False)

    def _network(self, x):
        skip = nn.functional.silu(self.inward(x))
        return self.outward(skip + nn.functional.silu(self.middle(skip)))

    def denoise(self, x, sigma):
        """EDM's preconditioning around the random network."""
        s = sigma.reshape(-1, 1, 1, 1).to(x)
        scale = (s**2 + 0.25).sqrt()
        return x * 0.25 / scale**2 + 0.5 * s / scale * self._network(x / scale)

    def conditions(self, batch, generator):
        return None

    def sample(self, batch, nfe):
        """Plain sampling, as a user does it."""
        with torch.inference_mode():
            x = torch.randn(batch, *self.shape) * self.sigma_max
            return sample(self.denoise, x, classical_table("ipndm", schedule("edm", nfe, self)))
