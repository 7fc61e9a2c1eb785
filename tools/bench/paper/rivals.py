"""Rival ways to learn a solver with the same budget; each returns (table or solver, calls).

bns         Bespoke Non-Stationary solvers: a history of maximal order, with coefficients and times
            trained jointly on the hard objective.
gs          Generalized Solver: theoretical coefficients at the current times plus learned offsets,
            and a history of x. In a multistep table an older x is a combination of the newest x and
            of evaluations, so here the history of x is a history of f of maximal order (up to the
            factor of the newest x, which the form fixes).
trajectory  Trajectory matching: each step in turn gets the weights that land closest to the
            teacher's state at that node, a linear least-squares problem.
dpm-v3      DPM-Solver-v3 with measured statistics (dpm_v3.py).
"""

from pathlib import Path
from typing import Any

import torch

from s4s_core import classical_table, sample, schedule
from s4s_core.candidates import rmse
from s4s_core.classical import classical_recipe
from s4s_core.model import Denoiser, Model
from s4s_core.program import lower
from s4s_core.sampling import Cursor, run
from s4s_core.spaces import history_data_scale, log_snr, sigma_of_log_snr, step_factors
from s4s_core.table import SolverTable
from s4s_core.teacher import TEACHER_NFE, Pairs, draw_noise, draw_pairs
from s4s_core.training.gradient import PLAIN_COST

from . import dpm_v3

EMA = 0.9
BATCH = 16


