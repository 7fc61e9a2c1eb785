"""How far tables land from the teacher, and which classical solver starts nearest."""

from typing import NamedTuple

import torch

from .classical import classical_table
from .errors import TableError
from .names import start_parts, start_steps
from .sampling import sample
from .schedules import schedule
from .spaces import as_float64
from .table import SolverTable

# What "auto" tries. Schedules that need scipy or thousands of calls (dmn, gits) are left out, so
# that the outcome depends on nothing but the model and the seed.
SOLVERS = (
    ("ddim", 1),
    ("ipndm", 2),
    ("ipndm", 3),
    ("ipndm", 4),
    ("dpmpp", 2),
    ("dpmpp", 3),
    ("unipc-bh2", 2),
    ("unipc-bh2", 3),
)
SCHEDULES = ("uniform", "quadratic", "edm", "logsnr", "ays")


class Candidate(NamedTuple):
    """A classical solver on a schedule."""

    solver: str
    order: int
    schedule: str
    table: SolverTable

    @property
    def label(self):
        return f"{self.solver} {self.order}, {self.schedule}"


def squared_errors(denoise, table, pairs, batch=32):
    """Mean squared error to the teacher of each pair, float64 [n]."""
    with torch.no_grad():
        parts = [
            as_float64(sample(denoise, part.x, table, part.cond) - part.target).flatten(1)
            for part in pairs.batches(batch)
        ]
        return torch.cat([part.square().mean(1) for part in parts]).cpu()


def rmse(denoise, table, pairs, batch=32):
    """Root of the mean squared error to the teacher over all pairs."""
    return float(squared_errors(denoise, table, pairs, batch).mean().sqrt())


def candidates(model, nfe, ending=0.0, solvers=SOLVERS, schedules=SCHEDULES, options=None):
    """Every classical table of `nfe` calls that exists for the model.

    `options` are keyword arguments of schedules by name, such as gits' measured costs.
    """
    found = []
    for name in schedules:
        try:
            nodes = schedule(name, nfe, model, ending, **(options or {}).get(name, {}))
        except TableError:
            continue
        for solver, order in solvers:
            table = classical_table(solver, nodes, order, model.space)
            found.append(Candidate(solver, order, name, table))
    return found


def rank(denoise, found, pairs, batch=32, keep=8, first=16):
    """Candidates with their errors, best first.

    All are scored on the first few pairs; the best `keep` again on all pairs, if there are more.
    """

    def scored(some, few):
        return sorted(((rmse(denoise, c.table, few, batch), c) for c in some), key=_score)

    best = scored(found, pairs[:first])[:keep]
    return best if len(pairs) <= first else scored([c for _, c in best], pairs)


def _score(pair):
    """Sort key: the error, with NaN and infinity last."""
    error = pair[0]
    return error if error == error else float("inf")


def check_start(model, text, nfe, ending):
    """Raise what `named_start` would, without a call of the model."""
    known = text.removesuffix(":gits") + ":edm" if text.endswith(":gits") else text
    named_start(model, known, nfe, ending)


def named_start(model, text, nfe, ending, **options):
    """The Candidate of "solver:order:schedule", such as "ipndm:3:edm".

    `options` are those of the schedule.
    """
    solver, order, name = start_parts(text)
    nodes = schedule(name, start_steps(solver, order, nfe, ending), model, ending, **options)
    table = classical_table(solver, nodes, order, model.space)
    return Candidate(solver, order, name, table)


def ranked_starts(model, denoise, pairs, nfe, ending, batch):
    """[(error, Candidate)] of the classical solvers on every schedule, best first."""
    return rank(denoise, candidates(model, nfe, ending), pairs, batch)


def distinct(ranked, count):
    """The best `count` candidates, no two of the same form and schedule."""
    chosen = {}
    for _, candidate in ranked:
        chosen.setdefault((candidate.table.form, candidate.schedule), candidate)
    return list(chosen.values())[:count]
