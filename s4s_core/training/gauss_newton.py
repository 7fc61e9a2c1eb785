"""S4S-GN: Levenberg-Marquardt on the numbers of a table, without back-propagation.

The objective is a sum of squares over few parameters, so a Gauss-Newton step from finite-difference
columns (jacobian) replaces hundreds of gradient steps. Normal equations are kept per sample in
float64: [n, P, P] and [n, P] are small, and samples can be weighted afterwards. A few samples that
land on another mode of the model would dominate plain least squares, so the weights are those of a
pseudo-Huber loss of each sample's error.

An iteration measures only a chunk of the training pairs. Earlier chunks are kept as a quadratic
model of their loss, which can be written about any point: it moves with theta and fades, and the
step goes to the damped minimum of the sum. So no measurement is wasted, and an iteration costs four
samples. The model fades fast at first, when theta moves far, and slowly later, when what is left is
the noise of the samples. The training pairs propose and accept steps; now and then the validation
pairs choose the best iterate and decide when to stop.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch

from ..errors import TrainingDiverged
from ..model import Model, takes_guidance
from ..names import FREE
from ..objectives import SumOfSquares, embedded
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
# Training pairs that an iteration measures: fewer where the budget would allow too few iterations.
CHUNK, LEAST_CHUNK, ITERATIONS = 4, 2, 10
SLOWEST_FADING = 0.9
MODEL = "product", "slope"
FIRST_DAMPING = 0.01
MIN_DAMPING, MAX_DAMPING = 1e-6, 1e4
EASIER, HARDER = 0.3, 4
VALIDATE_EVERY = 3
PATIENCE, GAIN = 12, 0.005
MAX_FAILURES = 3
SMALLEST_GAP = 0.2
STEP_LIMITS = (2e-3, 0.1)
STEP_PAIRS, STEP_CALLS = 2, 6
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

    def least_calls(self, model: Model, start: Start, settings: Settings) -> int:
        """One iteration on the fewest pairs, with what comes before it."""
        parameters = _parameters(model, start, settings)
        theta = torch.zeros(parameters.count, dtype=torch.float64)
        pair = Columns(parameters, theta, STEP_LIMITS[0]).calls() + start.table.nfe
        before = start.table.nfe * (2 * settings.sizes.validation + STEP_CALLS)
        return LEAST_CHUNK * pair + before

    def judged_results(self, nfe: int, calls: int) -> float:
        """A column runs only the calls after its parameter acts: half of them on average."""
        return 2 * calls / max(1, nfe - 1)

    def loss(self, distances: torch.Tensor, task: Task) -> float:
        return robust_loss(distances, cast(float, task.scale))

    def run(
        self, task: Task, starts: list[Start], settings: Settings, state: NfeState
    ) -> tuple[Start, SolverTable]:
        count = len(state.method.get("runs", ())) or affordable_starts(settings)
        with torch.no_grad():
            return self._run(task, distinct(starts, count), settings, state)

    def _run(
        self, task: Task, starts: list[Start], settings: Settings, state: NfeState
    ) -> tuple[Start, SolverTable]:
        saved = state.method
        runs: list[Iterate] = saved.setdefault("runs", [{} for _ in starts])
        task.scale = next((run["scale"] for run in runs if "scale" in run), saved.get("scale"))
        parameters = [_parameters(task.model, start, settings) for start in starts]
        for each, run in zip(parameters, runs, strict=True):
            if "best" in run:
                task.keep_best(run["validation"] ** 0.5, each.at(run["best"]))

        def train(k: int, iterations: int) -> None:
            if not _train_start(task, parameters[k], runs, k, iterations):
                state.add_log(
                    f"{task.goal.title}: training from {starts[k].label} was given up because its "
                    "results are not finite."
                )

        if "order" not in saved:
            for k in range(len(runs) if len(runs) > 1 else 0):
                train(k, PROBE_ITERATIONS)
            begun = [k for k, run in enumerate(runs) if "best" in run]
            saved["order"] = sorted(begun, key=lambda k: runs[k]["validation"]) or [0]
        for k in saved["order"]:
            train(k, MAX_ITERATIONS)
        best = min(saved["order"], key=lambda k: runs[k]["validation"])
        state.history = runs[best]["history"]
        return starts[best], parameters[best].at(runs[best]["best"])


GAUSS_NEWTON = GaussNewton("gauss-newton")


def affordable_starts(settings: Settings) -> int:
    """Return how many starts to train from: only as many as the budget can finish."""
    return max(1, min(settings.starts, (settings.limit or 0) // CALLS_PER_START))


def distinct(starts: Sequence[Start], count: int) -> list[Start]:
    """Return the best `count` starts, no two with the same form and schedule."""
    chosen: dict[tuple[str, str], Start] = {}
    for start in starts:
        chosen.setdefault((start.table.form, start.schedule), start)
    return list(chosen.values())[:count]


def _parameters(model: Model, start: Start, settings: Settings) -> Parameters:
    limits = float(model.sigma_min), float(model.sigma_max)
    guided = settings.guidance and takes_guidance(model)
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


def robust_losses(errors: torch.Tensor, scale: float) -> torch.Tensor:
    """Return the pseudo-Huber losses of squared errors [n]; the errors for a large scale."""
    return 2 * scale**2 * ((1 + errors / scale**2).sqrt() - 1)


def robust_loss(errors: torch.Tensor, scale: float) -> float:
    """Return the mean pseudo-Huber loss of squared errors [n]."""
    return float(robust_losses(errors, scale).mean())


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
    embed = partial(embedded, cast(SumOfSquares, task.objective))

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

    with torch.no_grad():
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


def difference_step(task: Task, parameters: Parameters, theta: torch.Tensor) -> float:
    """Choose a forward-difference step that suits the model's precision, which may be half.

    The second difference of results at three points on a line, 1e-5 apart, is the model's rounding
    noise alone; the step balances that noise against curvature. (A NaN here is not caused by the
    table and counts as no noise: `max` keeps its first argument.)
    """
    direction = torch.ones_like(theta) / max(parameters.count, 1) ** 0.5
    pairs = task.validation[:STEP_PAIRS]
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
    the last iterate is validated before the end.
    """
    if "theta" not in state:
        state.update(_begin(task, parameters))
    task.scale = state.get("scale", task.scale)
    while state["iteration"] < iterations and not state["done"]:
        state.update(_guarded(task, parameters, state, iterations))
        loss, best = state["loss"] ** 0.5, state["validation"] ** 0.5
        table = parameters.at(state["best"])
        task.report("gauss-newton", state["iteration"], iterations, loss, best, table)


