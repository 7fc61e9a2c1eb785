"""`fit`: distil a model's teacher into a pack of solver tables."""

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

from ..candidates import (
    SEARCH_PAIRS,
    Candidate,
    candidates,
    check_solver,
    named_solver,
    rank_starts,
)
from ..errors import ObjectiveError, TrainingError
from ..model import Model
from ..names import AUTO
from ..objectives import Decode, Objective, SumOfSquares, chosen_objective
from ..objectives import objective as find_objective
from ..sampling import require_guidance
from ..schedules.gits import Costs, gits_costs
from ..table import SolverPack, SolverTable
from ..teacher import (
    TEACHER_NFE,
    Pairs,
    Teacher,
    choose_teacher,
    default_teacher,
    draw_pairs,
)
from . import scoring
from .distributed import is_first
from .memory import Batcher, explain_out_of_memory
from .method import GivenStart, Start, find_method, neighbour_start
from .settings import VERSION_0_1, Settings
from .state import (
    STATE_VERSION,
    History,
    NfeState,
    RunState,
    compared,
    exclusive,
    is_from_version_0_1,
    save_state,
)
from .task import Callback, Event, Meter, Task, check_model

# Training, validation and held-out pairs never share noise: each set has its own seed.
_SETS = {"train": 1, "validation": 2, "held_out": 3}
_SEED_STRIDE = 1_000_003

StrPath = str | os.PathLike[str]


