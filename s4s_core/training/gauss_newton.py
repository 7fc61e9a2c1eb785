"""S4S-GN: Levenberg-Marquardt on a table's numbers, without back-propagation.

The objective is a sum of squares over few parameters, so a Gauss-Newton step from finite-difference
columns (jacobian) replaces hundreds of gradient steps. Normal equations are kept per sample in
float64: [n, P, P] and [n, P] are small, and let the samples be weighed after the fact. A few
samples that land on another mode of the model would dominate plain least squares, so the weights
are those of a pseudo-Huber loss in a sample's own error.

An iteration measures only a chunk of the training pairs. What earlier chunks said is kept as a
quadratic model of their loss, which can be written about any point: it follows theta and fades,
and the step goes to the damped minimum of the sum. So nothing that was measured is thrown away, at
the price of eight samples an iteration. The training pairs propose and accept steps; the
validation pairs say which iterate is the best, and when to stop.
"""

import math
from dataclasses import dataclass

import torch

from ..spaces import as_float64
from .jacobian import Columns
from .task import NotFinite

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


def robust_scale(errors):
    """The error at which a sample starts to count less: the median of the samples' own."""
    return float(errors.sqrt().median().clamp(min=1e-12))


def robust_weights(errors, scale):
    """Weights of samples with squared errors [n] that make weighted least squares pseudo-Huber."""
    return (1 + errors / scale**2).rsqrt()


def robust_loss(errors, scale):
    """Mean pseudo-Huber loss of squared errors [n] per sample; their mean for a large scale."""
    return float((2 * scale**2 * ((1 + errors / scale**2).sqrt() - 1)).mean())


@dataclass
class Normal:
    """Normal equations per sample: products [n, P, P], slopes [n, P] and squared errors [n]."""

    products: torch.Tensor
    slopes: torch.Tensor
    errors: torch.Tensor

    def weighted(self, weights):
        """(J^T W J, J^T W r), averaged over the samples."""
        return (
            torch.einsum("n,npq->pq", weights, self.products) / len(weights),
            torch.einsum("n,np->p", weights, self.slopes) / len(weights),
        )


def normal_equations(task, columns, pairs):
    """Accumulate the normal equations of `pairs`, micro-batch by micro-batch, in float64."""
    embed = task.objective.embed

    def accumulate(part):
        def denoise(x, sigma, rows):
            return task.denoise(x, sigma, part.cond, rows)

        features, jacobian = columns.compute(denoise, part, task.workers.batch, embed)
        residual = features - embed(part.target)
        samples = zip(jacobian.unbind(1), as_float64(residual).unbind(0), strict=True)
        sums = [(j @ j.T, j @ r, r @ r) for j, r in ((as_float64(j), r) for j, r in samples)]
        return tuple(torch.stack(column).cpu() for column in zip(*sums, strict=True))

    with torch.inference_mode():
        return Normal(*task.workers.map(pairs, accumulate, share=VARIANTS_AT_ONCE))


def propose(parameters, theta, product, slope, damping):
    """The damped step, shortened so that ordered nodes stay ordered."""
    diagonal = product.diagonal()
    floor = 1e-6 * diagonal.max().clamp(min=1e-30)
    matrix = product + torch.diag(damping * diagonal.clamp(min=floor))
    step = -torch.linalg.solve(matrix, slope)
    return theta + _ordered_share(parameters, theta, step) * step


def _ordered_share(parameters, theta, step):
    """The largest share of a step, up to 1, that leaves every gap a part of what it was."""

    def gaps(at):
        sigmas = parameters.arrays(at)["sigmas"]
        logs = sigmas[: -1 if parameters.table.ending == 0 else None].log()
        return logs[:-1] - logs[1:]

    old, share = gaps(theta), 1.0
    for _ in range(20):
        if not len(old) or bool((gaps(theta + share * step) >= SMALLEST_GAP * old).all()):
            return share
        share *= 0.7
    return 0.0


def difference_step(task, parameters, theta, pairs):
    """A forward-difference step that suits the precision of the model, which may be half.

    Results at three points along a line, 1e-5 apart, differ in their second difference by the
    model's rounding noise alone; the step balances that noise against curvature. (A NaN, which
    cannot be the table's own fault here, counts as no noise: `max` keeps its first argument.)
    """
    direction = torch.ones_like(theta) / max(parameters.count, 1) ** 0.5
    points = [parameters.at(theta + k * 1e-5 * direction) for k in (-1, 0, 1)]
    low, middle, high = (as_float64(task.results(table, pairs)) for table in points)
    noise = (low - 2 * middle + high).square().mean().sqrt() / math.sqrt(6)
    relative = float(noise / middle.square().mean().sqrt().clamp(min=1e-12))
    return min(max(STEP_LIMITS[0], 2 * math.sqrt(relative)), STEP_LIMITS[1])


