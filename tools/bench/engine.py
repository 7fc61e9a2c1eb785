"""The loop's own time per step, with a null model, against a bare Euler loop and diffusers.

All contenders run in turn on the same tensors, many rounds in one process; each round gives one
ratio to the bare loop of the same round, and the median of the ratios is reported.
"""

import importlib.util
import statistics
import time
from types import SimpleNamespace

import torch

from s4s_core import classical_table, sample, schedule

from .report import Report, Table

SHAPES = ((1, 4, 64, 64), (1, 16, 128, 128))
STEPS = 20
ROUNDS = 60
MODEL = SimpleNamespace(space="ve", sigma_min=0.0292, sigma_max=14.61, times=None)
SOLVERS = (("euler", 1), ("ipndm", 3), ("dpmpp", 3), ("unipc-bh2", 3), ("dpm-solver", 2))


def _null(x, sigma):
    """A model that costs nothing: it returns its input."""
    return x


def _bare_euler(x, nodes):
    """What a hand-written Euler sampler does, and nothing else."""
    sigmas = torch.tensor(nodes, dtype=x.dtype)
    ones = x.new_ones(x.shape[0])
    for i in range(len(nodes) - 1):
        denoised = _null(x, sigmas[i] * ones)
        slope = (x - denoised) / sigmas[i]
        x = x + slope * (sigmas[i + 1] - sigmas[i])
    return x


def _ours(name, order, nodes):
    steps = STEPS // order if name == "dpm-solver" else STEPS
    if steps != STEPS:
        nodes = schedule("logsnr", steps, MODEL)
    table = classical_table(name, nodes, order=order)
    return lambda x: sample(_null, x, table)


def _diffusers():
    """Loops over the schedulers of diffusers, where it is installed."""
    if importlib.util.find_spec("diffusers") is None:
        return {}
    import diffusers

    multistep = {"solver_order": 3, "final_sigmas_type": "zero"}
    made = {
        "EulerDiscrete": diffusers.EulerDiscreteScheduler(),
        "DDIM": diffusers.DDIMScheduler(),
        "DPMSolverMultistep, order 3": diffusers.DPMSolverMultistepScheduler(**multistep),
        "UniPCMultistep, order 3": diffusers.UniPCMultistepScheduler(**multistep),
        "DPMSolverSinglestep, order 2": diffusers.DPMSolverSinglestepScheduler(
            final_sigmas_type="zero", lower_order_final=True
        ),
    }
    return {f"diffusers {name}": _scheduler_loop(made[name]) for name in made}


def _scheduler_loop(scheduler):
    def loop(x):
        scheduler.set_timesteps(STEPS)
        for t in scheduler.timesteps:
            x = scheduler.step(_null(scheduler.scale_model_input(x, t), t), t, x).prev_sample
        return x

    return loop


def _seconds(function, x):
    start = time.perf_counter()
    function(x)
    return time.perf_counter() - start


def _rows(shape, contenders):
    """Median seconds a step, and the median ratio to the bare loop, of every contender."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    for function in contenders.values():
        function(x)
    rounds = [
        {name: _seconds(function, x) for name, function in contenders.items()}
        for _ in range(ROUNDS)
    ]
    bare = next(iter(contenders))
    for name in contenders:
        step = statistics.median(r[name] for r in rounds) / STEPS
        yield [name, step * 1e6, statistics.median(r[name] / r[bare] for r in rounds)]


def measure(args):
    """One table per shape."""
    nodes = schedule("logsnr", STEPS, MODEL).tolist()
    contenders = {"bare Euler loop": lambda x: _bare_euler(x, nodes)}
    for name, order in SOLVERS:
        contenders[f"S4S {name}, order {order}"] = _ours(name, order, nodes)
    contenders |= _diffusers()
    with torch.inference_mode():
        tables = [
            Table(
                f"{'x'.join(map(str, shape))}, float32, CPU, {STEPS} model calls",
                ["loop", "microseconds a call", "ratio to the bare loop"],
                list(_rows(shape, contenders)),
            )
            for shape in SHAPES
        ]
    return Report("engine", "Overhead of the sampling loop", "python s4s.py bench engine", tables)
