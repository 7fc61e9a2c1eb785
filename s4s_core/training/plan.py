"""The model calls of a run, by stage: planned before it starts, and the share of them that is done.

A run chooses its teacher, draws pairs, and then, for each goal, searches a start, trains and
scores. An inclusive budget pays for all of it (but for the pairs of strengths): training gets what
the other stages leave.
"""

import math

from ..candidates import (
    AUTO_SCHEDULES,
    AUTO_SOLVERS,
    PART_SCHEDULES,
    PART_SOLVERS,
    SEARCH_PAIRS,
    search_runs,
)
from ..names import AUTO, FURTHER_SHARE, PART_SHARE
from ..schedules.gits import CALLS as GITS_CALLS
from ..teacher import TEACHERS, Teacher, choice_calls
from .check import CHECK_CALLS
from .method import find_method
from .search import kept_classical
from .settings import Goal, Settings
from .state import NfeState, RunState
from .task import CHOICE, SCORING, SEARCH, TEACHER, Event


def plan_of(settings: Settings, teacher: Teacher | int) -> "CallPlan":
    """Return the plan of `fit` with a teacher, or with one of that many calls to be chosen."""
    if isinstance(teacher, int):
        return CallPlan(settings, teacher, choice_calls(teacher))
    return CallPlan(settings, getattr(teacher, "nfe", 0))


class CallPlan:
    """The model calls that a run will make at most, by stage and goal.

    teacher_nfe: the teacher's model calls per pair. choice: model calls that choose the teacher;
    those that check the model are added to them.
    setup: model calls made before `fit`, such as those that measure a teacher's GITS schedule; no
    budget pays for them.
    """

    def __init__(
        self, settings: Settings, teacher_nfe: int, choice: int = 0, setup: int = 0
    ) -> None:
        self.order = settings.goals
        self.settings, self.method = settings, find_method(settings.method)
        self.teacher_nfe, self.choice, self.setup = teacher_nfe, CHECK_CALLS + choice, setup
        self.pairs = settings.pairs * teacher_nfe
        self.search = {goal: self._search(goal) for goal in self.order}
        self.scoring = {
            goal: goal.nfe * settings.sizes.held_out * self._scored(goal) for goal in self.order
        }
        self.training = {goal: self._training(goal) for goal in self.order}

    def _neighbours(self, goal: Goal) -> int:
        """Return how many learned tables a search tries at most."""
        if not self.settings.neighbours:
            return 0
        return min(2, len(self.settings.nfes) - 1) if goal.strength is None else 1

    def _scored(self, goal: Goal) -> int:
        """Return how many tables are scored: the result, its start, and classical solvers."""
        if self.settings.init != AUTO:
            return 2
        return 1 + kept_classical(self.settings) + bool(self._neighbours(goal))

    def _search(self, goal: Goal) -> int:
        init, whole = self.settings.init, goal.strength is None
        if init == AUTO:
            solvers, schedules = (
                (AUTO_SOLVERS, AUTO_SCHEDULES) if whole else (PART_SOLVERS, PART_SCHEDULES)
            )
            classical = search_runs(len(solvers) * len(schedules))
            return goal.nfe * (classical + self._neighbours(goal) * SEARCH_PAIRS)
        return GITS_CALLS if init.endswith(":gits") and goal == self.order[0] else 0

    def _training(self, goal: Goal) -> int:
        """Return what the method wants, if the budget allows it."""
        budget, wanted = self.budget(goal), self.method.planned_calls(self.settings, goal.nfe)
        return wanted if budget is None else min(budget, wanted)

    def _share_of(self, goal: Goal) -> float:
        """Return what a goal may take of the budget, 1 for the first."""
        if goal == self.order[0] or not self.settings.inclusive:
            return 1.0
        return FURTHER_SHARE if goal.strength is None else PART_SHARE

    def budget(self, goal: Goal) -> int | None:
        """Return what is left of the budget for training; None if there is no limit."""
        limit = self.settings.limit
        if limit is None or not self.settings.inclusive:
            return limit
        share = int(self._share_of(goal) * limit)
        if goal == self.order[0]:
            share -= self.choice + sum(self.settings.sizes) * self.teacher_nfe
        return share - self.search[goal] - self.scoring[goal]

    def lacking(self, goal: Goal, least: int) -> int:
        """Return by how much the budget should grow to allow `least` calls of training."""
        budget = self.budget(goal)
        if budget is None:
            return 0
        return max(0, math.ceil((least - budget) / self._share_of(goal)))

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
        return sum(
            self.method.judged_results(goal.nfe, calls) for goal, calls in self.training.items()
        )

    def share(self, event: Event) -> float:
        """Return the share of all calls done at an event, 0 to 1."""
        return self._share(event.phase, event.goal, event.done)

    def saved_share(self, state: RunState) -> float:
        """Return the share of all calls that a saved run has done, 0 to 1."""
        begun = [goal for goal in self.order if goal.key in state.nfes]
        if begun:
            phase, done = self._reached(begun[-1], state.nfes[begun[-1].key], state.calls or 0)
            return self._share(phase, begun[-1], done)
        if state.drawn:
            return self._share(TEACHER, None, state.drawn / self.settings.pairs)
        return self._share(CHOICE, None, len(state.movements) / len(TEACHERS))

    def _reached(self, goal: Goal, state: NfeState, calls: int) -> tuple[str, float]:
        """Return the phase of a saved goal, and the share of the phase that is done."""
        if state.scores is not None:
            return SCORING, 1.0
        if state.marks:
            return SCORING, len(state.marks) / self._scored(goal)
        if state.first_calls is not None:
            return self.method.name, (calls - state.first_calls) / max(1, self.training[goal])
        if state.ranked is not None:
            return SEARCH, 1.0
        runs = sum(map(len, (state.raced or {}).values()))
        return SEARCH, goal.nfe * runs / max(1, self.search[goal])

    def _share(self, phase: str, goal: Goal | None, done: float) -> float:
        done = min(1.0, done)
        if goal is None:
            drawing = phase == TEACHER
            calls = self.choice + done * self.pairs if drawing else done * self.choice
            return (self.setup + calls) / self.total
        stages = [self.search, self.training, self.scoring]
        stage = {SEARCH: 0, SCORING: 2}.get(phase, 1)
        before = self.order[: self.order.index(goal)]
        calls = self._teacher + sum(part[other] for part in stages for other in before)
        calls += sum(part[goal] for part in stages[:stage])
        return min(1.0, (calls + done * stages[stage][goal]) / self.total)
