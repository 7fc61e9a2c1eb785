"""Where training begins: the best classical solvers for the model, or what the caller names."""

import torch

from ..classical import classical_table
from ..evaluation import Candidate, candidates, rank
from ..families import lower
from ..schedules import schedule
from ..spaces import step_factors
from ..table import SolverTable
from .settings import start_parts, start_steps


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


def as_multistep(table):
    """A predictor-corrector table as the multistep table that it equals (see families.pc)."""
    if table.family != "pc":
        return table
    arrays = {name: torch.tensor(array) for name, array in table.arrays.items()}
    sigmas = arrays["sigmas"]
    factor = step_factors(table.space, table.form, sigmas[:-1], sigmas[1:])[1]
    moves = lower("pc", table.space, table.form, arrays).moves
    b = torch.zeros(table.steps, table.order + 1, dtype=torch.float64)
    for n, move in enumerate(moves):
        reach = move.reach
        calls = (
            1.0 if table.form == "data" else arrays["call_sigmas"][n + 1 - reach : n + 1].flip(0)
        )
        b[n, :reach] = move.weights * calls / factor[n]
    return SolverTable(
        "lms",
        table.order + 1,
        table.form,
        table.space,
        table.sigmas,
        table.call_sigmas,
        {"b": b.numpy()},
    )
