"""What a training method works with: the metered model, the pairs, the objective, the listener."""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from ..errors import TrainingCancelled, TrainingDiverged
from ..model import Condition, Model, all_rows, arguments
from ..objectives import Objective, band_features, distances, makes_pictures
from ..sampling import sample
from ..spaces import as_float64
from ..table import SolverTable
from ..teacher import Pairs
from .distributed import is_first
from .memory import Batcher
from .settings import Goal

CHOICE, TEACHER, SEARCH, SCORING = "choice", "teacher", "search", "scoring"
"""Phases of every run; those between SEARCH and SCORING are the method's own."""


class Event(NamedTuple):
    """Progress of a run. Fields that a phase does not know are None.

    nfe and strength: those of the goal that is being trained.

    Phases are "choice" (its steps are teachers to choose from), "teacher" (pairs), "search" (runs
    of classical solvers), "gauss-newton" or the names of what a gradient phase learns, and
    "scoring" (tables). `total` is the largest number of steps that the phase takes, `done` the
    share (0 to 1) of the model calls planned for it. `table` is the best table so far: a classical
    one in the phase "search"; in the phase "teacher" the teacher's, if it is a table.
    """

    phase: str
    nfe: int | None
    step: int
    total: int
    loss: float | None = None
    validation: float | None = None
    calls: int = 0
    done: float = 0.0
    table: SolverTable | None = None
    strength: float | None = None

    @property
    def goal(self) -> Goal | None:
        """What is being trained, if the phase is about one table."""
        return None if self.nfe is None else Goal(self.nfe, self.strength)


Callback = Callable[[Event], object]


class Meter:
    """Wraps a model's denoiser and counts its calls, per sample: a batch of 8 counts 8.

    Backward passes do not come through here: code that takes gradients adds their cost.
    """

    def __init__(
        self,
        denoise: Callable[..., torch.Tensor],
        cancelled: Callable[[], object] | None = None,
        calls: int = 0,
    ) -> None:
        self._denoise, self._cancelled = denoise, cancelled
        self.calls = calls

    def __call__(
        self,
        x: torch.Tensor,
        sigma: torch.Tensor,
        cond: Condition | None = None,
        guidance: torch.Tensor | None = None,
        /,
    ) -> torch.Tensor:
        if self._cancelled is not None and self._cancelled():
            raise TrainingCancelled("Training was cancelled. Start it again to resume.")
        self.calls += x.shape[0]
        return self._denoise(*arguments(x, sigma, all_rows(cond, len(x)), guidance))


class NotFinite(ArithmeticError):
    """A loss was NaN or infinite."""


