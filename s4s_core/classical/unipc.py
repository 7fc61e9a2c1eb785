"""UniPC (Zhao et al.): a multistep predictor and a corrector that reuses the next evaluation.

From order 3 on (from order 2 for the corrector) the weights solve the full moment equations, so
both variants are the exact exponential Lagrange rule. Below that the authors fix rho at 1/2, and
B / (e^h - 1) multiplies the difference term, with B = h for bh1 and B = e^h - 1 for bh2.
"""

import torch

from ..errors import TableError
from .lagrange import Grid, phi, stack_rows
from .multistep import orders_of, second_order_row
from .recipe import Recipe


def _predict(grid: Grid, step: int, order: int, gain: torch.Tensor) -> torch.Tensor:
    return second_order_row(grid, step, gain) if order == 2 else grid.weights(step, order)


def _correct(grid: Grid, step: int, order: int, gain: torch.Tensor) -> torch.Tensor:
    if order > 1:
        return grid.weights(step, order, ahead=True)
    return torch.stack([gain / 2, 1 - gain / 2])


def _unipc(
    sigmas: torch.Tensor,
    space: str,
    order: int,
    form: str,
    lower_order_final: bool,
    fixed_gain: bool,
) -> Recipe:
    if order not in (1, 2, 3):
        raise TableError("unipc has orders 1 to 3.")
    grid = Grid(space, form, sigmas, exponential=True)
    steps = len(sigmas) - 1
    predict, correct = [], []
    for step, k in enumerate(orders_of(steps, order, lower_order_final)):
        if grid.infinite(step):
            predict.append(sigmas.new_ones(1))
            continue
        gain = sigmas.new_ones(()) if fixed_gain else 1 / phi(1, grid.z(step))
        predict.append(_predict(grid, step, k, gain))
        correct.append(_correct(grid, step, k, gain))
    a = stack_rows(correct[: steps - 1], order + 1) if steps > 1 else sigmas.new_zeros(0, order + 1)
    arrays = {"sigmas": sigmas, "call_sigmas": sigmas[:-1], "b": stack_rows(predict, order), "a": a}
    return Recipe("pc", order, form, space, arrays)


def bh1(
    sigmas: torch.Tensor,
    space: str,
    order: int = 3,
    form: str = "data",
    lower_order_final: bool = True,
) -> Recipe:
    """UniPC with B(h) = h."""
    return _unipc(sigmas, space, order, form, lower_order_final, fixed_gain=False)


def bh2(
    sigmas: torch.Tensor,
    space: str,
    order: int = 3,
    form: str = "data",
    lower_order_final: bool = True,
) -> Recipe:
    """UniPC with B(h) = e^h - 1."""
    return _unipc(sigmas, space, order, form, lower_order_final, fixed_gain=True)
