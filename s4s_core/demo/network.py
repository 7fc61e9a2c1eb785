"""The network of the bundled emoji model: a compact U-Net in EDM's preconditioning.

Made for CPUs: the picture enters as 2x2 patches, so that no layer runs at full resolution, every
level costs about the same number of multiplications, and most parameters sit where the picture is
smallest. Skips are added, not concatenated.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn

# The noise levels that the network was trained on.
SIGMA_RANGE = (0.002, 80.0)


def _zero(layer):
    """Start a layer at zero, so that its block starts as the identity."""
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)
    return layer


class Block(nn.Module):
    """Residual block: two convolutions, the second behind an embedding's scale and shift."""

    def __init__(self, width, embedding):
        super().__init__()
        self.norm1 = nn.GroupNorm(width // 16, width)
        self.conv1 = nn.Conv2d(width, width, 3, padding=1)
        self.modulation = nn.Linear(embedding, 2 * width)
        self.norm2 = nn.GroupNorm(width // 16, width)
        self.conv2 = _zero(nn.Conv2d(width, width, 3, padding=1))

    def forward(self, x, embedding):
        h = self.conv1(F.silu(self.norm1(x)))
        scale, shift = self.modulation(embedding)[:, :, None, None].chunk(2, dim=1)
        h = self.norm2(h) * (1 + scale) + shift
        return x + self.conv2(F.silu(h))


class EmojiNet(nn.Module):
    """EDM-preconditioned denoiser: `net(x, sigma, label, alpha=1) -> x0`.

    x = alpha x0 + sigma noise with pictures in [-1, 1]; sigma (and alpha, where it is not 1) has
    one value per row; a label is a class id, and the id `classes` is the null class of
    classifier-free guidance.
    """

    def __init__(
        self, classes, channels=(48, 96, 192), blocks=(1, 1, 2), embedding=192, sigma_data=0.5
    ):
        super().__init__()
        self.classes, self.sigma_data = classes, sigma_data
        # Slow waves of the noise level only: predictions must change smoothly with sigma.
        waves = torch.exp(torch.linspace(math.log(0.5), math.log(16.0), 16))
        self.register_buffer("waves", waves, persistent=False)
        self.time = nn.Linear(2 * len(waves), embedding)
        self.label = nn.Embedding(classes + 1, embedding)
        self.mix = nn.Linear(embedding, embedding)

        def level(index):
            return nn.ModuleList(Block(channels[index], embedding) for _ in range(blocks[index]))

        narrower = list(zip(channels, channels[1:]))  # noqa: B905 - one shorter on purpose
        self.stem = nn.Conv2d(12, channels[0], 3, padding=1)
        self.down = nn.ModuleList(level(index) for index in range(len(channels)))
        self.up = nn.ModuleList(level(index) for index in range(len(channels) - 1))
        self.shrink = nn.ModuleList(nn.Conv2d(a, b, 3, stride=2, padding=1) for a, b in narrower)
        self.grow = nn.ModuleList(nn.Conv2d(b, a, 1) for a, b in narrower)
        self.norm = nn.GroupNorm(channels[0] // 16, channels[0])
        self.out = _zero(nn.Conv2d(channels[0], 12, 3, padding=1))

    def forward(self, x, sigma, label, alpha=1.0):
        sigma = sigma.reshape(-1, 1, 1, 1)
        alpha = torch.as_tensor(alpha, dtype=sigma.dtype, device=sigma.device).reshape(-1, 1, 1, 1)
        c_skip, c_out, c_in = self.preconditioning(sigma, alpha)
        # Levels beyond the trained ones are shown to the network as the nearest trained one.
        low, high = SIGMA_RANGE
        level = (sigma / torch.maximum(alpha, sigma / high)).clamp(min=low)
        return c_skip * x + c_out * self.raw(c_in * x, level.log().flatten() / 4, label)

    def preconditioning(self, sigma, alpha=1.0):
        """EDM's c_skip, c_out and c_in for x = alpha x0 + sigma noise; finite at alpha = 0 too."""
        total = (sigma**2 + (alpha * self.sigma_data) ** 2).sqrt()
        return alpha * (self.sigma_data / total) ** 2, sigma * self.sigma_data / total, 1 / total

    def raw(self, x, noise, label):
        """What is trained: unit-variance input and target; `noise` is log(sigma) / 4."""
        angles = noise[:, None] * self.waves
        embedding = self.time(torch.cat([angles.cos(), angles.sin()], dim=1)) + self.label(label)
        embedding = F.silu(self.mix(F.silu(embedding)))

        x = self.stem(F.pixel_unshuffle(x, 2))
        skips = []
        for level, blocks in enumerate(self.down):
            for block in blocks:
                x = block(x, embedding)
            if level < len(self.shrink):
                skips.append(x)
                x = self.shrink[level](x)
        for level in reversed(range(len(self.up))):
            x = F.interpolate(self.grow[level](x), scale_factor=2.0, mode="nearest") + skips[level]
            for block in self.up[level]:
                x = block(x, embedding)
        return F.pixel_shuffle(self.out(F.silu(self.norm(x))), 2)
