"""Measure cells: build or train the solver that a cell names, and score it on fresh noise.

A model has one teacher at each CFG, the one that `choose_teacher` chooses: for the pairs that
solvers are scored on, for Fréchet distances, for rivals and for training.
"""

import copy
import importlib.util
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import torch

from s4s_core import classical_table, fit, load_solver, sample, schedule
from s4s_core.app.folders import DEMO_SOLVER
from s4s_core.candidates import (
    AUTO_SCHEDULES,
    SEARCH_PAIRS,
    SEARCH_ROUNDS,
    Candidate,
    candidates,
    named_solver,
    rank,
)
from s4s_core.errors import ModelError, ObjectiveError, S4SError, TrainingCancelled
from s4s_core.model import Denoiser, Model
from s4s_core.objectives import Lpips, Objective
from s4s_core.schedules.gits import gits_costs
from s4s_core.table import SolverTable
from s4s_core.teacher import (
    TEACHER_NFE,
    Pairs,
    choice_calls,
    choose_teacher,
    default_teacher,
    draw_pairs,
)
from s4s_core.training.gradient import PLAIN_COST
from s4s_core.training.parameters import as_multistep, widened
from s4s_core.training.task import Meter

from . import dpm_v3, rivals
from .cells import (
    BUNDLED,
    CHOICE,
    RIVALS,
    SEARCH,
    UNLEARNED,
    Cell,
    CellStore,
    Result,
    choice,
    table_data,
    table_from,
)
from .frechet import FrechetDistances
from .measures import L2AndLpips, load_lpips, measures

FRESH_SEED = 800_000_001
"""Seed of the noise for scoring, far from the seeds of every training run."""
RIVAL_SEED = 850_000_007
GITS_SAMPLES = 32
BATCH = 64
SIZES = {"samples": 64, "validation": 32, "held_out": 32}
"""Pairs of cells that give every method the same budget for training alone."""
PAIRS_COST = TEACHER_NFE * sum(SIZES.values())
"""Calls for their pairs, on top of the budget."""
FEW_SOLVERS = (("euler", 1), ("ipndm", 2), ("ipndm", 3), ("dpmpp", 2), ("unipc-bh2", 2))
FEW_SCHEDULES = ("edm", "logsnr")
"""What a search tries with a model of a few calls a second."""
FEW: dict[str, Any] = {"solvers": FEW_SOLVERS, "schedules": FEW_SCHEDULES}
PHASES = {"s4s-alt": 16}
RATE = 0.01
"""Learning rate of the gradient methods: the best of five from 0.005 to 0.1 for S4S, S4S-Alt and
joint, at 8,000 NFE-equivalents on the analytic model with separate seeds."""

Solver = SolverTable | dpm_v3.Solver


@dataclass(frozen=True)
class Inputs:
    """What measuring may read: training pictures, weights of LPIPS, and models in Python files.

    images  a file of training pictures for Fréchet distances
    lpips   a folder with alexnet.safetensors
    models  (name, "FILE.py:NAME") of models that NAME() returns; cells know them by name
    """

    images: str | None = None
    lpips: str | None = None
    models: tuple[tuple[str, str], ...] = ()


def load_model(name: str, cfg: float, models: tuple[tuple[str, str], ...] = ()) -> Model:
    """Load the bundled model, the analytic one ("mixture") of quick runs, or one of `models`."""
    if name == "mixture":
        from s4s_core.mixture import GaussianMixture

        return GaussianMixture.random(64, (64,), seed=3, spread=1.0, scale=0.5, rank=8)
    if name != "demo":
        return python_model(dict(models)[name])
    from s4s_core.demo import load_demo

    return load_demo("ve", cfg)


def python_model(place: str) -> Model:
    """Call NAME of "FILE.py:NAME", which returns a model; raise ModelError if that fails."""
    file, _, name = place.rpartition(":")
    spec = importlib.util.spec_from_file_location(Path(file).stem, file)
    if not Path(file).is_file() or spec is None or spec.loader is None:
        raise ModelError(f"'{place}' does not name a Python file and what to call in it.")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not callable(getattr(module, name, None)):
        raise ModelError(f"{file} has no function or class '{name}'.")
    model: Model = getattr(module, name)()
    return model


