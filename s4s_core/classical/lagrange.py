"""Exact integration of the polynomial through past evaluations, plain or exponential.

A step of a form's integral (see spaces) is B times a weighted mean of f. With f interpolated by a
polynomial in tau, 0 at the start of the step and 1 at its end, the weights b_j of evaluations at
tau_j satisfy the moment equations
    sum_j b_j tau_j^m = M_m,   m = 0 .. k-1,   M_m = m! phi_{m+1}(z) / phi_1(z)
with the paper's phi (app:taylor). A polynomial in lambda has z = -h for data and h for noise (the
exponential rules); a polynomial in the variable of the integral has z = 0 (Adams-Bashforth).
"""

import math
from collections.abc import Sequence

import torch

from ..spaces import alpha, clip_ends, log_snr

_SERIES_TERMS = 60


def phis(count: int, z: torch.Tensor) -> list[torch.Tensor]:
    """Return [phi_1(z), ..., phi_count(z)] for a 0-dim z, without cancellation.

    phi_k(z) = int_0^1 e^((1-d) z) d^(k-1) / (k-1)! dd, and phi_{k+1} = (phi_k - 1/k!) / z. Upwards
    this recurrence loses digits if |z| is small compared to k. Then the last phi comes from its
    series, and the recurrence runs downwards.
    """
    if abs(z.item()) >= count:
        values = [z.expm1() / z]
        for k in range(1, count):
            values.append((values[-1] - 1 / math.factorial(k)) / z)
        return values
    last = torch.zeros_like(z)
    for n in reversed(range(_SERIES_TERMS)):
        last = last * z + 1 / math.factorial(n + count)
    values = [last]
    for k in reversed(range(1, count)):
        values.append(z * values[-1] + 1 / math.factorial(k))
    return values[::-1]


def phi(k: int, z: torch.Tensor) -> torch.Tensor:
    """Return phi_k(z)."""
    return phis(k, z)[-1]


def moments(z: torch.Tensor, count: int) -> torch.Tensor:
    """Return M_0 .. M_{count-1} of a step, the right-hand sides of the moment equations."""
    values = phis(count, z)
    return torch.stack([math.factorial(m) * v / values[0] for m, v in enumerate(values)])


def solve_weights(taus: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    """Return the weights of evaluations at `taus` that satisfy the moment equations."""
    powers = torch.arange(len(taus), dtype=taus.dtype).unsqueeze(1)
    weights: torch.Tensor = torch.linalg.solve(taus.unsqueeze(0) ** powers, moments(z, len(taus)))
    return weights


class Grid:
    """The nodes in the variable of a rule, and the rule's weights for any step.

    Exponential rules use polynomials in lambda, with singular ends clipped. Plain rules use
    polynomials in sigma / alpha (noise) or sigma (velocity). A step to sigma = 0 has infinite h:
    there exponential rules have order 1, and `weights` uses the newest evaluation alone.
    """

    def __init__(self, space: str, form: str, sigmas: torch.Tensor, exponential: bool) -> None:
        self.exponential = exponential
        self.singular_end = exponential and sigmas[-1].item() == 0
        self.sign = 1 if form == "noise" else -1
        if exponential:
            self.at = log_snr(space, clip_ends(space, sigmas))
        elif form == "noise":
            self.at = sigmas / alpha(space, sigmas)
        else:
            self.at = sigmas
        self.steps = len(sigmas) - 1

    def infinite(self, step: int) -> bool:
        """Whether h is infinite, so that an exponential rule has order 1."""
        return self.singular_end and step == self.steps - 1

    def h(self, step: int) -> torch.Tensor:
        return self.at[step + 1] - self.at[step]

    def z(self, step: int) -> torch.Tensor:
        return self.sign * self.h(step) if self.exponential else torch.zeros_like(self.at[0])

    def taus(self, step: int, count: int, ahead: bool = False) -> torch.Tensor:
        """Return tau of the `count` newest evaluations, after that of the step's end if `ahead`."""
        first = step + 1 if ahead else step
        newest = self.at[step + 1 - count : first + 1].flip(0)
        return (newest - self.at[step]) / self.h(step)

    def weights(self, step: int, count: int, ahead: bool = False) -> torch.Tensor:
        """Return weights of the `count` newest evaluations, after the end's if `ahead`."""
        if self.infinite(step):
            count = 1
        return solve_weights(self.taus(step, count, ahead), self.z(step))


def natural_grid(space: str, form: str, sigmas: torch.Tensor) -> Grid:
    """Return the grid of a form's natural rule: exponential for data, otherwise plain."""
    return Grid(space, form, sigmas, exponential=form == "data")


def stack_rows(weights: Sequence[torch.Tensor], width: int) -> torch.Tensor:
    """Stack rows of different lengths, padded with zeros, as one matrix."""
    rows = [torch.nn.functional.pad(w, (0, width - len(w))) for w in weights]
    return torch.stack(rows)
