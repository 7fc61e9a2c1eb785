"""Measure cells: build or train the solver that a cell names, and score it on fresh noise."""

import copy
import importlib.util
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import torch

from s4s_core import classical_table, fit, load_solver, sample, schedule
from s4s_core.app.folders import DEMO_SOLVER
from s4s_core.candidates import SCHEDULES, Candidate, candidates, named_start, rank, ranked_starts
from s4s_core.errors import S4SError, TrainingCancelled
from s4s_core.model import Denoiser, Model
from s4s_core.schedules.gits import gits_costs
from s4s_core.table import SolverTable
from s4s_core.teacher import TEACHER_NFE, Pairs, default_teacher, draw_pairs
from s4s_core.training.gradient import PLAIN_COST
from s4s_core.training.parameters import as_multistep
from s4s_core.training.settings import Settings
from s4s_core.training.task import Meter

from . import dpm_v3, rivals
from .cells import BUNDLED, RIVALS, UNLEARNED, Cell, CellStore, Result, table_data, table_from
from .frechet import FrechetDistances

FRESH_SEED = 800_000_001
"""Seed of the noise for scoring, far from the seeds of every training run."""
RIVAL_SEED = 850_000_007
GITS_SAMPLES = 32
BATCH = 64
SEARCH_PAIRS = 16
PAIRS_COST = TEACHER_NFE * (Settings.samples + Settings.validation + Settings.held_out)
"""Calls for the teacher pairs that `fit` draws on top of its budget."""
PHASES = {"s4s-alt": 16}
RATE = 0.01
"""Learning rate of the gradient methods: the best of five from 0.005 to 0.1 for S4S, S4S-Alt and
joint, at 8,000 NFE-equivalents on the analytic model with separate seeds."""

Solver = SolverTable | dpm_v3.Solver


def load_model(name: str, cfg: float) -> Model:
    """Load the bundled model, or the analytic one ("mixture") that quick runs use."""
    if name == "mixture":
        from s4s_core.mixture import GaussianMixture

        return GaussianMixture.random(64, (64,), seed=3, spread=1.0, scale=0.5, rank=8)
    from s4s_core.demo import load_demo

    return load_demo("ve", cfg)


