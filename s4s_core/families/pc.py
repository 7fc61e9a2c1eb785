"""Predictor-corrector on a multistep predictor, one call a step (LMS+PC row, with the j = 0 term).

The evaluation at the predicted point u_i of node i corrects the state there:
    u_i = A_i x_{i-1} + B_i sum_{j>=1} b_{j,i} f_{i-j}
    x_i = A_i x_{i-1} + B_i sum_{j>=0} a_{j,i} f_{i-j} = u_i + B_i sum_j (a_{j,i} - b_{j,i}) f_{i-j}
so that u_{i+1} = A_{i+1} x_i + ... is a multistep move on the predicted points alone, one
evaluation deeper than the predictor. The last step is not corrected: it would cost one more call.
"""

from torch.nn.functional import pad

from ..program import multistep
from ..spaces import step_factors


def lower(space, form, sigmas, call_sigmas, b, a):
    scale, factor = step_factors(space, form, sigmas[..., :-1], sigmas[..., 1:])
    predict = factor.unsqueeze(-1) * b
    correct = factor[..., :-1].unsqueeze(-1) * a
    change = correct - pad(predict[..., :-1, :], (1, 0))
    weights = pad(predict, (0, 1)) + scale.unsqueeze(-1) * pad(change, (0, 0, 1, 0))
    return multistep(space, form, call_sigmas, scale, weights)
