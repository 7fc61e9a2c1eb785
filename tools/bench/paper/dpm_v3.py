"""DPM-Solver-v3 (Zheng et al. 2023) as a table, by a change of variables.

In the ve space dx/dlambda = l x - f with f = (1 + l) x - x0, for any l(lambda). The method chooses
l so that the Jacobian of f is small, predicts the change of f by f' = s f + b, and interpolates
the rest. The empirical model statistics l and s (scalars here; the authors use one value per
coordinate) and b (a picture) are measured on trajectories of the model.

With L, S the integrals of l, s, and E = exp(S - L), a step from lambda_s is
    x_t = e^(L_t - L_s) [x_s - int E (g + B) dlambda],   B(lambda) = int_s e^(S_s - S) b,
where g = e^(S_s - S) f - B is interpolated through past calls. In y = e^(L_0 - L) x this reads
y_i = y_{i-1} + sum_j w_ij (-e^(L_0 - L_j) f_j) plus an offset: a table in noise form whose "model"
returns y + e^(L_0 - L_j) f_j, and whose state is shifted by a known picture before each call. So
the core's loop can run it, without approximation.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from s4s_core import classical_table, sample, schedule
from s4s_core.errors import TableError
from s4s_core.model import Denoiser, Model
from s4s_core.table import SolverTable
from s4s_core.teacher import draw_noise

Array = NDArray[np.float64]

GRID = 60
POINTS = 24
PROBE = 1e-2
RIDGE = 1e-9


@dataclass(frozen=True)
class Statistics:
    """l, s [K] and b [K, D] on a grid of lambda [K], float64; `calls` is what measuring cost."""

    grid: Array
    l: Array  # noqa: E741  (the authors' name)
    s: Array
    b: Array
    calls: int = 0

    def integral(self, values: Array) -> Array:
        """Integrate values [K, ...] from the start of the grid to each of its points."""
        width = np.diff(self.grid).reshape(-1, *[1] * (values.ndim - 1))
        steps = width * (values[1:] + values[:-1]) / 2
        return np.concatenate([np.zeros_like(values[:1]), np.cumsum(steps, axis=0)])

    def at(self, values: Array, where: Array) -> Array:
        """Interpolate values [K, ...] linearly at the points `where`."""
        index = np.clip(np.searchsorted(self.grid, where) - 1, 0, len(self.grid) - 2)
        part = (where - self.grid[index]) / (self.grid[index + 1] - self.grid[index])
        part = part.reshape(-1, *[1] * (values.ndim - 1))
        return (1 - part) * values[index] + part * values[index + 1]


def measure(model: Model, budget: int, seed: int) -> Statistics:
    """Measure the statistics on as many trajectories as `budget` model calls pay for.

    Each trajectory costs GRID calls, and as many again for the traces. Raise TableError if the
    model is not in the ve space.
    """
    if model.space != "ve":
        raise TableError("DPM-Solver-v3 is only implemented for the ve space.")
    count = max(2, budget // (2 * GRID))
    nodes = schedule("logsnr", GRID, model, float(model.sigma_min))
    table = classical_table("ipndm", nodes, 3, "ve")
    x, cond = draw_noise(model, count, seed)
    traces: list[float] = []
    points: list[torch.Tensor] = []
    results: list[torch.Tensor] = []
    probe = torch.Generator().manual_seed(seed)

    def record(progress: Any) -> None:
        points.append(progress.x.flatten(1).double())
        results.append(progress.denoised.flatten(1).double())
        traces.append(_trace(model, progress, cond, probe))

    with torch.inference_mode():
        sample(model.denoise, x, table, cond, record)
    lam = -np.log(nodes[:-1].numpy())
    l = np.array(traces) - 1  # noqa: E741
    f = (1 + l)[:, None, None] * torch.stack(points).numpy() - torch.stack(results).numpy()
    s, b = _regress(np.gradient(f, lam, axis=0), f)
    return Statistics(lam, l, s, b, 2 * GRID * count)


def _trace(model: Model, progress: Any, cond: Any, generator: torch.Generator) -> float:
    """tr(d x0 / d x) / D at a call: Hutchinson's estimate from one forward difference."""
    x, sigma = progress.x, progress.sigma
    sign = torch.randint(2, x.shape, generator=generator).to(x) * 2 - 1
    width = PROBE * sigma.reshape(-1, *[1] * (x.ndim - 1)).to(x).clamp(min=PROBE)
    moved = x + width * sign
    answer = model.denoise(moved, sigma) if cond is None else model.denoise(moved, sigma, cond)
    return float(((answer - progress.denoised) / width * sign).double().mean())


