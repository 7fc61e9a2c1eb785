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
    PART_SCHEDULES,
    PART_SOLVERS,
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
from ..parts import relaid, stretched
from ..regular import remove_tree
from ..schedules.gits import Costs, gits_costs
from ..strength import Below, level_of
from ..table import SolverPack, SolverTable, canonical_json
from ..teacher import (
    TEACHER_NFE,
    TEACHERS,
    Drawing,
    Pairs,
    Teacher,
    can_be_shared,
    choose_teacher,
    default_teacher,
    draw_pairs,
    draw_pairs_below,
    no_pairs,
)
from . import scoring
from .arguments import check_arguments, check_table, known_teacher, step_counts
from .check import check_model
from .distributed import is_first
from .facts import by_strength, name_in_pack, score_facts, teacher_facts, training_facts
from .memory import Batcher, explain_out_of_memory
from .method import GivenStart, Start, find_method
from .plan import plan_of
from .search import Search, learned_starts
from .settings import STRENGTH_DIGITS, VERSION_0_1, Goal, Settings
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
    """Train solver tables for `model` at one or several NFEs, and perhaps for strengths below 1.

    budget: all model calls for the first NFE: the choice of a teacher, its pairs, the search for a
        start, training and scoring. Each further NFE shares the pairs and gets 0.6 of it, each
        part for a strength 0.4; the strengths' own pairs come on top.
    callback: gets an Event after every step.
    init: where training starts: "auto" searches the classical solvers, "solver:order:schedule"
        (such as "ipndm:3:edm") names one, a SolverTable is used as it is.
    teacher: a table, or a function (x, cond) -> result (see `Teacher`), or a number of calls (20 by
        default): then the classical solver is chosen that moves least when these calls are doubled.
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
    """One call of `fit`: draw the pairs, then train every goal."""

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
        self.pairs: dict[float | None, dict[str, Pairs]] = {}

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
        if self.settings.strengths and not (
            isinstance(self._teacher, int | SolverTable) or hasattr(self._teacher, "below")
        ):
            raise TrainingError(
                "This teacher cannot start below full strength: give its function an attribute "
                "below(level), or train without strengths."
            )
        for strength in self.settings.strengths:
            level = level_of(self.model, strength)
            if level <= self.settings.ending:
                raise TrainingError(
                    f"Strength {strength:g} begins at noise level {level:.3g}, where the solver "
                    f"has ended ({self.settings.ending:g}): use a higher one."
                )
        self._check_budget()

    def _check_budget(self) -> None:
        """Raise if the budget is too small for one step of training; say which one is not.

        A larger budget also draws more pairs, so what it lacks changes with it.
        """
        starts = {nfe: self._possible_starts(nfe) for nfe in self.settings.nfes}
        enough = self.settings

        def lacking(goal: Goal) -> int:
            least = (self.method.least_calls(self.model, s, enough) for s in starts[goal.nfe])
            return plan_of(enough, self._teacher).lacking(goal, max(least))

        while more := max(map(lacking, enough.goals)):
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

    def _view(self, strength: float | None) -> Model:
        """Return the model as a run of that strength sees it."""
        return self.model if strength is None else Below(self.model, level_of(self.model, strength))

    def _teacher_of(self, strength: float | None) -> Teacher:
        """Return the teacher that goes from a strength on, with as many calls over the rest."""
        whole = self.teacher
        if strength is None:
            return whole
        view = self._view(strength)
        if self.state.teacher is not None:
            solver, order = self.state.teacher
            return default_teacher(
                view, self.plan.teacher_nfe, self.settings.ending, (solver, order)
            )
        if isinstance(whole, SolverTable):
            return relaid(whole, view.sigma_max, whole.nfe)
        teacher: Teacher = whole.below(view.sigma_max)  # type: ignore[attr-defined]
        return teacher

    @property
    def finished(self) -> bool:
        """Are all goals trained and scored?"""
        done = [state.scores is not None for state in self.state.nfes.values()]
        return all(done) and len(done) == len(self.settings.goals)

    def draw(self, cache: StrPath | None = None) -> None:
        """Check the model if the run is new, choose the teacher, and draw its pairs."""
        if self.state.calls is None:
            entry = self.method.entry
            self.batcher.call(lambda batch: check_model(self.model, entry, self.batcher))
        for strength in (None, *self.settings.strengths):
            sets = self.pairs.setdefault(strength, {})
            for name in _SETS:
                sets[name] = self._draw(name, strength, cache)
        if self.state.calls is None:
            self.meter.calls = self.plan.choice + self.plan.teacher_nfe * self.settings.pairs
            self.save()

    def _draw(self, name: str, strength: float | None, cache: StrPath | None) -> Pairs:
        """Draw the pairs of a set that start at a strength."""
        model, teacher = self._view(strength), self._teacher_of(strength)
        seed = self.settings.seed * _SEED_STRIDE + _SETS[name]
        shared = cache is not None and can_be_shared(self.model, teacher)
        suffix, count = "", getattr(self.settings.sizes, name)
        if strength is not None:
            suffix, seed = f"@{strength:g}", seed + 10 * round(strength * 10**STRENGTH_DIGITS)
        drawn = sum(len(pairs) for sets in self.pairs.values() for pairs in sets.values())

        def draw(batch: int) -> Pairs:
            drawing = Drawing(
                batch,
                cache if shared else self._own_cache,
                self._unmetered,
                partial(self._report_drawn, drawn),
                None if shared else f"{self._digest}-{name}{suffix}",
            )
            if strength is None:
                return draw_pairs(model, teacher, count, seed, **vars(drawing))
            return draw_pairs_below(
                model, teacher, self.pairs[None][name], self.teacher, seed, drawing
            )

        return self.batcher.call(draw)

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

    def _report_drawn(self, before: int, count: int) -> None:
        """Save how many pairs are drawn, and tell the listener."""
        drawn, total = before + count, self.settings.pairs
        if drawn > (self.state.drawn or 0):
            self.state.drawn = drawn
            self.save()
        table = self.teacher if isinstance(self.teacher, SolverTable) else None
        calls = max(self.plan.choice + self.plan.teacher_nfe * drawn, self.meter.calls)
        self._report(
            Event(TEACHER, None, drawn, total, calls=calls, done=drawn / total, table=table)
        )

    def save(self) -> None:
        """Save the run, if it has a file; only in the first process."""
        self.state.calls = self.meter.calls or None
        if self.path and is_first():
            save_state(self.path, self.state.plain())

    def result(self) -> Result:
        """Train and score every goal that is not done yet, and pack the tables."""
        tables: dict[Goal, SolverTable] = {}
        for goal in self.settings.goals:
            state = self.state.nfes.setdefault(goal.key, NfeState())
            tables[goal] = self._train(goal, state, tables)
        pack = SolverPack(
            {goal.nfe: table for goal, table in tables.items() if goal.strength is None},
            parts=tuple(table for goal, table in tables.items() if goal.strength is not None),
        )
        states = {goal: self.state.nfes[goal.key] for goal in sorted(tables, key=by_strength)}
        scores = {
            name_in_pack(goal, tables[goal]): score_facts(goal, each.scores or {})
            for goal, each in states.items()
        }
        metadata = {
            "training": training_facts(self.settings, self.objective, self.meter.calls),
            "teacher": teacher_facts(self.model, self.teacher),
            "scores": scores,
        }
        history = {goal.nfe: states[goal].history or [] for goal in states if goal.strength is None}
        log = [line for each in states.values() for line in each.log or []]
        log += scoring.not_falling(scores)
        if self._own_cache is not None and is_first():
            remove_tree(self._own_cache)
        described = pack.described(metadata)
        return Result(described, self.teacher, history, scores, self.meter.calls, log)

    def _train(
        self, goal: Goal, state: NfeState, learned: Mapping[Goal, SolverTable]
    ) -> SolverTable:
        """Return the trained table of one goal; `learned` are those of other goals so far.

        A finished run needs no pairs.
        """
        starts = self._starts(goal, state, learned)
        pairs = self._pairs_of(goal)
        if state.first_calls is None:
            state.first_calls = self.meter.calls
        task = Task(
            model=self._view(goal.strength),
            meter=self.meter,
            objective=self.objective,
            train=pairs["train"],
            validation=pairs["validation"],
            goal=goal,
            budget=self.plan.budget(goal),
            planned=self.plan.training[goal],
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

    def _pairs_of(self, goal: Goal) -> dict[str, Pairs]:
        return self.pairs.get(goal.strength) or dict.fromkeys(_SETS, no_pairs(self.model))

    def _starts(
        self, goal: Goal, state: NfeState, learned: Mapping[Goal, SolverTable]
    ) -> list[Start]:
        """Return the tables to start from, best first."""
        if self.given is not None or self.settings.init != AUTO:
            return [self._named_start(goal)]
        view, ending = self._view(goal.strength), self.settings.ending
        tried = () if goal.strength is None else (PART_SOLVERS, PART_SCHEDULES)
        classical = candidates(view, goal.nfe, ending, *tried)
        search = Search(
            settings=self.settings,
            meter=self.meter,
            batcher=self.batcher,
            goal=goal,
            planned=self.plan.search[goal],
            pairs=self._pairs_of(goal)["train"],
            classical=classical,
            near=partial(learned_starts, view, goal, learned),
            save=self.save,
            report=self._report,
        )
        return search.starts(state)

    def _named_start(self, goal: Goal) -> Start:
        """Return the start that the caller gave or named; for a strength, the same, moved there."""
        init, ending, start = self.settings.init, self.settings.ending, self.given
        if start is None:
            options = {"costs": self._costs()} if init.endswith(":gits") else {}
            named = named_solver(self.model, init, goal.nfe, ending, **options)
            if goal.strength is None:
                return named
            start = named.table
        if goal.strength is None:
            return GivenStart(start)
        return GivenStart(stretched(start, self._view(goal.strength).sigma_max))

    def _costs(self) -> Costs:
        """Return the costs that the schedule gits needs; measured once and saved."""
        if self.state.costs is None:
            low = self.settings.ending or self.model.sigma_min
            self.state.costs = self.batcher.call(
                lambda batch: gits_costs(self.model, low, batch=batch, denoise=self.meter)
            )
            self.save()
        return Costs(*self.state.costs)
