"""Pieces of a table: from a later node on, or up to an earlier one.

Rows that would use evaluations from before the new start get the classical weights of the order
that is left: the exact Lagrange rule natural to the form.
"""

import numpy as np
import torch

from .classical.lagrange import Grid, natural_grid
from .errors import TableError
from .table import Array, SolverTable, coefficient_masks


def _refill(rows: Array, grid: Grid, first: int, ahead: bool) -> Array:
    """Replace the rows of weights that lack history after a start at step `first`.

    Row r (step first + r) of a predictor has seen r + 1 evaluations; a corrector's row has also
    seen the one ahead.
    """
    out: Array = rows.copy()
    for r in range(len(rows)):
        seen = r + 1 + ahead
        if rows[r, seen:].any():
            weights = grid.weights(first + r, r + 1, ahead=ahead).numpy()
            out[r] = np.pad(weights, (0, rows.shape[1] - len(weights)))
    return out


def from_node(table: SolverTable, start: int) -> SolverTable:
    """Return the part of a table that begins at node `start`; from node 0, the table itself."""
    if not 0 <= start < table.steps:
        raise TableError(f"A table of {table.steps} steps cannot start at node {start}.")
    if start == 0:
        return table
    coefficients = {name: array[start:] for name, array in table.coefficients.items()}
    if table.nfe_per_step == 1:  # multistep: rows may reach back over the start
        grid = natural_grid(table.space, table.form, torch.tensor(table.sigmas))
        for name, ahead in (("b", False), ("a", True)):
            if name in coefficients:
                coefficients[name] = _refill(coefficients[name], grid, start, ahead)
    first = start * table.nfe_per_step
    times = {"sigmas": table.sigmas[start:], "call_sigmas": table.call_sigmas[first:]}
    return table.replace(**times, **_guidance(table, slice(first, None)), **coefficients)


def _guidance(table: SolverTable, calls: slice) -> dict[str, Array]:
    """Return the multipliers of some calls, if the table has any."""
    return {} if table.guidance is None else {"guidance": table.guidance[calls]}


def until_node(table: SolverTable, stop: int) -> SolverTable:
    """Return the part of a table that ends at node `stop`."""
    if not 1 <= stop <= table.steps:
        raise TableError(f"A table of {table.steps} steps cannot stop at node {stop}.")
    if stop == table.steps:
        return table
    calls = table.call_sigmas[: stop * table.nfe_per_step]
    masks = coefficient_masks(table.family, stop, table.order, len(calls))
    coefficients = {name: table.coefficients[name][: len(mask)] for name, mask in masks.items()}
    times = {"sigmas": table.sigmas[: stop + 1], "call_sigmas": calls}
    return table.replace(**times, **_guidance(table, slice(len(calls))), **coefficients)
