"""Work shared by processes under torchrun, and batches that shrink when memory runs out."""

import torch
import torch.distributed as dist

from ..errors import TrainingError


def rank_and_world():
    """This process's number and how many there are; (0, 1) outside torchrun."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def is_out_of_memory(error):
    """Did an allocation fail, on a GPU or in main memory?"""
    if isinstance(error, MemoryError | torch.cuda.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and "allocate memory" in str(error)


def gather(local, count):
    """Rows of all processes in order: row i was computed by process i modulo their number."""
    rank, world = rank_and_world()
    if world == 1:
        return local
    most = -(-count // world)
    padded = local.new_zeros(most, *local.shape[1:])
    padded[: len(local)] = local
    parts = [torch.empty_like(padded) for _ in range(world)]
    dist.all_gather(parts, padded)
    return torch.stack(parts, dim=1).flatten(0, 1)[:count]


class Workers:
    """Maps a function over pairs: shared out to processes, in micro-batches that fit memory."""

    def __init__(self, batch):
        self.batch = batch

    def map(self, pairs, function):
        """function(part) -> tuple of tensors [len(part), ...], over all pairs; rows in order."""
        rank, world = rank_and_world()
        mine = pairs[torch.arange(rank, len(pairs), world)] if world > 1 else pairs
        parts, done = [], 0
        while done < len(mine):
            part = mine[done : done + self.batch]
            result = self._attempt(function, part)
            if result is not None:
                parts.append(result)
                done += len(part)
        columns = [torch.cat(column) for column in zip(*parts, strict=True)]
        return tuple(gather(column, len(pairs)) for column in columns)

    def _attempt(self, function, part):
        """function(part), or None after halving the batch because memory ran out."""
        try:
            return function(part)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
        if self.batch == 1:
            raise TrainingError(
                "Out of memory with a single sample: close other programs, or train at a lower "
                "resolution."
            )
        self.batch = max(1, min(self.batch, len(part)) // 2)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        return None
