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


def _moved(table, start, sigma):
    """(nodes, call times) of the table with node `start` moved to `sigma`.

    The calls of the step that begins there keep their places in it, measured in log sigma.
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


def tail(table, start, sigma=None):
    """The table that begins at node `start`, or at `sigma` in its place.

    `tail(table, 0)` is the table itself.
    """
    if not 0 <= start < table.steps:
        raise TableError(f"a table of {table.steps} steps cannot start at node {start}.")
    if sigma is not None and not sigma > table.sigmas[start + 1]:
        raise TableError(f"node {start} cannot be moved to {sigma:g}, past the next node.")
    if start == 0 and sigma is None:
        return table
    nodes, calls = table.sigmas, table.call_sigmas
    if sigma is not None:
        nodes, calls = _moved(table, start, sigma)
    coefficients = {name: array[start:] for name, array in table.coefficients.items()}
    if table.family != "ss" and start > 0:
        grid = natural_grid(table.space, table.form, torch.tensor(nodes))
        for name, ahead in (("b", False), ("a", True)):
            if name in coefficients:
                coefficients[name] = _refill(coefficients[name], grid, start, ahead)
    first = start * table.nfe_per_step
    return table.replace(sigmas=nodes[start:], call_sigmas=calls[first:], **coefficients)


def head(table, stop):
    """The table that ends at node `stop`, above the table's own ending."""
    if not 1 <= stop <= table.steps:
        raise TableError(f"a table of {table.steps} steps cannot stop at node {stop}.")
    if stop == table.steps:
        return table
    rows = {name: stop - 1 if (table.family, name) == ("pc", "a") else stop for name in "ab"}
    coefficients = {name: array[: rows[name]] for name, array in table.coefficients.items()}
    calls = table.call_sigmas[: stop * table.nfe_per_step]
    return table.replace(sigmas=table.sigmas[: stop + 1], call_sigmas=calls, **coefficients)


def nearest_node(table, sigma):
    """Index of the node, the last one apart, that is nearest to `sigma` in the logarithm."""
    return int(np.abs(np.log(table.sigmas[:-1]) - np.log(max(sigma, 1e-12))).argmin())
