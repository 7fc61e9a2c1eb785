"""Learned solvers that others publish, lists of times and weights, as tables of ours."""

import numpy as np
import torch

from .errors import TableError
from .forms import check_form
from .names import DOMAINS
from .spaces import sigma_of_log_snr, step_factors
from .table import SolverTable


def _floats(values):
    try:
        return [float(value) for value in values]
    except (TypeError, ValueError):
        raise TableError("times and weights must be lists of numbers.") from None


def _to_sigma(values, domain, space, times):
    """Published times as sigmas; a log-SNR of infinity is sigma 0."""
    values = torch.tensor(_floats(values), dtype=torch.float64)
    if domain == "sigma":
        return values
    if domain == "logsnr":
        return sigma_of_log_snr(space, values)
    if domain == "time" and times is not None:
        return times.sigma(values)
    raise TableError(
        f"times can be given as {', '.join(DOMAINS)}, the last one with a DiscreteTimes as `times`."
    )


def table_from_lists(
    nodes,
    weights,
    *,
    space="ve",
    form="noise",
    domain="sigma",
    times=None,
    call_nodes=None,
    newest_first=True,
    absolute=False,
):
    """A multistep table from published lists.

    nodes [steps + 1] and call_nodes [steps] (default: the nodes) in `domain`; weights is one list
    per step, over the evaluations it uses, in the order that `newest_first` says. `absolute`
    weights multiply f directly, x_i = A x_{i-1} + sum_j w_j f; otherwise they are the b of
    eq:solver. A form of history is part of what was learned and cannot be converted.
    """
    check_form(form, space)
    sigmas = _to_sigma(nodes, domain, space, times)
    calls = sigmas[:-1] if call_nodes is None else _to_sigma(call_nodes, domain, space, times)
    if len(weights) != len(sigmas) - 1:
        raise TableError(
            f"{len(sigmas) - 1} steps need as many lists of weights, not {len(weights)}."
        )
    weights = [_floats(row) for row in weights]
    order = max(map(len, weights), default=0)
    b = np.zeros((len(weights), order))
    for row, given in zip(b, weights, strict=True):
        row[: len(given)] = given if newest_first else given[::-1]
    if absolute:
        factor = step_factors(space, form, sigmas[:-1], sigmas[1:])[1]
        b /= factor.numpy()[:, None]
    return SolverTable("lms", order, form, space, sigmas.numpy(), calls.numpy(), {"b": b})
