"""The search for starts: classical solvers race, and then what other goals have learned."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..candidates import (
    SEARCH_PAIRS,
    SEARCH_ROUNDS,
    Candidate,
    R,
    Racer,
    mean_error,
    rank,
)
from ..model import Model
from ..parts import stretched
from ..table import SolverTable
from ..teacher import Pairs
from .memory import Batcher
from .method import GivenStart, Start, neighbour_start
from .settings import Goal, Settings
from .state import NfeState, label_of
from .task import SEARCH, Event, Meter

LARGE_BUDGET = 20_000


def kept_classical(settings: Settings) -> int:
    """Return how many classical solvers of a search may be started from, and are scored."""
    return 3 if (settings.limit or 0) >= LARGE_BUDGET else 2


@dataclass(frozen=True)
class Search:
    """The search of one goal.

    planned: the most model calls that it makes. pairs: the first of them are raced on. classical:
    the candidates. near(best): starts made of what other goals have learned, given the best
    classical solver. save and report: called after each measurement.
    """

    settings: Settings
    meter: Meter
    batcher: Batcher
    goal: Goal
    planned: int
    pairs: Pairs
    classical: Sequence[Candidate]
    near: Callable[[Candidate], list[GivenStart]]
    save: Callable[[], None]
    report: Callable[[Event], None]

    def starts(self, state: NfeState) -> list[Start]:
        """Return the tables to start from, best first. The search is made once and saved."""
        if state.ranked is None:
            self._rank(state)
        labels = [label_of(entry) for entry in state.ranked or []]
        chosen = {each.label: each for each in self.classical if each.label in labels}
        best = chosen[next(label for label in labels if label in chosen)]
        near = {each.label: each for each in self._near(best)}
        return [chosen.get(label) or near[label] for label in labels]

    def _near(self, best: Candidate) -> list[GivenStart]:
        return self.near(best) if self.settings.neighbours else []

    def _rank(self, state: NfeState) -> None:
        """Rank the classical solvers, and starts that were learned.

        The mean error of a pair decides: like the loss that is trained, it is not dominated by the
        few pairs that end in another picture. What is measured is saved.
        """
        raced = state.raced = {} if state.raced is None else state.raced
        nfe, strength = self.goal
        before = self.meter.calls - nfe * sum(map(len, raced.values()))
        runs = self.planned // nfe

        def report(count: int, best: Racer) -> None:
            # A batch that ran out of memory is not counted.
            self.meter.calls = calls = before + nfe * count
            self.save()
            done, table = min(1.0, count / runs), best.table
            self.report(Event(SEARCH, nfe, count, runs, None, None, calls, done, table, strength))

        def race(racers: Sequence[R], rounds: Sequence[tuple[int, int]]) -> list[tuple[float, R]]:
            pairs = self.pairs[:SEARCH_PAIRS]

            def run(batch: int) -> list[tuple[float, R]]:
                return rank(self.meter, racers, pairs, batch, rounds, mean_error, raced, report)

            return self.batcher.call(run)

        best = race(self.classical, SEARCH_ROUNDS)[: kept_classical(self.settings)]
        near = self._near(best[0][1])
        ranked: list[tuple[float, Start]] = [*best, *(race(near, ()) if near else [])]
        ranked.sort(key=lambda each: math.inf if math.isnan(each[0]) else each[0])
        state.ranked, state.raced = [start.label for _, start in ranked], None
        self.save()


def learned_starts(
    model: Model, goal: Goal, learned: Mapping[Goal, SolverTable], best: Candidate
) -> list[GivenStart]:
    """Return starts made of what other goals have learned.

    The whole way starts from the nodes of the nearest NFEs, with the weights of the `best`
    classical solver; a strength from the table of the next higher one, moved to where it begins.
    model: as a run of the goal's strength sees it.
    """
    if goal.strength is not None:
        *_, nearest = (other for other in learned if other.nfe == goal.nfe)
        table = stretched(learned[nearest], float(model.sigma_max))
        return [GivenStart(table, f"learned {nearest.key}", f"learned {nearest.title}, moved")]
    nfes = [other.nfe for other in learned]
    below = max((nfe for nfe in nfes if nfe < goal.nfe), default=None)
    above = min((nfe for nfe in nfes if nfe > goal.nfe), default=None)
    return [
        neighbour_start(model, learned[Goal(nfe)], best, goal.nfe)
        for nfe in (below, above)
        if nfe is not None
    ]
