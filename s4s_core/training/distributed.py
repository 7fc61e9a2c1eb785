"""Work shared by processes under torchrun."""

import os

import torch
import torch.distributed as dist


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
