"""Sharing work between processes under torchrun."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist


def rank_and_world() -> tuple[int, int]:
    """Return this process's rank and the number of processes; (0, 1) outside torchrun."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def is_first() -> bool:
    """Is this the process that saves and reports?"""
    return rank_and_world()[0] == 0


@contextmanager
def joined() -> Iterator[None]:
    """Work with the other processes that torchrun started; do nothing outside torchrun.

    The group is left at the end: a process that exits with its threads running aborts.
    """
    if not dist.is_available() or int(os.environ.get("WORLD_SIZE", 1)) < 2:
        yield
        return
    # Most of what is shared is in main memory, which NCCL alone cannot send.
    gpu = torch.cuda.is_available() and dist.is_nccl_available()
    dist.init_process_group("cpu:gloo,cuda:nccl" if gpu else "gloo")
    try:
        if gpu:
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
        yield
    finally:
        dist.destroy_process_group()


def gather(local: torch.Tensor, count: int) -> torch.Tensor:
    """Collect the rows of all processes in order; process i computed rows i, i + world, ..."""
    world = rank_and_world()[1]
    most = -(-count // world)
    padded = local.new_zeros(most, *local.shape[1:])
    padded[: len(local)] = local
    parts = [torch.empty_like(padded) for _ in range(world)]
    dist.all_gather(parts, padded)
    return torch.stack(parts, dim=1).flatten(0, 1)[:count]


def total(number: int) -> int:
    """Sum a whole number over all processes."""
    tensor = torch.tensor(number)
    dist.all_reduce(tensor)
    return int(tensor)


def wait_for_all() -> None:
    """Wait until every process is here; do nothing outside torchrun."""
    if rank_and_world()[1] > 1:
        total(0)


def shared(count: int) -> bool:
    """Is work on `count` rows split? If rows are fewer than processes, each computes all rows."""
    return 1 < rank_and_world()[1] <= count
