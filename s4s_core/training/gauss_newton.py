"""S4S-GN: Levenberg-Marquardt on the numbers of a table, without back-propagation.

The objective is a sum of squares over few parameters, so a Gauss-Newton step from finite-difference
columns (jacobian) replaces hundreds of gradient steps. Normal equations are kept per sample in
float64: [n, P, P] and [n, P] are small, and samples can be weighted afterwards. A few samples that
land on another mode of the model would dominate plain least squares, so the weights are those of a
pseudo-Huber loss of each sample's error.

An iteration measures only a chunk of the training pairs. Earlier chunks are kept as a quadratic
model of their loss, which can be written about any point: it moves with theta and fades, and the
step goes to the damped minimum of the sum. So no measurement is wasted, and an iteration costs
eight samples. The training pairs propose and accept steps; the validation pairs choose the best
iterate and decide when to stop.
"""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

import torch

from ..candidates import Candidate
from ..errors import TrainingDiverged
from ..model import takes_guidance
from ..names import FREE
from ..objectives import SumOfSquares
from ..spaces import as_float64
from ..table import SolverTable
from ..teacher import Pairs
from .jacobian import Columns
from .method import Method, Start
from .parameters import Parameters, as_multistep, widened
from .settings import Settings
from .state import NfeState
from .task import NotFinite, Task

PROBE_ITERATIONS, MAX_ITERATIONS = 1, 200
CALLS_PER_START = 8_000
# A step that keeps the sum of its weights has nothing to learn with one weight.
LEAST_ORDER = 2
CHUNK = 8
FADING = 0.8
MODEL = "product", "slope"
FIRST_DAMPING = 0.1
DAMPINGS = (0.2, 2.0)
MIN_DAMPING, MAX_DAMPING = 1e-6, 1e4
HARDER = 4
PATIENCE, GAIN = 12, 0.005
MAX_FAILURES = 3
SMALLEST_GAP = 0.2
STEP_LIMITS = (2e-3, 0.1)
# Perturbed continuations of one sample that share a batch: few samples at a time keep the columns
# small next to the model's own memory.
VARIANTS_AT_ONCE = 4

Iterate = dict[str, Any]
"""The state of one start: plain numbers, lists and tensors."""


class GaussNewton(Method):
    """Probe the best starts, then finish them, the most promising first, while the budget lasts.

    A start that diverges is not trained further; its best table so far stays in the running.
    """

    def planned_calls(self, settings: Settings, nfe: int) -> int:
        return settings.limit or 0

    def judged_results(self, nfe: int, calls: int) -> float:
        """A column runs only the calls after its parameter acts: half of them on average."""
        return 2 * calls / max(1, nfe - 1)

    def loss(self, distances: torch.Tensor, task: Task) -> float:
        return robust_loss(distances, task.scale)

    def remarks(self, task: Task, state: NfeState) -> list[str]:
        """Say if the budget did not allow a single step."""
        runs = state.method.get("runs", [])
        needed = [run["needed"] for run in runs if "needed" in run]
        if not needed or any(run.get("iteration") for run in runs):
            return []
        return [
            f"NFE {task.nfe}: the budget of {task.budget:,} model calls is too small for one step "
            f"of training: use at least {min(needed):,}, better several times that."
        ]

    def run(
        self, task: Task, starts: list[Start], settings: Settings, state: NfeState
    ) -> tuple[Start, SolverTable]:
        count = _affordable(settings)
        if "runs" in state.method:  # version 0.1 began more of them
            count = len(state.method["runs"]) - len(_others(starts))
        with torch.inference_mode():
            return self._run(task, distinct(starts, count), settings, state)

    def _run(
        self, task: Task, starts: list[Start], settings: Settings, state: NfeState
    ) -> tuple[Start, SolverTable]:
        saved = state.method
        if "scale" not in saved:
            saved["scale"] = _scale(task, starts)
        task.scale = saved["scale"]
        runs: list[Iterate] = saved.setdefault("runs", [{} for _ in starts])
        parameters = [_parameters(task, start, settings) for start in starts]
        for each, run in zip(parameters, runs, strict=True):
            if "best" in run:
                task.keep_best(run["validation"] ** 0.5, each.at(run["best"]))

        def train(k: int, iterations: int) -> None:
            if not _train_start(task, parameters[k], runs, k, iterations):
                state.add_log(
                    f"NFE {task.nfe}: training from {starts[k].label} was given up because its "
                    "results are not finite."
                )

        if "order" not in saved:
            for k in range(len(runs)):
                train(k, PROBE_ITERATIONS)
            begun = [k for k, run in enumerate(runs) if "best" in run]
            saved["order"] = sorted(begun, key=lambda k: runs[k]["validation"])
        for k in saved["order"]:
            train(k, MAX_ITERATIONS)
        best = min(saved["order"], key=lambda k: runs[k]["validation"])
        state.history = runs[best]["history"]
        return starts[best], parameters[best].at(runs[best]["best"])