@dataclass
class Result:
    """A trained pack, its teacher, how training went, and its scores on held-out noise."""

    pack: SolverPack
    teacher: Teacher
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
    teacher: Teacher | int | None = None,
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
    teacher: a table, or a function (x, cond) -> result, or a number of calls (20 by default): then
        the classical solver is chosen that moves least when these calls are doubled.
    decode: turns results into RGB pictures in [-1, 1], for LPIPS.
    objective: a name, or an object with `name` and `distance` (and `embed` for gauss-newton); by
        default look for pictures and latents, and l2 for other data.
    cache: a folder for teacher results.
    state: a file that the run is saved to and resumed from, by one process at a time.
    cancelled: called before every model call; if it returns true, TrainingCancelled is raised.
    options: other fields of Settings.

    By the loss that was trained, the result is never worse on held-out noise than its start, nor
    than any of the four best classical solvers of the search. Scores mention classical solvers
    only if there was a search (init="auto").
    """
    given = init if isinstance(init, SolverTable) else None
    teacher = TEACHER_NFE if teacher is None else teacher
    if is_from_version_0_1(state):
        options = {**VERSION_0_1, **options}
        options.pop("objective")
        objective = objective or "l2"
        if isinstance(teacher, int):
            teacher = default_teacher(model, teacher, options.get("ending", 0.0))
    name = chosen_objective(objective if isinstance(objective, str) else AUTO, model.shape)
    settings = Settings.of(
        options
        | {
            "method": method,
            "nfes": (nfe,) if isinstance(nfe, int) else tuple(sorted(set(nfe))),
            "seed": seed,
            "budget": budget,
            "init": AUTO if given is not None else init,
            "objective": name,
        }
    )
    if name.startswith("lpips") and decode is None and model.shape[0] != 3:
        raise ObjectiveError(
            f"The objective '{name}' compares pictures, but the model makes latents: pass `decode` "
            "to turn them into pictures, or use 'look'."
        )
    if objective is None or isinstance(objective, str):
        objective = find_objective(name, decode)
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
        teacher: Teacher | int,
        objective: Objective,
        given: SolverTable | None = None,
        callback: Callback | None = None,
        path: StrPath | None = None,
        cancelled: Callable[[], object] | None = None,
    ) -> None:
        self.model, self.settings, self._teacher = model, settings, teacher
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
                "one with `embed`, such as look, l2 or lpips."
            )
        for table in (self.given, self._teacher):
            if isinstance(table, SolverTable) and table.guidance is not None:
                require_guidance(self.model.denoise)
        for nfe in self.settings.nfes:
            if self.given is not None and self.given.nfe != nfe:
                raise TrainingError(f"init has {self.given.nfe} calls, but nfe is {nfe}.")
            if self.settings.init != AUTO:
                check_solver(self.model, self.settings.init, nfe, self.settings.ending)

    def _identity(self) -> dict[str, Any]:
        """Return what must be equal for a saved run to be resumed."""
        teacher = self._teacher
        identified = getattr(teacher, "digest", getattr(teacher, "key", None))
        return {
            "version": STATE_VERSION,
            "settings": compared(self.settings.plain()),
            "model": getattr(self.model, "fingerprint", None),
            "objective": self.objective.name,
            "teacher": f"auto {teacher}" if isinstance(teacher, int) else identified,
            "start": None if self.given is None else self.given.digest,
        }

    @cached_property
    def teacher(self) -> Teacher:
        """The teacher; if it has to be chosen, that is done once and saved."""
        teacher, ending = self._teacher, self.settings.ending
        if not isinstance(teacher, int):
            return teacher
        if self.state.teacher is None:
            choose = partial(choose_teacher, self.model, teacher, ending, self.meter)
            self.state.teacher = list(self.batcher.call(choose))
        solver, order = self.state.teacher
        return default_teacher(self.model, teacher, ending, (solver, order))

    def draw(self, cache: StrPath | None = None) -> None:
        """Check the model if the run is new, and draw the teacher's pairs."""
        if self.state.calls is None:
            self.batcher.call(lambda batch: check_model(self.model))
        settings = self.settings
        counts = vars(settings) | {"train": settings.samples}
        total, drawn = sum(counts[name] for name in _SETS), 0
        teacher = self.teacher
        self._report_drawn(0, total, 0)
        free = Meter(self.model.denoise, self.cancelled)
        for name, number in _SETS.items():
            draw = partial(
                draw_pairs,
                self.model,
                teacher,
                counts[name],
                settings.seed * _SEED_STRIDE + number,
                cache=cache,
                denoise=free,
                progress=partial(self._report_drawn, drawn, total),
            )
            self.pairs[name] = self.batcher.call(draw)
            drawn += counts[name]
        if self.state.calls is None:
            self.meter.calls += getattr(teacher, "nfe", 0) * total
            self.save()

    def _report_drawn(self, before: int, total: int, count: int) -> None:
        """Tell the listener how many pairs are drawn."""
        if self.callback is not None and is_first():
            table = self.teacher if isinstance(self.teacher, SolverTable) else None
            calls = self.meter.calls
            self.callback(Event("teacher", None, before + count, total, calls=calls, table=table))

    def save(self) -> None:
        """Save the run, if it has a file; only in the first process."""
        self.state.calls = self.meter.calls
        if self.path and is_first():
            save_state(self.path, self.state.plain())

    def result(self) -> Result:
        """Train and score every NFE that is not done yet, and pack the tables."""
        tables: dict[int, SolverTable] = {}
        for nfe in self.settings.training_order:
            state = self.state.nfes.setdefault(str(nfe), NfeState())
            tables[nfe] = self._train(nfe, state, tables)
        states = {nfe: self.state.nfes[str(nfe)] for nfe in self.settings.nfes}
        history: dict[int, History] = {nfe: each.history or [] for nfe, each in states.items()}
        scores = {str(nfe): each.scores or {} for nfe, each in states.items()}
        log = [line for each in states.values() for line in each.log or []]
        log += scoring.not_falling(scores)
        metadata = {
            "training": _training_facts(self.settings, self.objective, self.meter.calls),
            "teacher": _teacher_facts(self.model, self.teacher),
            "scores": scores,
        }
        pack = SolverPack(tables, metadata)
        return Result(pack, self.teacher, history, scores, self.meter.calls, log)

    def _train(self, nfe: int, state: NfeState, learned: Mapping[int, SolverTable]) -> SolverTable:
        """Return the trained table of one NFE; `learned` are those of other NFEs so far."""
        starts = self._starts(nfe, state, learned)
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

    def _starts(self, nfe: int, state: NfeState, learned: Mapping[int, SolverTable]) -> list[Start]:
        """Return the tables to start from: classical ones, best first, then learned nodes.

        A search is made once and saved.
        """
        init, ending = self.settings.init, self.settings.ending
        if self.given is not None:
            return [GivenStart(self.given)]
        if init != AUTO:
            options = {"costs": self._costs()} if init.endswith(":gits") else {}
            return [named_solver(self.model, init, nfe, ending, **options)]
        if state.ranked is None:
            pairs = self.pairs["train"][:SEARCH_PAIRS]
            ranked = self.batcher.call(
                partial(rank_starts, self.model, self.meter, pairs, nfe, ending)
            )
            state.ranked = [[c.solver, c.order, c.schedule] for _, c in ranked]
        known = {(c.solver, c.order, c.schedule): c for c in candidates(self.model, nfe, ending)}
        classical = [known[solver, order, name] for solver, order, name in state.ranked]
        return [*classical, *self._neighbours(nfe, classical[0], learned)]

    def _neighbours(
        self, nfe: int, solver: Candidate, learned: Mapping[int, SolverTable]
    ) -> list[Start]:
        """Return starts with the learned nodes of the nearest NFE below and above."""
        if not self.settings.neighbours:
            return []
        below = max((n for n in learned if n < nfe), default=None)
        above = min((n for n in learned if n > nfe), default=None)
        return [
            neighbour_start(self.model, learned[n], solver, nfe)
            for n in (below, above)
            if n is not None
        ]

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