class Lab:
    """Measures cells in one process; `store` is shared with all other processes.

    Once `stop()` is true, measuring raises TrainingCancelled.
    """

    def __init__(
        self,
        work: Path | str,
        inputs: Inputs | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> None:
        self.store, self.inputs, self.stop = CellStore(work), inputs or Inputs(), stop
        self.cache = self.store.folder / "teacher"
        self._other = {CHOICE: self._choose, SEARCH: self._search}
        self.model = lru_cache(maxsize=2)(self._model)
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
        if cell.frechet:
            result = self.frechet.measure(cell)
        else:
            result = self._other.get(cell.method, self._measure)(cell)
        result.setdefault("seconds", round(time.monotonic() - start, 1))
        saved = self.store.save(cell, result)
        self.store.state(cell).unlink(missing_ok=True)
        return saved

    def _model(self, name: str, cfg: float) -> Model:
        return load_model(name, cfg, self.inputs.models)

    @cached_property
    def frechet(self) -> FrechetDistances:
        return FrechetDistances(self)

    @cached_property
    def lpips(self) -> Lpips | None:
        """LPIPS with its real weights, if they are there."""
        return load_lpips(self.inputs.lpips) if self.inputs.lpips else None

    def table(self, cell: Cell) -> SolverTable:
        """Return the table of a cell."""
        return table_from(self.result(cell)["table"])

    # Teachers

    def chosen(self, name: str, cfg: float) -> tuple[str, int]:
        """(solver, order) of the teacher of a model at a CFG; it is chosen once."""
        found = self.result(choice(name, cfg))
        return found["solver"], found["order"]

    def teacher(self, name: str, cfg: float) -> SolverTable:
        """The teacher of a model at a CFG."""
        return default_teacher(self.model(name, cfg), solver=self.chosen(name, cfg))

    def _choose(self, cell: Cell) -> Result:
        with torch.inference_mode():
            solver, order = choose_teacher(self.model(cell.model, cell.cfg))
        return {"solver": solver, "order": order, "calls": choice_calls()}

    def _own_teacher(self, cell: Cell) -> tuple[SolverTable, int]:
        """(the teacher that a cell is trained with, calls spent on choosing it)."""
        if not cell.teacher:
            return self.teacher(cell.model, cell.cfg), choice_calls()
        solver, _, order = cell.teacher.partition(":")
        return default_teacher(self.model(cell.model, cell.cfg), solver=(solver, int(order))), 0

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
        if cell.solver in ("best", "few"):
            winner = self._best(cell) if cell.solver == "best" else self._best_of_few(cell)
            return winner.table, 0, winner.label
        name = f"{cell.solver} {cell.order}, {cell.schedule}"
        if cell.schedule == "ld3":
            trained = replace(cell, schedule="edm", method="ld3")
            table, calls = self._learned(trained)
            self.store.state(trained).unlink(missing_ok=True)
            return table, calls, name
        return *self._start(cell), name

    def _best(self, cell: Cell) -> Candidate:
        """The best classical solver on all schedules, chosen on the same pairs it is scored on."""
        model = self.model(cell.model, cell.cfg)
        names = [*AUTO_SCHEDULES, "gits", *(["dmn"] if importlib.util.find_spec("scipy") else [])]
        options = {"gits": {"costs": self.costs(cell.model, cell.cfg)[0]}}
        tables = candidates(model, cell.nfe, schedules=names, options=options)
        return rank(model.denoise, tables, self._pairs(cell), BATCH, ((32, 8),))[0][1]

    def _best_of_few(self, cell: Cell) -> Candidate:
        """The best of a few classical solvers on 16 of the pairs it is scored on."""
        model = self.model(cell.model, cell.cfg)
        tables = candidates(model, cell.nfe, **FEW)
        pairs = self._pairs(cell)[:SEARCH_PAIRS]
        return rank(model.denoise, tables, pairs, BATCH, SEARCH_ROUNDS)[0][1]

    def _start(self, cell: Cell) -> tuple[SolverTable, int]:
        """(table that a cell starts from, calls spent on finding it or its schedule)."""
        model = self.model(cell.model, cell.cfg)
        if cell.solver == "few":
            found = self.result(replace(cell, method=SEARCH, budget=0, options=()))
            return table_from(found["table"]), found["calls"]
        if cell.schedule == "ld3":
            result = self.result(replace(cell, method=UNLEARNED, options=()))
            return table_from(result["table"]), result["calls"]
        if cell.schedule == "gits":
            costs, calls = self.costs(cell.model, cell.cfg)
            nodes = schedule("gits", cell.nfe, model, costs=costs)
            return classical_table(cell.solver, nodes, cell.order, model.space), calls
        return named_solver(model, cell.start, cell.nfe, 0.0).table, 0

    def _learned(self, cell: Cell) -> tuple[SolverTable, int]:
        """(table, NFE-equivalents including teacher and search) of a method of `fit`."""
        if cell.solver == "auto" or cell.method == "ld3":
            return self._fit(cell, cell.method, init=cell.start)
        start, before = self._start(cell)
        table, calls = self._fit(cell, cell.method, init=start)
        return table, before + calls

    def _fit(self, cell: Cell, method: str, **options: Any) -> tuple[SolverTable, int]:
        """Train, or continue training, with the cell's options; (table, NFE-equivalents)."""
        options = dict(cell.options) | options
        if not options.get("inclusive"):
            options = {"inclusive": False, **SIZES} | options
        if method != "gauss-newton":
            options = self._gradient_options(cell) | options
        teacher, choosing = self._own_teacher(cell)
        result = fit(
            self.model(cell.model, cell.cfg),
            cell.nfe,
            method,
            cell.seed,
            cell.budget - (choosing if options["inclusive"] else 0),
            objective=self._objective(options.pop("objective", None)),
            teacher=teacher,
            cache=self.cache,
            state=self.store.state(cell),
            cancelled=self.stop,
            batch=BATCH,
            **options,
        )
        return result.pack[cell.nfe], choosing + result.calls

    def _objective(self, name: str | None) -> Objective | str | None:
        """An objective of `fit`; those with LPIPS use the weights of the inputs."""
        if name is None or "lpips" not in name:
            return name
        if self.lpips is None:
            raise ObjectiveError(
                "The weights of LPIPS are missing: pass their folder with --lpips."
            )
        return L2AndLpips(self.lpips) if name == L2AndLpips.name else self.lpips

    def _gradient_options(self, cell: Cell) -> dict[str, Any]:
        """Options of `fit` with as many epochs per phase as the budget pays for."""
        sizes: dict[str, Any] = SIZES | dict(cell.options)
        epoch = cell.nfe * (PLAIN_COST * sizes["samples"] + sizes["validation"])
        epochs = max(1, cell.budget // (epoch * PHASES.get(cell.method, 1)))
        return {"epochs": epochs, "rate": RATE, "rematerialise": False}

    def _rival(self, cell: Cell) -> tuple[Solver, int]:
        """(solver, calls) of a rival; those without teacher pairs may spend their cost as well.

        None of them knows our objective, our constraint on the last step or learned guidance.
        """
        model = self.model(cell.model, cell.cfg)
        seed, whole = RIVAL_SEED + 1_000 * cell.seed, cell.budget + PAIRS_COST
        if cell.method == "dpm-v3":
            order, name = cell.order, cell.schedule
            return rivals.dpm_solver_v3(model, name, order, cell.nfe, whole, seed)
        start, searching = self._searched(cell)
        table = as_multistep(start.table)
        if cell.method == "trajectory":
            taught = self.chosen(cell.model, cell.cfg)
            table, calls = rivals.trajectory(model, table, taught, whole, seed)
        elif cell.method == "gs":
            nodes = schedule(start.schedule, cell.nfe, model)
            args = cell.solver, cell.order, nodes, cell.budget, cell.seed
            teacher = self.teacher(cell.model, cell.cfg)
            table, calls = rivals.generalized(model, teacher, *args, rate=RATE, cache=self.cache)
        else:
            plain = {"objective": "l2", "consistent": "free", "guidance": False, "relax": 0.0}
            wide = widened(table, table.nfe)
            table, calls = self._fit(cell, "joint", init=wide, **plain)
            return table, searching + calls
        return table, choice_calls() + searching + calls

    def _searched(self, cell: Cell) -> tuple[Candidate, int]:
        """(best classical start, calls) of a search like the one that `fit` begins with."""
        model, teacher = self.model(cell.model, cell.cfg), self.teacher(cell.model, cell.cfg)
        seed = RIVAL_SEED + 1_000 * cell.seed + 1
        pairs = draw_pairs(model, teacher, SEARCH_PAIRS, seed, BATCH, self.cache)
        meter = Meter(model.denoise)
        tables = candidates(model, cell.nfe, **(FEW if cell.solver == "few" else {}))
        ranked = rank(meter, tables, pairs, BATCH, SEARCH_ROUNDS)
        return ranked[0][1], meter.calls + TEACHER_NFE * SEARCH_PAIRS

    def _search(self, cell: Cell) -> Result:
        start, calls = self._searched(cell)
        return {"table": table_data(start.table), "name": start.label, "calls": calls}

    # Scores

    def _costs(self, name: str, cfg: float) -> tuple[Any, int]:
        """(costs for gits, calls spent on them)."""
        model: Any = copy.copy(self.model(name, cfg))
        model.denoise = meter = Meter(model.denoise)
        with torch.inference_mode():
            return gits_costs(model, samples=GITS_SAMPLES), meter.calls

    def _fresh(self, name: str, cfg: float, count: int) -> Pairs:
        model, teacher = self.model(name, cfg), self.teacher(name, cfg)
        return draw_pairs(model, teacher, count, FRESH_SEED, BATCH, self.cache)

    def _pairs(self, cell: Cell) -> Pairs:
        return self.fresh(cell.model, cell.cfg, cell.fresh)

    def _score(self, cell: Cell, solver: Solver) -> Result:
        """Compare with the teacher's results on fresh noise."""
        model, pairs = self.model(cell.model, cell.cfg), self._pairs(cell)
        with torch.inference_mode():
            parts = [run_solver(model.denoise, part, solver) for part in pairs.batches(BATCH)]
            results = torch.cat(parts)
            if not bool(results.isfinite().all()):
                raise S4SError(f"The results of {cell.label} contain NaN or infinity.")
            table = table_data(solver) if isinstance(solver, SolverTable) else None
            return measures(results, pairs.target, self.lpips) | {"table": table}


def run_solver(denoise: Denoiser, part: Pairs, solver: Solver) -> torch.Tensor:
    """Sample from the starts of pairs with a table, or with a solver's own `run`."""
    if isinstance(solver, SolverTable):
        return sample(denoise, part.x, solver, part.cond)
    return solver.run(denoise, part.x, part.cond)
