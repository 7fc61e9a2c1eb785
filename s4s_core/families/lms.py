"""Linear multistep: x_i = A_i x_{i-1} + B_i sum_j b_{j,i} f_{i-j} (eq:solver, LMS row)."""

from ..program import multistep
from ..spaces import step_factors


def lower(space, form, sigmas, call_sigmas, b):
    scale, factor = step_factors(space, form, sigmas[..., :-1], sigmas[..., 1:])
    return multistep(space, form, call_sigmas, scale, factor.unsqueeze(-1) * b)
