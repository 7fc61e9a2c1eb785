"""Training objectives: distances between a solver's results and the teacher's, per sample.

Gauss-Newton needs a sum of squares: an objective with `embed`, which maps results to features whose
squared distance is minimised. Objectives without it (l1, huber) need a gradient method.
"""

import importlib.util
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch

from .contract import Rule, accepts, is_text, shown
from .errors import ObjectiveError, pip_install_line
from .model import writable
from .names import AUTO, OBJECTIVES, check_name, load

Decode = Callable[[torch.Tensor], torch.Tensor]
"""Turns results into RGB pictures in [-1, 1]."""

_HUBER = 0.03
BANDS = 7
_TINY_POWER = 1e-12
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


RULES = {
    "name": Rule("text", is_text),
    "distance": Rule("a function of result and target", lambda v: accepts(v, 2)),
    "embed": Rule("a function of x", lambda v: accepts(v, 1), True),
}
"""What `Objective` asks of each attribute, and `SumOfSquares` of `embed`."""


def distances(objective: Objective, result: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the distance of each sample [batch].

    An objective may write into what it gets, and may reuse what it returns.
    """
    found: object = objective.distance(writable(result), writable(target))
    what = "the distance of each sample"
    return _checked(found, (len(result),), objective, "distance", what).clone()


def embedded(objective: SumOfSquares, x: torch.Tensor) -> torch.Tensor:
    """Return the features [batch, m]; an objective may write into what it gets."""
    found: object = objective.embed(writable(x))
    return _checked(found, (len(x), -1), objective, "embed", "features [batch, m]")


def _checked(
    found: object, shape: tuple[int, ...], objective: object, function: str, what: str
) -> torch.Tensor:
    """Return what an objective returned; raise ObjectiveError for a wrong shape (-1: any size)."""
    if isinstance(found, torch.Tensor):
        fits = found.ndim == len(shape) and found.is_floating_point()
        if fits and all(a in (-1, b) for a, b in zip(shape, found.shape, strict=True)):
            return found
        got = f"{found.dtype} of shape {tuple(found.shape)}"
    else:
        got = shown(found)
    name = getattr(objective, "name", type(objective).__name__)
    raise ObjectiveError(
        f"The {function} of the objective '{name}' must return {what} as floating-point numbers, "
        f"not {got} for a batch of {shape[0]}."
    )


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


def makes_pictures(shape: Sequence[int]) -> bool:
    """Does a sample of this shape have two or more spatial dimensions?"""
    return len(shape) >= 3


@lru_cache(maxsize=8)
def _band_of_frequency(height: int, width: int) -> npt.NDArray[np.int64]:
    """Return the band of each frequency of `rfft2`, [height, width // 2 + 1].

    Seven radial bands, whose edges are the squares of j/7 of the highest frequency: the first
    holds little more than the mean, and the widths grow with the frequency.
    """
    radius = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None, :])
    share = np.sqrt(radius / max(radius.max(), 1e-12))
    bands: npt.NDArray[np.int64] = np.minimum((BANDS * share).astype(np.int64), BANDS - 1)
    return bands


def band_rms(x: torch.Tensor) -> torch.Tensor:
    """Return the RMS of x [batch, ..., height, width] in seven frequency bands, [batch, ..., 7].

    A channel's mean square is the sum of its squares over the bands (Parseval's theorem).
    """
    height, width = x.shape[-2:]
    work = torch.promote_types(x.dtype, torch.float32)
    spectrum = torch.fft.rfft2(x.to(work), norm="forward")
    power = spectrum.real.square() + spectrum.imag.square()
    doubled = power.clone()  # rfft2 leaves out the conjugate half
    doubled[..., 1 : (width + 1) // 2] *= 2
    bands = torch.tensor(_band_of_frequency(height, width).ravel(), device=x.device)
    total = power.new_zeros(*x.shape[:-2], BANDS)
    total = total.index_add(-1, bands, doubled.flatten(-2))
    rms: torch.Tensor = (total + _TINY_POWER).sqrt()
    return rms


def band_features(x: torch.Tensor) -> torch.Tensor:
    """Return features [batch, m] whose squared distance is that of the bands' RMS, averaged over
    the channels."""
    bands = band_rms(x).flatten(1)
    return bands / float((bands.shape[1] / BANDS) ** 0.5)


class Look(_Builtin):
    """Mean squared error plus, per channel, squared differences of the RMS in frequency bands.

    Near is not enough: mean squares alone pay for nearness with grain (too much in the high bands)
    or blur (too little). Both terms are averaged over the channels and weigh the same. For video,
    every frame counts as a channel.
    """

    name = "look"

    def embed(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([L2().embed(x), band_features(x).to(x.dtype)], dim=1)

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
        pictures = self.decode(writable(x))
        shape = pictures.shape if isinstance(pictures, torch.Tensor) else ()
        if len(shape) != 4 or shape[1] != 3:
            raise ObjectiveError("LPIPS compares RGB pictures: pass `decode`, or use 'l2'.")
        pictures = pictures.float()
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


def chosen_objective(name: str, shape: Sequence[int]) -> str:
    """Return the name of an objective; "auto" is look for pictures and l2 for other shapes."""
    if name != AUTO:
        return name
    return Look.name if makes_pictures(shape) else L2.name


def objective(name: str, decode: Decode | None = None) -> Objective:
    """Return the objective of that name; LPIPS and its weights are only loaded if asked for."""
    check_name(OBJECTIVES, "objective", name, ObjectiveError)
    made: Objective = load(OBJECTIVES[name].place).load(name, decode)
    return made
