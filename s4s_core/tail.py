"""The rest of a table from a later node on: what img2img and `denoise` below 1 run.

Rows that would use evaluations from before the new start fall back to the classical weights of
the order that they still have: the exact Lagrange rule natural to the form.
"""

import numpy as np
import torch

from .classical.lagrange import natural_grid
from .errors import TableError


def _refill(rows, grid, first, ahead):
    """Rows of weights after a fresh start; those that lack history are refilled.

    Row r (step first + r) of a predictor has seen r + 1 evaluations; a corrector's row has seen
    those and the one ahead.
    """
    out = rows.copy()
    for r in range(len(rows)):
        seen = r + 1 + ahead
        if rows[r, seen:].any():
            weights = grid.weights(first + r, r + 1, ahead=ahead).numpy()
            out[r] = np.pad(weights, (0, rows.shape[1] - len(weights)))
    return out


def tail(table, start):
    """The table that begins at node `start`; `tail(table, 0)` is the table itself."""
    if not 0 <= start < table.steps:
        raise TableError(f"a table of {table.steps} steps cannot start at node {start}.")
    if start == 0:
        return table
    if table.family == "ss":
        first, coefficients = (
            start * table.order,
            {k: v[start:] for k, v in table.coefficients.items()},
        )
    else:
        grid = natural_grid(table.space, table.form, torch.tensor(table.sigmas))
        first, coefficients = (
            start,
            {"b": _refill(table.coefficients["b"][start:], grid, start, False)},
        )
        if table.family == "pc":
            coefficients["a"] = _refill(table.coefficients["a"][start:], grid, start, True)
    return table.replace(
        sigmas=table.sigmas[start:], call_sigmas=table.call_sigmas[first:], **coefficients
    )


def nearest_node(table, sigma):
    """Index of the node, the last one apart, that is nearest to `sigma` in the logarithm."""
    return int(np.abs(np.log(table.sigmas[:-1]) - np.log(max(sigma, 1e-12))).argmin())
