"""What a training run will take, the same for every front end: calls, seconds and memory.

torch is not imported until something is measured.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import ModelError, TrainingError
from ..names import PART_SHARE
from .progress import duration

if TYPE_CHECKING:
    from ..model import Model
    from ..training.plan import CallPlan

LONGEST_CALL = 20.0
"""Seconds: a batch that would take longer is extrapolated from a single sample."""

REPEATS = 3
OVERHEAD = 1.15
"""Factor for pictures and for the loop itself."""

IMG2IMG_STRENGTHS = (0.3, 0.5, 0.75)
"""What front ends train where image-to-image is switched on."""

IMG2IMG_COST = (
    f"Each strength takes {PART_SHARE:g} of the effort for each step count, and up to a quarter "
    "for the teacher's pictures; with three, training takes up to three times as long (with the "
    "paper's methods four times)."
)


@dataclass(frozen=True)
class Estimate:
    """What a training run will take at most.

    memory_bytes: the peak on the device that computes, including the model.
    """

    seconds: float
    memory_bytes: int
    calls: int

    @property
    def sentence(self) -> str:
        rate = self.calls / max(self.seconds, 0.1)
        pace = f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"
        return (
            f"At most {self.calls:,} model calls: about {duration(self.seconds)} at {pace} calls a "
            f"second, {size(self.memory_bytes)}."
        )


def size(count: float) -> str:
    """Format bytes as 640 MB or 7.5 GB."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{max(1, round(count / 1e6))} MB"


class DryRun:
    """Times a few model calls at training's batch size.

    gradient: does the method take gradients? per_call: seconds for what training counts as one call
    on one sample. per_result: seconds to evaluate the objective on one result, decoding included.
    batch: as much of what was `wanted` as memory allows. single: was only one sample measured?
    """

    def __init__(self, model: "Model", batch: int, objective: Any, gradient: bool = False) -> None:
        self.model, self.objective, self.gradient = model, objective, gradient
        self.wanted = self.batch = batch
        self._measure(1)  # loads, compiles and caches
        self.per_call, self.per_result = self._measure(1)
        self.single = (self.per_call + self.per_result) * batch > LONGEST_CALL
        if not self.single:
            measured = [self._measure(self.batch) for _ in range(REPEATS)]
            self.per_call, self.per_result = map(min, zip(*measured, strict=True))

    def seconds(self, plan: "CallPlan") -> float:
        """Return how long a run will take at most."""
        seconds = plan.total * self.per_call + plan.judged * self.per_result
        return round(seconds * OVERHEAD, 1)

    def _measure(self, batch: int) -> tuple[float, float]:
        """Return the seconds per sample of a call, and of the objective on its result."""
        return self._fitting(self._call, batch), self._fitting(self._judge, batch)

    def _fitting(self, work: Callable[[int], None], batch: int) -> float:
        """Return the seconds per sample; halve the batch if memory runs out, as training does."""
        from ..training.memory import is_out_of_memory

        while True:
            try:
                return self._seconds(work, batch) / batch
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
            if batch == 1:
                raise TrainingError(
                    "Not enough memory for a single sample. Close other programs, or choose a "
                    "lower resolution or precision."
                )
            self.batch = batch = batch // 2

    def _seconds(self, work: Callable[[int], None], batch: int) -> float:
        from ..training.gradient import PLAIN_COST

        began = time.perf_counter()
        work(batch)
        seconds = time.perf_counter() - began
        return seconds / PLAIN_COST if self.gradient else seconds  # a gradient counts as more calls

    def _call(self, batch: int) -> None:
        """Call the model on noise, with a gradient if the method needs one."""
        import torch

        from ..model import arguments
        from ..teacher import draw_noise

        x, cond = draw_noise(self.model, batch, seed=0)
        sigma = torch.full((batch,), float(self.model.sigma_max), device=x.device)
        with torch.set_grad_enabled(self.gradient):
            x.requires_grad_(self.gradient)
            result = self.model.denoise(*arguments(x, sigma, cond))
            if self.gradient:
                torch.autograd.backward(result.float().square().sum())
            finite = bool(result.isfinite().all())  # waits for the device, too
        if not finite:
            raise ModelError("The model returns NaN or infinity. Try another precision.")

    def _judge(self, batch: int) -> None:
        """Evaluate the objective, with a gradient if the method needs one."""
        import torch

        from ..teacher import draw_noise

        x, _ = draw_noise(self.model, batch, seed=0)
        target = x / float(self.model.sigma_max)
        with torch.set_grad_enabled(self.gradient):
            if self.gradient:
                result = target.clone().requires_grad_()
                torch.autograd.backward(self.objective.distance(result, target).sum())
                float(result.detach().sum())  # waits for the device
            else:
                float(self.objective.embed(target).sum())
