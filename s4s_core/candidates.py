"""Classical solvers as candidates: resolve them by name, and rank them by error to the teacher."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

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

PART_SOLVERS = (("ipndm", 2), ("dpmpp", 2), ("unipc-bh2", 2))
PART_SCHEDULES = ("edm", "logsnr")
"""What the search for a part of the way tries: what was best there on the bundled models."""

SEARCH_PAIRS, KEPT = 8, 4
SEARCH_ROUNDS = ((1, 12), (2, 6), (4, KEPT))
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


class Racer(Protocol):
    """What can take part in a race: a table and the name that it is known by."""

    @property
    def table(self) -> SolverTable: ...

    @property
    def label(self) -> str: ...


R = TypeVar("R", bound=Racer)

Errors = dict[str, torch.Tensor]
"""{label: squared errors of the first pairs, float64 [n]}."""


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


def root_mean_square(errors: torch.Tensor) -> float:
    """Return the root mean of squared errors [n]."""
    return float(errors.mean().sqrt())


def mean_error(errors: torch.Tensor) -> float:
    """Return the mean of the roots of squared errors [n]."""
    return float(errors.sqrt().mean())


def rmse(denoise: Denoiser, table: SolverTable, pairs: Pairs, batch: int = 32) -> float:
    """Return the root mean squared error to the teacher over all pairs."""
    return root_mean_square(squared_errors(denoise, table, pairs, batch))


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
    racers: Sequence[R],
    pairs: Pairs,
    batch: int = 32,
    rounds: Sequence[tuple[int, int]] = ((16, 8),),
    score: Callable[[torch.Tensor], float] = root_mean_square,
    known: Errors | None = None,
    progress: Callable[[int, R], object] | None = None,
) -> list[tuple[float, R]]:
    """Race tables: after the first n pairs of each round (n, keep), only the best `keep` stay.

    Those that are left are scored on all pairs. `score` makes one number of the squared errors.
    known: errors that an interrupted race has measured; it is added to. progress(runs, best) is
    called after each measurement, with all runs so far and the best racer of the round before.
    """
    known = {} if known is None else known
    left, best = list(racers), racers[0]

    def key(racer: R) -> float:
        found = score(known[racer.label][:end])  # an interrupted race may have measured more
        return found if found == found else float("inf")  # NaN comes last

    for end, keep in (*rounds, (len(pairs), len(racers))):
        end = min(end, len(pairs))
        for each in left:
            old = known.get(each.label, torch.zeros(0, dtype=torch.float64))
            if len(old) < end:
                new = squared_errors(denoise, each.table, pairs[len(old) : end], batch)
                known[each.label] = torch.cat([old, new])
                if progress is not None:
                    progress(sum(map(len, known.values())), best)
        left = sorted(left, key=key)[:keep]
        best = left[0]
    return [(score(known[each.label]), each) for each in left]


def like_named_solver(model: Model, text: str, nfe: int, ending: float) -> Candidate:
    """Return `named_solver` without calling the model: on edm instead of gits."""
    known = text.removesuffix(":gits") + ":edm" if text.endswith(":gits") else text
    return named_solver(model, known, nfe, ending)


def named_solver(model: Model, text: str, nfe: int, ending: float, **options: Any) -> Candidate:
    """Resolve "solver:order:schedule", such as "ipndm:3:edm"; `options` go to the schedule."""
    solver, order, name = solver_parts(text)
    nodes = schedule(name, solver_steps(solver, order, nfe, ending), model, ending, **options)
    table = classical_table(solver, nodes, order, model.space)
    return Candidate(solver, order, name, table)


def search_runs(racers: int) -> int:
    """Return how many runs of a table a search of that many racers makes at most."""
    seen, left, runs = 0, racers, 0
    for end, keep in (*SEARCH_ROUNDS, (SEARCH_PAIRS, KEPT)):
        runs += left * (end - seen)
        seen, left = end, min(left, keep)
    return runs
