"""Parts of a table: from a later node on, or up to an earlier one; and nodes laid as its nodes lie.

Rows that would use evaluations from before the new start get the classical weights of the order
that is left: the exact Lagrange rule natural to the form.
"""

import numpy as np
import numpy.typing as npt
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


def levels_at(table: SolverTable, places: npt.ArrayLike) -> Array:
    """Return the levels at places among a table's nodes: 1.5 is halfway from node 1 to node 2.

    Levels are interpolated in log sigma, or in sigma where an interval ends at 0. Negative places
    lie above the first node.
    """
    places = np.asarray(places, dtype=np.float64)
    before = np.clip(places.astype(int), 0, table.steps - 1)
    share, above, below = places - before, table.sigmas[before], table.sigmas[before + 1]
    with np.errstate(divide="ignore"):
        between = above ** (1 - share) * below**share
    return np.asarray(np.where(below > 0, between, above * (1 - share)))


def places_of(table: SolverTable, sigmas: npt.ArrayLike) -> Array:
    """Return where levels lie among a table's nodes: the inverse of `levels_at`."""
    sigmas = np.asarray(sigmas, dtype=np.float64)
    index = np.searchsorted(-table.sigmas, -sigmas, "right") - 1
    index = np.clip(index, 0, table.steps - 1)
    above, below = table.sigmas[index], table.sigmas[index + 1]
    with np.errstate(divide="ignore"):
        between = np.log(above / sigmas) / np.log(above / below)
    return np.asarray(index + np.where(below > 0, between, 1 - sigmas / above))


def lay_nodes(
    table: SolverTable, steps: int, first: float | None = None, last: float | None = None
) -> Array:
    """Return steps + 1 strictly decreasing nodes, laid as densely as the table's lie.

    They run from `first` to `last`, by default between the table's own ends.
    """
    ends = (
        0.0 if first is None else float(places_of(table, first)),
        table.steps if last is None else float(places_of(table, last)),
    )
    nodes = levels_at(table, np.linspace(*ends, steps + 1))
    for at, end in ((0, first), (-1, last)):
        if end is not None:
            nodes[at] = end
    return nodes
