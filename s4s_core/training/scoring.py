"""Scores on held-out noise, and the guard: a result is never worse than its starts."""

import math
from typing import Any, NamedTuple

from ..errors import TrainingDiverged
from ..table import SolverTable
from ..teacher import Pairs
from .method import Method, Start
from .state import NfeState
from .task import Task


class Mark(NamedTuple):
    """A table on some pairs: the trained loss, the RMSE, and the median pair's RMSE."""

    loss: float
    rmse: float
    median: float


def measure(task: Task, method: Method, table: SolverTable, pairs: Pairs) -> Mark:
    """Measure a table; everything is infinite if any of its results is not finite."""
    distances, errors = task.scores(table, pairs)
    if not bool((distances.isfinite() & errors.isfinite()).all()):
        return Mark(math.inf, math.inf, math.inf)
    loss = method.loss(distances, task)
    return Mark(loss, float(errors.mean().sqrt()), float(errors.sqrt().median()))


def guard(
    task: Task,
    method: Method,
    pairs: Pairs,
    starts: list[Start],
    trained: tuple[Start, SolverTable],
    state: NfeState,
) -> SolverTable:
    """Return the trained table, or the best start where that has the lower loss on `pairs`.

    The loss that was trained decides. The scores are errors to the teacher: of the result, of its
    start, and, after a search, of the best classical solvers.
    """
    if state.scores is None:
        _score(task, method, pairs, starts, trained, state)
    return trained[1] if state.kept is None else starts[state.kept].table


def _score(
    task: Task,
    method: Method,
    pairs: Pairs,
    starts: list[Start],
    trained: tuple[Start, SolverTable],
    state: NfeState,
) -> None:
    """Fill in the state's scores and log, and which start to keep."""
    start, table = trained
    result = measure(task, method, table, pairs)
    marks = [measure(task, method, each.table, pairs) for each in starts]
    best = min(range(len(starts)), key=lambda k: marks[k].loss)
    if math.inf in (result.loss, marks[best].loss):
        raise TrainingDiverged(
            f"The results of {task.nfe} NFE on held-out noise are not finite: try another "
            "precision."
        )
    state.add_log()
    if result.loss > marks[best].loss:
        state.add_log(
            f"NFE {task.nfe}: training did not help on held-out noise ({result.rmse:.4g} against "
            f"{marks[best].rmse:.4g}), so {starts[best].label} is kept."
        )
        result, state.kept = marks[best], best
    state.add_log(*method.remarks(task, state))
    initial = marks[starts.index(start)].rmse
    scores: dict[str, Any] = {
        "rmse": result.rmse,
        "median": result.median,
        "initial": initial if math.isfinite(initial) else None,
    }
    if state.ranked is not None:
        scores |= _classical_scores(starts, marks)
        if result.rmse > scores["classical"]:
            state.add_log(_worse_rmse(task.nfe, scores))
    state.scores = scores


def _classical_scores(starts: list[Start], marks: list[Mark]) -> dict[str, float | str]:
    """Return the scores of the classical solvers that a search found."""
    first = min(range(len(starts)), key=lambda k: marks[k].rmse)
    return {
        "classical": marks[first].rmse,
        "classical_median": min(mark.median for mark in marks),
        "classical_name": starts[first].label,
    }


def _worse_rmse(nfe: int, scores: dict[str, Any]) -> str:
    return (
        f"NFE {nfe}: the RMSE on held-out noise ({scores['rmse']:.4g}) is worse than that of "
        f"{scores['classical_name']} ({scores['classical']:.4g}), although the loss that was "
        "trained is better."
    )
