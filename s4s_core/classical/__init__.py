"""Classical solvers as tables, by name, on any nodes."""

import torch

from ..errors import TableError
from ..names import SOLVERS, check_form, check_options, check_space, resolve
from ..table import MAX_ORDER, SolverTable
from .recipe import Recipe


def classical_recipe(name, sigmas, space="ve", **options) -> Recipe:
    """The tensors of a classical solver at `sigmas` [steps + 1], differentiable in them."""
    check_space(space)
    if sigmas.ndim != 1 or len(sigmas) < 2:
        raise TableError("a solver needs a list of at least two nodes.")
    if not bool((sigmas[1:] < sigmas[:-1]).all()):
        raise TableError("a solver's nodes must be strictly decreasing.")
    build = resolve(SOLVERS, "solver", name, TableError)
    options = {key: value for key, value in options.items() if value is not None}
    check_options(build, "solver", name, options, TableError)
    order = options.get("order", 1)
    if not (type(order) is int and 1 <= order <= MAX_ORDER):
        raise TableError(f"order must be a whole number from 1 to {MAX_ORDER}.")
    if "form" in options:
        check_form(options["form"], space)
    return build(sigmas, space, **options)


def classical_table(name, sigmas, order=None, space="ve", **options) -> SolverTable:
    """The table of a classical solver: `classical_table("ipndm", sigmas, order=3, space="ve")`.

    `sigmas` are the nodes, decreasing; an order of None is the solver's usual one. A single-step
    solver of order k makes k calls a step.
    """
    try:
        nodes = torch.as_tensor(sigmas, dtype=torch.float64).detach().cpu().clone()
    except (TypeError, ValueError) as error:
        raise TableError(f"the nodes are not a list of numbers: {error}.") from None
    return classical_recipe(name, nodes, space, order=order, **options).table()
