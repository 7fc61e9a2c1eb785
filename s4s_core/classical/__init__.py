"""Classical solvers as tables, by name, on any nodes."""

import numpy.typing as npt
import torch

from ..errors import TableError
from ..model import HasSpace
from ..names import SOLVERS, check_form, check_options, check_space, resolve
from ..table import MAX_ORDER, SolverTable
from .recipe import Recipe


def _space_name(space: str | HasSpace | None) -> str:
    """Return "ve" or "flow", given that name or an object with that `space`."""
    name = space if isinstance(space, str) else getattr(space, "space", None)
    if name is None:
        raise TableError(
            "The space of the nodes is unknown. Pass space='ve' or 'flow', or the model itself."
        )
    check_space(name)
    return str(name)


def classical_recipe(
    name: str, sigmas: torch.Tensor, space: str | HasSpace, **options: object
) -> Recipe:
    """Return the tensors of a classical solver at `sigmas` [steps + 1], differentiable in them."""
    space = _space_name(space)
    if sigmas.ndim != 1 or len(sigmas) < 2:
        raise TableError("A solver needs a list of at least two nodes.")
    if not bool((sigmas[1:] < sigmas[:-1]).all()):
        raise TableError("The nodes of a solver must be strictly decreasing.")
    build = resolve(SOLVERS, "solver", name, TableError)
    options = {key: value for key, value in options.items() if value is not None}
    check_options(build, "solver", name, options, TableError)
    order = options.get("order", 1)
    if not (type(order) is int and 1 <= order <= MAX_ORDER):
        raise TableError(f"order must be an integer from 1 to {MAX_ORDER}.")
    if "form" in options:
        check_form(str(options["form"]), space)
    recipe: Recipe = build(sigmas, space, **options)
    return recipe


def classical_table(
    name: str,
    sigmas: torch.Tensor | npt.ArrayLike,
    order: int | None = None,
    space: str | HasSpace | None = None,
    **options: object,
) -> SolverTable:
    """Return a classical solver's table: `classical_table("ipndm", sigmas, order=3, space="ve")`.

    `sigmas` are the nodes, decreasing. `space` is "ve", "flow" or a model. Without an order, the
    solver's usual one is used. A single-step solver of order k makes k calls per step.
    """
    space = _space_name(space)
    try:
        nodes = torch.as_tensor(sigmas, dtype=torch.float64).detach().cpu().clone()
    except (TypeError, ValueError) as error:
        raise TableError(f"The nodes must be a list of numbers: {error}.") from None
    return classical_recipe(name, nodes, space, order=order, **options).table()
