"""DMN (Xue et al.): nodes that minimise a bound on the global error, without calling a model.

With the exact exponential Lagrange rule (data form, order 3, lower at the end), the result is a
weighted sum of the network's predictions at the nodes. If the error of the prediction at node j is
at most eps_j, that of the result is at most sum_j eps_j |W_j|, where W_j gathers node j's weights
over all steps. The inner lambdas minimise this bound.
"""

import importlib.util
import warnings

import torch

from ..classical.multistep import exp_lagrange
from ..errors import TableError, pip_line
from ..spaces import alpha, log_snr, sigma_of_log_snr
from .closed import finite, logsnr

_SMALLEST_GAP = 1e-3


def error_bound(space, sigmas, power):
    """sum_j eps_j |W_j| for nodes `sigmas`, up to a constant; differentiable."""
    recipe = exp_lagrange(sigmas, space, order=3, lower_order_final=True)
    snr = alpha(space, sigmas) / sigmas
    gains = (snr[1:] - snr[:-1]).unsqueeze(1) * recipe.arrays["b"]
    total = torch.stack(
        [
            sum(gains[step, step - j] for step in range(j, min(j + 3, len(gains))))
            for j in range(len(gains))
        ]
    )
    noise = 1 / snr[:-1]
    eps = noise**power / (1 + noise**2) ** ((power - 1) / 2)
    return (eps * total.abs()).sum() / snr[-1]


@torch.inference_mode(False)
@torch.enable_grad()
def dmn(n, model, low, high, power=None):
    """Optimised nodes; `power` p weighs errors by sigma^p / alpha: 1 for pixels, 2 for latents.

    The default is 2 for models with discrete times (Stable Diffusion and its kin), otherwise 1.
    """
    if importlib.util.find_spec("scipy") is None:
        raise TableError(f"The schedule 'dmn' needs scipy: install it with {pip_line('scipy')}")
    from scipy.optimize import LinearConstraint, minimize

    space = model.space
    power = power or (2 if getattr(model, "times", None) is not None else 1)
    start = log_snr(space, logsnr(n, model, low, float(finite(space, high))))
    if n == 1:
        return sigma_of_log_snr(space, start)
    first, last = start[:1], start[-1:]

    def bound(inner):
        inner = torch.from_numpy(inner.copy()).requires_grad_()
        value = error_bound(space, sigma_of_log_snr(space, torch.cat([first, inner, last])), power)
        (gradient,) = torch.autograd.grad(value, inner)
        return float(value), gradient.numpy()

    eye = torch.eye(n, n - 1, dtype=torch.float64)
    gaps = eye - eye.roll(1, 0)
    lower = torch.full((n,), _SMALLEST_GAP, dtype=torch.float64)
    lower[0], lower[-1] = lower[0] + first[0], lower[-1] - last[0]
    ordered = LinearConstraint(gaps.numpy(), lower.numpy(), float("inf"), keep_feasible=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # trust-constr remarks on every step that changes nothing
        found = minimize(
            bound,
            start[1:-1].numpy(),
            jac=True,
            method="trust-constr",
            constraints=[ordered],
            options={"maxiter": 300},
        )
    return sigma_of_log_snr(space, torch.cat([first, torch.from_numpy(found.x), last]))