class Lab:
    """Measures cells in one process; `store` is shared with all other processes.

    `images` is a file of training pictures for Fréchet distances. Once `stop()` is true,
    measuring raises TrainingCancelled.
    """

    def __init__(
        self,
        work: Path | str,
        images: Path | str | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> None:
        self.store, self.images, self.stop = CellStore(work), images, stop
        self.cache = self.store.folder / "teacher"
        self.model = lru_cache(maxsize=2)(load_model)
        self.costs = lru_cache(maxsize=2)(self._costs)
        self.fresh = lru_cache(maxsize=2)(self._fresh)

    def check_time(self) -> None:
        """Raise TrainingCancelled once time is up."""
        if self.stop is not None and self.stop():
            raise TrainingCancelled("Time is up. Run the same command again to continue.")

    def result(self, cell: Cell) -> Result:
        """Return the result of a cell from the store; measure and store it first if needed."""
        with self.store.lock(cell) as lock:
            lock.take(wait=float("inf"))
            return self.store.load(cell) or self._measure_now(cell)

    def _measure_now(self, cell: Cell) -> Result:
        self.check_time()
        start = time.monotonic()
        result = self.frechet.measure(cell) if cell.frechet else self._measure(cell)
        result.setdefault("seconds", round(time.monotonic() - start, 1))
        return self.store.save(cell, result)

    @cached_property
    def frechet(self) -> FrechetDistances:
        return FrechetDistances(self)

    def table(self, cell: Cell) -> SolverTable:
        """Return the table of a cell."""
        return table_from(self.result(cell)["table"])

    # Solvers

    def _measure(self, cell: Cell) -> Result:
        solver: Solver
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

    def _unlearned(self, cell: Cell) -> tuple[SolverTable, int, str]:
        """(table, calls spent on its schedule, name) of a classical solver."""
        if cell.solver == "best":
            winner = self._best(cell)
            return winner.table, 0, winner.label
        name = f"{cell.solver} {cell.order}, {cell.schedule}"
        if cell.schedule == "ld3":
            table, calls = self._learned(replace(cell, schedule="edm", method="ld3"))
            return table, calls, name
        return *self._start(cell), name

    def _best(self, cell: Cell) -> Candidate:
        """The best classical solver on all schedules, chosen on the same pairs it is scored on."""
        model = self.model(cell.model, cell.cfg)
        names = [*SCHEDULES, "gits", *(["dmn"] if importlib.util.find_spec("scipy") else [])]
        options = {"gits": {"costs": self.costs(cell.model, cell.cfg)[0]}}
        tables = candidates(model, cell.nfe, schedules=names, options=options)
        return rank(model.denoise, tables, self._pairs(cell), BATCH, first=32)[0][1]

    def _start(self, cell: Cell) -> tuple[SolverTable, int]:
        """(table that a cell starts from, calls spent on its schedule)."""
        model = self.model(cell.model, cell.cfg)
        if cell.schedule == "ld3":
            result = self.result(replace(cell, method=UNLEARNED, options=()))
            return table_from(result["table"]), result["calls"]
        if cell.schedule == "gits":
            costs, calls = self.costs(cell.model, cell.cfg)
            nodes = schedule("gits", cell.nfe, model, costs=costs)
            return classical_table(cell.solver, nodes, cell.order, model.space), calls
        return named_start(model, cell.start, cell.nfe, 0.0).table, 0

    def _learned(self, cell: Cell) -> tuple[SolverTable, int]:
        """(table, NFE-equivalents including teacher and search) of a method of `fit`."""
        if cell.solver == "auto" or cell.method == "ld3":
            return self._fit(cell, cell.method, init=cell.start)
        start, before = self._start(cell)
        table, calls = self._fit(cell, cell.method, start=start)
        return table, before + calls

    def _fit(self, cell: Cell, method: str, **options: Any) -> tuple[SolverTable, int]:
        """Train, or continue training, with the cell's options; (table, NFE-equivalents)."""
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
            state=self.store.state(cell),
            cancelled=self.stop,
            batch=BATCH,
            **options,
        )
        self.store.state(cell).unlink(missing_ok=True)
        return result.pack[cell.nfe], result.calls

    def _gradient_options(self, cell: Cell) -> dict[str, Any]:
        """Options of `fit` with as many epochs per phase as the budget pays for."""
        sizes: dict[str, Any] = {"samples": Settings.samples, "validation": Settings.validation}
        sizes |= dict(cell.options)
        epoch = cell.nfe * (PLAIN_COST * sizes["samples"] + sizes["validation"])
        epochs = max(1, cell.budget // (epoch * PHASES.get(cell.method, 1)))
        return {"epochs": epochs, "rate": RATE, "rematerialise": False}

    def _rival(self, cell: Cell) -> tuple[Solver, int]:
        """(solver, calls) of a rival; those without teacher pairs may spend their cost as well."""
        model = self.model(cell.model, cell.cfg)
        seed, whole = RIVAL_SEED + 1_000 * cell.seed, cell.budget + PAIRS_COST
        if cell.method == "dpm-v3":
            order, name = cell.order, cell.schedule
            return rivals.dpm_solver_v3(model, name, order, cell.nfe, whole, seed)
        start, searching = self._searched(cell)
        table = as_multistep(start.table)
        if cell.method == "trajectory":
            table, calls = rivals.trajectory(model, table, whole, seed)
        elif cell.method == "gs":
            nodes = schedule(start.schedule, cell.nfe, model)
            args = model, cell.solver, cell.order, nodes, cell.budget, cell.seed
            table, calls = rivals.generalized(*args, rate=RATE, cache=self.cache)
        else:
            wide = rivals.of_maximal_order(table)
            table, calls = self._fit(cell, "joint", start=wide, relax=0.0)
        return table, searching + calls

    def _searched(self, cell: Cell) -> tuple[Candidate, int]:
        """(best classical start, calls) of a search like the one that `fit` begins with."""
        model = self.model(cell.model, cell.cfg)
        seed, teacher = RIVAL_SEED + 1_000 * cell.seed + 1, default_teacher(model)
        pairs = draw_pairs(model, teacher, SEARCH_PAIRS, seed, BATCH, self.cache)
        meter = Meter(model.denoise)
        ranked = ranked_starts(model, meter, pairs, cell.nfe, 0.0, BATCH)
        return ranked[0][1], meter.calls + TEACHER_NFE * SEARCH_PAIRS

    # Scores

    def _costs(self, name: str, cfg: float) -> tuple[Any, int]:
        """(costs for gits, calls spent on them)."""
        model: Any = copy.copy(self.model(name, cfg))
        model.denoise = meter = Meter(model.denoise)
        with torch.inference_mode():
            return gits_costs(model, samples=GITS_SAMPLES), meter.calls

    def _fresh(self, name: str, cfg: float, count: int) -> Pairs:
        model = self.model(name, cfg)
        return draw_pairs(model, default_teacher(model), count, FRESH_SEED, BATCH, self.cache)

    def _pairs(self, cell: Cell) -> Pairs:
        return self.fresh(cell.model, cell.cfg, cell.fresh)

    def _score(self, cell: Cell, solver: Solver) -> Result:
        """Measure the error to the teacher on fresh noise."""
        model = self.model(cell.model, cell.cfg)
        parts = []
        with torch.inference_mode():
            for part in self._pairs(cell).batches(BATCH):
                result = run_solver(model.denoise, part, solver)
                parts.append((result - part.target).flatten(1).double().square().mean(1))
        errors = torch.cat(parts)
        if not bool(errors.isfinite().all()):
            raise S4SError(f"The results of {cell.label} contain NaN or infinity.")
        table = table_data(solver) if isinstance(solver, SolverTable) else None
        return {
            "rmse": float(errors.mean().sqrt()),
            "median": float(errors.sqrt().median()),
            "psnr": float((10 * (4 / errors.clamp(min=1e-12)).log10()).mean()),
            "table": table,
        }


def run_solver(denoise: Denoiser, part: Pairs, solver: Solver) -> torch.Tensor:
    """Sample from the starts of pairs with a table, or with a solver's own `run`."""
    if isinstance(solver, SolverTable):
        return sample(denoise, part.x, solver, part.cond)
    return solver.run(denoise, part.x, part.cond)
