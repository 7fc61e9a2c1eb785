"""Single-step methods of `order` stages (SS row), rescaled as the exponential form needs.

Stage j > 0 of a step sits at its own call sigma s: u = A(s) x + B(s) sum_l a_{j,l} kappa_l. (The
paper's printed row, x + sum a kappa, omits the rescaling.) The last step may have fewer stages.
"""

from ..program import Move, fold_sigmas, program
from ..spaces import step_factors


def lower(space, form, sigmas, call_sigmas, b, a):
    steps, order, nfe = b.shape[-2], b.shape[-1], call_sigmas.shape[-1]

    def move(start, target, weights, call, accept):
        """From `start` to `target` with weights [..., m] of the step's first m stages, in order."""
        scale, factor = step_factors(space, form, start, target)
        newest_first = (factor.unsqueeze(-1) * weights).flip(-1).unsqueeze(-2)
        folded = fold_sigmas(form, newest_first, call_sigmas, first=call)
        return Move(scale, folded.squeeze(-2), accept)

    moves = []
    for step in range(steps):
        start, first = sigmas[..., step], step * order
        stages = min(order, nfe - first)
        for stage in range(1, stages):
            target, weights = call_sigmas[..., first + stage], a[..., step, stage, :stage]
            moves.append(move(start, target, weights, first + stage - 1, accept=False))
        weights = b[..., step, :stages]
        moves.append(move(start, sigmas[..., step + 1], weights, first + stages - 1, accept=True))
    return program(space, form, call_sigmas, moves)