def _guarded(task: Task, parameters: Parameters, state: Iterate, iterations: int) -> Iterate:
    """Make one step; if a loss is not finite, go back to the best theta with more damping."""
    try:
        return _step(task, parameters, state, iterations)
    except NotFinite:
        if state["failures"] == MAX_FAILURES:
            step = f"iteration {state['iteration']}"
            raise task.diverged(step, parameters.at(state["best"])) from None
        return {
            **_recentred(state, state["best"], state["product"], state["slope"]),
            "damping": HARDER * state["damping"],
            "failures": state["failures"] + 1,
            "seen": True,
        }


def _step(task: Task, parameters: Parameters, state: Iterate, iterations: int) -> Iterate:
    """Make one iteration, validated when that is due; or the end if the budget allows none."""
    if task.exceeds_budget(_cost(task, parameters, state)):
        return _validated(task, parameters, state) | {"done": True}
    moved = state | _iterate(task, parameters, state)
    if moved["iteration"] % VALIDATE_EVERY == 0 or moved["iteration"] == iterations:
        moved |= _validated(task, parameters, moved)
    return moved


def _begin(task: Task, parameters: Parameters) -> Iterate:
    count = parameters.count
    theta = torch.zeros(count, dtype=torch.float64)
    errors = task.initial_errors(parameters.at(theta))
    task.scale = robust_scale(errors) if task.scale is None else task.scale
    losses = robust_losses(errors, task.scale)
    loss = float(losses.mean())
    step = difference_step(task, parameters, theta)
    return {
        "theta": theta,
        "best": theta,
        "product": torch.zeros(count, count, dtype=torch.float64),
        "slope": torch.zeros(count, dtype=torch.float64),
        "step": step,
        "scale": task.scale,
        "chunk": _chunk_size(task, Columns(parameters, theta, step).calls()),
        "damping": FIRST_DAMPING,
        "iteration": 0,
        "stalls": 0,
        "failures": 0,
        "done": count == 0,
        "seen": True,
        "loss": loss,
        "validation": loss,
        "losses": losses,
        "history": [[task.meter.calls, loss**0.5]],
    }


