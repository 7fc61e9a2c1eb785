"""`fit`: distil a model's teacher into a pack of solver tables."""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from ..atomic import StrPath
from ..candidates import (
    AUTO_SCHEDULES,
    candidates,
    like_named_solver,
    named_solver,
)
from ..contract import check_contract
from ..errors import ObjectiveError, TrainingError
from ..model import Model
from ..names import AUTO
from ..objectives import Decode, Objective, SumOfSquares, chosen_objective
from ..objectives import objective as find_objective
from ..regular import remove_tree
from ..schedules.gits import Costs, gits_costs
from ..table import SolverPack, SolverTable, canonical_json
from ..teacher import (
    TEACHER_NFE,
    TEACHERS,
    Pairs,
    Teacher,
    can_be_shared,
    choose_teacher,
    default_teacher,
    draw_pairs,
    no_pairs,
)
from . import scoring
from .arguments import check_arguments, check_table, known_teacher, step_counts
from .check import check_model
from .distributed import is_first
from .memory import Batcher, explain_out_of_memory
from .method import GivenStart, Start, find_method
from .plan import plan_of
from .search import Search
from .settings import VERSION_0_1, Settings
from .state import (
    STATE_VERSION,
    History,
    NfeState,
    RunState,
    compared,
    exclusive,
    is_from_version_0_1,
    pairs_folder,
    save_state,
)
from .task import CHOICE, TEACHER, Callback, Event, Meter, Task

