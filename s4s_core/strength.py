"""Strength (the denoise of hosts): the noise level at which a run over part of the way begins.

A part of the way is trained as a whole one of a model whose highest level is lower.
"""

from typing import Any

import torch

from .model import Condition, Model


def level_of(model: Model, strength: float) -> float:
    """Return the noise level at which hosts begin a run of that strength: that of `simple`.

    It is uniform in the model's times; models without times count in log sigma, and flow models
    without times in sigma.
    """
    low, high = (
        torch.tensor(float(end), dtype=torch.float64) for end in (model.sigma_min, model.sigma_max)
    )
    times = getattr(model, "times", None)
    if times is not None:
        first, last = times.time(low), times.time(high)
        return float(times.sigma(first + strength * (last - first)))
    return float(
        high * strength if model.space == "flow" else low ** (1 - strength) * high**strength
    )


class Below:
    """A model from a lower noise level on: its `sigma_max` is `level`, and all else the model's."""

    def __init__(self, model: Model, level: float) -> None:
        self._model, self.sigma_max = model, level
        self.space, self.shape, self.sigma_min = model.space, model.shape, model.sigma_min
        self.denoise = model.denoise

    def conditions(self, batch: int, generator: torch.Generator) -> Condition | None:
        return self._model.conditions(batch, generator)

    def __getattr__(self, name: str) -> Any:
        """Return one of the model's optional attributes."""
        return getattr(self._model, name)
