"""The model contract: everything that the core knows about a model."""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import torch

Condition = Any
"""What a model is conditioned on, one entry per row; `cond[rows]` selects rows, as in a tensor."""

BoundDenoiser = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""`denoise(x, sigma) -> x0`, with the condition already bound."""


class Denoiser(Protocol):
    """`denoise(x, sigma, cond=None) -> x0`, guidance included, in the host's own sigma space."""

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

    Optional attributes: `device` (where x belongs; the CPU if absent), `times` (see `Times`), and
    `fingerprint` (text that identifies everything the results depend on, so that saved runs and
    cached pairs are only reused for the same model).
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
