"""Single-step solvers: DPM-Solver 2S and 3S, and Heun. A step of order k costs k calls."""

import torch

from ..errors import TableError
from ..spaces import clip_ends, log_snr, sigma_of_log_snr
from .lagrange import phi
from .recipe import Recipe, default_form

_STAGES = {2: (0.0, 1 / 2), 3: (0.0, 1 / 3, 2 / 3)}


def _stage_weights(order: int, z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (a, b) of a DPM-Solver step: z = h (noise) or -h (data), stages at r h in lambda."""
    zero, one = torch.zeros_like(z), torch.ones_like(z)
    if order == 2:
        a = torch.stack([torch.stack([zero, zero]), torch.stack([one, zero])])
        return a, torch.stack([zero, one])
    r1, r2 = _STAGES[3][1:]
    a32 = (r2 / r1) * phi(2, r2 * z) / phi(1, r2 * z)
    beta = phi(2, z) / (r2 * phi(1, z))
    rows = ([zero, zero, zero], [one, zero, zero], [1 - a32, a32, zero])
    return torch.stack([torch.stack(r) for r in rows]), torch.stack([1 - beta, zero, beta])


def dpm_solver(sigmas: torch.Tensor, space: str, order: int = 2, form: str | None = None) -> Recipe:
    """DPM-Solver 2S or 3S (Lu et al.), by default in the noise form, for flow in the data form.

    A step to sigma = 0 has no midpoint in lambda: its stages are placed as for a clipped end, and
    its result is the prediction of the last stage, which is of order 1.
    """
    if order not in _STAGES:
        raise TableError("dpm-solver has orders 2 and 3.")
    form = form or ("noise" if space == "ve" else "data")
    lam = log_snr(space, clip_ends(space, sigmas))
    calls: list[torch.Tensor] = []
    a, b = [], []
    for step in range(len(sigmas) - 1):
        h = lam[step + 1] - lam[step]
        inner = [sigma_of_log_snr(space, lam[step] + r * h) for r in _STAGES[order][1:]]
        calls += [sigmas[step], *inner]
        stage, final = _stage_weights(order, h if form == "noise" else -h)
        if sigmas[step + 1].item() == 0:
            final = torch.eye(order, dtype=sigmas.dtype)[-1]
        a.append(stage)
        b.append(final)
    arrays = {"sigmas": sigmas, "call_sigmas": torch.stack(calls)}
    return Recipe("ss", order, form, space, {**arrays, "a": torch.stack(a), "b": torch.stack(b)})


def heun(sigmas: torch.Tensor, space: str, order: int = 2) -> Recipe:
    """Heun's method in sigma, as in EDM; a final step to sigma = 0 is an Euler step of one call."""
    if order != 2:
        raise TableError("heun only has order 2.")
    steps = len(sigmas) - 1
    calls = torch.stack([sigmas[:-1], sigmas[1:]], dim=1).flatten()
    b = sigmas.new_full((steps, 2), 0.5)
    a = sigmas.new_tensor([[0, 0], [1, 0]]).repeat(steps, 1, 1)
    if sigmas[-1].item() == 0:
        calls, b[-1], a[-1] = calls[:-1], sigmas.new_tensor([1, 0]), 0
    arrays = {"sigmas": sigmas, "call_sigmas": calls, "a": a, "b": b}
    return Recipe("ss", 2, default_form(space), space, arrays)
