"""Measures cells: models, fresh pairs, classical tables, and what each method makes of them."""

import copy
import importlib.util
import time
from dataclasses import replace
from functools import cached_property, lru_cache

import torch

from s4s_core import SolverTable, classical_table, fit, load_solver, sample, schedule
from s4s_core.app.folders import DEMO_SOLVER
from s4s_core.candidates import AUTO_SCHEDULES, candidates, named_solver, rank, rank_starts
from s4s_core.errors import S4SError, TrainingCancelled
from s4s_core.schedules.gits import gits_costs
from s4s_core.teacher import TEACHER_NFE, default_teacher, draw_pairs
from s4s_core.training.gradient import PLAIN_COST
from s4s_core.training.parameters import as_multistep
from s4s_core.training.settings import Settings
from s4s_core.training.task import Meter

from . import rivals
from .cells import BUNDLED, RIVALS, UNLEARNED, Shelf, table_data, table_from
from .distribution import Distribution

FRESH_SEED = 800_000_001
"""Noise that scores are taken on: far from the seeds of every training run."""
RIVAL_SEED = 850_000_007
GITS_SAMPLES = 32
BATCH = 64
SEARCH_PAIRS = 16
PAIRS_COST = TEACHER_NFE * (Settings.samples + Settings.validation + Settings.held_out)
"""Calls for the teacher's pairs that training has on top of its budget."""
PHASES = {"s4s-alt": 16}
RATE = 0.01
"""The rate of the gradient methods: the best of five from 0.005 to 0.1, for S4S, S4S-Alt and joint
alike, at 8,000 NFE-equivalents on the analytic model with seeds of its own."""


def load_model(name, cfg):
    """The bundled model, or the analytic one that quick runs use."""
    if name == "mixture":
        from s4s_core.mixture import GaussianMixture

        return GaussianMixture.random(64, (64,), seed=3, spread=1.0, scale=0.5, rank=8)
    from s4s_core.demo import load_demo

    return load_demo("ve", cfg)


