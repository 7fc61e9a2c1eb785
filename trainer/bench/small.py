"""A small convolutional denoiser with random weights, whose activations dominate its memory."""

import torch
from torch import nn

from s4s_core import classical_table, sample, schedule


class SmallConv:
    """Fulfils the model contract; the network is random but the same in every process."""

    space, sigma_min, sigma_max, shape, times = "ve", 0.002, 80.0, (3, 32, 32), None

    def __init__(self, width=192):
        torch.manual_seed(0)
        self.network = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1),
            nn.SiLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.SiLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.SiLU(),
            nn.Conv2d(width, 3, 3, padding=1),
        ).requires_grad_(False)

    def denoise(self, x, sigma):
        """EDM's preconditioning around the random network."""
        s = sigma.reshape(-1, 1, 1, 1).to(x)
        scale = (s**2 + 0.25).sqrt()
        return x * 0.25 / scale**2 + 0.5 * s / scale * self.network(x / scale)

    def conditions(self, batch, generator):
        return None

    def sample(self, batch, nfe):
        """Plain sampling, as a user does it."""
        with torch.inference_mode():
            x = torch.randn(batch, *self.shape) * self.sigma_max
            return sample(self.denoise, x, classical_table("ipndm", schedule("edm", nfe, self)))
