"""Classical solvers as candidates: resolve them by name, and rank them by error to the teacher."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from .classical import classical_table
from .errors import TableError
from .model import Denoiser, Model
from .names import solver_parts, solver_steps
from .sampling import sample
from .schedules import schedule
from .spaces import as_float64
from .table import SolverTable
from .teacher import Pairs

# What init="auto" tries. Schedules that need scipy or thousands of model calls (dmn, gits) are left
# out, so that the result depends on nothing but the model and the seed.
AUTO_SOLVERS = (
    ("ddim", 1),
    ("ipndm", 2),
    ("ipndm", 3),
    ("ipndm", 4),
    ("dpmpp", 2),
    ("dpmpp", 3),
    ("unipc-bh2", 2),
    ("unipc-bh2", 3),
)
AUTO_SCHEDULES = ("uniform", "quadratic", "edm", "logsnr", "ays")

SEARCH_PAIRS, KEPT = 16, 4
SEARCH_ROUNDS = ((4, 14), (8, KEPT))
"""The race that the search is: (pairs, how many candidates stay after them)."""


class Candidate(NamedTuple):
    """A classical solver on a schedule."""

    solver: str
    order: int
    schedule: str
    table: SolverTable

    @property
    def label(self) -> str:
        return f"{self.solver} {self.order}, {self.schedule}"


Ranked = list[tuple[float, Candidate]]
"""Candidates with their errors, best first."""


def squared_errors(
    denoise: Denoiser, table: SolverTable, pairs: Pairs, batch: int = 32
) -> torch.Tensor:
    """Return the mean squared error to the teacher of each pair, float64 [n]."""
    with torch.no_grad():
        parts = [
            as_float64(sample(denoise, part.x, table, part.cond) - part.target).flatten(1)
            for part in pairs.batches(batch)
        ]
        return torch.cat([part.square().mean(1) for part in parts]).cpu()


def rmse(denoise: Denoiser, table: SolverTable, pairs: Pairs, batch: int = 32) -> float:
    """Return the root mean squared error to the teacher over all pairs."""
    return float(squared_errors(denoise, table, pairs, batch).mean().sqrt())


def candidates(
    model: Model,
    nfe: int,
    ending: float = 0.0,
    solvers: Sequence[tuple[str, int]] = AUTO_SOLVERS,
    schedules: Sequence[str] = AUTO_SCHEDULES,
    options: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[Candidate]:
    """Return every classical table of `nfe` calls that exists for the model.

    `options` are keyword arguments of schedules by name, such as measured costs for gits.
    """
    result = []
    for name in schedules:
        try:
            nodes = schedule(name, nfe, model, ending, **(options or {}).get(name, {}))
        except TableError:
            continue
        for solver, order in solvers:
            table = classical_table(solver, nodes, order, model.space)
            result.append(Candidate(solver, order, name, table))
    return result


def rank(
    denoise: Denoiser,
    candidates: Sequence[Candidate],
    pairs: Pairs,
    batch: int = 32,
    rounds: Sequence[tuple[int, int]] = ((16, 8),),
) -> Ranked:
    """Race candidates: after the first n pairs of each round (n, keep), only the best `keep` stay.

    Those that are left are scored on all pairs.
    """
    seen, left = 0, [(torch.zeros(0, dtype=torch.float64), each) for each in candidates]
    for end, keep in (*rounds, (len(pairs), len(candidates))):
        end = min(end, len(pairs))
        if end > seen:
            part = pairs[seen:end]
            left = [
                (torch.cat([errors, squared_errors(denoise, each.table, part, batch)]), each)
                for errors, each in left
            ]
        seen, left = max(seen, end), sorted(left, key=_error)[:keep]
    return [(float(errors.mean().sqrt()), each) for errors, each in left]


def _error(scored: tuple[torch.Tensor, Candidate]) -> float:
    """Sort key: the mean squared error, with NaN last."""
    error = float(scored[0].mean())
    return error if error == error else float("inf")


def check_solver(model: Model, text: str, nfe: int, ending: float) -> None:
    """Raise what `named_solver` would raise, without calling the model."""
    known = text.removesuffix(":gits") + ":edm" if text.endswith(":gits") else text
    named_solver(model, known, nfe, ending)


def named_solver(model: Model, text: str, nfe: int, ending: float, **options: Any) -> Candidate:
    """Resolve "solver:order:schedule", such as "ipndm:3:edm"; `options` go to the schedule."""
    solver, order, name = solver_parts(text)
    nodes = schedule(name, solver_steps(solver, order, nfe, ending), model, ending, **options)
    table = classical_table(solver, nodes, order, model.space)
    return Candidate(solver, order, name, table)


def rank_starts(
    model: Model, denoise: Denoiser, pairs: Pairs, nfe: int, ending: float, batch: int
) -> Ranked:
    """Rank all classical solvers on all schedules that init="auto" tries; see SEARCH_ROUNDS."""
    return rank(denoise, candidates(model, nfe, ending), pairs, batch, SEARCH_ROUNDS)


def search_calls(nfe: int) -> int:
    """Return the model calls of `rank_starts` on SEARCH_PAIRS pairs; a flow model needs fewer."""
    seen, left, runs = 0, len(AUTO_SOLVERS) * len(AUTO_SCHEDULES), 0
    for end, keep in (*SEARCH_ROUNDS, (SEARCH_PAIRS, KEPT)):
        runs += left * (end - seen)
        seen, left = end, keep
    return nfe * runs
