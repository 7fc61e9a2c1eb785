"""`fit`: distil a model's teacher into a pack of solver tables."""

import os
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ..candidates import candidates, check_solver, named_solver, rank_starts
from ..errors import ObjectiveError, TrainingError
from ..model import Model
from ..objectives import Decode, Objective, SumOfSquares
from ..objectives import objective as find_objective
from ..schedules.gits import Costs, gits_costs
from ..table import SolverPack, SolverTable
from ..teacher import Pairs, Teacher, default_teacher, draw_pairs
from . import scoring
from .distributed import is_first
from .memory import Batcher, explain_out_of_memory
from .method import GivenStart, Start, find_method
from .settings import Settings
from .state import History, NfeState, RunState, exclusive, save_state
from .task import Callback, Event, Meter, Task, check_model

STATE_VERSION = 2
# Training, validation and held-out pairs never share noise: each set has its own seed.
_SETS = {"train": 1, "validation": 2, "held_out": 3}
_SEED_STRIDE = 1_000_003
_SEARCH_PAIRS = 16

StrPath = str | os.PathLike[str]


@dataclass
class Result:
    """A trained pack, the history of its training, and its scores on held-out noise."""

    pack: SolverPack
    history: dict[int, History]
    scores: dict[str, dict[str, Any]]
    calls: int
    log: list[str] = field(default_factory=list)


def fit(
    model: Model,
    nfe: int | Iterable[int] = 5,
    method: str = "gauss-newton",
    seed: int = 0,
    budget: int | None = None,
    callback: Callback | None = None,
    *,
    init: str | SolverTable = "auto",
    teacher: Teacher | None = None,
    decode: Decode | None = None,
    objective: str | Objective | None = None,
    cache: StrPath | None = None,
    state: StrPath | None = None,
    cancelled: Callable[[], object] | None = None,
    **options: Any,
) -> Result:
    """Train solver tables for `model` at one or several NFEs.

    budget: model calls per NFE; the teacher, the search for a start and scoring come on top.
    callback: gets an Event after every step.
    init: where training starts: "auto" searches the classical solvers, "solver:order:schedule"
        (such as "ipndm:3:edm") names one, a SolverTable is used as it is.
    teacher: a table, or a function (x, cond) -> result; by default UniPC at 20 calls.
    decode: turns results into RGB pictures in [-1, 1], for LPIPS.
    objective: a name, or an object with `name` and `distance` (and `embed` for gauss-newton).
    cache: a folder for teacher results.
    state: a file that the run is saved to and resumed from, by one process at a time.
    cancelled: called before every model call; if it returns true, TrainingCancelled is raised.
    options: other fields of Settings.

    By the loss that was trained, the result is never worse on held-out noise than its start, nor
    than any of the eight best classical solvers of the search. Scores mention classical solvers
    only if there was a search (init="auto").
    """
    given = init if isinstance(init, SolverTable) else None
    name = objective if isinstance(objective, str) else "l2"
    settings = Settings.of(
        options
        | {
            "method": method,
            "nfes": (nfe,) if isinstance(nfe, int) else tuple(sorted(set(nfe))),
            "seed": seed,
            "budget": budget,
            "init": "auto" if given is not None else init,
            "objective": name,
        }
    )
    if name.startswith("lpips") and decode is None and model.shape[0] != 3:
        raise ObjectiveError(
            f"The objective '{name}' compares pictures, but the model makes latents: pass `decode` "
            "to turn them into pictures, or use 'l2'."
        )
    if objective is None or isinstance(objective, str):
        objective = find_objective(name, decode)
    teacher = teacher or default_teacher(model, ending=settings.ending)
    with exclusive(state) if state and is_first() else nullcontext(), explain_out_of_memory():
        run = Run(model, settings, teacher, objective, given, callback, state, cancelled)
        run.draw(cache)
        return run.result()


