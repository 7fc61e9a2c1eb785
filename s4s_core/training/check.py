"""Check a model by calling it, before it is trained with; and explain errors of its own code."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch

from ..errors import ModelError, S4SError, TrainingError
from ..model import Condition, Model, arguments, takes_guidance
from ..names import MethodEntry
from ..sampling import check_x0
from ..spaces import alpha, as_float64, sigma_of_log_snr
from ..teacher import draw_noise
from .memory import Batcher, is_out_of_memory

CHECK_CALLS = 15
_CHECK_SEED, _DRAWN = 600_000_001, 8
_NEAR, _LOWER = 1.07, 0.9
"""Factors of levels: to one at which a cache reuses results, and to one at which none does."""
_SAME, _NOT_EXACT = 0.005, 0.1
"""Relative differences of results: what does not count, and what no kernel makes."""
_OF_GRADIENTS = re.compile("grad|in-?place|backward|differentia|derivative", re.IGNORECASE)
"""How torch's errors name what a model without gradients lacks."""


def _one_line(problem: object) -> str:
    return str(problem).partition("\n")[0][:150].rstrip(". ")


def not_differentiable(problem: object) -> TrainingError:
    """Return the error to raise where a gradient method meets a model without gradients."""
    return TrainingError(
        f"This model cannot be trained by back-propagation: {_one_line(problem)}. Change its "
        "denoise, or use the method gauss-newton, which needs no gradients."
    )


def gradient_error(error: Exception) -> TrainingError | None:
    """Explain an error of torch about gradients; None for any other."""
    is_one = isinstance(error, RuntimeError) and _OF_GRADIENTS.search(str(error))
    return not_differentiable(error) if is_one else None


def _failed(error: Exception) -> ModelError:
    return ModelError(f"The model failed with {type(error).__name__}: {_one_line(error)}.")


def _failed_with_gradients(error: Exception) -> S4SError:
    return gradient_error(error) or _failed(error)


def _interrupts(error: Exception) -> bool:
    """Does a host stop the run by this error? It is known by its name: no host is imported."""
    return any("Interrupt" in kind.__name__ for kind in type(error).__mro__)


@contextmanager
def explained(explain: Callable[[Exception], S4SError | None]) -> Iterator[None]:
    """Raise what explain(error) returns, if anything, where a model's own code fails.

    Memory that runs out, and what a host raises to interrupt a run, stay what they are.
    """
    try:
        yield
    except S4SError:
        raise
    except Exception as error:
        found = None if is_out_of_memory(error) or _interrupts(error) else explain(error)
        if found is None:
            raise
        raise found from error


class _Row(NamedTuple):
    """What a model is asked of one sample: x [1, ...], its level [1], and with which condition."""

    x: torch.Tensor
    sigma: torch.Tensor
    cond: int = 0
    multiplier: float = 1.0


_Given = tuple[torch.Tensor, torch.Tensor, Condition | None, torch.Tensor | None]


class _Kept(NamedTuple):
    """A tensor that a model has seen, what it was then, and what is wrong if it has changed."""

    tensor: torch.Tensor
    before: torch.Tensor
    problem: str

    def check(self) -> None:
        if not torch.equal(self.tensor, self.before):
            raise not_differentiable(self.problem)


def _check_gradient(x0: torch.Tensor, x: torch.Tensor, sigma: torch.Tensor) -> None:
    """Raise TrainingError unless x0 has a gradient in each row of x, and in sigma if it needs one.

    Results are weighed with signs, so that no sum of a sample's results is blind to it.
    """
    problem = "its results have no gradient{} (no_grad or detach)"
    wanted = [each for each in (x, sigma) if each.requires_grad]
    if not x0.requires_grad:
        raise not_differentiable(problem.format(""))
    found = torch.autograd.grad((x0 * x.detach().sign()).sum(), wanted, allow_unused=True)
    if found[0] is None or not bool(found[0].flatten(1).any(1).all()):
        raise not_differentiable(problem.format(" in each row of x"))
    if found[-1] is None or not bool(found[-1].any()):
        raise not_differentiable(problem.format(" in sigma, which learning times needs"))
    if not all(bool(each.isfinite().all()) for each in found):
        raise not_differentiable("its gradient is NaN or infinite")


class _Asker:
    """Asks a model about rows. With a method that needs gradients, it must give some, and must not
    write into what it was given or has returned."""

    def __init__(self, model: Model, cond: Condition | None, entry: MethodEntry | None) -> None:
        self.model, self.cond, self.guided = model, cond, takes_guidance(model)
        self.gradient = entry is not None and entry.needs_gradient
        self.times = entry is not None and entry.learns_times

    def alone(self, row: _Row) -> torch.Tensor:
        """Return the result of one row, at the model's own scale."""
        return self._call((row.x, row.sigma, self._cond([row]), None))

    def together(self, rows: Sequence[_Row], kept: list[_Kept]) -> torch.Tensor:
        """Return the results of rows in one call; what the model has seen joins `kept`."""
        x, sigma = torch.cat([row.x for row in rows]), torch.cat([row.sigma for row in rows])
        told = sigma.new_tensor([row.multiplier for row in rows]) if self.guided else None
        given = x, sigma, self._cond(rows), told
        return self._differentiated(given, kept) if self.gradient else self._call(given)

    def _cond(self, rows: Sequence[_Row]) -> Condition | None:
        if self.cond is None:
            return None
        numbers = [row.cond for row in rows]
        with explained(_failed):
            if len(numbers) == 1:
                return self.cond[numbers[0] : numbers[0] + 1]
            return self.cond[torch.tensor(numbers)]

    def _call(self, given: _Given) -> torch.Tensor:
        with torch.no_grad(), explained(_failed):
            result = self.model.denoise(*arguments(*given))
        return _finite(check_x0(result, given[0]), given[1])

    def _differentiated(self, given: _Given, kept: list[_Kept]) -> torch.Tensor:
        x, sigma = given[0].clone().requires_grad_(), given[1].clone().requires_grad_(self.times)
        with torch.enable_grad(), explained(_failed_with_gradients):
            passed = arguments(x.clone(), sigma.clone(), *given[2:])
            x0 = check_x0(result := self.model.denoise(*passed), x)
            for argument, before in zip(passed, given[:2], strict=False):
                kept.append(_Kept(argument.detach(), before, "it writes into its arguments"))
            for each in kept:
                each.check()
            old = result.detach()
            kept.append(_Kept(old, old.clone(), "it writes into its last result"))
            _check_gradient(x0, x, sigma)
        return _finite(x0.detach(), sigma)


