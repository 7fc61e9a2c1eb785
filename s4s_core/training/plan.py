"""The model calls of a run, by stage: planned before it starts, and the share of them that is done.

A run chooses its teacher, draws pairs, and then, for each NFE, searches a start, trains and scores.
An inclusive budget pays for all of it: training gets what the other stages leave.
"""

import math

from ..candidates import AUTO_SCHEDULES, AUTO_SOLVERS, SEARCH_PAIRS, search_runs
from ..names import AUTO, FURTHER_SHARE, further_calls
from ..schedules.gits import CALLS as GITS_CALLS
from ..teacher import TEACHERS, Teacher, choice_calls
from .check import CHECK_CALLS
from .method import find_method
from .search import kept_classical
from .settings import Settings
from .state import NfeState, RunState
from .task import CHOICE, SCORING, SEARCH, TEACHER, Event


def plan_of(settings: Settings, teacher: Teacher | int) -> "CallPlan":
    """Return the plan of `fit` with a teacher, or with one of that many calls to be chosen."""
    if isinstance(teacher, int):
        return CallPlan(settings, teacher, choice_calls(teacher))
    return CallPlan(settings, getattr(teacher, "nfe", 0))


class CallPlan:
    """The model calls that a run will make at most, by stage and NFE.

    teacher_nfe: the teacher's model calls per pair. choice: model calls that choose the teacher;
    those that check the model are added to them.
    setup: model calls made before `fit`, such as those that measure a teacher's GITS schedule; no
    budget pays for them.
    """

    def __init__(
        self, settings: Settings, teacher_nfe: int, choice: int = 0, setup: int = 0
    ) -> None:
        nfes, self.order = settings.nfes, settings.training_order
        self.settings, self.method = settings, find_method(settings.method)
        self.teacher_nfe, self.choice, self.setup = teacher_nfe, CHECK_CALLS + choice, setup
        self.pairs = sum(settings.sizes) * teacher_nfe
        self.search = {n: self._search(n) for n in nfes}
        self.scoring = {n: n * settings.sizes.held_out * self._scored() for n in nfes}
        self.training = {n: self._training(n) for n in nfes}

    @property
    def _neighbours(self) -> int:
        """How many tables of other NFEs a search tries at most."""
        return min(2, len(self.settings.nfes) - 1) if self.settings.neighbours else 0

    def _scored(self) -> int:
        """Return how many tables are scored: the result, its start, and classical solvers."""
        if self.settings.init != AUTO:
            return 2
        return 1 + kept_classical(self.settings) + bool(self._neighbours)

    def _search(self, nfe: int) -> int:
        init = self.settings.init
        if init == AUTO:
            classical = search_runs(len(AUTO_SOLVERS) * len(AUTO_SCHEDULES))
            return nfe * (classical + self._neighbours * SEARCH_PAIRS)
        return GITS_CALLS if init.endswith(":gits") and nfe == self.order[0] else 0

    def _training(self, nfe: int) -> int:
        """Return what the method wants, if the budget allows it."""
        budget, wanted = self.budget(nfe), self.method.planned_calls(self.settings, nfe)
        return wanted if budget is None else min(budget, wanted)

    def budget(self, nfe: int) -> int | None:
        """Return what is left of the budget for training; None if there is no limit."""
        limit = self.settings.limit
        if limit is None or not self.settings.inclusive:
            return limit
        first = nfe == self.order[0]
        share = limit - self.choice - self.pairs if first else further_calls(limit)
        return share - self.search[nfe] - self.scoring[nfe]

    def lacking(self, nfe: int, least: int) -> int:
        """Return by how much the budget should grow to allow `least` calls of training."""
        budget = self.budget(nfe)
        if budget is None:
            return 0
        first = nfe == self.order[0] or not self.settings.inclusive
        return max(0, math.ceil((least - budget) / (1 if first else FURTHER_SHARE)))

    @property
    def total(self) -> int:
        parts = (self.search, self.training, self.scoring)
        return self._teacher + sum(sum(part.values()) for part in parts)

    @property
    def _teacher(self) -> int:
        return self.setup + self.choice + self.pairs

    @property
    def judged(self) -> float:
        """How often training computes the objective, counted per sample as model calls are."""
        return sum(self.method.judged_results(n, calls) for n, calls in self.training.items())

    def share(self, event: Event) -> float:
        """Return the share of all calls done at an event, 0 to 1."""
        return self._share(event.phase, event.nfe, event.done)

    def saved_share(self, state: RunState) -> float:
        """Return the share of all calls that a saved run has done, 0 to 1."""
        begun = [nfe for nfe in self.order if str(nfe) in state.nfes]
        if begun:
            phase, done = self._reached(begun[-1], state.nfes[str(begun[-1])], state.calls or 0)
            return self._share(phase, begun[-1], done)
        if state.drawn:
            return self._share(TEACHER, None, state.drawn / sum(self.settings.sizes))
        return self._share(CHOICE, None, len(state.movements) / len(TEACHERS))

    def _reached(self, nfe: int, state: NfeState, calls: int) -> tuple[str, float]:
        """Return the phase of a saved NFE, and the share of the phase that is done."""
        if state.scores is not None:
            return SCORING, 1.0
        if state.marks:
            return SCORING, len(state.marks) / self._scored()
        if state.first_calls is not None:
            return self.method.name, (calls - state.first_calls) / max(1, self.training[nfe])
        if state.ranked is not None:
            return SEARCH, 1.0
        runs = sum(map(len, (state.raced or {}).values()))
        return SEARCH, nfe * runs / max(1, self.search[nfe])

    def _share(self, phase: str, nfe: int | None, done: float) -> float:
        done = min(1.0, done)
        if nfe is None:
            drawing = phase == TEACHER
            calls = self.choice + done * self.pairs if drawing else done * self.choice
            return (self.setup + calls) / self.total
        stages = [self.search, self.training, self.scoring]
        stage = {SEARCH: 0, SCORING: 2}.get(phase, 1)
        before = self.order[: self.order.index(nfe)]
        calls = self._teacher + sum(part[n] for part in stages for n in before)
        calls += sum(part[nfe] for part in stages[:stage])
        return min(1.0, (calls + done * stages[stage][nfe]) / self.total)
