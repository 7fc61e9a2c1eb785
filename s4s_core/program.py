"""Programs: what every table is lowered to, one linear move after each model call.

Call n evaluates the network at `point`; then
    point <- scale * state + sum_j weights[j] * history[j]     (history newest first)
and state <- point, unless the point is only a stage of a single-step method. The result is the last
point. A corrector needs no extra state: what it adds to the predicted point is folded into the next
move (`_lower_pc`).

History entries are g = x - q x0 (or x0 itself if `data_scales` is None): the division by sigma that
turns g into f is folded into the weights, which saves a pass over the tensor. Scales and weights
are float64 tensors with optional leading dimensions (one row per sample, to run perturbed tables in
one batch), or plain floats after `floats()`.

To add a family, add its lowering here and to `_LOWER`, and its masks to table.py.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch.nn.functional import pad

from .spaces import history_data_scale, step_factors


class Move(NamedTuple):
    """scale * state + sum_j weights[..., j] * history[j]; `accept` makes it the new state."""

    scale: torch.Tensor | float
    weights: torch.Tensor | tuple[float, ...]
    accept: bool = True

    @property
    def reach(self) -> int:
        """The number of history entries that the move uses."""
        return len(self.weights) if isinstance(self.weights, tuple) else self.weights.shape[-1]

    def floats(self) -> "Move":
        """Return the move with plain floats."""
        if isinstance(self.weights, tuple):
            return self
        return Move(float(self.scale), tuple(self.weights.tolist()), self.accept)


@dataclass(frozen=True)
class Program:
    """A lowered table: `sigmas` [..., nfe] and data scales of the calls, and a move for each.

    `depth` is the largest number of history entries that a move uses. `guidance` [..., nfe] are
    the multipliers of the calls, or None to leave the model's guidance as it is.
    """

    sigmas: torch.Tensor
    data_scales: torch.Tensor | list[float] | None
    moves: tuple[Move, ...]
    depth: int
    guidance: torch.Tensor | None = None

    @property
    def nfe(self) -> int:
        return len(self.moves)

    def floats(self) -> "Program":
        """Return the program with plain floats, so that the loop never waits for a device."""
        scales = self.data_scales
        if isinstance(scales, torch.Tensor):
            scales = scales.tolist()
        moves = tuple(move.floats() for move in self.moves)
        return replace(self, data_scales=scales, moves=moves)


def _fold_sigmas(
    form: str, weights: torch.Tensor, calls: torch.Tensor, first: int = 0
) -> torch.Tensor:
    """Divide weights [..., rows, k] of f by the sigma of the call that each one belongs to.

    Row r belongs to call first + r, and its column j to call first + r - j. Columns that reach
    before the first call hold zeros. Data histories hold x0 itself, so nothing is divided.
    """
    if form == "data":
        return weights
    rows = torch.arange(weights.shape[-2]).unsqueeze(1) + first
    index = (rows - torch.arange(weights.shape[-1])).clamp(min=0)
    return weights / calls[..., index]


def _assemble(space: str, form: str, calls: torch.Tensor, moves: Sequence[Move]) -> Program:
    """Return the Program of some moves; the data scales follow from the space and the form."""
    depth = max(move.reach for move in moves)
    return Program(calls, history_data_scale(space, form, calls), tuple(moves), depth)


def _multistep(
    space: str, form: str, calls: torch.Tensor, scale: torch.Tensor, weights: torch.Tensor
) -> Program:
    """Return the Program of scales [..., N] and weights of f [..., N, k], accepting every move."""
    weights = _fold_sigmas(form, weights, calls)
    reach = [min(n + 1, weights.shape[-1]) for n in range(weights.shape[-2])]
    moves = [Move(scale[..., n], weights[..., n, :m]) for n, m in enumerate(reach)]
    return _assemble(space, form, calls, moves)


def _lower_lms(
    space: str, form: str, sigmas: torch.Tensor, call_sigmas: torch.Tensor, b: torch.Tensor
) -> Program:
    """Linear multistep: x_i = A_i x_{i-1} + B_i sum_j b_{j,i} f_{i-j} (eq:solver, LMS row)."""
    scale, factor = step_factors(space, form, sigmas[..., :-1], sigmas[..., 1:])
    return _multistep(space, form, call_sigmas, scale, factor.unsqueeze(-1) * b)


def _lower_pc(
    space: str,
    form: str,
    sigmas: torch.Tensor,
    call_sigmas: torch.Tensor,
    b: torch.Tensor,
    a: torch.Tensor,
) -> Program:
    """Predictor-corrector, one call per step (LMS+PC row, with the j = 0 term).

    The evaluation at the predicted point u_i of node i corrects the state there:
        u_i = A_i x_{i-1} + B_i sum_{j>=1} b_{j,i} f_{i-j}
        x_i = A_i x_{i-1} + B_i sum_{j>=0} a_{j,i} f_{i-j}
            = u_i + B_i sum_j (a_{j,i} - b_{j,i}) f_{i-j}
    so u_{i+1} = A_{i+1} x_i + ... is a multistep move on the predicted points alone, one evaluation
    deeper than the predictor. The last step is not corrected: that would cost a call.
    """
    scale, factor = step_factors(space, form, sigmas[..., :-1], sigmas[..., 1:])
    predict = factor.unsqueeze(-1) * b
    correct = factor[..., :-1].unsqueeze(-1) * a
    change = correct - pad(predict[..., :-1, :], (1, 0))
    weights = pad(predict, (0, 1)) + scale.unsqueeze(-1) * pad(change, (0, 0, 1, 0))
    return _multistep(space, form, call_sigmas, scale, weights)


def _lower_ss(
    space: str,
    form: str,
    sigmas: torch.Tensor,
    call_sigmas: torch.Tensor,
    b: torch.Tensor,
    a: torch.Tensor,
) -> Program:
    """Single-step methods of `order` stages (SS row), rescaled as the exponential form requires.

    Stage j > 0 of a step has its own call sigma s: u = A(s) x + B(s) sum_l a_{j,l} kappa_l. (The
    paper's printed row, x + sum a kappa, omits the rescaling.) The last step may have fewer stages.
    """
    steps, order, nfe = b.shape[-2], b.shape[-1], call_sigmas.shape[-1]

    def move(
        start: torch.Tensor, target: torch.Tensor, weights: torch.Tensor, call: int, accept: bool
    ) -> Move:
        """Go from `start` to `target` with weights [..., m] of the step's first m stages."""
        scale, factor = step_factors(space, form, start, target)
        newest_first = (factor.unsqueeze(-1) * weights).flip(-1).unsqueeze(-2)
        folded = _fold_sigmas(form, newest_first, call_sigmas, first=call)
        return Move(scale, folded.squeeze(-2), accept)

    moves = []
    for step in range(steps):
        start, first = sigmas[..., step], step * order
        stages = min(order, nfe - first)
        for stage in range(1, stages):
            target, weights = call_sigmas[..., first + stage], a[..., step, stage, :stage]
            moves.append(move(start, target, weights, first + stage - 1, accept=False))
        weights = b[..., step, :stages]
        moves.append(move(start, sigmas[..., step + 1], weights, first + stages - 1, accept=True))
    return _assemble(space, form, call_sigmas, moves)


_LOWER: dict[str, Callable[..., Program]] = {
    "lms": _lower_lms,
    "pc": _lower_pc,
    "ss": _lower_ss,
}


def lower(family: str, space: str, form: str, arrays: Mapping[str, torch.Tensor]) -> Program:
    """Lower a family's arrays to a Program (table:solver-types of the paper).

    `arrays` are float64 tensors with the names of `SolverTable.arrays` and optional leading
    dimensions. The program is differentiable in all of them.
    """
    arrays = dict(arrays)
    guidance = arrays.pop("guidance", None)
    return replace(_LOWER[family](space, form, **arrays), guidance=guidance)
