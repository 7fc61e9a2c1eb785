"""Linear multistep: x_i = A_i x_{i-1} + B_i sum_j b_{j,i} f_{i-j} (eq:solver, LMS row)."""

from ..program import fold_sigmas, program, rows
from ..spaces import step_factors


def lower(space, form, sigmas, call_sigmas, b):
    scale, factor = step_factors(space, form, sigmas[..., :-1], sigmas[..., 1:])
    weights = fold_sigmas(form, factor.unsqueeze(-1) * b, call_sigmas)
    moves = rows(scale, weights)
    return program(space, form, call_sigmas, moves, [None] * len(moves))
