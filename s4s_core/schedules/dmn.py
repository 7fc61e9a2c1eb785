"""DMN (Xue et al.): nodes that minimise a bound on the global error, without calling a model.

With the exact exponential Lagrange rule (data form, order 3, lower at the end), the result is a
weighted sum of the network's predictions at the nodes. If the error of the prediction at node j is
at most eps_j, the error of the result is at most sum_j eps_j |W_j|, where W_j is the sum of node
j's weights over all steps. The inner lambdas minimise this bound.
"""

import importlib.util
import warnings

import numpy as np
import numpy.typing as npt
import torch

from ..classical.multistep import exp_lagrange
from ..errors import TableError, pip_install_line
from ..model import Model
from ..spaces import alpha, log_snr, sigma_of_log_snr
from .closed import finite, logsnr

_SMALLEST_GAP = 1e-3


def error_bound(space: str, sigmas: torch.Tensor, power: float) -> torch.Tensor:
    """Return sum_j eps_j |W_j| for nodes `sigmas`, up to a constant; differentiable."""
    recipe = exp_lagrange(sigmas, space, order=3, lower_order_final=True)
    snr = alpha(space, sigmas) / sigmas
    gains = (snr[1:] - snr[:-1]).unsqueeze(1) * recipe.arrays["b"]
    zero = gains.new_zeros(())
    total = torch.stack(
        [
            sum((gains[step, step - j] for step in range(j, min(j + 3, len(gains)))), zero)
            for j in range(len(gains))
        ]
    )
    noise = 1 / snr[:-1]
    eps = noise**power / (1 + noise**2) ** ((power - 1) / 2)
    return (eps * total.abs()).sum() / snr[-1]


@torch.inference_mode(False)
@torch.enable_grad()
def dmn(n: int, model: Model, low: float, high: float, power: float | None = None) -> torch.Tensor:
    """Return optimised nodes, with errors weighted by sigma^power / alpha.

    Use a power of 1 for pixels and 2 for latents. The default is 2 for models with discrete times
    (such as Stable Diffusion), otherwise 1.
    """
    if importlib.util.find_spec("scipy") is None:
        raise TableError(
            f"The schedule 'dmn' needs scipy. Install it with {pip_install_line('scipy')}"
        )
    from scipy.optimize import LinearConstraint, minimize

    space = model.space
    power = power or (2 if getattr(model, "times", None) is not None else 1)
    start = log_snr(space, logsnr(n, model, low, float(finite(space, high))))
    if n == 1:
        return sigma_of_log_snr(space, start)
    first, last = start[:1], start[-1:]

    def bound(values: npt.NDArray[np.float64]) -> tuple[float, npt.NDArray[np.float64]]:
        inner = torch.from_numpy(values.copy()).requires_grad_()
        value = error_bound(space, sigma_of_log_snr(space, torch.cat([first, inner, last])), power)
        (gradient,) = torch.autograd.grad(value, inner)
        return float(value), gradient.numpy()

    eye = torch.eye(n, n - 1, dtype=torch.float64)
    gaps = eye - eye.roll(1, 0)
    lower = torch.full((n,), _SMALLEST_GAP, dtype=torch.float64)
    lower[0], lower[-1] = lower[0] + first[0], lower[-1] - last[0]
    ordered = LinearConstraint(gaps.numpy(), lower.numpy(), float("inf"), keep_feasible=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # trust-constr warns of every step that changes nothing
        optimum = minimize(
            bound,
            start[1:-1].numpy(),
            jac=True,
            method="trust-constr",
            constraints=[ordered],
            options={"maxiter": 300},
        )
    return sigma_of_log_snr(space, torch.cat([first, torch.from_numpy(optimum.x), last]))