class Lab:
    """One process's instruments; `shelf` holds what any process has finished."""

    def __init__(self, work, images=None, stop=None):
        self.shelf, self.images, self.stop = Shelf(work), images, stop
        self.cache = self.shelf.folder / "teacher"
        self.model = lru_cache(maxsize=2)(load_model)
        self.costs = lru_cache(maxsize=2)(self._costs)
        self.fresh = lru_cache(maxsize=2)(self._fresh)

    def check_time(self):
        """TrainingCancelled once time is up."""
        if self.stop is not None and self.stop():
            raise TrainingCancelled("Time is up: start the same command again to go on.")

    def result(self, cell):
        """The result of a cell: from the shelf, or measured now and put there."""
        with self.shelf.lock(cell) as lock:
            lock.take(wait=float("inf"))
            return self.shelf.load(cell) or self._now(cell)

    def _now(self, cell):
        self.check_time()
        began = time.monotonic()
        measured = self.frechet.measure(cell) if cell.frechet else self._measure(cell)
        measured.setdefault("seconds", round(time.monotonic() - began, 1))
        return self.shelf.save(cell, measured)

    @cached_property
    def frechet(self):
        return Distribution(self)

    def table(self, cell):
        """The table of a cell."""
        return table_from(self.result(cell)["table"])

    # What a cell is

    def _measure(self, cell):
        if cell.method in RIVALS:
            solver, calls = self._rival(cell)
        elif cell.method == UNLEARNED:
            solver, calls, name = self._unlearned(cell)
            return self._score(cell, solver) | {"calls": calls, "name": name}
        elif cell.method == BUNDLED:
            solver, calls = load_solver(DEMO_SOLVER)[cell.nfe], 0
        else:
            solver, calls = self._learned(cell)
        return self._score(cell, solver) | {"calls": calls}

    def _unlearned(self, cell):
        """(table, calls that its schedule cost, name) of a classical solver."""
        if cell.solver == "best":
            winner = self._best(cell)
            return winner.table, 0, winner.label
        name = f"{cell.solver} {cell.order}, {cell.schedule}"
        if cell.schedule == "ld3":
            table, calls = self._learned(replace(cell, schedule="edm", method="ld3"))
            return table, calls, name
        return *self._start(cell), name

    def _best(self, cell):
        """The best classical solver on all schedules, chosen on the very pairs it is scored on."""
        model = self.model(cell.model, cell.cfg)
        names = [*AUTO_SCHEDULES, "gits", *(["dmn"] if importlib.util.find_spec("scipy") else [])]
        options = {"gits": {"costs": self.costs(cell.model, cell.cfg)[0]}}
        found = candidates(model, cell.nfe, schedules=names, options=options)
        return rank(model.denoise, found, self._pairs(cell), BATCH, first=32)[0][1]

    def _start(self, cell):
        """(table that a cell names, calls that its schedule cost); gits is measured once."""
        model = self.model(cell.model, cell.cfg)
        if cell.schedule == "ld3":
            found = self.result(replace(cell, method=UNLEARNED, options=()))
            return table_from(found["table"]), found["calls"]
        if cell.schedule == "gits":
            costs, calls = self.costs(cell.model, cell.cfg)
            nodes = schedule("gits", cell.nfe, model, costs=costs)
            return classical_table(cell.solver, nodes, cell.order, model.space), calls
        return named_solver(model, cell.start, cell.nfe, 0.0).table, 0

    def _learned(self, cell):
        """(table, NFE-equivalents spent, teacher and search included) of a method of `fit`."""
        if cell.solver == "auto" or cell.method == "ld3":
            return self._fit(cell, cell.method, init=cell.start)
        start, before = self._start(cell)
        table, calls = self._fit(cell, cell.method, init=start)
        return table, before + calls

    def _fit(self, cell, method, **options):
        options = dict(cell.options) | options
        if method != "gauss-newton":
            options = self._gradient_options(cell) | options
        result = fit(
            self.model(cell.model, cell.cfg),
            cell.nfe,
            method,
            cell.seed,
            cell.budget,
            cache=self.cache,
            state=self.shelf.state(cell),
            cancelled=self.stop,
            batch=BATCH,
            **options,
        )
        self.shelf.state(cell).unlink(missing_ok=True)
        return result.pack[cell.nfe], result.calls

    def _gradient_options(self, cell):
        """As many epochs a phase as the budget pays for."""
        sizes = {"samples": Settings.samples, "validation": Settings.validation}
        sizes |= dict(cell.options)
        epoch = cell.nfe * (PLAIN_COST * sizes["samples"] + sizes["validation"])
        epochs = max(1, cell.budget // (epoch * PHASES.get(cell.method, 1)))
        return {"epochs": epochs, "rate": RATE, "rematerialise": False}

    def _rival(self, cell):
        """(table or solver, calls) of a rival; those without teacher pairs get their cost too."""
        model = self.model(cell.model, cell.cfg)
        seed, whole = RIVAL_SEED + 1_000 * cell.seed, cell.budget + PAIRS_COST
        if cell.method == "dpm-v3":
            order, name = cell.order, cell.schedule
            return rivals.dpm_solver_v3(model, name, order, cell.nfe, whole, seed)
        start, searching = self._searched(cell)
        table = as_multistep(start.table)
        if cell.method == "trajectory":
            found, calls = rivals.trajectory(model, table, whole, seed)
        elif cell.method == "gs":
            nodes = schedule(start.schedule, cell.nfe, model)
            args = model, cell.solver, cell.order, nodes, cell.budget, cell.seed
            found, calls = rivals.generalized(*args, rate=RATE, cache=self.cache)
        else:
            wide = rivals.of_maximal_order(table)
            found, calls = self._fit(cell, "joint", init=wide, relax=0.0)
        return found, searching + calls

    def _searched(self, cell):
        """(best classical Candidate, calls) of a search like the one that `fit` begins with."""
        model = self.model(cell.model, cell.cfg)
        seed, teacher = RIVAL_SEED + 1_000 * cell.seed + 1, default_teacher(model)
        pairs = draw_pairs(model, teacher, SEARCH_PAIRS, seed, BATCH, self.cache)
        meter = Meter(model.denoise)
        found = rank_starts(model, meter, pairs, cell.nfe, 0.0, BATCH)
        return found[0][1], meter.calls + TEACHER_NFE * SEARCH_PAIRS

    # How well it does

    def _costs(self, name, cfg):
        """(gits' costs of a model, calls that they took)."""
        model = copy.copy(self.model(name, cfg))
        model.denoise = meter = Meter(model.denoise)
        with torch.inference_mode():
            return gits_costs(model, samples=GITS_SAMPLES), meter.calls

    def _fresh(self, name, cfg, count):
        model = self.model(name, cfg)
        return draw_pairs(model, default_teacher(model), count, FRESH_SEED, BATCH, self.cache)

    def _pairs(self, cell):
        return self.fresh(cell.model, cell.cfg, cell.fresh)

    def _score(self, cell, solver):
        """Errors to the teacher on fresh noise, per picture and summed up."""
        model = self.model(cell.model, cell.cfg)
        errors = []
        with torch.inference_mode():
            for part in self._pairs(cell).batches(BATCH):
                result = run_solver(model.denoise, part, solver)
                errors.append((result - part.target).flatten(1).double().square().mean(1))
        errors = torch.cat(errors)
        if not bool(errors.isfinite().all()):
            raise S4SError(f"The results of {cell.label} are not finite.")
        table = table_data(solver) if isinstance(solver, SolverTable) else None
        return {
            "rmse": float(errors.mean().sqrt()),
            "median": float(errors.sqrt().median()),
            "psnr": float((10 * (4 / errors.clamp(min=1e-12)).log10()).mean()),
            "table": table,
        }


def run_solver(denoise, part, solver):
    """Results of a table, or of a solver with a `run` of its own, on pairs."""
    if isinstance(solver, SolverTable):
        return sample(denoise, part.x, solver, part.cond)
    return solver.run(denoise, part.x, part.cond)