@dataclass(kw_only=True)
class Task:
    """The training of one goal: everything but the parameters.

    model: for a strength, the model as it is `Below` that level. budget: model calls for this goal,
    or None. planned: model calls that it will make at most.
    scale: the validation error above which a sample counts less (gauss_newton), once it is known.
    path: the file that `save` writes, if there is one.
    """

    model: Model
    meter: Meter
    objective: Objective
    train: Pairs
    validation: Pairs
    goal: Goal
    budget: int | None
    planned: int
    batcher: Batcher
    callback: Callback | None = None
    save: Callable[[], None] | None = None
    first_calls: int = 0
    scale: float | None = None
    path: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        self.best: tuple[float, SolverTable | None] = math.inf, None

    @property
    def nfe(self) -> int:
        return self.goal.nfe

    def denoise(
        self,
        x: torch.Tensor,
        sigma: torch.Tensor,
        cond: Condition | None,
        guidance: torch.Tensor | None,
        rows: torch.Tensor,
    ) -> torch.Tensor:
        """Call the metered model on rows of a batch with conditions `cond`."""
        return self.meter(x, sigma, None if cond is None else cond[rows], guidance)

    def results(self, table: SolverTable, pairs: Pairs) -> torch.Tensor:
        """Return the results of a table on pairs."""
        return self.batcher.map(pairs, lambda part: (self._run(table, part),))[0]

    def errors(self, table: SolverTable, pairs: Pairs) -> torch.Tensor:
        """Return the objective's distance to the teacher per pair, float64 [n]."""

        def measure(part: Pairs) -> tuple[torch.Tensor]:
            return (self._distance(self._run(table, part), part),)

        return self.batcher.map(pairs, measure)[0]

    def scores(self, table: SolverTable, pairs: Pairs) -> tuple[torch.Tensor, ...]:
        """Return (distances as in `errors`, mean squared errors, looks), each float64 [n]."""

        def measure(part: Pairs) -> tuple[torch.Tensor, ...]:
            result = self._run(table, part)
            squares = as_float64(result - part.target).flatten(1).square().mean(1).cpu()
            distance = self._distance(result, part)
            return distance, squares, self._look(distance, result, part)

        return self.batcher.map(pairs, measure)

    def _distance(self, result: torch.Tensor, part: Pairs) -> torch.Tensor:
        with torch.no_grad():
            return as_float64(distances(self.objective, result, part.target)).cpu()

    def _look(self, distance: torch.Tensor, result: torch.Tensor, part: Pairs) -> torch.Tensor:
        """Return LPIPS where it is trained, else the squared distance of the bands' RMS (0 for
        results that are not pictures)."""
        if self.objective.name.startswith("lpips"):
            return distance
        if not makes_pictures(result.shape[1:]):
            return torch.zeros_like(distance)
        with torch.no_grad():
            gap = band_features(result) - band_features(part.target)
            return as_float64(gap).square().sum(1).cpu()

    def _run(self, table: SolverTable, part: Pairs) -> torch.Tensor:
        with torch.no_grad():
            return sample(self.meter, part.x, table, part.cond)

    def exceeds_budget(self, calls: int) -> bool:
        """Would `calls` more exceed the budget of this goal, if it has one?"""
        return self.budget is not None and self.total_after(calls) > self.budget

    def total_after(self, calls: int) -> int:
        """Return the model calls of this goal after `calls` more."""
        return self.meter.calls - self.first_calls + calls

    def initial_errors(self, table: SolverTable) -> torch.Tensor:
        """Return the validation errors of a starting table; raise if they are not finite."""
        errors = self.errors(table, self.validation)
        if not bool(errors.isfinite().all()):
            raise TrainingDiverged(
                f"The initial table of {self.goal.title} gives NaN or infinity: start from another "
                "solver or schedule."
            )
        return errors

    def diverged(self, step: str, table: SolverTable) -> TrainingDiverged:
        """Return the error to raise at a step where smaller steps do not help."""
        advice = "Try another precision."
        if self.path and Path(self.path).exists():
            advice = f"The best table so far is kept in the saved run {self.path}."
        return TrainingDiverged(
            f"The loss is not finite at {step} of {self.goal.title}, four times in a row. {advice}",
            table,
        )

    def check_finite(self, values: torch.Tensor) -> None:
        """Raise NotFinite unless every value is a number."""
        if not bool(torch.isfinite(values).all()):
            raise NotFinite

    def report(
        self, phase: str, step: int, total: int, loss: float, validation: float, table: SolverTable
    ) -> None:
        """Save the state, then call the listener; both in the first process only.

        The listener gets the best table of all starts, whichever is being trained.
        """
        if not is_first():
            return
        if self.save is not None:
            self.save()
        self.keep_best(validation, table)
        if self.callback is not None:
            calls, (error, best) = self.meter.calls, self.best
            done = min(1.0, self.total_after(0) / self.planned)
            nfe, strength = self.goal
            self.callback(Event(phase, nfe, step, total, loss, error, calls, done, best, strength))

    def report_scored(self, step: int, total: int) -> None:
        """Save the state and say how many tables are scored; in the first process only."""
        if not is_first():
            return
        if self.save is not None:
            self.save()
        if self.callback is not None:
            calls, (error, best) = self.meter.calls, self.best
            known, done = None if best is None else error, step / total
            nfe, strength = self.goal
            self.callback(
                Event(SCORING, nfe, step, total, None, known, calls, done, best, strength)
            )

    def keep_best(self, validation: float, table: SolverTable) -> None:
        """Keep a table for the listener if its validation error is the lowest so far."""
        if float(validation) < self.best[0]:
            self.best = float(validation), table
