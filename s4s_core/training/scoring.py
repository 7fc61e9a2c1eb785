"""Scores on held-out noise, and the guard: a result is never worse than its starts."""

import sys
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

from ..candidates import Candidate
from ..errors import TrainingDiverged
from ..names import MEASURES
from ..table import SolverTable
from ..teacher import Pairs
from .method import Method, Start
from .settings import Goal
from .state import NfeState
from .task import Task


class Mark(NamedTuple):
    """A table on some pairs: the trained loss, the RMSE, the median pair's RMSE, and the look.

    `look` is the mean LPIPS where that is trained, and else the root mean square of the differences
    of the RMS in frequency bands; 0 for results that are not pictures.
    """

    loss: float
    rmse: float
    median: float
    look: float


WORST = sys.float_info.max
LOST = Mark(WORST, WORST, WORST, WORST)


def measure(task: Task, method: Method, table: SolverTable, pairs: Pairs) -> Mark:
    """Measure a table; it is LOST if any of its results is not finite."""
    distances, errors, looks = task.scores(table, pairs)
    if not bool((distances.isfinite() & errors.isfinite()).all()):
        return LOST
    look = looks.mean() if task.objective.name.startswith("lpips") else looks.mean().sqrt()
    return Mark(
        method.loss(distances, task),
        float(errors.mean().sqrt()),
        float(errors.sqrt().median()),
        float(look),
    )


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


def _marks(
    task: Task,
    method: Method,
    pairs: Pairs,
    starts: list[Start],
    trained: tuple[Start, SolverTable],
    state: NfeState,
) -> tuple[Mark, dict[int, Mark]]:
    """Measure the result, its start and the classical solvers, each once, and save what is known.

    Return the mark of the result, and those of the starts by their number.
    """
    numbers = [k for k, s in enumerate(starts) if s == trained[0] or isinstance(s, Candidate)]
    tables = [trained[1], *(starts[k].table for k in numbers)]
    saved = state.marks = state.marks or []
    for table in tables[len(saved) :]:
        task.report_scored(len(saved), len(tables))
        saved.append(list(measure(task, method, table, pairs)))
    result, *others = (Mark(*mark) for mark in saved)
    return result, dict(zip(numbers, others, strict=True))


def _score(
    task: Task,
    method: Method,
    pairs: Pairs,
    starts: list[Start],
    trained: tuple[Start, SolverTable],
    state: NfeState,
) -> None:
    """Fill in the state's scores and log, and which start to keep."""
    result, marks = _marks(task, method, pairs, starts, trained, state)
    best = min(marks, key=lambda k: marks[k].loss)
    if WORST in (result.loss, marks[best].loss):
        raise TrainingDiverged(
            f"The results of {task.goal.title} on held-out noise are not finite: try another "
            "precision."
        )
    state.add_log()
    if result.loss > marks[best].loss:
        state.add_log(
            f"{task.goal.title}: training did not help on held-out noise ({result.rmse:.4g} "
            f"against {marks[best].rmse:.4g}), so {starts[best].label} is kept."
        )
        result, state.kept = marks[best], best
    initial = marks[starts.index(trained[0])].rmse
    scores: dict[str, Any] = {
        "rmse": result.rmse,
        "median": result.median,
        "initial": None if initial == WORST else initial,
    }
    if result.look:
        scores["look"] = result.look
    if state.ranked is not None:
        known = {starts[k].label: mark for k, mark in marks.items()}
        scores |= _classical_scores(
            {s.label: known[s.label] for s in starts if isinstance(s, Candidate)}
        )
        state.add_log(*_worse(task.goal, scores))
    state.scores = scores


def _classical_scores(known: Mapping[str, Mark]) -> dict[str, float | str]:
    """Return the best scores of classical solvers {label: mark}, each on its own."""
    first = min(known, key=lambda label: known[label].rmse)
    scores: dict[str, float | str] = {
        "classical": known[first].rmse,
        "classical_median": min(mark.median for mark in known.values()),
        "classical_name": first,
    }
    look = min(mark.look for mark in known.values())
    return scores | {"classical_look": look} if look else scores


def _worse(goal: Goal, scores: dict[str, Any]) -> Iterator[str]:
    """Yield a warning for every score that is worse than the best classical solver's."""
    for ours, (title, theirs) in MEASURES.items():
        if ours in scores and theirs in scores and scores[ours] > scores[theirs]:
            yield (
                f"{goal.title}: the {title} on held-out noise ({scores[ours]:.4g}) is worse than "
                f"the best classical solver's ({scores[theirs]:.4g}), although the loss that was "
                "trained is not."
            )


def not_falling(scores: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield a warning for every NFE whose error is not below that of the NFE before it.

    Parts are left out: their errors are small enough for chance to decide.
    """
    known = sorted((int(n), float(each["rmse"])) for n, each in scores.items() if "@" not in n)
    for (fewer, before), (nfe, error) in pairwise(known):
        if error >= before:
            yield (
                f"{nfe} steps: the error does not fall ({error:.4g}, at {fewer} steps "
                f"{before:.4g}): use {fewer} steps, or train again with another seed or more "
                "effort."
            )
