"""What every table is lowered to: per model call, two linear updates.

Call n evaluates the network at `point`; then
    state <- states[n](state, history)      None: unchanged
    point <- points[n](state, history)      None: point = state
where an update is scale * state + sum_j weights[j] * history[j], newest first. Multistep methods
only move the state; stages of single-step methods and predictors only move the point; a corrector
moves the state with the evaluation just made. The result is the last point.

History entries are g = x - q x0 (or x0 itself where `data_scales` is None): the division by the
call's sigma that makes f of it is folded into the weights, which saves a pass over the tensor.
Scales and weights are float64 tensors with optional leading dimensions (one row per sample, for
perturbed tables in one batch), or plain floats after `floats()`.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from .spaces import history_data_scale


class Update(NamedTuple):
    """scale * state + sum_j weights[..., j] * history[j]."""

    scale: object
    weights: object

    @property
    def reach(self):
        """How many history entries the update weighs."""
        return len(self.weights) if isinstance(self.weights, tuple) else self.weights.shape[-1]

    def floats(self):
        return Update(float(self.scale), tuple(self.weights.tolist()))


@dataclass(frozen=True)
class Program:
    """A lowered table: `sigmas` [..., nfe] of the calls, data scales, and the updates per call.

    `depth` is how many evaluations the updates reach back at most.
    """

    sigmas: torch.Tensor
    data_scales: object
    states: tuple
    points: tuple
    depth: int

    @property
    def nfe(self):
        return len(self.states)

    def floats(self):
        """The same program with plain floats: nothing in the loop touches a device to read it."""
        scales = self.data_scales
        return replace(
            self,
            data_scales=None if scales is None else scales.tolist(),
            states=tuple(u and u.floats() for u in self.states),
            points=tuple(u and u.floats() for u in self.points),
        )


def fold_sigmas(form, weights, calls, first=0):
    """Divide weights [..., rows, k] of f by the sigma of the call each one reaches.

    Row r belongs to call first + r, column j to call first + r - j; columns that reach before the
    first call hold zeros and stay so. Data histories hold x0 itself and are returned as they are.
    """
    if form == "data":
        return weights
    rows = torch.arange(weights.shape[-2]).unsqueeze(1) + first
    index = (rows - torch.arange(weights.shape[-1])).clamp(min=0)
    return weights / calls[..., index]


def program(space, form, calls, states, points):
    """Assemble a Program; the data scales follow from the space and the form."""
    scales = history_data_scale(space, form, calls)
    depth = max(update.reach for update in [*states, *points] if update is not None)
    return Program(calls, scales, tuple(states), tuple(points), depth)


def rows(scale, weights, first=0):
    """Updates from scales [..., rows] and weights [..., rows, k], cut to the calls that exist."""
    count = weights.shape[-2]
    reach = [min(first + r + 1, weights.shape[-1]) for r in range(count)]
    return [Update(scale[..., r], weights[..., r, : reach[r]]) for r in range(count)]
