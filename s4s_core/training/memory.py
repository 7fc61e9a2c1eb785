"""Work in batches that fit into memory: halve them when it runs out."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Protocol, TypeVar

import torch

from ..errors import TrainingError
from ..teacher import Pairs
from .distributed import gather, rank_and_world, shared, total

T = TypeVar("T")
Columns = tuple[torch.Tensor, ...]
MORE_MEMORY = "close other programs, or train at a lower resolution."


def is_out_of_memory(error: BaseException) -> bool:
    """Did an allocation fail, on a GPU or in main memory?"""
    if isinstance(error, MemoryError | torch.cuda.OutOfMemoryError):
        return True
    texts = ("out of memory", "allocate memory", "not enough memory")  # the last one is Windows'
    return isinstance(error, RuntimeError) and any(text in str(error) for text in texts)


@contextmanager
def explain_out_of_memory() -> Iterator[None]:
    """Raise TrainingError, with advice, where memory runs out and no smaller batch would help."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise TrainingError(f"Out of memory: {MORE_MEMORY}") from error


class Counter(Protocol):
    """Counts model calls, as `Meter` does."""

    calls: int


class Batcher:
    """Maps functions over pairs, in micro-batches that fit into memory and split over processes.

    `meter` counts the model calls; only `map` needs it.
    """

    def __init__(self, batch: int, meter: Counter | None = None) -> None:
        self.batch, self.meter = batch, meter

    def map(self, pairs: Pairs, function: Callable[[Pairs], Columns], variants: int = 1) -> Columns:
        """Apply function(part) -> tensors [len(part), ...] to all pairs; rows keep their order.

        A part has at most batch / variants pairs, for functions that run several variants of each.
        """
        assert self.meter is not None
        rank, world = rank_and_world()
        mine = pairs[torch.arange(rank, len(pairs), world)] if shared(len(pairs)) else pairs
        parts: list[Columns] = []
        done, before = 0, self.meter.calls

        def apply(first: int, batch: int) -> tuple[int, Columns]:
            part = mine[first : first + max(1, batch // variants)]
            return len(part), function(part)

        while done < len(mine):
            size, result = self.call(partial(apply, done))
            parts.append(result)
            done += size
        columns = tuple(torch.cat(column) for column in zip(*parts, strict=True))
        if not shared(len(pairs)):
            return columns
        self.meter.calls = before + total(self.meter.calls - before)
        return tuple(gather(column, len(pairs)) for column in columns)

    def call(self, function: Callable[[int], T]) -> T:
        """Return function(batch size); when memory runs out, halve the batch and call it again.

        Model calls of a failed attempt are not counted, so they cost no budget.
        """
        before = self.meter.calls if self.meter is not None else 0
        while True:
            try:
                return function(self.batch)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
            if self.batch == 1:
                raise TrainingError(f"Out of memory with a single sample: {MORE_MEMORY}")
            self.batch //= 2
            if self.meter is not None:
                self.meter.calls = before
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
