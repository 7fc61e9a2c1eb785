"""Predictor-corrector on a multistep predictor, one call a step (LMS+PC row, with the j = 0 term).

The evaluation at the predicted point of node i corrects the state there, and is the newest entry
of the history from then on. The last step is not corrected: that would cost one more call.
"""

from ..program import fold_sigmas, program, rows
from ..spaces import step_factors


def lower(space, form, sigmas, call_sigmas, b, a):
    scale, factor = step_factors(space, form, sigmas[..., :-1], sigmas[..., 1:])
    predict = fold_sigmas(form, factor.unsqueeze(-1) * b, call_sigmas)
    correct = fold_sigmas(form, factor[..., :-1].unsqueeze(-1) * a, call_sigmas, first=1)
    states = [None, *rows(scale[..., :-1], correct, first=1)]
    return program(space, form, call_sigmas, states, rows(scale, predict))
