"""GITS (Chen et al.): nodes by dynamic programming over the cost of single Euler steps.

Fine teacher trajectories are recorded once; cost[i, j] is the error of one Euler step from node i
to node j of the fine grid. One cost matrix serves every number of steps.
"""

from typing import NamedTuple

import torch

from ..classical import classical_table
from ..errors import TableError
from ..model import Condition, Denoiser, Model
from ..sampling import ModelCall, sample
from ..spaces import as_float64
from ..teacher import Pairs, draw_noise
from .closed import edm, uniform

METRICS = ("dev", "l1", "l2")
POINTS, SAMPLES = 61, 256
CALLS = SAMPLES * (POINTS - 1)
"""Model calls to measure the costs."""


class Costs(NamedTuple):
    """The sigmas of the grid, and the cost of a step from grid node i to grid node j > i."""

    grid: torch.Tensor
    matrix: torch.Tensor


def _trajectory(
    denoise: Denoiser, space: str, grid: torch.Tensor, x: torch.Tensor, cond: Condition | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the states at the grid's nodes and the slopes (x - x0) / sigma at all but the last."""
    table = classical_table("ipndm", grid, order=3, space=space)
    states, slopes = [], []

    def record(call: ModelCall) -> None:
        states.append(call.x)
        slopes.append((call.x - call.denoised) / call.sigma[0])

    states.append(sample(denoise, x, table, cond, record))
    return torch.stack(states).flatten(2), torch.stack(slopes).flatten(2)


def _chord_distance(points: torch.Tensor, start: torch.Tensor, end: torch.Tensor) -> torch.Tensor:
    """Return the distance of points [..., batch, d] from the line through start and end."""
    axis = torch.nn.functional.normalize(start - end, dim=-1)
    offset = points - end
    along = (offset * axis).sum(-1, keepdim=True) * axis
    distance: torch.Tensor = (offset - along).norm(dim=-1)
    return distance


def _costs_from(
    states: torch.Tensor, slopes: torch.Tensor, grid: torch.Tensor, i: int, metric: str
) -> torch.Tensor:
    """Return the mean cost of one Euler step from node i to every later node."""
    step = (grid[i + 1 :] - grid[i]).to(states).reshape(-1, 1, 1)
    guess, truth = states[i] + step * slopes[i], states[i + 1 :]
    if metric == "dev":
        first, last = states[0], states[-1]
        error = _chord_distance(guess, first, last) - _chord_distance(truth, first, last)
        return error.abs().mean(1)
    gap = guess - truth
    return gap.abs().mean((1, 2)) if metric == "l1" else gap.square().mean(2).sqrt().mean(1)


@torch.no_grad()
def gits_costs(
    model: Model,
    low: float | None = None,
    points: int = POINTS,
    samples: int = SAMPLES,
    batch: int = 32,
    metric: str = "dev",
    seed: int = 0,
    denoise: Denoiser | None = None,
) -> Costs:
    """Measure the cost matrix with `samples` teacher trajectories of `points` - 1 calls each.

    `denoise` replaces the model's own, for example to count calls.
    """
    if metric not in METRICS:
        raise TableError(f"Unknown metric '{metric}'. Choose one of {', '.join(METRICS)}.")
    if points < 2 or samples < 1 or batch < 1:
        raise TableError("points must be >= 2, samples >= 1 and batch >= 1.")
    place = uniform if model.space == "flow" else edm
    grid = place(points - 1, model, low or model.sigma_min, model.sigma_max)
    x, cond = draw_noise(model, samples, seed)
    total = torch.zeros(points, points, dtype=torch.float64)
    for part in Pairs(x, cond, x).batches(batch):
        call = denoise or model.denoise
        states, slopes = _trajectory(call, model.space, grid, part.x, part.cond)
        for i in range(points - 1):
            row = _costs_from(states, slopes, grid, i, metric)
            total[i, i + 1 :] += len(part) * as_float64(row).cpu()
    back = torch.ones(points, points).tril().bool()
    return Costs(grid, (total / samples).masked_fill(back, float("inf")))


def shortest_path(matrix: torch.Tensor, n: int, gamma: float) -> list[int]:
    """Return the best n-step path 0 .. last: V_k(j) = min_i cost_ji + gamma V_{k-1}(i)."""
    last = len(matrix) - 1
    value = torch.full((last + 1,), float("inf"), dtype=matrix.dtype)
    value[last] = 0
    choices = []
    for _ in range(n):
        value, best = (matrix + gamma * value).min(1)
        choices.append(best)
    path = [0]
    for best in reversed(choices):
        path.append(int(best[path[-1]]))
    return path


def gits(
    n: int,
    model: Model,
    low: float,
    high: float,
    costs: Costs | None = None,
    gamma: float = 1.15,
) -> torch.Tensor:
    """Return nodes for n steps; pass `costs` from `gits_costs` to reuse a measured matrix."""
    if not gamma > 0:
        raise TableError("gamma must be > 0.")
    costs = costs or gits_costs(model, low)
    if n > len(costs.grid) - 1:
        raise TableError(f"gits can place at most {len(costs.grid) - 1} steps.")
    return costs.grid[shortest_path(costs.matrix, n, gamma)]
