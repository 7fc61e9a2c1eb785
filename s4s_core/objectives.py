"""Distances between a solver's result and the teacher's, per sample.

An objective maps a result to features (`embed`) whose squared distance to the target's features is
minimised: a sum of squares, which Gauss-Newton needs. Plain distances that are no sum of squares
(l1, huber) have no features and serve the gradient methods only.
"""

import importlib.util

import torch

from .errors import ObjectiveError, pip_install_line
from .names import OBJECTIVES

_HUBER = 0.03
_SMALLEST_SIDE = 64


class L2:
    """Mean squared error."""

    name = "l2"

    def embed(self, x):
        """Features [batch, m] whose squared distance is the objective."""
        flat = x.flatten(1)
        return flat / flat.shape[1] ** 0.5

    def distance(self, result, target):
        """Distance per sample [batch]."""
        return (self.embed(result) - self.embed(target)).square().sum(1)


class L1:
    """Mean absolute error."""

    name = "l1"

    def distance(self, result, target):
        return (result - target).flatten(1).abs().mean(1)


class Huber:
    """Pseudo-Huber: quadratic for small differences, linear for large ones."""

    name = "huber"

    def distance(self, result, target):
        ratio = (result - target).flatten(1) / _HUBER
        return (_HUBER * ((1 + ratio.square()).sqrt() - 1)).mean(1)


class Lpips:
    """LPIPS of the `lpips` package, written as a squared distance of features.

    LPIPS averages w_c (u_c - v_c)^2 over pixels and sums over channels and layers, u and v being
    unit-normalised activations; sqrt(w_c / pixels) u_c are therefore its features. `decode` maps
    results to pictures in [-1, 1], three channels; the default takes them as they are.
    """

    def __init__(self, network, name="lpips-alex", decode=None):
        self.network, self.name = network.eval().requires_grad_(False), name
        self.decode = decode or (lambda x: x)

    def embed(self, x):
        pictures = self.decode(x).float()
        if pictures.ndim != 4 or pictures.shape[1] != 3:
            raise ObjectiveError(
                "LPIPS compares RGB pictures: give it a decoder, or use the objective 'l2'."
            )
        self.network.to(pictures.device)
        short = min(pictures.shape[2:])
        if short < _SMALLEST_SIDE:
            factor = _SMALLEST_SIDE / short
            pictures = torch.nn.functional.interpolate(
                pictures, scale_factor=factor, mode="bilinear", antialias=False
            )
        layers = self.network.net(self.network.scaling_layer(pictures))
        parts = []
        for features, weigh in zip(layers, self.network.lins, strict=True):
            unit = torch.nn.functional.normalize(features, dim=1, eps=1e-10)
            weights = weigh.model[-1].weight.clamp(min=0) / (unit.shape[2] * unit.shape[3])
            parts.append((unit * weights.sqrt()).flatten(1))
        return torch.cat(parts, dim=1)

    distance = L2.distance


def _load_lpips(name, decode):
    if importlib.util.find_spec("lpips") is None:
        raise ObjectiveError(
            "The objective LPIPS needs the package lpips: use 'l2', or install it with this "
            f"command: {pip_install_line('lpips')}"
        )
    import lpips

    try:
        network = lpips.LPIPS(net=name.removeprefix("lpips-"), verbose=False)
    except (OSError, RuntimeError) as error:
        raise ObjectiveError(
            f"The weights of {name} cannot be had ({error}): go online once so that they can be "
            "downloaded, or use 'l2', 'l1' or 'huber'."
        ) from error
    return Lpips(network, name, decode)


def objective(name, decode=None):
    """The objective of that name; lpips and its weights are loaded only when asked for."""
    if name not in OBJECTIVES:
        raise ObjectiveError(f"Unknown objective '{name}': choose one of {', '.join(OBJECTIVES)}.")
    if name.startswith("lpips"):
        return _load_lpips(name, decode)
    return {"l2": L2, "l1": L1, "huber": Huber}[name]()