def refine(task, parameters, state, iterations):
    """Iterate from `state` until it has made `iterations`, converged, or spent the budget.

    A table without free parameters is as good as it gets.
    `state` is a dict of plain numbers, lists and tensors, changed only after a whole iteration, so
    that saving it anywhere in between resumes exactly. state["best"] is the best theta so far on
    the validation pairs, and state["validation"] its error there. Where the budget ends it,
    state["needed"] is the one that would have allowed another iteration.
    """
    if "theta" not in state:
        state.update(_begin(task, parameters))
    while state["iteration"] < iterations and not state["done"]:
        cost = _cost(task, parameters, state)
        if task.spent_after(cost):
            state.update(done=True, needed=task.total_after(cost))
        else:
            state.update(_guarded(task, parameters, state))
        loss, best = state["loss"] ** 0.5, state["validation"] ** 0.5
        table = parameters.at(state["best"])
        task.report("gauss-newton", state["iteration"], iterations, loss, best, table)


def _guarded(task, parameters, state):
    """One iteration; after a loss that is not finite, the best table with more damping instead."""
    try:
        return _iterate(task, parameters, state)
    except NotFinite:
        if state["failures"] == MAX_FAILURES:
            step = f"iteration {state['iteration']}"
            raise task.diverged(step, parameters.at(state["best"])) from None
        return {
            **_at(state, state["best"], state["product"], state["slope"]),
            "damping": HARDER * state["damping"],
            "failures": state["failures"] + 1,
        }


def _begin(task, parameters):
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


def chunk(pairs, iteration):
    """The pairs of one iteration: eight after eight, around and around."""
    size = min(CHUNK, len(pairs))
    return pairs[(torch.arange(size) + size * iteration) % len(pairs)]


def _cost(task, parameters, state):
    """Model calls of one more iteration: its columns, its trials, and its winner's validation."""
    columns = Columns(parameters, state["theta"], state["step"], task.central)
    trials = task.nfe * len(DAMPINGS)
    samples = min(CHUNK, len(task.train))
    return (columns.calls() + trials) * samples + task.nfe * len(task.validation)


def _iterate(task, parameters, state):
    """One Levenberg-Marquardt iteration; what it changes of the state."""
    pairs = chunk(task.train, state["iteration"])
    columns = Columns(parameters, state["theta"], state["step"], task.central)
    normal = normal_equations(task, columns, pairs)
    for part in (normal.errors, normal.slopes, normal.products):
        task.check_finite(part)
    fresh = normal.weighted(robust_weights(normal.errors, task.scale))
    system = [FADING * state[name] + new for name, new in zip(MODEL, fresh, strict=True)]
    old = robust_loss(normal.errors, task.scale)
    trained, found, damping = _search(task, parameters, state, system, pairs)
    if trained >= old:
        harder = min(HARDER * state["damping"], MAX_DAMPING)
        return {**_at(state, state["theta"], *system), **_after(state, 0.0), "damping": harder}
    errors = task.errors(parameters.at(found), task.validation)
    task.check_finite(errors)
    loss = robust_loss(errors, task.scale)
    return {
        **_at(state, found, *system),
        **_after(state, 1 - (loss / state["validation"]) ** 0.5),
        "loss": trained,
        "damping": max(damping, MIN_DAMPING),
        "best": found if loss < state["validation"] else state["best"],
        "validation": min(loss, state["validation"]),
        "history": [*state["history"], [task.meter.calls, loss**0.5]],
    }


def _at(state, theta, product, slope):
    """The quadratic model that was written about the state's theta, written about another one."""
    slope = slope + product @ (theta - state["theta"])
    return {"theta": theta, "product": product, "slope": slope}


def _after(state, gain):
    """Count an iteration; too many without a relative gain on the validation pairs are the end."""
    iteration, stalls = state["iteration"] + 1, 0 if gain > GAIN else state["stalls"] + 1
    return {
        "iteration": iteration,
        "stalls": stalls,
        "done": stalls >= PATIENCE,
        "failures": 0,
    }


def _search(task, parameters, state, system, pairs):
    """(loss, theta, damping) of the best trial on `pairs`; one that breaks counts as infinite."""

    def trial(damping):
        theta = propose(parameters, state["theta"], *system, damping)
        errors = task.errors(parameters.at(theta), pairs)
        finite = bool(errors.isfinite().all())
        return robust_loss(errors, task.scale) if finite else math.inf, theta, damping

    trials = [trial(state["damping"] * factor) for factor in DAMPINGS]
    return min(trials, key=lambda found: found[0])
