"""What every table is lowered to: one linear move after each model call.

Call n evaluates the network at `point`; then
    point <- scale * state + sum_j weights[j] * history[j]     (history newest first)
and, unless the point is only a stage of a single-step method, state <- point. The result is the
last point. A corrector needs no state of its own: what it adds to the predicted point is folded
into the move that follows (families.pc).

History entries are g = x - q x0 (or x0 itself where `data_scales` is None): the division by the
call's sigma that makes f of it is folded into the weights, which saves a pass over the tensor.
Scales and weights are float64 tensors with optional leading dimensions (one row per sample, for
perturbed tables in one batch), or plain floats after `floats()`.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from .spaces import history_data_scale


class Move(NamedTuple):
    """scale * state + sum_j weights[..., j] * history[j]; `accept` makes it the new state."""

    scale: object
    weights: object
    accept: bool = True

    @property
    def reach(self):
        """How many history entries the move weighs."""
        return len(self.weights) if isinstance(self.weights, tuple) else self.weights.shape[-1]

    def floats(self):
        return Move(float(self.scale), tuple(self.weights.tolist()), self.accept)


@dataclass(frozen=True)
class Program:
    """A lowered table: `sigmas` [..., nfe] of the calls, their data scales, and a move per call.

    `depth` is how many evaluations the moves reach back at most.
    """

    sigmas: torch.Tensor
    data_scales: object
    moves: tuple
    depth: int

    @property
    def nfe(self):
        return len(self.moves)

    def floats(self):
        """The same program with plain floats: nothing in the loop touches a device to read it."""
        scales = None if self.data_scales is None else self.data_scales.tolist()
        moves = tuple(move.floats() for move in self.moves)
        return replace(self, data_scales=scales, moves=moves)


def fold_sigmas(form, weights, calls, first=0):
    """Divide weights [..., rows, k] of f by the sigma of the call each one reaches.

    Row r belongs to call first + r, column j to call first + r - j; columns that reach before the
    first call hold zeros and stay so. Weights of data histories, which hold x0 itself, stay too.
    """
    if form == "data":
        return weights
    rows = torch.arange(weights.shape[-2]).unsqueeze(1) + first
    index = (rows - torch.arange(weights.shape[-1])).clamp(min=0)
    return weights / calls[..., index]


def program(space, form, calls, moves):
    """Assemble a Program; the data scales follow from the space and the form."""
    depth = max(move.reach for move in moves)
    return Program(calls, history_data_scale(space, form, calls), tuple(moves), depth)


def multistep(space, form, calls, scale, weights):
    """The Program of scales [..., N] and weights of f [..., N, k], one accepted move per call."""
    weights = fold_sigmas(form, weights, calls)
    reach = [min(n + 1, weights.shape[-1]) for n in range(weights.shape[-2])]
    moves = [Move(scale[..., n], weights[..., n, :m]) for n, m in enumerate(reach)]
    return program(space, form, calls, moves)
