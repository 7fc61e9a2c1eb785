"""Linear multistep solvers: Euler, iPNDM, Adams-Bashforth, DPM-Solver++, exponential Lagrange."""

from collections.abc import Callable, Sequence

import torch

from ..errors import TableError
from .lagrange import Grid, moments, stack_rows
from .recipe import Recipe, default_form

_IPNDM = {
    1: (1.0,),
    2: (3 / 2, -1 / 2),
    3: (23 / 12, -16 / 12, 5 / 12),
    4: (55 / 24, -59 / 24, 37 / 24, -9 / 24),
}


def _lms(
    space: str, form: str, order: int, sigmas: torch.Tensor, rows: Sequence[torch.Tensor]
) -> Recipe:
    """Return the multistep recipe with these rows of weights, called at its nodes."""
    arrays = {"sigmas": sigmas, "call_sigmas": sigmas[:-1], "b": stack_rows(rows, order)}
    return Recipe("lms", order, form, space, arrays)


def orders_of(steps: int, order: int, lower_order_final: bool) -> list[int]:
    """Return the order of each step: rising from 1, and falling to 1 at the end if requested."""
    up = [min(order, step + 1) for step in range(steps)]
    return [min(k, steps - i) for i, k in enumerate(up)] if lower_order_final else up


def euler(sigmas: torch.Tensor, space: str, order: int = 1) -> Recipe:
    """Euler in sigma, which is DDIM: order 1 is the same step in every form."""
    if order != 1:
        raise TableError("euler only has order 1.")
    form = default_form(space)
    return _lms(space, form, 1, sigmas, [sigmas.new_ones(1)] * (len(sigmas) - 1))


def ipndm(sigmas: torch.Tensor, space: str, order: int = 3) -> Recipe:
    """iPNDM (Zhang and Chen): Adams-Bashforth weights of uniform steps, on any nodes."""
    if order not in _IPNDM:
        raise TableError("ipndm has orders 1 to 4.")
    rows = [sigmas.new_tensor(_IPNDM[k]) for k in orders_of(len(sigmas) - 1, order, False)]
    return _lms(space, default_form(space), order, sigmas, rows)


def adams_bashforth(sigmas: torch.Tensor, space: str, order: int = 3) -> Recipe:
    """Adams-Bashforth with the exact weights of variable steps, of any order."""
    form = default_form(space)
    grid = Grid(space, form, sigmas, exponential=False)
    orders = orders_of(len(sigmas) - 1, order, False)
    return _lms(space, form, order, sigmas, [grid.weights(i, k) for i, k in enumerate(orders)])


def exp_lagrange(
    sigmas: torch.Tensor,
    space: str,
    order: int = 3,
    form: str = "data",
    lower_order_final: bool = False,
) -> Recipe:
    """The exact exponential Lagrange rule of any order (eqn:lambda-exact-soln, interpolated)."""
    grid = Grid(space, form, sigmas, exponential=True)
    orders = orders_of(len(sigmas) - 1, order, lower_order_final)
    return _lms(space, form, order, sigmas, [grid.weights(i, k) for i, k in enumerate(orders)])


def second_order_row(grid: Grid, step: int, gain: torch.Tensor | float = 1.0) -> torch.Tensor:
    """Return two weights with the first moment fixed at gain / 2: DPM-Solver++ 2M, and UniP-2."""
    older = gain / (2 * grid.taus(step, 2)[1])
    return torch.stack([1 - older, older])


def _third_order_row(grid: Grid, step: int) -> torch.Tensor:
    """DPM-Solver++ 3M; its second difference lacks a factor of 2, so its true order is 2."""
    _, near, far = grid.taus(step, 3)
    _, mean, square = moments(grid.z(step), 3)
    half = square / 2
    slope, curve = -1 / near, -1 / (far - near)
    share = near / far
    first = slope * (1 + share) * mean + slope * half / -far
    last = curve * share * mean + curve * half / -far
    return torch.stack([1 + first, -first - last, last])


def dpmpp(
    sigmas: torch.Tensor,
    space: str,
    order: int = 3,
    form: str = "data",
    lower_order_final: bool = False,
) -> Recipe:
    """DPM-Solver++ multistep, orders 1 to 3 (2M, 3M); order 1 on a step to sigma = 0."""
    if order not in (1, 2, 3):
        raise TableError("dpmpp has orders 1 to 3.")
    grid = Grid(space, form, sigmas, exponential=True)
    rules: dict[int, Callable[[int], torch.Tensor]] = {
        1: lambda step: sigmas.new_ones(1),
        2: lambda step: second_order_row(grid, step),
        3: lambda step: _third_order_row(grid, step),
    }
    orders = orders_of(len(sigmas) - 1, order, lower_order_final)
    rows = [rules[1 if grid.infinite(i) else k](i) for i, k in enumerate(orders)]
    return _lms(space, form, order, sigmas, rows)


def gaussian(sigmas: torch.Tensor, space: str, order: int = 3, seed: int = 0) -> Recipe:
    """Standard normal weights, the paper's blind initialisation (app:ablate-initialization)."""
    generator = torch.Generator().manual_seed(seed)
    draws = torch.randn(len(sigmas) - 1, order, generator=generator, dtype=sigmas.dtype)
    rows = [draws[i, : min(order, i + 1)] for i in range(len(draws))]
    return _lms(space, default_form(space), order, sigmas, rows)
