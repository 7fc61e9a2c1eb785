"""Schedules: N + 1 strictly decreasing nodes from a model's sigma_max to the ending, by name."""

import torch

from ..errors import TableError
from ..model import Model
from ..names import SCHEDULES, check_options, check_space, resolve
from ..table import MAX_NFE


def schedule(
    name: str, n: int, model: Model, ending: float = 0.0, **options: object
) -> torch.Tensor:
    """Return float64 nodes [n + 1], decreasing from exactly model.sigma_max to exactly `ending`.

    A positive ending is also where the spacing ends. For an ending of 0, nodes are spaced down to
    model.sigma_min and the last one is moved to 0, so that no call is spent at sigma_min. Only
    `space`, `sigma_min`, `sigma_max` and the optional `times` of the model are used; gits also
    samples from it.
    """
    build = resolve(SCHEDULES, "schedule", name, TableError)
    check_options(build, "schedule", name, options, TableError)
    check_space(model.space)
    if not (type(n) is int and 1 <= n <= MAX_NFE):
        raise TableError(f"The number of steps must be an integer from 1 to {MAX_NFE}.")
    low, high = float(ending) or float(model.sigma_min), float(model.sigma_max)
    if not 0 < low < high or ending < 0:
        raise TableError(f"The ending must be 0 or lie between 0 and sigma_max ({high:g}).")
    nodes: torch.Tensor = build(n, model, low, high, **options)
    nodes = torch.cat([nodes.new_tensor([high]), nodes[1:-1], nodes.new_tensor([float(ending)])])
    if not bool((nodes[1:] < nodes[:-1]).all()):
        raise TableError(
            f"The schedule '{name}' cannot place {n} steps between {high:g} and {low:g}."
        )
    return nodes