def _regress(slopes: Array, f: Array) -> tuple[Array, Array]:
    """s [K] and b [K, D] of f' = s f + b by least squares over n and D of [K, n, D]."""
    mean_slope, mean = slopes.mean(1, keepdims=True), f.mean(1, keepdims=True)
    centred = f - mean
    spread = (centred**2).sum((1, 2))
    s = ((slopes - mean_slope) * centred).sum((1, 2)) / (spread + RIDGE)
    return s, (mean_slope - s[:, None, None] * mean)[:, 0]


class Solver:
    """The predictor-corrector of `order` at `nodes`, whose last must be positive.

    The order falls to 1 at the end, as in the authors' setting for few steps.
    """

    def __init__(self, statistics: Statistics, nodes: ArrayLike, order: int = 3) -> None:
        self.stats, self.order = statistics, order
        self.nodes: Array = np.asarray(nodes, dtype=np.float64)
        self.lam = -np.log(self.nodes)
        self.big_l, self.big_s = (statistics.integral(v) for v in (statistics.l, statistics.s))
        weighted = np.exp(-self.big_s)[:, None] * statistics.b
        self.big_b = statistics.integral(weighted)
        self.scale = np.exp(self._l(self.lam[0]) - self._l(self.lam))
        self._build()

    def _l(self, where: ArrayLike) -> Array:
        return self.stats.at(self.big_l, np.atleast_1d(where))

    def _s(self, where: ArrayLike) -> Array:
        return self.stats.at(self.big_s, np.atleast_1d(where))

    def _b(self, where: ArrayLike, start: float) -> Array:
        """B(lambda) [n, D] of a step that begins at lambda = start."""
        ends = self.stats.at(self.big_b, np.append(np.atleast_1d(where), start))
        return np.exp(self._s(start)) * (ends[:-1] - ends[-1])

    def _rule(self, step: int, calls: NDArray[np.int_]) -> tuple[Array, Array]:
        """(weights of the calls' f in y, offset of y [D]) of a step, integrated exactly."""
        start, end, at = self.lam[step], self.lam[step + 1], self.lam[calls]
        root, mass = np.polynomial.legendre.leggauss(POINTS)
        where = start + (end - start) * (root + 1) / 2
        mass = mass * (end - start) / 2
        growth = np.exp(self._s(where) - self._s(start) - self._l(where) + self._l(start))
        basis = np.stack(
            [
                np.prod([(where - o) / (own - o) for o in np.delete(at, j)], axis=0)
                * np.ones_like(where)
                for j, own in enumerate(at)
            ]
        )
        weights = basis @ (mass * growth)
        offset = weights @ self._b(at, start) - (mass * growth) @ self._b(where, start)
        damped = weights * np.exp(self._s(start) - self._s(at))
        scale = self.scale[step]
        return damped * scale / self.scale[calls], offset * scale

    def _row(self, step: int, calls: NDArray[np.int_]) -> tuple[Array, Array]:
        """The row of the noise form for a step, and its offset."""
        weights, offset = self._rule(step, calls)
        return weights * self.nodes[calls] / (self.nodes[step + 1] - self.nodes[step]), offset

    def _build(self) -> None:
        """Set `table` (in y) and `shifts`, the shift of y at each call and at the end."""
        steps = len(self.nodes) - 1
        b, a = np.zeros((steps, self.order)), np.zeros((steps - 1, self.order + 1))
        shift = np.zeros(self.stats.b.shape[1])
        self.shifts = [shift]
        for step in range(steps):
            reach = min(self.order, step + 1, steps - step)
            b[step, :reach], offset = self._row(step, step - np.arange(reach))
            self.shifts.append(shift + offset)
            if step < steps - 1:
                a[step, : reach + 1], offset = self._row(step, step + 1 - np.arange(reach + 1))
                shift = shift + offset
        self.table = SolverTable(
            "pc", self.order, "noise", "ve", self.nodes, self.nodes[:-1], {"b": b, "a": a}
        )

    def _shift(self, call: int, x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(self.shifts[call]).to(x).reshape(x.shape[1:])

    def run(self, denoise: Denoiser, x: torch.Tensor, cond: Any = None) -> torch.Tensor:
        """Sample from x, which has the noise level of the first node."""
        slope = 1 + self.stats.at(self.stats.l, self.lam)
        calls = iter(range(self.table.nfe))

        def changed(y: torch.Tensor, sigma: torch.Tensor, _: Any = None) -> torch.Tensor:
            call = next(calls)
            scale, gain = float(self.scale[call]), float(slope[call])
            point = (y + self._shift(call, y)) / scale
            x0 = denoise(point, sigma) if cond is None else denoise(point, sigma, cond)
            return y + scale * (gain * point - x0)

        y = sample(changed, x, self.table)
        return (y + self._shift(-1, y)) / float(self.scale[-1])
