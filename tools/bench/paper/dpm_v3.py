"""DPM-Solver-v3 (Zheng et al. 2023) as a table, in a change of variables that makes it one.

In the ve space dx/dlambda = l x - f with f = (1 + l) x - x0, for any l(lambda). The method chooses
l so that the Jacobian of f is small, predicts the change of f by f' = s f + b, and interpolates
what is left. The empirical model statistics l, s (numbers here; the authors have one per
coordinate) and b (a picture) are measured on trajectories of the model.

With L, S the integrals of l, s, and E = exp(S - L), a step from lambda_s is
    x_t = e^(L_t - L_s) [x_s - int E (g + B) dlambda],   B(lambda) = int_s e^(S_s - S) b,
where g = e^(S_s - S) f - B is interpolated through past calls. Written for y = e^(L_0 - L) x, this
is y_i = y_{i-1} + sum_j w_ij (-e^(L_0 - L_j) f_j) plus an offset: the noise form of a table, whose
"model" answers y + e^(L_0 - L_j) f_j, and which starts each call a known picture further. So the
core's one loop runs it; nothing is approximated by that.
"""

from dataclasses import dataclass

import numpy as np
import torch

from s4s_core import SolverTable, classical_table, sample, schedule
from s4s_core.errors import TableError
from s4s_core.teacher import draw_noise

GRID = 60
POINTS = 24
PROBE = 1e-2
RIDGE = 1e-9


@dataclass(frozen=True)
class Statistics:
    """l, s [K] and b [K, D] on a grid of lambda [K], float64; `calls` is what they cost."""

    grid: np.ndarray
    l: np.ndarray  # noqa: E741  (the authors' name)
    s: np.ndarray
    b: np.ndarray
    calls: int = 0

    def integral(self, values):
        """Integral of values [K, ...] from the grid's start to each of its points."""
        width = np.diff(self.grid).reshape(-1, *[1] * (values.ndim - 1))
        steps = width * (values[1:] + values[:-1]) / 2
        return np.concatenate([np.zeros_like(values[:1]), np.cumsum(steps, axis=0)])

    def at(self, values, where):
        """Values [K, ...] at points `where`, linear in between."""
        index = np.clip(np.searchsorted(self.grid, where) - 1, 0, len(self.grid) - 2)
        part = (where - self.grid[index]) / (self.grid[index + 1] - self.grid[index])
        part = part.reshape(-1, *[1] * (values.ndim - 1))
        return (1 - part) * values[index] + part * values[index + 1]


def measure(model, budget, seed):
    """Statistics from as many trajectories as the budget (in model calls) pays for.

    Each trajectory costs GRID calls, and as many again for the traces.
    """
    if model.space != "ve":
        raise TableError("DPM-Solver-v3 is written for the ve space here.")
    count = max(2, budget // (2 * GRID))
    nodes = schedule("logsnr", GRID, model, float(model.sigma_min))
    table = classical_table("ipndm", nodes, 3, "ve")
    x, cond = draw_noise(model, count, seed)
    traces, points, results = [], [], []
    probe = torch.Generator().manual_seed(seed)

    def record(progress):
        points.append(progress.x.flatten(1).double())
        results.append(progress.denoised.flatten(1).double())
        traces.append(_trace(model, progress, cond, probe))

    with torch.inference_mode():
        sample(model.denoise, x, table, cond, record)
    points, results = (torch.stack(part).numpy() for part in (points, results))
    lam = -np.log(nodes[:-1].numpy())
    l = np.array(traces) - 1  # noqa: E741
    f = (1 + l)[:, None, None] * points - results
    s, b = _regress(np.gradient(f, lam, axis=0), f)
    return Statistics(lam, l, s, b, 2 * GRID * count)


def _trace(model, progress, cond, generator):
    """tr(d x0 / d x) / D at a call, by Hutchinson's estimate with one forward difference."""
    x, sigma = progress.x, progress.sigma
    sign = torch.randint(2, x.shape, generator=generator).to(x) * 2 - 1
    width = PROBE * sigma.reshape(-1, *[1] * (x.ndim - 1)).to(x).clamp(min=PROBE)
    moved = x + width * sign
    answer = model.denoise(moved, sigma) if cond is None else model.denoise(moved, sigma, cond)
    return float(((answer - progress.denoised) / width * sign).double().mean())


def _regress(slopes, f):
    """s and b of f' = s f + b by least squares over samples and coordinates [K, n, D]."""
    mean_slope, mean = slopes.mean(1, keepdims=True), f.mean(1, keepdims=True)
    centred = f - mean
    spread = (centred**2).sum((1, 2))
    s = ((slopes - mean_slope) * centred).sum((1, 2)) / (spread + RIDGE)
    return s, (mean_slope - s[:, None, None] * mean)[:, 0]


class Solver:
    """The predictor-corrector of `order` at `nodes` (a positive ending), for given statistics.

    The order falls to 1 at the end, as the authors have it for few steps.
    """

    def __init__(self, statistics, nodes, order=3):
        self.stats, self.order = statistics, order
        self.nodes = np.asarray(nodes, dtype=np.float64)
        self.lam = -np.log(self.nodes)
        self.big_l, self.big_s = (statistics.integral(v) for v in (statistics.l, statistics.s))
        weighted = np.exp(-self.big_s)[:, None] * statistics.b
        self.big_b = statistics.integral(weighted)
        self.scale = np.exp(self._l(self.lam[0]) - self._l(self.lam))
        self._build()

    def _l(self, where):
        return self.stats.at(self.big_l, np.atleast_1d(where))

    def _s(self, where):
        return self.stats.at(self.big_s, np.atleast_1d(where))

    def _b(self, where, start):
        """B(lambda) of a step that begins at lambda = start, [n, D]."""
        ends = self.stats.at(self.big_b, np.append(np.atleast_1d(where), start))
        return np.exp(self._s(start)) * (ends[:-1] - ends[-1])

    def _rule(self, step, calls):
        """(weights of the calls' f in y, offset of y [D]) of step `step`, exactly integrated."""
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

    def _row(self, step, calls):
        """A row of the noise form for step `step`, and its offset."""
        weights, offset = self._rule(step, calls)
        return weights * self.nodes[calls] / (self.nodes[step + 1] - self.nodes[step]), offset

    def _build(self):
        """The table in y, and how far y is shifted at each call and at the end."""
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

    def _shift(self, call, x):
        return torch.from_numpy(self.shifts[call]).to(x).reshape(x.shape[1:])

    def run(self, denoise, x, cond=None):
        """Sample from x, noised at the first node."""
        slope = 1 + self.stats.at(self.stats.l, self.lam)
        calls = iter(range(self.table.nfe))

        def changed(y, sigma):
            call = next(calls)
            scale, gain = float(self.scale[call]), float(slope[call])
            point = (y + self._shift(call, y)) / scale
            x0 = denoise(point, sigma) if cond is None else denoise(point, sigma, cond)
            return y + scale * (gain * point - x0)

        y = sample(changed, x, self.table)
        return (y + self._shift(-1, y)) / float(self.scale[-1])