GAUSS_NEWTON = GaussNewton("gauss-newton")


def _affordable(settings: Settings) -> int:
    """Return how many classical starts to train from: only as many as the budget can finish."""
    return max(1, min(settings.starts, (settings.limit or 0) // CALLS_PER_START))


def distinct(starts: Sequence[Start], count: int) -> list[Start]:
    """Return the best `count` classical starts, no two with the same form and schedule, and all
    others."""
    chosen: dict[tuple[str, str], Start] = {}
    for start in starts:
        if isinstance(start, Candidate):
            chosen.setdefault((start.table.form, start.schedule), start)
    return [*list(chosen.values())[:count], *_others(starts)]


def _others(starts: Sequence[Start]) -> list[Start]:
    """Return the starts that are no classical solvers on a schedule."""
    return [start for start in starts if not isinstance(start, Candidate)]


def _parameters(task: Task, start: Start, settings: Settings) -> Parameters:
    limits = float(task.model.sigma_min), float(task.model.sigma_max)
    guided = settings.guidance and takes_guidance(task.model)
    consistent = settings.consistent_steps(guided)
    table = as_multistep(start.table)
    return Parameters.of(
        table if consistent == FREE else widened(table, LEAST_ORDER),
        limits,
        coefficients=settings.coefficients,
        times=settings.times,
        fixed=settings.fixed,
        consistent=consistent,
        guidance=guided,
    )


def _scale(task: Task, starts: list[Start]) -> float:
    """Return the robust scale of the first start with finite results."""
    for start in starts[:-1]:
        with suppress(TrainingDiverged):
            return robust_scale(task.initial_errors(start.table))
    return robust_scale(task.initial_errors(starts[-1].table))


def _train_start(
    task: Task, parameters: Parameters, runs: list[Iterate], number: int, iterations: int
) -> bool:
    """Train one start; return False if it diverged now. Raise only if all starts have diverged."""
    if "diverged" in runs[number]:
        return True
    try:
        refine(task, parameters, runs[number], iterations=iterations)
    except TrainingDiverged:
        runs[number]["diverged"] = True
        if all("diverged" in run for run in runs):
            raise
        return False
    return True


def robust_scale(errors: torch.Tensor) -> float:
    """Return the error above which a sample counts less: the median of all errors."""
    return float(errors.sqrt().median().clamp(min=1e-12))


def robust_weights(errors: torch.Tensor, scale: float) -> torch.Tensor:
    """Return the weights that turn least squares with squared errors [n] into pseudo-Huber."""
    return (1 + errors / scale**2).rsqrt()


def robust_loss(errors: torch.Tensor, scale: float) -> float:
    """Return the mean pseudo-Huber loss of squared errors [n]; their mean for a large scale."""
    return float((2 * scale**2 * ((1 + errors / scale**2).sqrt() - 1)).mean())


@dataclass
class Normal:
    """Normal equations per sample: products [n, P, P], slopes [n, P] and squared errors [n]."""

    products: torch.Tensor
    slopes: torch.Tensor
    errors: torch.Tensor

    def weighted(self, weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (J^T W J, J^T W r), averaged over the samples."""
        return (
            torch.einsum("n,npq->pq", weights, self.products) / len(weights),
            torch.einsum("n,np->p", weights, self.slopes) / len(weights),
        )


def normal_equations(task: Task, columns: Columns, pairs: Pairs) -> Normal:
    """Accumulate the normal equations of `pairs`, micro-batch by micro-batch, in float64."""
    embed = cast(SumOfSquares, task.objective).embed

    def accumulate(part: Pairs) -> tuple[torch.Tensor, ...]:
        def denoise(
            x: torch.Tensor,
            sigma: torch.Tensor,
            guidance: torch.Tensor | None,
            rows: torch.Tensor,
        ) -> torch.Tensor:
            return task.denoise(x, sigma, part.cond, guidance, rows)

        features, jacobian = columns.compute(denoise, part, task.batcher.batch, embed)
        residual = features - embed(part.target)
        samples = zip(jacobian.unbind(1), as_float64(residual).unbind(0), strict=True)
        sums = [(j @ j.T, j @ r, r @ r) for j, r in ((as_float64(j), r) for j, r in samples)]
        return tuple(torch.stack(column).cpu() for column in zip(*sums, strict=True))

    with torch.inference_mode():
        return Normal(*task.batcher.map(pairs, accumulate, VARIANTS_AT_ONCE))


def propose(
    parameters: Parameters,
    theta: torch.Tensor,
    product: torch.Tensor,
    slope: torch.Tensor,
    damping: float,
) -> torch.Tensor:
    """Return theta after the damped step, shortened so that ordered nodes stay ordered."""
    diagonal = product.diagonal()
    floor = 1e-6 * diagonal.max().clamp(min=1e-30)
    matrix = product + torch.diag(damping * diagonal.clamp(min=floor))
    step: torch.Tensor = -torch.linalg.solve(matrix, slope)
    return theta + _ordered_share(parameters, theta, step) * step


def _ordered_share(parameters: Parameters, theta: torch.Tensor, step: torch.Tensor) -> float:
    """Return the largest share of a step, up to 1, that keeps SMALLEST_GAP of every gap."""

    def gaps(at: torch.Tensor) -> torch.Tensor:
        sigmas = parameters.arrays(at)["sigmas"]
        logs = sigmas[: -1 if parameters.table.ending == 0 else None].log()
        return logs[:-1] - logs[1:]

    old, share = gaps(theta), 1.0
    for _ in range(20):
        if not len(old) or bool((gaps(theta + share * step) >= SMALLEST_GAP * old).all()):
            return share
        share *= 0.7
    return 0.0


def difference_step(task: Task, parameters: Parameters, theta: torch.Tensor, pairs: Pairs) -> float:
    """Choose a forward-difference step that suits the model's precision, which may be half.

    The second difference of results at three points on a line, 1e-5 apart, is the model's rounding
    noise alone; the step balances that noise against curvature. (A NaN here is not caused by the
    table and counts as no noise: `max` keeps its first argument.)
    """
    direction = torch.ones_like(theta) / max(parameters.count, 1) ** 0.5
    points = [parameters.at(theta + k * 1e-5 * direction) for k in (-1, 0, 1)]
    low, middle, high = (as_float64(task.results(table, pairs)) for table in points)
    noise = (low - 2 * middle + high).square().mean().sqrt() / math.sqrt(6)
    relative = float(noise / middle.square().mean().sqrt().clamp(min=1e-12))
    return min(max(STEP_LIMITS[0], 2 * math.sqrt(relative)), STEP_LIMITS[1])


def refine(task: Task, parameters: Parameters, state: Iterate, iterations: int) -> None:
    """Iterate from `state` until it has made `iterations`, converged, or spent the budget.

    A table without free parameters is done at once. `state` changes only after a whole iteration,
    so a run that is saved in between resumes exactly. state["best"] is the theta with the lowest
    validation loss so far, and state["validation"] that loss. If the budget ends training,
    state["needed"] is the budget that would have allowed another iteration.
    """
    if "theta" not in state:
        state.update(_begin(task, parameters))
    while state["iteration"] < iterations and not state["done"]:
        cost = _cost(task, parameters, state)
        if task.exceeds_budget(cost):
            state.update(done=True, needed=task.total_after(cost))
        else:
            state.update(_guarded(task, parameters, state))
        loss, best = state["loss"] ** 0.5, state["validation"] ** 0.5
        table = parameters.at(state["best"])
        task.report("gauss-newton", state["iteration"], iterations, loss, best, table)


def _guarded(task: Task, parameters: Parameters, state: Iterate) -> Iterate:
    """Make one iteration; if a loss is not finite, go back to the best theta with more damping."""
    try:
        return _iterate(task, parameters, state)
    except NotFinite:
        if state["failures"] == MAX_FAILURES:
            step = f"iteration {state['iteration']}"
            raise task.diverged(step, parameters.at(state["best"])) from None
        return {
            **_recentred(state, state["best"], state["product"], state["slope"]),
            "damping": HARDER * state["damping"],
            "failures": state["failures"] + 1,
        }


def _begin(task: Task, parameters: Parameters) -> Iterate:
    count = parameters.count
    theta = torch.zeros(count, dtype=torch.float64)
    loss = robust_loss(task.initial_errors(parameters.at(theta)), task.scale)
    return {
        "theta": theta,
        "best": theta,
        "product": torch.zeros(count, count, dtype=torch.float64),
        "slope": torch.zeros(count, dtype=torch.float64),
        "step": difference_step(task, parameters, theta, task.validation[:2]),
        "damping": FIRST_DAMPING,
        "iteration": 0,
        "stalls": 0,
        "failures": 0,
        "done": count == 0,
        "loss": loss,
        "validation": loss,
        "history": [[task.meter.calls, loss**0.5]],
    }


def chunk(pairs: Pairs, iteration: int) -> Pairs:
    """Return the pairs of one iteration: the next eight, starting over at the end."""
    size = min(CHUNK, len(pairs))
    return pairs[(torch.arange(size) + size * iteration) % len(pairs)]


def _cost(task: Task, parameters: Parameters, state: Iterate) -> int:
    """Return the model calls of one more iteration: columns, trials, and validation."""
    columns = Columns(parameters, state["theta"], state["step"])
    trials = task.nfe * len(DAMPINGS)
    samples = min(CHUNK, len(task.train))
    return (columns.calls() + trials) * samples + task.nfe * len(task.validation)


def _iterate(task: Task, parameters: Parameters, state: Iterate) -> Iterate:
    """Make one Levenberg-Marquardt iteration; return what it changes in the state."""
    pairs = chunk(task.train, state["iteration"])
    columns = Columns(parameters, state["theta"], state["step"])
    normal = normal_equations(task, columns, pairs)
    for part in (normal.errors, normal.slopes, normal.products):
        task.check_finite(part)
    fresh = normal.weighted(robust_weights(normal.errors, task.scale))
    system = [FADING * state[name] + new for name, new in zip(MODEL, fresh, strict=True)]
    old = robust_loss(normal.errors, task.scale)
    trained, theta, damping = _search(task, parameters, state, system, pairs)
    if trained >= old:
        harder = min(HARDER * state["damping"], MAX_DAMPING)
        return {
            **_recentred(state, state["theta"], *system),
            **_after(state, 0.0),
            "damping": harder,
        }
    errors = task.errors(parameters.at(theta), task.validation)
    task.check_finite(errors)
    loss = robust_loss(errors, task.scale)
    return {
        **_recentred(state, theta, *system),
        **_after(state, 1 - (loss / state["validation"]) ** 0.5),
        "loss": trained,
        "damping": max(damping, MIN_DAMPING),
        "best": theta if loss < state["validation"] else state["best"],
        "validation": min(loss, state["validation"]),
        "history": [*state["history"], [task.meter.calls, loss**0.5]],
    }


def _recentred(
    state: Iterate, theta: torch.Tensor, product: torch.Tensor, slope: torch.Tensor
) -> Iterate:
    """Rewrite a quadratic model about the state's theta as one about another theta."""
    slope = slope + product @ (theta - state["theta"])
    return {"theta": theta, "product": product, "slope": slope}


def _after(state: Iterate, gain: float) -> Iterate:
    """Count an iteration; stop after too many without a relative gain on the validation pairs."""
    iteration, stalls = state["iteration"] + 1, 0 if gain > GAIN else state["stalls"] + 1
    return {"iteration": iteration, "stalls": stalls, "done": stalls >= PATIENCE, "failures": 0}


def _search(
    task: Task,
    parameters: Parameters,
    state: Iterate,
    system: Sequence[torch.Tensor],
    pairs: Pairs,
) -> tuple[float, torch.Tensor, float]:
    """Return (loss, theta, damping) of the best trial; a result that is not finite loses."""
    product, slope = system

    def trial(damping: float) -> tuple[float, torch.Tensor, float]:
        theta = propose(parameters, state["theta"], product, slope, damping)
        errors = task.errors(parameters.at(theta), pairs)
        finite = bool(errors.isfinite().all())
        return robust_loss(errors, task.scale) if finite else math.inf, theta, damping

    trials = [trial(state["damping"] * factor) for factor in DAMPINGS]
    return min(trials, key=lambda each: each[0])
