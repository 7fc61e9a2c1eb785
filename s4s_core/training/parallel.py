"""Work shared by processes under torchrun, and batches that shrink when memory runs out."""

import os
from contextlib import contextmanager
from functools import partial

import torch
import torch.distributed as dist

from ..errors import TrainingError


def rank_and_world():
    """This process's number and how many there are; (0, 1) outside torchrun."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def join():
    """Join the other processes that torchrun has started; does nothing outside of it."""
    if (
        dist.is_available()
        and not dist.is_initialized()
        and int(os.environ.get("WORLD_SIZE", 1)) > 1
    ):
        # Most of what is shared lies in main memory, which NCCL alone cannot send.
        gpu = torch.cuda.is_available() and dist.is_nccl_available()
        dist.init_process_group("cpu:gloo,cuda:nccl" if gpu else "gloo")
        if gpu:
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))


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


def gather(local, count):
    """Rows of all processes in order: row i was computed by process i modulo their number."""
    world = rank_and_world()[1]
    most = -(-count // world)
    padded = local.new_zeros(most, *local.shape[1:])
    padded[: len(local)] = local
    parts = [torch.empty_like(padded) for _ in range(world)]
    dist.all_gather(parts, padded)
    return torch.stack(parts, dim=1).flatten(0, 1)[:count]


def total(number):
    """The sum of a whole number over all processes."""
    number = torch.tensor(number)
    dist.all_reduce(number)
    return int(number)


def shared(count):
    """Is work on `count` rows shared out? Fewer rows than processes are done by each of them."""
    return 1 < rank_and_world()[1] <= count


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
