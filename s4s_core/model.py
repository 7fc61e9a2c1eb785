"""The model contract: what any adapter provides and all that the core knows of a model."""

from typing import Any, Protocol, runtime_checkable

import torch

Condition = Any
"""What a model is conditioned on, one entry a row: `cond[i]` selects rows, as with a tensor."""


class Denoiser(Protocol):
    """`denoise(x, sigma) -> x0`, guidance included, in the host's own sigma space."""

    def __call__(
        self, x: torch.Tensor, sigma: torch.Tensor, cond: Condition | None = ..., /
    ) -> torch.Tensor:
        """Predict x0 [batch, ...] from x [batch, ...] at noise levels sigma [batch]."""


@runtime_checkable
class Model(Protocol):
    """A diffusion model to sample from or to train a solver for.

    Optional attributes: `device` (where x belongs; the CPU if absent), `times` (a VP model's map
    between discrete times and sigma), and `fingerprint` (text that identifies everything the
    results depend on, so that saved runs and cached pairs are reused only for the same model).
    """

    space: str
    """"ve" (x = x0 + sigma eps) or "flow" (x = (1 - sigma) x0 + sigma eps)."""
    sigma_min: float
    sigma_max: float
    shape: tuple[int, ...]
    """The shape of one sample, without the batch."""

    def denoise(
        self, x: torch.Tensor, sigma: torch.Tensor, cond: Condition | None = None
    ) -> torch.Tensor:
        """Predict x0 [batch, ...] from x [batch, ...] at noise levels sigma [batch]."""
        ...

    def conditions(self, batch: int, generator: torch.Generator) -> Condition | None:
        """Draw `batch` conditions to train on, or None if the model takes none."""
        ...
