"""Schedules: N + 1 strictly decreasing nodes from a model's sigma_max to the ending, by name."""

import torch

from ..errors import TableError
from ..names import SCHEDULES, check_options, check_space, resolve
from ..table import MAX_NFE


def schedule(name, n, model, ending=0.0, **options):
    """float64 nodes [n + 1], decreasing from exactly model.sigma_max to exactly `ending`.

    A positive ending is where the spacing ends too. An ending of 0 is spaced as for
    model.sigma_min and only the last node is moved to 0, so that no call is spent at sigma_min.
    `model` provides space, sigma_min, sigma_max and, where it has times of its own, `times`
    (DiscreteTimes, ShiftedTimes); gits calls its denoiser as well.
    """
    build = resolve(SCHEDULES, "schedule", name, TableError)
    check_options(build, "schedule", name, options, TableError)
    check_space(model.space)
    if not (type(n) is int and 1 <= n <= MAX_NFE):
        raise TableError(f"the number of steps must be a whole number from 1 to {MAX_NFE}.")
    low, high = float(ending) or float(model.sigma_min), float(model.sigma_max)
    if not 0 < low < high or ending < 0:
        raise TableError(f"the ending must be 0 or lie between 0 and sigma_max ({high:g}).")
    nodes = build(n, model, low, high, **options)
    nodes = torch.cat([nodes.new_tensor([high]), nodes[1:-1], nodes.new_tensor([float(ending)])])
    if not bool((nodes[1:] < nodes[:-1]).all()):
        raise TableError(
            f"the schedule '{name}' cannot place {n} steps between {high:g} and {low:g}."
        )
    return nodes
