"""Shared by the training tests: small models and tiny runs."""

from dataclasses import replace
from types import SimpleNamespace

import torch

from s4s_core import classical_table, schedule
from s4s_core.mixture import GaussianMixture
from s4s_core.model import guided_scale
from s4s_core.names import SPACES
from s4s_core.objectives import L2
from s4s_core.teacher import default_teacher, draw_pairs
from s4s_core.training.fit import fit
from s4s_core.training.memory import Batcher
from s4s_core.training.settings import Goal
from s4s_core.training.task import CHOICE, SCORING, SEARCH, TEACHER, Meter, Task

METHODS = ("s4s", "s4s-alt", "joint", "ld3")
ALL_METHODS = ("gauss-newton", *METHODS)
FAMILIES = ("lms", "pc", "ss")
GRADIENT_RUNS = [(m, f, s) for m in METHODS for f in FAMILIES for s in SPACES]

# Solver and order of each family; every one exists in both spaces.
SOLVER = {"lms": ("ipndm", 3), "pc": ("unipc-bh2", 2), "ss": ("dpm-solver", 2)}

# A run of a second or less; its budget is for training alone.
TINY = {"samples": 8, "validation": 6, "held_out": 6, "epochs": 2}
TINY |= {"budget": 2500, "inclusive": False}


def small(space="ve"):
    """Eight overlapping components in six dimensions."""
    return GaussianMixture.random(8, (6,), seed=3, spread=1, scale=0.5, rank=3, space=space)


def pictures(space="ve"):
    """The same components as tiny pictures of two channels."""
    return GaussianMixture.random(8, (2, 4, 4), seed=3, spread=1, scale=0.5, rank=3, space=space)


def large(space="ve"):
    """The mixture of the benchmark: 64 components in 64 dimensions."""
    return GaussianMixture.random(64, (64,), seed=3, spread=1, scale=0.5, rank=8, space=space)


def changed(model, **attributes):
    """The same model with some of its attributes replaced; `denoise` may be one of them."""
    names = ("space", "sigma_min", "sigma_max", "shape", "times", "denoise", "conditions")
    return SimpleNamespace(**{name: getattr(model, name) for name in names} | attributes)


def guided(space="ve", cfg=4.0, shape=(6,)):
    """A mixture under guidance away from itself, towards the first three of its eight components.

    It can be told the guidance of each call.
    """
    whole = GaussianMixture.random(8, shape, seed=3, spread=1, scale=0.5, rank=3, space=space)
    means, weights = whole.means.reshape(-1, *shape), whole.log_weights.exp()
    part = GaussianMixture(means[:3], whole.scales[:3], weights[:3], space)

    def denoise(x, sigma, cond=None, guidance=None):
        told, free = part.denoise(x, sigma), whole.denoise(x, sigma)
        if guidance is None:
            guidance = torch.ones(len(x), dtype=torch.float64)
        scale = guided_scale(torch.tensor(cfg, dtype=torch.float64), guidance.double())
        return torch.lerp(free, told, scale.to(x).reshape(-1, *[1] * len(shape)))

    return changed(whole, denoise=denoise, takes_guidance=True)


class Counted:
    """A denoiser that counts its calls per sample and records the noise levels."""

    def __init__(self, denoise):
        self.denoise, self.calls, self.sigmas = denoise, 0, []

    def __call__(self, x, sigma, *_):
        self.calls += len(x)
        self.sigmas.append(sigma)
        return self.denoise(x, sigma)


def name_of(family, name="edm"):
    """The `init` option of a family's solver."""
    solver, order = SOLVER[family]
    return f"{solver}:{order}:{name}"


def table_of(family, space="ve", nfe=4, ending=0.0, form=None):
    """A classical table of a family; its weights are a starting point in any form."""
    solver, order = SOLVER[family]
    steps = nfe // order if family == "ss" else nfe
    nodes = schedule("edm", steps, small(space), ending)
    table = classical_table(solver, nodes, order, space)
    return replace(table, form=form or table.form)


def tiny_fit(model, nfe=4, method="gauss-newton", all_events=False, **options):
    """fit with the smallest settings; its callback gets the events of training, or all."""
    options = TINY | options
    callback, others = options.get("callback"), (CHOICE, TEACHER, SEARCH, SCORING)
    if callback is not None and not all_events:
        options["callback"] = lambda e: None if e.phase in others else callback(e)
    return fit(model, nfe, method, **{"init": "ipndm:3:edm", **options})


def task_of(model, nfe=4, samples=8, validation=6, batch=8, budget=10**6, **options):
    """A Task on fresh pairs."""
    teacher, meter = default_teacher(model), Meter(model.denoise)
    train, valid = (draw_pairs(model, teacher, n, k) for k, n in ((1, samples), (2, validation)))
    return Task(
        model=model,
        meter=meter,
        objective=L2(),
        train=train,
        validation=valid,
        goal=Goal(nfe),
        budget=budget,
        planned=budget,
        batcher=Batcher(batch, meter),
        **options,
    )


def moved(count, seed=0, size=0.05):
    """A small random vector."""
    generator = torch.Generator().manual_seed(seed)
    return size * torch.randn(count, generator=generator, dtype=torch.float64)


def message_of(error):
    """The message of an error, asserted to be short and fit for a person."""
    text = str(getattr(error, "value", error))
    assert text[-1] in ".?" and "\n" not in text and "Traceback" not in text and len(text) < 300
    return text
