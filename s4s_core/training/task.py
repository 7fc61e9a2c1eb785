"""What a training method works with: the metered model, the pairs, the objective, the listener."""

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from ..errors import ModelError, S4SError, TrainingCancelled, TrainingDiverged, TrainingError
from ..model import Condition, Model, arguments
from ..objectives import Objective, band_features, makes_pictures
from ..sampling import check_x0, sample
from ..spaces import alpha, as_float64, sigma_of_log_snr
from ..table import SolverTable
from ..teacher import Pairs, draw_noise
from .distributed import is_first
from .memory import Batcher, is_out_of_memory

CHOICE, TEACHER, SEARCH, SCORING = "choice", "teacher", "search", "scoring"
"""Phases of every run; those between SEARCH and SCORING are the method's own."""
CHECK_CALLS = 11
_CHECK_SEED = 600_000_001
_NEAR, _SAME, _NOT_EXACT = 1.07, 0.005, 0.1
"""Relative differences of results: what does not count, and what no kernel makes."""
_FAULTS = (AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


class Event(NamedTuple):
    """Progress of a run. Fields that a phase does not know are None.

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
        return self._denoise(*arguments(x, sigma, cond, guidance))


class NotFinite(ArithmeticError):
    """A loss was NaN or infinite."""


@dataclass(kw_only=True)
class Task:
    """The training of one NFE: everything but the parameters.

    budget: model calls for this NFE, or None. planned: model calls that it will make at most.
    scale: the validation error above which a sample counts less (gauss_newton), once it is known.
    path: the file that `save` writes, if there is one.
    """

    model: Model
    meter: Meter
    objective: Objective
    train: Pairs
    validation: Pairs
    nfe: int
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
            return as_float64(self.objective.distance(result, part.target)).cpu()

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
        """Would `calls` more exceed the budget of this NFE, if it has one?"""
        return self.budget is not None and self.total_after(calls) > self.budget

    def total_after(self, calls: int) -> int:
        """Return the model calls of this NFE after `calls` more."""
        return self.meter.calls - self.first_calls + calls

    def initial_errors(self, table: SolverTable) -> torch.Tensor:
        """Return the validation errors of a starting table; raise if they are not finite."""
        errors = self.errors(table, self.validation)
        if not bool(errors.isfinite().all()):
            raise TrainingDiverged(
                f"The initial table of {self.nfe} NFE gives NaN or infinity: start from another "
                "solver or schedule."
            )
        return errors

    def diverged(self, step: str, table: SolverTable) -> TrainingDiverged:
        """Return the error to raise at a step where smaller steps do not help."""
        advice = "Try another precision."
        if self.path and Path(self.path).exists():
            advice = f"The best table so far is kept in the saved run {self.path}."
        return TrainingDiverged(
            f"The loss is not finite at {step} of {self.nfe} NFE, four times in a row. {advice}",
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
            self.callback(Event(phase, self.nfe, step, total, loss, error, calls, done, best))

    def report_scored(self, step: int, total: int) -> None:
        """Save the state and say how many tables are scored; in the first process only."""
        if not is_first():
            return
        if self.save is not None:
            self.save()
        if self.callback is not None:
            calls, (error, best) = self.meter.calls, self.best
            known, done = None if best is None else error, step / total
            self.callback(Event(SCORING, self.nfe, step, total, None, known, calls, done, best))

    def keep_best(self, validation: float, table: SolverTable) -> None:
        """Keep a table for the listener if its validation error is the lowest so far."""
        if float(validation) < self.best[0]:
            self.best = float(validation), table


def _one_line(problem: object) -> str:
    return str(problem).partition("\n")[0][:150].rstrip(". ")


def not_differentiable(problem: object) -> TrainingError:
    """Return the error to raise where a gradient method meets a model without gradients."""
    return TrainingError(
        f"This model cannot be trained by back-propagation: {_one_line(problem)}. Change its "
        "denoise, or use the method gauss-newton, which needs no gradients."
    )


def _failed(error: Exception) -> ModelError:
    return ModelError(f"The model failed with {type(error).__name__}: {_one_line(error)}.")


@contextmanager
def explained(explain: Callable[[Exception], S4SError]) -> Iterator[None]:
    """Raise explain(error) where a model's own code fails.

    Memory that runs out, and what a host raises to interrupt a run, stay what they are.
    """
    try:
        yield
    except S4SError:
        raise
    except _FAULTS as error:
        if is_out_of_memory(error):
            raise
        raise explain(error) from error


class _Kept(NamedTuple):
    """A tensor that a model has seen, what it was then, and what is wrong if it has changed."""

    tensor: torch.Tensor
    before: torch.Tensor
    problem: str

    def check(self) -> None:
        if not torch.equal(self.tensor, self.before):
            raise not_differentiable(self.problem)


def _check_gradient(
    model: Model,
    point: torch.Tensor,
    level: torch.Tensor,
    cond: Condition | None,
    kept: list[_Kept],
) -> None:
    """Call the model with a gradient, and differentiate the first such call; raise TrainingError
    if that fails.

    What it was given and has returned joins `kept`, and must not change before the next check.
    """
    for each in kept:
        each.check()
    first, leaf = not kept, point.clone().requires_grad_()
    with torch.enable_grad(), explained(not_differentiable):
        given = arguments(leaf.clone(), level, cond)
        x0 = check_x0(result := model.denoise(*given), point)
        for argument, before in zip(given, (point, level), strict=False):
            kept.append(_Kept(argument.detach(), before, "it writes into its arguments"))
            kept[-1].check()
        old = result.detach()
        kept.append(_Kept(old, old.clone(), "it writes into its last result"))
        if first and _gradient(x0, leaf) is None:
            raise not_differentiable("its results have no gradient (no_grad or detach)")


def _gradient(x0: torch.Tensor, leaf: torch.Tensor) -> torch.Tensor | None:
    if not x0.requires_grad:
        return None
    return torch.autograd.grad(x0.sum(), leaf, allow_unused=True)[0]


def check_model(model: Model, gradient: bool = False) -> None:
    """Raise an error if the model cannot be trained with, by CHECK_CALLS calls on one sample.

    Its results must be finite, and depend on the arguments of a call only. A cache such as TeaCache
    answers with an earlier result if little has changed since. So one input is evaluated twice
    after a call far from it, and twice after one near it that such a cache reuses. On the demo
    model reuse moves both results alike, by 1.2 % or more; kernels that are not exact make all four
    differ, by 3 % at most (bfloat16, CFG 7.5).

    With `gradient`, four of these calls have one, and the model must not write where it is needed.
    """
    with explained(_failed):
        x, cond = draw_noise(model, 1, _CHECK_SEED)
    high, x0 = float(model.sigma_max), torch.zeros_like(x)

    def at(sigma: float, sign: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
        level = x.new_full((1,), sigma)
        return alpha(model.space, level) * x0 + sign * sigma / high * x, level

    def call(sigma: float, sign: int = 1) -> torch.Tensor:
        point, level = at(sigma, sign)
        with torch.no_grad(), explained(_failed):
            result = model.denoise(*arguments(point, level, cond))
        return check_x0(result, point).clone()

    def after_far(*between: float) -> torch.Tensor:
        if gradient:
            _check_gradient(model, *at(high, sign=-1), cond, kept)
        else:
            call(high, sign=-1)
        for sigma in between:
            call(sigma)
        return as_float64(call(middle))

    kept: list[_Kept] = []
    x0 = call(high)
    if not math.isfinite(float(as_float64(x0).abs().sum())):
        raise ModelError(
            "The model returns NaN or infinity for plain noise: try another precision."
        )
    levels = sigma_of_log_snr(model.space, -torch.tensor([_NEAR, 1.0]).log())
    near, middle = levels.clamp(float(model.sigma_min), high).tolist()
    far, close, far_again, close_again = (after_far(*each) for each in ((), (near,)) * 2)
    size, spread = far.norm(), (far - far_again).norm() + (close - close_again).norm()
    apart = (far + far_again - close - close_again).norm() / 2
    if bool((apart > _SAME * size + spread) | (spread > _NOT_EXACT * size)):
        raise ModelError(
            "The model's results depend on earlier calls: for training, remove what keeps them, "
            "such as TeaCache."
        )
