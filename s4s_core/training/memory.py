"""Work in batches that fit memory: they shrink when it runs out."""

from contextlib import contextmanager
from functools import partial

import torch

from ..errors import TrainingError
from .distributed import gather, rank_and_world, shared, total


def is_out_of_memory(error):
    """Did an allocation fail, on a GPU or in main memory?"""
    if isinstance(error, MemoryError | torch.cuda.OutOfMemoryError):
        return True
    told = ("out of memory", "allocate memory", "not enough memory")  # the last one is Windows'
    return isinstance(error, RuntimeError) and any(text in str(error) for text in told)


MORE_MEMORY = "close other programs, or train at a lower resolution."


@contextmanager
def in_a_sentence():
    """Too little memory where no smaller batch would help, said in a sentence."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise TrainingError(f"Out of memory: {MORE_MEMORY}") from error


class Workers:
    """Maps a function over pairs: shared out to processes, in micro-batches that fit memory.

    `meter` counts the calls of all processes; who only asks for `fitting` needs none.
    """

    def __init__(self, batch, meter=None):
        self.batch, self.meter = batch, meter

    def map(self, pairs, function, share=1):
        """function(part) -> tuple of tensors [len(part), ...], over all pairs; rows in order.

        A part has at most batch / share pairs, for functions that run `share` variants of each.
        """
        rank, world = rank_and_world()
        mine = pairs[torch.arange(rank, len(pairs), world)] if shared(len(pairs)) else pairs
        parts, done, before = [], 0, self.meter.calls

        def apply(first, batch):
            part = mine[first : first + max(1, batch // share)]
            return len(part), function(part)

        while done < len(mine):
            size, result = self.fitting(partial(apply, done))
            parts.append(result)
            done += size
        columns = tuple(torch.cat(column) for column in zip(*parts, strict=True))
        if not shared(len(pairs)):
            return columns
        self.meter.calls = before + total(self.meter.calls - before)
        return tuple(gather(column, len(pairs)) for column in columns)

    def fitting(self, function):
        """function(batch size), called again with half of it whenever memory runs out.

        Model calls of an attempt that failed are not counted: a budget lasts as long as without.
        """
        before = self.meter and self.meter.calls
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
