"""Run solver tables on a model, and turn the results into pictures."""

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from s4s_core import SolverTable, sample
from s4s_core.model import Condition
from s4s_core.teacher import Pairs, draw_noise
from s4s_core.training.memory import Batcher, is_out_of_memory

from .models.contract import TrainerModel, decoded

BATCH = 32
"""How many samples are computed at once, if memory allows."""

FRESH_SEED = 700_000_001
"""Added to the seeds of comparisons and samples, to keep them away from those of training."""

Value = TypeVar("Value")


def fresh_noise(
    model: TrainerModel, count: int, seed: int
) -> tuple[torch.Tensor, Condition | None]:
    """Draw (x, conditions) from noise that no training with an ordinary seed has seen."""
    noise: tuple[torch.Tensor, Condition | None] = draw_noise(model, count, FRESH_SEED + seed)
    return noise


@torch.no_grad()
def sample_results(
    model: TrainerModel,
    table: SolverTable,
    x: torch.Tensor,
    cond: Condition | None,
    progress: Callable[[float], None] | None = None,
    batcher: Batcher | None = None,
) -> torch.Tensor:
    """Run a table from noise x, on as many samples at once as memory holds.

    progress: called with the share done after every model call. batcher: keeps the batch size that
    fits from one call to the next.
    """
    noise = Pairs(x, cond, x)

    def run(batch: int) -> torch.Tensor:
        parts: list[torch.Tensor] = []
        for part in noise.batches(batch):
            before, size = sum(map(len, parts)), len(part)

            def show(step: Any, before: int = before, size: int = size) -> None:
                if progress is not None:
                    progress((before + size * (step.call + 1) / step.nfe) / len(noise))

            parts.append(sample(model.denoise, part.x, table, part.cond, show))
        return torch.cat(parts)

    results: torch.Tensor = (batcher or Batcher(BATCH)).call(run)
    return results


@torch.no_grad()
def to_pictures(model: TrainerModel, x: torch.Tensor) -> torch.Tensor | None:
    """Decode results one by one into pictures [n, 3, h, w] in [0, 1], in main memory.

    Return None if the model makes no pictures.
    """
    parts: list[torch.Tensor] = []
    for part in x.to(model.device).split(1):
        picture = decoded(model, part)
        if picture is None:
            return None
        parts.append(picture.to("cpu", torch.float32, copy=True))  # decode may reuse it
    return torch.cat(parts)


def makes_pictures(model: TrainerModel) -> bool:
    """Return whether the model's results can be shown."""
    return to_pictures(model, torch.zeros(1, *model.shape)) is not None


def if_memory_allows(function: Callable[[], Value]) -> Value | None:
    """Return function(), or None with a warning if memory does not suffice for pictures."""
    try:
        return function()
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
    print("Not enough memory for sample pictures; continuing without them.", file=sys.stderr)
    return None