class Run:
    """One call of `fit`: draw the pairs, then train every NFE."""

    def __init__(
        self,
        model: Model,
        settings: Settings,
        teacher: Teacher,
        objective: Objective,
        given: SolverTable | None = None,
        callback: Callback | None = None,
        path: StrPath | None = None,
        cancelled: Callable[[], object] | None = None,
    ) -> None:
        self.model, self.settings, self.teacher = model, settings, teacher
        self.objective, self.given, self.callback = objective, given, callback
        self.path, self.cancelled = path, cancelled
        self.method = find_method(settings.method)
        self._check()
        self.state = RunState.open(path, self._identity(), settings.seed)
        self.meter = Meter(model.denoise, cancelled, self.state.calls or 0)
        self.batcher = Batcher(settings.batch, self.meter)
        self.pairs: dict[str, Pairs] = {}

    def _check(self) -> None:
        """Raise for what cannot be trained, before any model call."""
        if self.method.entry.needs_squares and not isinstance(self.objective, SumOfSquares):
            raise TrainingError(
                f"{self.method.name} cannot fit the objective '{self.objective.name}': it needs "
                "one with `embed`, such as l2 or lpips."
            )
        for nfe in self.settings.nfes:
            if self.given is not None and self.given.nfe != nfe:
                raise TrainingError(f"init has {self.given.nfe} calls, but nfe is {nfe}.")
            if self.settings.init != "auto":
                check_solver(self.model, self.settings.init, nfe, self.settings.ending)

    def _identity(self) -> dict[str, Any]:
        """Return what must be equal for a saved run to be resumed."""
        teacher = self.teacher
        return {
            "version": STATE_VERSION,
            "settings": self.settings.plain(),
            "model": getattr(self.model, "fingerprint", None),
            "objective": self.objective.name,
            "teacher": getattr(teacher, "digest", getattr(teacher, "key", None)),
            "start": None if self.given is None else self.given.digest,
        }

    def draw(self, cache: StrPath | None = None) -> None:
        """Draw the teacher's pairs, and check the model if the run is new."""
        settings = self.settings
        counts = vars(settings) | {"train": settings.samples}
        total, drawn = sum(counts[name] for name in _SETS), 0
        free = Meter(self.model.denoise, self.cancelled)
        for name, number in _SETS.items():
            draw = partial(
                draw_pairs,
                self.model,
                self.teacher,
                counts[name],
                settings.seed * _SEED_STRIDE + number,
                cache=cache,
                denoise=free,
                progress=partial(self._report_drawn, drawn, total),
            )
            self.pairs[name] = self.batcher.call(draw)
            drawn += counts[name]
        if self.state.calls is None:
            self.batcher.call(lambda batch: check_model(self.model, self.pairs["train"]))
            self.meter.calls = self.state.calls = getattr(self.teacher, "nfe", 0) * total

    def _report_drawn(self, before: int, total: int, count: int) -> None:
        """Tell the listener how many pairs are drawn."""
        if self.callback is not None and is_first():
            self.callback(Event("teacher", None, before + count, total, calls=self.meter.calls))

    def save(self) -> None:
        """Save the run, if it has a file; only in the first process."""
        self.state.calls = self.meter.calls
        if self.path and is_first():
            save_state(self.path, self.state.plain())

    def result(self) -> Result:
        """Train and score every NFE that is not done yet, and pack the tables."""
        tables: dict[int, SolverTable] = {}
        history: dict[int, History] = {}
        scores: dict[str, dict[str, Any]] = {}
        log: list[str] = []
        for nfe in self.settings.nfes:
            state = self.state.nfes.setdefault(str(nfe), NfeState())
            tables[nfe] = self._train(nfe, state)
            history[nfe], scores[str(nfe)] = state.history or [], state.scores or {}
            log += state.log or []
        metadata = {
            "training": _training_facts(self.settings, self.objective, self.meter.calls),
            "teacher": _teacher_facts(self.model, self.teacher),
            "scores": scores,
        }
        return Result(SolverPack(tables, metadata), history, scores, self.meter.calls, log)

    def _train(self, nfe: int, state: NfeState) -> SolverTable:
        """Return the trained table of one NFE."""
        starts = self._starts(nfe, state)
        if state.first_calls is None:
            state.first_calls = self.meter.calls
        task = Task(
            model=self.model,
            meter=self.meter,
            objective=self.objective,
            train=self.pairs["train"],
            validation=self.pairs["validation"],
            nfe=nfe,
            budget=self.settings.limit,
            planned=self.method.planned_calls(self.settings, nfe),
            batcher=self.batcher,
            callback=self.callback,
            save=self.save,
            first_calls=state.first_calls,
            path=self.path,
        )
        trained = self.method.run(task, starts, self.settings, state)
        table = scoring.guard(task, self.method, self.pairs["held_out"], starts, trained, state)
        self.save()
        return table

    def _starts(self, nfe: int, state: NfeState) -> list[Start]:
        """Return the tables to start from, best first; a search is made once and saved."""
        init, ending = self.settings.init, self.settings.ending
        if self.given is not None:
            return [GivenStart(self.given)]
        if init != "auto":
            options = {"costs": self._costs()} if init.endswith(":gits") else {}
            return [named_solver(self.model, init, nfe, ending, **options)]
        if state.ranked is None:
            pairs = self.pairs["train"][:_SEARCH_PAIRS]
            ranked = self.batcher.call(
                partial(rank_starts, self.model, self.meter, pairs, nfe, ending)
            )
            state.ranked = [[c.solver, c.order, c.schedule] for _, c in ranked]
        known = {(c.solver, c.order, c.schedule): c for c in candidates(self.model, nfe, ending)}
        return [known[solver, order, name] for solver, order, name in state.ranked]

    def _costs(self) -> Costs:
        """Return the costs that the schedule gits needs; measured once and saved."""
        if self.state.costs is None:
            low = self.settings.ending or self.model.sigma_min
            self.state.costs = self.batcher.call(
                lambda batch: gits_costs(self.model, low, batch=batch, denoise=self.meter)
            )
            self.save()
        return Costs(*self.state.costs)


def _training_facts(settings: Settings, objective: Objective, calls: int) -> dict[str, Any]:
    facts = {key: getattr(settings, key) for key in ("method", "seed", "samples", "init")}
    return facts | {"objective": objective.name, "calls": calls}


def _teacher_facts(model: Model, teacher: Teacher) -> dict[str, Any]:
    """Return what a file says about its teacher; a classical solver's table gets its name."""
    if not isinstance(teacher, SolverTable):
        return {"nfe": getattr(teacher, "nfe", 0), "name": getattr(teacher, "name", "callable")}
    facts = {
        "nfe": teacher.nfe,
        "family": teacher.family,
        "order": teacher.order,
        "form": teacher.form,
        "digest": teacher.digest[:16],
    }
    known = candidates(model, teacher.nfe, teacher.ending)
    names = [candidate.label for candidate in known if candidate.table == teacher]
    return facts | ({"name": names[0]} if names else {})