def _chunk_size(task: Task, columns: int) -> int:
    """Return how many pairs an iteration measures, so that the budget allows enough iterations."""
    affordable = CHUNK
    if task.budget is not None:
        left = task.budget - task.total_after(0)
        affordable = max(LEAST_CHUNK, left // (ITERATIONS * (columns + task.nfe)))
    return min(CHUNK, affordable, len(task.train))


def chunk(pairs: Pairs, size: int, iteration: int) -> Pairs:
    """Return the pairs of one iteration: the next few, starting over at the end."""
    return pairs[(torch.arange(size) + size * iteration) % len(pairs)]


def fading(iteration: int) -> float:
    """Return what is kept of the model at an iteration; it remembers about a third of them all."""
    return min(SLOWEST_FADING, iteration / (iteration + 2))


def _cost(task: Task, parameters: Parameters, state: Iterate) -> int:
    """Return the model calls of one more iteration: columns, a trial, and validation."""
    columns = Columns(parameters, state["theta"], state["step"])
    pairs: int = state.get("chunk", CHUNK)
    return (columns.calls() + task.nfe) * pairs + task.nfe * len(task.validation)


def _iterate(task: Task, parameters: Parameters, state: Iterate) -> Iterate:
    """Make one Levenberg-Marquardt iteration; return what it changes in the state."""
    pairs = chunk(task.train, state.get("chunk", CHUNK), state["iteration"])
    columns = Columns(parameters, state["theta"], state["step"])
    normal = normal_equations(task, columns, pairs)
    for part in (normal.errors, normal.slopes, normal.products):
        task.check_finite(part)
    scale = cast(float, task.scale)
    fresh = normal.weighted(robust_weights(normal.errors, scale))
    kept = fading(state["iteration"])
    product, slope = (kept * state[name] + new for name, new in zip(MODEL, fresh, strict=True))
    damping = max(EASIER * state["damping"], MIN_DAMPING)
    theta = propose(parameters, state["theta"], product, slope, damping)
    errors = task.errors(parameters.at(theta), pairs)
    finite = bool(errors.isfinite().all())
    loss = robust_loss(errors, scale) if finite else math.inf
    counted = {"iteration": state["iteration"] + 1, "failures": 0}
    if loss >= robust_loss(normal.errors, scale):
        harder = min(HARDER * state["damping"], MAX_DAMPING)
        return _recentred(state, state["theta"], product, slope) | counted | {"damping": harder}
    moved = {"loss": loss, "damping": damping, "seen": False}
    return _recentred(state, theta, product, slope) | counted | moved


def _validated(task: Task, parameters: Parameters, state: Iterate) -> Iterate:
    """Validate the iterate unless it has been; stop after too many without a relative gain.

    Few pairs cannot tell iterates apart that differ by less than a standard error: of those, the
    last one is the best, because it has seen most training pairs.
    """
    if state.get("seen", True):
        return {}
    errors = task.errors(parameters.at(state["theta"]), task.validation)
    task.check_finite(errors)
    losses = robust_losses(errors, cast(float, task.scale))
    loss, lowest = float(losses.mean()), state["validation"]
    gap = losses - state.get("losses", torch.full_like(losses, lowest))
    level = float(gap.mean()) <= float(gap.std(correction=0)) / len(gap) ** 0.5
    gain = 1 - (loss / lowest) ** 0.5
    stalls = 0 if gain > GAIN else state["stalls"] + 1
    return {
        "seen": True,
        "stalls": stalls,
        "done": stalls >= PATIENCE,
        "best": state["theta"] if level else state["best"],
        "history": [*state["history"], [task.meter.calls, loss**0.5]],
        **({"validation": loss, "losses": losses} if loss < lowest else {}),
    }


def _recentred(
    state: Iterate, theta: torch.Tensor, product: torch.Tensor, slope: torch.Tensor
) -> Iterate:
    """Rewrite a quadratic model about the state's theta as one about another theta."""
    slope = slope + product @ (theta - state["theta"])
    return {"theta": theta, "product": product, "slope": slope}
