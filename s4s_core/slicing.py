"""Parts of a table: from a later node on (img2img, denoise below 1), or up to an earlier one.

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


def _with_moved_node(table: SolverTable, start: int, sigma: float) -> tuple[Array, Array]:
    """Return the nodes and call times of the table with node `start` moved to `sigma`.

    The calls of the step that begins there keep their relative places, measured in log sigma.
    """
    nodes, calls = table.sigmas.copy(), table.call_sigmas.copy()
    first = start * table.nfe_per_step
    step = slice(first, first + table.nfe_per_step)
    old, after, nodes[start] = nodes[start], nodes[start + 1], sigma
    if after > 0:
        share = np.log(calls[step] / old) / np.log(after / old)
        moved = sigma * (after / sigma) ** share
    else:
        moved = sigma * calls[step] / old
    calls[step] = np.minimum(moved, 1.0) if table.space == "flow" else moved
    return nodes, calls


def from_node(table: SolverTable, start: int, sigma: float | None = None) -> SolverTable:
    """Return the part of a table that begins at node `start`, or at `sigma` in its place.

    `from_node(table, 0)` is the table itself.
    """
    if not 0 <= start < table.steps:
        raise TableError(f"A table of {table.steps} steps cannot start at node {start}.")
    if sigma is not None and not sigma > table.sigmas[start + 1]:
        raise TableError(f"Cannot move node {start} to {sigma:g}, past the next node.")
    if start == 0 and sigma is None:
        return table
    nodes, calls = table.sigmas, table.call_sigmas
    if sigma is not None:
        nodes, calls = _with_moved_node(table, start, sigma)
    coefficients = {name: array[start:] for name, array in table.coefficients.items()}
    if table.nfe_per_step == 1 and start > 0:  # multistep: rows may reach back over the start
        grid = natural_grid(table.space, table.form, torch.tensor(nodes))
        for name, ahead in (("b", False), ("a", True)):
            if name in coefficients:
                coefficients[name] = _refill(coefficients[name], grid, start, ahead)
    first = start * table.nfe_per_step
    times = {"sigmas": nodes[start:], "call_sigmas": calls[first:]}
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


def lay_nodes(table: SolverTable, steps: int) -> Array:
    """Return steps + 1 strictly decreasing nodes, laid between the same ends as the table's lie.

    They are interpolated in log sigma, or in sigma where an interval ends at 0.
    """
    places = np.linspace(0, table.steps, steps + 1)
    before = np.minimum(places.astype(int), table.steps - 1)
    share, above, below = places - before, table.sigmas[before], table.sigmas[before + 1]
    between = above ** (1 - share) * below**share
    return np.asarray(np.where(below > 0, between, above * (1 - share)))


def nearest_node(table: SolverTable, sigma: float) -> int:
    """Return the index of the node nearest to `sigma` in log sigma, the last node excluded."""
    return int(np.abs(np.log(table.sigmas[:-1]) - np.log(max(sigma, 1e-12))).argmin())
