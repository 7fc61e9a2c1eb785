"""Single-step methods of `order` stages (SS row), rescaled as the exponential form needs.

Stage j > 0 of a step sits at its own call sigma s: u = A(s) x + B(s) sum_l a_{j,l} kappa_l. (The
paper's printed row, x + sum a kappa, omits the rescaling.) The last step may have fewer stages.
"""

from ..program import Update, fold_sigmas, program
from ..spaces import step_factors


def _newest_first(form, weights, calls, call):
    """Weights [..., m] of a step's first m stages, in order, as history weights at call `call`."""
    return fold_sigmas(form, weights.flip(-1).unsqueeze(-2), calls, first=call).squeeze(-2)


def lower(space, form, sigmas, call_sigmas, b, a):
    steps, order, nfe = b.shape[-2], b.shape[-1], call_sigmas.shape[-1]
    states, points = [], []
    for step in range(steps):
        start, end = sigmas[..., step], sigmas[..., step + 1]
        first = step * order
        stages = min(order, nfe - first)
        for stage in range(1, stages):
            target = call_sigmas[..., first + stage]
            scale, factor = step_factors(space, form, start, target)
            weights = factor.unsqueeze(-1) * a[..., step, stage, :stage]
            call = first + stage - 1
            states.append(None)
            points.append(Update(scale, _newest_first(form, weights, call_sigmas, call)))
        scale, factor = step_factors(space, form, start, end)
        weights = factor.unsqueeze(-1) * b[..., step, :stages]
        states.append(Update(scale, _newest_first(form, weights, call_sigmas, first + stages - 1)))
        points.append(None)
    return program(space, form, call_sigmas, states, points)
