"""The model contract: everything that the core knows about a model."""

from collections.abc import Callable
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch

Condition = Any
"""What a model is conditioned on, one entry per row; `cond[rows]` selects rows, as in a tensor."""

Scale = TypeVar("Scale", float, torch.Tensor)

BoundDenoiser = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]
"""`denoise(x, sigma, guidance) -> x0`, with the condition already bound; see `Denoiser`."""

PlainDenoiser = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""`denoise(x, sigma) -> x0` of a model without conditions that cannot be told its guidance."""


class Denoiser(Protocol):
    """`denoise(x, sigma, cond=None) -> x0`, guidance included, in the host's own sigma space.

    The result of a row depends on that row of the arguments only: training calls rows together.
    A model that `takes_guidance` has a fourth argument: `guidance` [batch], multipliers m >= 0 that
    ask for classifier-free guidance at `guided_scale(cfg, m)`, or None for its own scale.
    """

    def __call__(
        self, x: torch.Tensor, sigma: torch.Tensor, cond: Condition | None = ..., /
    ) -> torch.Tensor:
        """Predict x0 [batch, ...] from x [batch, ...] at noise levels sigma [batch]."""


class HasSpace(Protocol):
    """Anything that belongs to a noise space: a model, a table or a pack."""

    @property
    def space(self) -> str:
        """ "ve" (x = x0 + sigma eps) or "flow" (x = (1 - sigma) x0 + sigma eps)."""


class Times(Protocol):
    """A map between a model's own times and sigma, increasing and differentiable."""

    def sigma(self, time: torch.Tensor) -> torch.Tensor: ...

    def time(self, sigma: torch.Tensor) -> torch.Tensor: ...


@runtime_checkable
class Model(HasSpace, Protocol):
    """A diffusion model to sample from or to train a solver for.

    Optional attributes: `conditions` (a model without takes none), `device` (where x belongs; the
    CPU if absent), `times` (see `Times`), `takes_guidance` (True if `denoise` has the fourth
    argument of `Denoiser`, and it changes anything), and `fingerprint` (text that identifies
    everything the results depend on, so that saved runs and cached pairs are only reused for the
    same model). `contract.RULES` has the rule of each.
    """

    @property
    def sigma_min(self) -> float: ...

    @property
    def sigma_max(self) -> float: ...

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample, without the batch."""

    def denoise(
        self, x: torch.Tensor, sigma: torch.Tensor, cond: Condition | None = None
    ) -> torch.Tensor:
        """Predict x0 [batch, ...] from x [batch, ...] at noise levels sigma [batch]."""
        ...

    def conditions(self, batch: int, generator: torch.Generator) -> Condition | None:
        """Draw `batch` conditions to train on, or None if the model takes none."""
        ...


def arguments(
    x: torch.Tensor,
    sigma: torch.Tensor,
    cond: Condition | None = None,
    guidance: torch.Tensor | None = None,
) -> tuple[Any, ...]:
    """Return the arguments to pass to a denoiser: only those that are needed, and as copies.

    So a model that writes into them spoils no state and no stored noise. A condition that is no
    tensor or array is passed as it is: what it means is between the caller and the model.
    """
    told = () if cond is None and guidance is None else (writable(cond),)
    multipliers = () if guidance is None else (writable(guidance),)
    return (writable(x), writable(sigma), *told, *multipliers)


def writable(argument: Any) -> Any:
    """Return a copy of a tensor or array, and anything else as it is.

    A tensor that carries a gradient is not copied: the gradient would add up in another order.
    `check_model` refuses to differentiate a model that writes.
    """
    if isinstance(argument, torch.Tensor) and not argument.requires_grad:
        return argument.clone()
    return argument.copy() if isinstance(argument, np.ndarray) else argument


def all_rows(cond: Condition | None, count: int) -> Condition | None:
    """Return the conditions of `count` rows, as a copy if `writable` would not copy them."""
    if cond is None or not count or isinstance(cond, torch.Tensor | np.ndarray):
        return cond
    return cond[torch.arange(count)]


def takes_guidance(model: Model) -> bool:
    """Can the model be told the guidance of each call?"""
    return bool(getattr(model, "takes_guidance", False))


def guided_scale(cfg: Scale, multiplier: Scale) -> Scale:
    """Return the scale 1 + m (cfg - 1) of a call; exactly cfg at m = 1 and exactly 1 at m = 0."""
    return cfg + (multiplier - 1) * (cfg - 1)