def trajectory(
    model: Model, table: SolverTable, solver: tuple[str, int], budget: int, seed: int
) -> tuple[SolverTable, int]:
    """Fit the weights of `table`, step by step, to the states of a teacher of that solver.

    The states are the points of the teacher's calls, that is UniPC's predictions. Its corrector
    would move them by less than a tenth of the coarse solver's error.
    """
    parts = -(-TEACHER_NFE // table.steps)
    fine = _refined(torch.tensor(table.sigmas), parts, float(model.sigma_min))
    cost = len(fine) - 1 + table.steps * (table.steps + 1) // 2
    x, cond = draw_noise(model, max(2, budget // cost), seed)
    name, order = solver
    teacher = classical_table(name, fine, order, model.space)
    targets, _ = _states(model, teacher, x, cond)
    for step in range(table.steps):
        table = _matched(model, table, step, x, cond, targets[parts * (step + 1)])
    return table, cost * len(x)


def _matched(
    model: Model, table: SolverTable, step: int, x: torch.Tensor, cond: Any, target: torch.Tensor
) -> SolverTable:
    """Replace the row of `step` so that the solver's own state lands closest to the target."""
    head = SolverTable(
        "lms",
        table.order,
        table.form,
        table.space,
        table.sigmas[: step + 2],
        table.call_sigmas[: step + 1],
        {"b": table.coefficients["b"][: step + 1]},
    )
    states, entries = _states(model, head, x, cond)
    nodes = torch.tensor(table.sigmas)
    scale, factor = step_factors(table.space, table.form, nodes[step], nodes[step + 1])
    reach = int(table.masks["b"][step].sum())
    system = torch.stack([entries[step - j] for j in range(reach)], dim=1)
    change = (target - scale * states[step]) / factor
    b = table.coefficients["b"].copy()
    b[step, :reach] = torch.linalg.lstsq(system, change.unsqueeze(1)).solution[:, 0].numpy()
    return table.replace(b=b)


def _states(
    model: Model, table: SolverTable, x: torch.Tensor, cond: Any
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Run a table: (states at all nodes, f at all calls in the table's form), flat float64."""
    states: list[torch.Tensor] = []
    entries: list[torch.Tensor] = []
    scales = history_data_scale(table.space, table.form, torch.tensor(table.call_sigmas))

    def record(progress: Any) -> None:
        point, x0 = progress.x.flatten().double(), progress.denoised.flatten().double()
        sigma, call = float(progress.sigma[0]), len(states)
        states.append(point)
        entries.append(x0 if scales is None else (point - float(scales[call]) * x0) / sigma)

    with torch.inference_mode():
        result = sample(model.denoise, x, table, cond, record)
    return [*states, result.flatten().double()], entries


def _refined(nodes: torch.Tensor, parts: int, low: float) -> torch.Tensor:
    """Divide each interval into `parts`, even in sigma^(1/7); a final 0 counts as `low`."""
    ends = torch.cat([nodes[:-1], nodes[-1:].clamp(min=low)])
    roots = ends ** (1 / 7)
    share = torch.arange(parts, dtype=torch.float64) / parts
    inner = roots[:-1, None] + (roots[1:] - roots[:-1])[:, None] * share
    return torch.cat([inner.flatten() ** 7, nodes[-1:]])


class GeneralizedSolver:
    """Theoretical coefficients at the current times plus offsets, of maximal order.

    It is differentiable. A softmax divides the range of lambda into steps, like stick-breaking.
    """

    def __init__(self, model: Model, solver: str, order: int, nodes: torch.Tensor) -> None:
        self.model, self.solver, self.order, self.last = model, solver, order, nodes[-1:]
        self.ends = nodes[:1], torch.tensor([model.sigma_min], dtype=torch.float64)
        lam = log_snr(model.space, torch.cat([nodes[:-1], self.ends[1]]))
        steps = len(nodes) - 1
        self.logits = lam.diff().log().requires_grad_()
        self.offsets = torch.zeros(steps, steps, dtype=torch.float64, requires_grad=True)
        self.mask = torch.ones(steps, steps, dtype=torch.float64).tril()
        self.first, self.range = lam[0], lam[-1] - lam[0]

    def arrays(self, logits: torch.Tensor, offsets: torch.Tensor) -> dict[str, torch.Tensor]:
        """The arrays of the table, differentiable; sets `form`."""
        lam = self.first + self.range * logits.softmax(0).cumsum(0)[:-1]
        nodes = torch.cat([self.ends[0], sigma_of_log_snr(self.model.space, lam), self.last])
        recipe = classical_recipe(self.solver, nodes, self.model.space, order=self.order)
        theory = torch.nn.functional.pad(recipe.arrays["b"], (0, len(nodes) - 1 - self.order))
        self.form = recipe.form
        return recipe.arrays | {"b": theory + offsets * self.mask}

    def result(self, denoise: Denoiser, x: torch.Tensor) -> torch.Tensor:
        """Sample from x with the current parameters."""
        arrays = self.arrays(self.logits, self.offsets)
        program = lower("lms", self.model.space, self.form, arrays)
        return run(program, denoise, Cursor(x, x)).point

    def table(self, logits: torch.Tensor, offsets: torch.Tensor) -> SolverTable:
        """The table of these parameters."""
        arrays = {k: v.detach().numpy() for k, v in self.arrays(logits, offsets).items()}
        sigmas, calls = arrays.pop("sigmas"), arrays.pop("call_sigmas")
        return SolverTable("lms", len(calls), self.form, self.model.space, sigmas, calls, arrays)


def generalized(
    model: Model,
    teacher: SolverTable,
    solver: str,
    order: int,
    nodes: torch.Tensor,
    budget: int,
    seed: int,
    rate: float,
    samples: int = 48,
    cache: Path | None = None,
) -> tuple[SolverTable, int]:
    """Train a GeneralizedSolver with Adam; return its best table on validation pairs."""
    pairs = draw_pairs(model, teacher, samples + BATCH, 5_000_011 * (seed + 1), cache=cache)
    train, validation = pairs[BATCH:], pairs[:BATCH]
    student = GeneralizedSolver(model, solver, order, nodes)
    leaves = [student.logits, student.offsets]
    optimiser = torch.optim.Adam(leaves, lr=rate, betas=(0.9, 0.99))
    generator = torch.Generator().manual_seed(seed)
    average = [leaf.detach().clone() for leaf in leaves]
    best = rmse(model.denoise, student.table(*average), validation), student.table(*average)
    nfe, spent = len(nodes) - 1, TEACHER_NFE * len(pairs)
    while spent < budget + TEACHER_NFE * len(pairs):
        for index in torch.randperm(len(train), generator=generator).split(BATCH):
            _descend(model, student, optimiser, leaves, train[index])
            average = [
                EMA * a + (1 - EMA) * b.detach() for a, b in zip(average, leaves, strict=True)
            ]
            spent += PLAIN_COST * nfe * len(index)
        table = student.table(*average)
        best = min(best, (rmse(model.denoise, table, validation), table), key=lambda pair: pair[0])
        spent += nfe * len(validation)
    return best[1], spent


def _descend(
    model: Model,
    student: GeneralizedSolver,
    optimiser: torch.optim.Optimizer,
    leaves: list[torch.Tensor],
    part: Pairs,
) -> None:
    """Take one step on a batch of pairs."""

    def denoise(x: torch.Tensor, sigma: torch.Tensor, _: Any = None) -> torch.Tensor:
        return model.denoise(x, sigma) if part.cond is None else model.denoise(x, sigma, part.cond)

    loss = (student.result(denoise, part.x) - part.target).square().mean()
    optimiser.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(leaves, 1.0)
    optimiser.step()


def dpm_solver_v3(
    model: Model, name: str, order: int, nfe: int, budget: int, seed: int
) -> tuple[dpm_v3.Solver, int]:
    """DPM-Solver-v3 on a named schedule, which ends at sigma_min as the method requires."""
    statistics = dpm_v3.measure(model, budget, seed)
    nodes = schedule(name, nfe, model, float(model.sigma_min))
    return dpm_v3.Solver(statistics, nodes, order), statistics.calls
