"""The network of the bundled emoji model: a compact U-Net with EDM's preconditioning.

Designed for CPUs: images enter as 2x2 patches, so no layer runs at full resolution; every level
costs about the same number of multiplications; most parameters are at the lowest resolution. Skip
connections are added, not concatenated.
"""

import math
from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import nn

SIGMA_RANGE = (0.002, 80.0)
"""The noise levels that the network was trained on."""


def _zero(layer: nn.Conv2d) -> nn.Conv2d:
    """Initialise a layer with zeros, so that its block starts as the identity."""
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)
    return layer


class Block(nn.Module):
    """A residual block: two convolutions, the second modulated by the embedding."""

    def __init__(self, width: int, embedding: int) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(width // 16, width)
        self.conv1 = nn.Conv2d(width, width, 3, padding=1)
        self.modulation = nn.Linear(embedding, 2 * width)
        self.norm2 = nn.GroupNorm(width // 16, width)
        self.conv2 = _zero(nn.Conv2d(width, width, 3, padding=1))

    def forward(self, x: torch.Tensor, embedding: torch.Tensor) -> torch.Tensor:
        h = self.conv1(F.silu(self.norm1(x)))
        scale, shift = self.modulation(embedding)[:, :, None, None].chunk(2, dim=1)
        h = self.norm2(h) * (1 + scale) + shift
        residual: torch.Tensor = self.conv2(F.silu(h))
        return x + residual


class EmojiNet(nn.Module):
    """An EDM-preconditioned denoiser: `net(x, sigma, label, alpha=1) -> x0`.

    x = alpha x0 + sigma noise, with images in [-1, 1]. sigma (and alpha, unless it is 1) has one
    value per row. Labels are class ids; the id `classes` is the null class of classifier-free
    guidance.
    """

    waves: torch.Tensor

    def __init__(
        self,
        classes: int,
        channels: Sequence[int] = (48, 96, 192),
        blocks: Sequence[int] = (1, 1, 2),
        embedding: int = 192,
        sigma_data: float = 0.5,
    ) -> None:
        super().__init__()
        self.classes, self.sigma_data = classes, sigma_data
        # Low frequencies only: predictions must change smoothly with sigma.
        waves = torch.exp(torch.linspace(math.log(0.5), math.log(16.0), 16))
        self.register_buffer("waves", waves, persistent=False)
        self.time = nn.Linear(2 * len(waves), embedding)
        self.label = nn.Embedding(classes + 1, embedding)
        self.mix = nn.Linear(embedding, embedding)

        def level(index: int) -> nn.ModuleList:
            return nn.ModuleList(Block(channels[index], embedding) for _ in range(blocks[index]))

        narrower = list(zip(channels, channels[1:]))  # noqa: B905 - one shorter on purpose
        self.stem = nn.Conv2d(12, channels[0], 3, padding=1)
        self.down = nn.ModuleList(level(index) for index in range(len(channels)))
        self.up = nn.ModuleList(level(index) for index in range(len(channels) - 1))
        self.shrink = nn.ModuleList(nn.Conv2d(a, b, 3, stride=2, padding=1) for a, b in narrower)
        self.grow = nn.ModuleList(nn.Conv2d(b, a, 1) for a, b in narrower)
        self.norm = nn.GroupNorm(channels[0] // 16, channels[0])
        self.out = _zero(nn.Conv2d(channels[0], 12, 3, padding=1))

    def forward(
        self,
        x: torch.Tensor,
        sigma: torch.Tensor,
        label: torch.Tensor,
        alpha: torch.Tensor | float = 1.0,
    ) -> torch.Tensor:
        sigma = sigma.reshape(-1, 1, 1, 1)
        alpha = torch.as_tensor(alpha, dtype=sigma.dtype, device=sigma.device).reshape(-1, 1, 1, 1)
        c_skip, c_out, c_in = self.preconditioning(sigma, alpha)
        # Noise levels outside the trained range are clamped to it.
        low, high = SIGMA_RANGE
        level = (sigma / torch.maximum(alpha, sigma / high)).clamp(min=low)
        return c_skip * x + c_out * self.raw(c_in * x, level.log().flatten() / 4, label)

    def preconditioning(
        self, sigma: torch.Tensor, alpha: torch.Tensor | float = 1.0
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return EDM's c_skip, c_out and c_in for x = alpha x0 + sigma noise; alpha may be 0."""
        total = (sigma**2 + (alpha * self.sigma_data) ** 2).sqrt()
        return alpha * (self.sigma_data / total) ** 2, sigma * self.sigma_data / total, 1 / total

    def raw(self, x: torch.Tensor, noise: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        """Run the trained part, with unit-variance input and output; `noise` is log(sigma) / 4."""
        angles = noise[:, None] * self.waves
        embedding = self.time(torch.cat([angles.cos(), angles.sin()], dim=1)) + self.label(label)
        embedding = F.silu(self.mix(F.silu(embedding)))

        x = self.stem(F.pixel_unshuffle(x, 2))
        skips = []
        for level, blocks in enumerate(self.down):
            for block in cast(nn.ModuleList, blocks):
                x = block(x, embedding)
            if level < len(self.shrink):
                skips.append(x)
                x = self.shrink[level](x)
        for level in reversed(range(len(self.up))):
            x = F.interpolate(self.grow[level](x), scale_factor=2.0, mode="nearest") + skips[level]
            for block in cast(nn.ModuleList, self.up[level]):
                x = block(x, embedding)
        return F.pixel_shuffle(self.out(F.silu(self.norm(x))), 2)
