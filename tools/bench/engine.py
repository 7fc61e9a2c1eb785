"""Time per step of the sampling loop itself, against a bare Euler loop and diffusers.

The model costs nothing. All loops take turns on the same tensors, for many rounds in one process;
each round gives one ratio to its own bare loop, and the median of the ratios is reported.
"""

import argparse
import importlib.util
import statistics
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch

from s4s_core import classical_table, sample, schedule

from .report import Report, Row, Table

SHAPES: tuple[tuple[int, ...], ...] = ((1, 4, 64, 64), (1, 16, 128, 128))
STEPS = 20
ROUNDS = 60
MODEL = SimpleNamespace(space="ve", sigma_min=0.0292, sigma_max=14.61, times=None)
SOLVERS = (("euler", 1), ("ipndm", 3), ("dpmpp", 3), ("unipc-bh2", 3), ("dpm-solver", 2))

Loop = Callable[[torch.Tensor], torch.Tensor]


def _null_model(x: torch.Tensor, sigma: torch.Tensor, cond: Any = None) -> torch.Tensor:
    """Return the input: a model that costs nothing."""
    return x


def _bare_euler(x: torch.Tensor, nodes: list[float]) -> torch.Tensor:
    """Do what a hand-written Euler sampler does, and nothing else."""
    sigmas = torch.tensor(nodes, dtype=x.dtype)
    ones = x.new_ones(x.shape[0])
    for i in range(len(nodes) - 1):
        denoised = _null_model(x, sigmas[i] * ones)
        slope = (x - denoised) / sigmas[i]
        x = x + slope * (sigmas[i + 1] - sigmas[i])
    return x


def _s4s_loop(name: str, order: int, nodes: Any) -> Loop:
    """Sample with a classical table that makes STEPS model calls."""
    steps = STEPS // order if name == "dpm-solver" else STEPS
    if steps != STEPS:
        nodes = schedule("logsnr", steps, MODEL)
    table = classical_table(name, nodes, order=order, space=MODEL)
    return lambda x: sample(_null_model, x, table)


def _diffusers_loops() -> dict[str, Loop]:
    """Loops over diffusers' schedulers; empty if diffusers is not installed."""
    if importlib.util.find_spec("diffusers") is None:
        return {}
    import diffusers

    multistep = {"solver_order": 3, "final_sigmas_type": "zero"}
    schedulers = {
        "EulerDiscrete": diffusers.EulerDiscreteScheduler(),
        "DDIM": diffusers.DDIMScheduler(),
        "DPMSolverMultistep, order 3": diffusers.DPMSolverMultistepScheduler(**multistep),
        "UniPCMultistep, order 3": diffusers.UniPCMultistepScheduler(**multistep),
        "DPMSolverSinglestep, order 2": diffusers.DPMSolverSinglestepScheduler(
            final_sigmas_type="zero", lower_order_final=True
        ),
    }
    return {f"diffusers {name}": _scheduler_loop(schedulers[name]) for name in schedulers}


def _scheduler_loop(scheduler: Any) -> Loop:
    def loop(x: torch.Tensor) -> torch.Tensor:
        scheduler.set_timesteps(STEPS)
        for t in scheduler.timesteps:
            output = _null_model(scheduler.scale_model_input(x, t), t)
            x = scheduler.step(output, t, x).prev_sample
        return x

    return loop


def _seconds(loop: Loop, x: torch.Tensor) -> float:
    start = time.perf_counter()
    loop(x)
    return time.perf_counter() - start


def _rows(shape: tuple[int, ...], loops: dict[str, Loop]) -> Iterator[Row]:
    """For every loop, yield the median microseconds per step and ratio to the first loop."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    for loop in loops.values():
        loop(x)
    rounds = [{name: _seconds(loop, x) for name, loop in loops.items()} for _ in range(ROUNDS)]
    bare = next(iter(loops))
    for name in loops:
        step = statistics.median(r[name] for r in rounds) / STEPS
        yield [name, step * 1e6, statistics.median(r[name] / r[bare] for r in rounds)]


def measure(args: argparse.Namespace) -> Report:
    """Time all loops; one table per shape."""
    nodes = schedule("logsnr", STEPS, MODEL).tolist()
    loops: dict[str, Loop] = {"bare Euler loop": lambda x: _bare_euler(x, nodes)}
    for name, order in SOLVERS:
        loops[f"S4S {name}, order {order}"] = _s4s_loop(name, order, nodes)
    loops |= _diffusers_loops()
    with torch.inference_mode():
        tables = [
            Table(
                f"{'x'.join(map(str, shape))}, float32, CPU, {STEPS} model calls",
                ["loop", "microseconds per call", "ratio to the bare loop"],
                list(_rows(shape, loops)),
            )
            for shape in SHAPES
        ]
    return Report("engine", "Overhead of the sampling loop", "python s4s.py bench engine", tables)