# Training, validation and held-out pairs never share noise: each set has its own seed.
_SETS = {"train": 1, "validation": 2, "held_out": 3}
_SEED_STRIDE = 1_000_003


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

    budget: all model calls for the first NFE: the choice of a teacher, its pairs, the search for a
        start, training and scoring. Each further NFE shares the pairs and gets 0.6 of it.
    callback: gets an Event after every step.
    init: where training starts: "auto" searches the classical solvers, "solver:order:schedule"
        (such as "ipndm:3:edm") names one, a SolverTable is used as it is.
    teacher: a table, or a function (x, cond) -> result, or a number of calls (20 by default): then
        the classical solver is chosen that moves least when these calls are doubled.
    decode: turns results into RGB pictures in [-1, 1], for LPIPS.
    objective: a name, or an object with `name` and `distance` (and `embed` for gauss-newton); by
        default look for pictures and latents, and l2 for other data.
    cache: a folder for teacher results that later runs use again.
    state: a file that the run is saved to and resumed from, by one process at a time. Until it is
        finished, the teacher's results are kept beside it, unless there is a cache.
    cancelled: called before every model call; if it returns true, TrainingCancelled is raised.
    options: other fields of Settings.

    By the loss that was trained, the result is never worse on held-out noise than its start, nor
    than the best classical solvers of the search. Scores mention classical solvers only if there
    was a search (init="auto").
    """
    check_contract(model)
    given = {"callback": callback, "init": init, "objective": objective, "decode": decode}
    check_arguments(given | {"cache": cache, "state": state, "cancelled": cancelled})
    teacher = known_teacher(TEACHER_NFE if teacher is None else teacher)
    start = init if isinstance(init, SolverTable) else None
    if "nfes" in options:
        raise TrainingError("There is no training option 'nfes': it is nfe.")
    is_old = is_from_version_0_1(state)
    if is_old:
        options = {**VERSION_0_1, **options}
        options.pop("objective")
        objective = objective or "l2"
    name = chosen_objective(objective if isinstance(objective, str) else AUTO, model.shape)
    settings = Settings.of(
        options
        | {
            "method": method,
            "nfes": step_counts(nfe),
            "seed": seed,
            "budget": budget,
            "init": AUTO if start is not None else init,
            "objective": name,
        }
    )
    if is_old and isinstance(teacher, int):
        teacher = default_teacher(model, teacher, settings.ending)
    if name.startswith("lpips") and decode is None and model.shape[0] != 3:
        raise ObjectiveError(
            f"The objective '{name}' compares pictures, but the model makes latents: pass `decode` "
            "to turn them into pictures, or use 'look'."
        )
    if objective is None or isinstance(objective, str):
        objective = find_objective(name, decode)
    with exclusive(state) if state and is_first() else nullcontext(), explain_out_of_memory():
        run = Run(model, settings, teacher, objective, start, callback, state, cancelled)
        if not run.finished:
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
        self.plan = plan_of(settings, teacher)
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
        for name, table in (("init", self.given), ("teacher", self._teacher)):
            if isinstance(table, SolverTable):
                check_table(name, table, self.model)
        for nfe in self.settings.nfes:
            if self.given is not None and self.given.nfe != nfe:
                raise TrainingError(f"init has {self.given.nfe} calls, but nfe is {nfe}.")
        self._check_budget()

    def _check_budget(self) -> None:
        """Raise if the budget is too small for one step of training; say which one is not.

        A larger budget also draws more pairs, so what it lacks changes with it.
        """
        starts = {nfe: self._possible_starts(nfe) for nfe in self.settings.nfes}
        enough = self.settings

        def lacking(nfe: int) -> int:
            least = (self.method.least_calls(self.model, s, enough) for s in starts[nfe])
            return plan_of(enough, self._teacher).lacking(nfe, max(least))

        while more := max(map(lacking, starts)):
            enough = replace(enough, budget=(enough.limit or 0) + more)
        if enough != self.settings:
            raise TrainingError(
                f"A budget of {self.settings.limit:,} model calls is too small for one step of "
                f"training: use at least {enough.limit:,}, better several times that."
            )

    def _possible_starts(self, nfe: int) -> list[Start]:
        """Return starts like those that training will have, without calling the model."""
        init, ending = self.settings.init, self.settings.ending
        if self.given is not None:
            return [GivenStart(self.given)]
        if init != AUTO:
            return [like_named_solver(self.model, init, nfe, ending)]
        return list(candidates(self.model, nfe, ending, schedules=AUTO_SCHEDULES[:1]))

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
            self.state.teacher = list(self.batcher.call(self._choose_teacher))
            self.save()
        solver, order = self.state.teacher
        return default_teacher(self.model, teacher, ending, (solver, order))

    def _choose_teacher(self, batch: int) -> tuple[str, int]:
        assert isinstance(self._teacher, int)
        known = self.state.movements

        def report(count: int) -> None:
            self.save()
            done, calls = count / len(TEACHERS), count * self.plan.choice // len(TEACHERS)
            self._report(Event(CHOICE, None, count, len(TEACHERS), calls=calls, done=done))

        report(len(known))
        nfe, ending = self._teacher, self.settings.ending
        return choose_teacher(self.model, nfe, ending, self._unmetered, batch, known, report)

    @cached_property
    def _unmetered(self) -> Meter:
        """For the calls of the teacher, which are counted by formula: some were made earlier."""
        return Meter(self.model.denoise, self.cancelled)

    @property
    def finished(self) -> bool:
        """Are all NFEs trained and scored?"""
        done = [state.scores is not None for state in self.state.nfes.values()]
        return all(done) and len(done) == len(self.settings.nfes)

    def draw(self, cache: StrPath | None = None) -> None:
        """Check the model if the run is new, choose the teacher, and draw its pairs."""
        if self.state.calls is None:
            entry = self.method.entry
            self.batcher.call(lambda batch: check_model(self.model, entry, self.batcher))
        sizes, teacher = self.settings.sizes, self.teacher
        drawn, before = 0, self.plan.choice
        shared = cache is not None and can_be_shared(self.model, teacher)
        for name, number, count in zip(_SETS, _SETS.values(), sizes, strict=True):
            draw = partial(
                draw_pairs,
                self.model,
                teacher,
                count,
                self.settings.seed * _SEED_STRIDE + number,
                cache=cache if shared else self._own_cache,
                denoise=self._unmetered,
                progress=partial(self._report_drawn, before, drawn),
                key=None if shared else f"{self._digest}-{name}",
            )
            self.pairs[name] = self.batcher.call(draw)
            drawn += count
        if self.state.calls is None:
            self.meter.calls = before + self.plan.teacher_nfe * drawn
            self.save()

    @property
    def _own_cache(self) -> Path | None:
        """The folder of the teacher's results beside the state."""
        return None if self.path is None else pairs_folder(self.path)

    @property
    def _digest(self) -> str:
        return hashlib.sha256(canonical_json(self.state.identity).encode()).hexdigest()[:32]

    def _report(self, event: Event) -> None:
        if self.callback is not None and is_first():
            self.callback(event)

    def _report_drawn(self, before: int, drawn: int, count: int) -> None:
        """Save how many pairs are drawn, and tell the listener."""
        drawn, total = drawn + count, sum(self.settings.sizes)
        if drawn > (self.state.drawn or 0):
            self.state.drawn = drawn
            self.save()
        table = self.teacher if isinstance(self.teacher, SolverTable) else None
        calls = max(before + self.plan.teacher_nfe * drawn, self.meter.calls)
        self._report(
            Event(TEACHER, None, drawn, total, calls=calls, done=drawn / total, table=table)
        )

    def save(self) -> None:
        """Save the run, if it has a file; only in the first process."""
        self.state.calls = self.meter.calls or None
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
        if self._own_cache is not None and is_first():
            remove_tree(self._own_cache)
        return Result(pack, self.teacher, history, scores, self.meter.calls, log)

    def _train(self, nfe: int, state: NfeState, learned: Mapping[int, SolverTable]) -> SolverTable:
        """Return the trained table of one NFE; `learned` are those of other NFEs so far.

        A finished run needs no pairs.
        """
        starts = self._starts(nfe, state, learned)
        pairs = self.pairs or dict.fromkeys(_SETS, no_pairs(self.model))
        if state.first_calls is None:
            state.first_calls = self.meter.calls
        task = Task(
            model=self.model,
            meter=self.meter,
            objective=self.objective,
            train=pairs["train"],
            validation=pairs["validation"],
            nfe=nfe,
            budget=self.plan.budget(nfe),
            planned=self.plan.training[nfe],
            batcher=self.batcher,
            callback=self.callback,
            save=self.save,
            first_calls=state.first_calls,
            path=self.path,
        )
        trained = self.method.run(task, starts, self.settings, state)
        table = scoring.guard(task, self.method, pairs["held_out"], starts, trained, state)
        self.save()
        return table

    def _starts(self, nfe: int, state: NfeState, learned: Mapping[int, SolverTable]) -> list[Start]:
        """Return the tables to start from, best first."""
        init, ending = self.settings.init, self.settings.ending
        if self.given is not None:
            return [GivenStart(self.given)]
        if init != AUTO:
            options = {"costs": self._costs()} if init.endswith(":gits") else {}
            return [named_solver(self.model, init, nfe, ending, **options)]
        search = Search(
            model=self.model,
            settings=self.settings,
            meter=self.meter,
            batcher=self.batcher,
            nfe=nfe,
            planned=self.plan.search[nfe],
            pairs=self.pairs.get("train") or no_pairs(self.model),
            learned=learned,
            save=self.save,
            report=self._report,
        )
        return search.starts(state)

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
    facts = {key: getattr(settings, key) for key in ("method", "seed", "init")}
    return facts | {"samples": settings.sizes.train, "objective": objective.name, "calls": calls}


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