def _finite(x0: torch.Tensor, sigma: torch.Tensor) -> torch.Tensor:
    """Return a copy of results; raise ModelError if any is not finite."""
    if not bool(as_float64(x0).isfinite().all()):
        level = float(sigma.detach().max())
        raise ModelError(
            f"The model returns NaN or infinity at noise level {level:.4g}: try another precision."
        )
    return x0.clone()


def _unlike_first(cond: Condition | None) -> int:
    """Return the number of a condition that differs from the first, if that can be told."""
    if not isinstance(cond, torch.Tensor):
        return 1
    others = range(1, len(cond))
    return next((k for k in others if not torch.equal(cond[k], cond[0])), 1)


def _check_repeats(ask: _Asker, x: torch.Tensor) -> tuple[_Row, _Row, torch.Tensor, torch.Tensor]:
    """Raise ModelError if a result depends on earlier calls.

    Return a row, one far from it, the first one's result, and by how much that may move. Neither
    row is at the highest level, where the results of an exact flow model do not depend on x.
    """
    space, low, high = ask.model.space, float(ask.model.sigma_min), float(ask.model.sigma_max)
    x0 = torch.zeros_like(x)

    def at(sigma: float, sign: int = 1) -> _Row:
        level = x.new_full((1,), sigma)
        return _Row(alpha(space, level) * x0 + sign * sigma / high * x, level)

    x0 = ask.alone(at(high))
    levels = sigma_of_log_snr(space, -torch.tensor([_NEAR, 1.0]).log())
    (near, row), away = map(at, levels.clamp(low, high).tolist()), at(high, sign=-1)
    lower = away._replace(sigma=(_LOWER * away.sigma).clamp(min=low))
    calls = ((away, row), (lower, near, row)) * 2
    results = [[as_float64(ask.alone(each)) for each in rows] for rows in calls]
    ask.times &= not torch.equal(results[0][0], results[1][0])  # a model may be blind to sigma
    far, close, far_again, close_again = (each[-1] for each in results)
    size, spread = far.norm(), (far - far_again).norm() + (close - close_again).norm()
    apart = (far + far_again - close - close_again).norm() / 2
    if bool((apart > _SAME * size + spread) | (spread > _NOT_EXACT * size)):
        raise ModelError(
            "The model's results depend on earlier calls: for training, remove what keeps them, "
            "such as TeaCache."
        )
    return row, lower, far, _NOT_EXACT * size + spread


def check_model(
    model: Model, entry: MethodEntry | None = None, batcher: Batcher | None = None
) -> None:
    """Raise an error if the model cannot be trained with by a method, by CHECK_CALLS calls.

    Its results must be finite, and depend on the arguments of a call only. A cache such as TeaCache
    answers with an earlier result if little has changed since. So one input is evaluated twice
    after a call far from it, and twice after one near it that such a cache reuses. On the demo
    model reuse moves both results alike, by 1.2 % or more; kernels that are not exact make all four
    differ, by 3 % at most (bfloat16, CFG 7.5).

    A row must have the same result beside another row, before or after it, that differs in noise,
    level, condition and guidance. In calls of two rows the demo model's results move by less than
    1e-5, and others' by as much as their kernels are not exact; the condition of the wrong row
    moves them by 15 % or more, its scale by 20 % (CFG 4), its level by more. The batcher says
    whether calls may have two rows.
    """
    with explained(_failed):
        x, cond = draw_noise(model, _DRAWN, _CHECK_SEED)
        other = _unlike_first(cond)
    ask = _Asker(model, cond, entry)
    row, lower, result, most = _check_repeats(ask, x[:1])
    beside = lower._replace(cond=other, multiplier=0.0)

    def in_batches(batch: int) -> None:
        kept: list[_Kept] = []
        for rows in ((row, beside), (beside, row)) if batch > 1 else ((row,), (beside,)):
            found = as_float64(ask.together(rows, kept))
            gaps = [(found[k] - result).norm() for k, each in enumerate(rows) if each is row]
            if any(bool(gap > most) for gap in gaps):
                raise ModelError(
                    "The model's result for one row depends on the other rows of its call: let its "
                    "denoise use each row of x, sigma, cond and guidance for that row only."
                )

    (batcher or Batcher(2)).call(in_batches)
