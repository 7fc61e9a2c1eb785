"""Training objectives: distances between a solver's results and the teacher's, per sample.

Gauss-Newton needs a sum of squares: an objective with `embed`, which maps results to features whose
squared distance is minimised. Objectives without it (l1, huber) need a gradient method.
"""

import importlib.util
from collections.abc import Callable
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch

from .errors import ObjectiveError, pip_install_line
from .names import OBJECTIVES, check_name, load

Decode = Callable[[torch.Tensor], torch.Tensor]
"""Turns results into RGB pictures in [-1, 1]."""

_HUBER = 0.03
_SMALLEST_SIDE = 64


class Objective(Protocol):
    """What `fit` minimises."""

    name: str

    def distance(self, result: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Return the distance of each sample [batch]."""
        ...


@runtime_checkable
class SumOfSquares(Protocol):
    """An objective that is the squared distance of features."""

    def embed(self, x: torch.Tensor) -> torch.Tensor:
        """Return features [batch, m] whose squared distance is the objective."""
        ...


class _Builtin:
    name: ClassVar[str]

    @classmethod
    def load(cls, name: str, decode: Decode | None) -> "_Builtin":
        return cls()


class L2(_Builtin):
    """Mean squared error."""

    name = "l2"

    def embed(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.flatten(1)
        return flat / float(flat.shape[1] ** 0.5)

    def distance(self, result: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (self.embed(result) - self.embed(target)).square().sum(1)


class L1(_Builtin):
    """Mean absolute error."""

    name = "l1"

    def distance(self, result: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (result - target).flatten(1).abs().mean(1)


class Huber(_Builtin):
    """Pseudo-Huber: quadratic for small differences, linear for large ones."""

    name = "huber"

    def distance(self, result: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        ratio = (result - target).flatten(1) / _HUBER
        return (_HUBER * ((1 + ratio.square()).sqrt() - 1)).mean(1)


class Lpips:
    """LPIPS of the `lpips` package, written as a squared distance of features.

    LPIPS averages w_c (u_c - v_c)^2 over pixels and sums over channels and layers, where u and v
    are unit-normalised activations; its features are therefore sqrt(w_c / pixels) u_c. `decode`
    turns results into RGB pictures in [-1, 1]; by default they are used unchanged.
    """

    def __init__(
        self, network: torch.nn.Module, name: str = "lpips-alex", decode: Decode | None = None
    ) -> None:
        self.network: Any = network.eval().requires_grad_(False)  # lpips has no types
        self.name = name
        self.decode = decode or (lambda x: x)

    def embed(self, x: torch.Tensor) -> torch.Tensor:
        pictures = self.decode(x).float()
        if pictures.ndim != 4 or pictures.shape[1] != 3:
            raise ObjectiveError("LPIPS compares RGB pictures: pass `decode`, or use 'l2'.")
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

    def distance(self, result: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (self.embed(result) - self.embed(target)).square().sum(1)

    @classmethod
    def load(cls, name: str, decode: Decode | None) -> "Lpips":
        """Load the network of "lpips-NETWORK", and download its weights the first time."""
        if importlib.util.find_spec("lpips") is None:
            raise ObjectiveError(
                "LPIPS needs the package lpips. Use the objective 'l2', or install it: "
                f"{pip_install_line('lpips')}"
            )
        import lpips

        try:
            network = lpips.LPIPS(net=name.removeprefix("lpips-"), verbose=False)
        except (OSError, RuntimeError) as error:
            raise ObjectiveError(
                f"Could not download the LPIPS weights ({error}). Connect to the internet and try "
                "again, or use the objective 'l2'."
            ) from error
        return cls(network, name, decode)


def objective(name: str, decode: Decode | None = None) -> Objective:
    """Return the objective of that name; LPIPS and its weights are only loaded if asked for."""
    check_name(OBJECTIVES, "objective", name, ObjectiveError)
    made: Objective = load(OBJECTIVES[name].place).load(name, decode)
    return made
