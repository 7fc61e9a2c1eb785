"""What a method works with: the metered model, the pairs, the objective, and who listens."""

import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch

from ..errors import ModelError, TrainingCancelled, TrainingDiverged
from ..sampling import sample
from ..spaces import as_float64
from ..table import SolverTable
from .distributed import rank_and_world
from .memory import Workers


class Event(NamedTuple):
    """Progress of a run; what a phase does not know is None.

    Phases are "teacher" (steps are pairs), "gauss-newton", and the leaves that a gradient phase
    learns. `total` is the most steps that the phase takes, `done` the share (0 to 1) of the planned
    calls of this NFE, `eta` the seconds until all of them are made, `table` the best one so far.
    """

    phase: str
    nfe: int | None
    step: int
    total: int
    loss: float | None = None
    validation: float | None = None
    calls: int = 0
    done: float = 0.0
    eta: float | None = None
    table: SolverTable | None = None


class Meter:
    """Wraps a model's denoiser. `calls` is per sample: a batch of 8 counts 8.

    Backward passes do not come by here: who takes gradients adds what they cost.
    """

    def __init__(self, denoise, cancelled=None, calls=0):
        self._denoise, self._cancelled = denoise, cancelled
        self.calls = calls

    def __call__(self, x, sigma, cond=None):
        if self._cancelled is not None and self._cancelled():
            raise TrainingCancelled("Training was cancelled: start it again to go on from there.")
        self.calls += x.shape[0]
        return self._denoise(x, sigma) if cond is None else self._denoise(x, sigma, cond)


class NotFinite(ArithmeticError):
    """A loss was NaN or infinite."""


@dataclass
class Task:
    """One NFE's training: everything but the parameters.

    `scale` is the error, on the validation pairs, from which a sample counts less (gauss_newton);
    `path` is the file that `save` writes, if there is one.
    """

    model: object
    meter: Meter
    objective: object
    train: object
    validation: object
    nfe: int
    budget: int | None
    workers: Workers
    central: bool = False
    callback: object = None
    save: object = None
    first_calls: int = 0
    scale: float = 1.0
    path: object = None
    began: float = field(default_factory=time.monotonic)

    def __post_init__(self):
        self.resumed_at, self.planned = self.meter.calls, self.budget
        self.best = math.inf, None

    def denoise(self, x, sigma, cond, rows):
        """The metered model on rows of a batch whose conditions are `cond`."""
        return self.meter(x, sigma, None if cond is None else cond[rows])

    def results(self, table, pairs):
        """Results of a table on pairs."""
        return self.workers.map(pairs, lambda part: (self._run(table, part),))[0]

    def errors(self, table, pairs):
        """Squared distance to the teacher per pair, float64 [n], in the objective's features."""

        def measure(part):
            result = self._run(table, part)
            with torch.no_grad():
                return (as_float64(self.objective.distance(result, part.target)).cpu(),)

        return self.workers.map(pairs, measure)[0]

    def scores(self, table, pairs):
        """(distances as of `errors`, mean squared errors) to the teacher, each float64 [n]."""

        def measure(part):
            result = self._run(table, part)
            with torch.no_grad():
                distances = as_float64(self.objective.distance(result, part.target)).cpu()
            squares = as_float64(result - part.target).flatten(1).square().mean(1).cpu()
            return distances, squares

        return self.workers.map(pairs, measure)

    def _run(self, table, part):
        with torch.no_grad():
            return sample(self.meter, part.x, table, part.cond)

    def spent_after(self, calls):
        """Would `calls` more exceed this NFE's budget, if it has one?"""
        return self.budget is not None and self.total_after(calls) > self.budget

    def total_after(self, calls):
        """The calls that this NFE has made after `calls` more."""
        return self.meter.calls - self.first_calls + calls

    def initial_errors(self, table):
        """Errors on the validation pairs of a table that training begins from."""
        errors = self.errors(table, self.validation)
        if not bool(errors.isfinite().all()):
            raise TrainingDiverged(
                f"The initial table of {self.nfe} NFE gives results that are not finite: "
                "start from another solver or schedule."
            )
        return errors

    def diverged(self, step, table):
        """TrainingDiverged at a step, where smaller ones do not help; it names the saved run."""
        advice = "try another precision."
        if self.path and Path(self.path).exists():
            advice = f"the best table so far is kept in the saved run {self.path}."
        return TrainingDiverged(
            f"The loss is not finite at {step} of {self.nfe} NFE, four times in a row: {advice}",
            table,
        )

    def check_finite(self, errors):
        """NotFinite unless every error is a number."""
        if not bool(torch.isfinite(torch.as_tensor(errors)).all()):
            raise NotFinite

    def report(self, phase, step, total, loss, validation, table):
        """Save the state, then tell the listener; both only in the first process.

        The listener hears of the best table of all starts, whichever is being trained.
        """
        if rank_and_world()[0]:
            return
        if self.save is not None:
            self.save()
        self.remember(validation, table)
        if self.callback is not None:
            calls = self.meter.calls
            share = min(1.0, (calls - self.first_calls) / self.planned)
            made, left = calls - self.resumed_at, max(0, self.planned + self.first_calls - calls)
            spent = time.monotonic() - self.began
            eta = spent / made * left if made > 0.02 * self.planned else None
            error, best = self.best
            self.callback(Event(phase, self.nfe, step, total, loss, error, calls, share, eta, best))

    def remember(self, validation, table):
        """Keep a table for the listener, if it is the best so far on the validation pairs."""
        self.best = min(self.best, (float(validation), table), key=lambda pair: pair[0])


def check_model(model, pairs):
    """ModelError, in one sentence, if the model cannot be trained with at all."""
    with torch.no_grad():
        part = pairs[:1]
        sigma = torch.full((1,), float(model.sigma_max), device=part.x.device)
        arguments = [part.x, sigma] + ([] if part.cond is None else [part.cond])
        x0 = model.denoise(*arguments)
    if not math.isfinite(float(as_float64(x0).abs().sum())):
        raise ModelError(
            "The model returns NaN or infinity for plain noise: try another precision."
        )
