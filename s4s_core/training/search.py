"""The search for starts: classical solvers race, and then the learned nodes of other NFEs."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..candidates import (
    SEARCH_PAIRS,
    SEARCH_ROUNDS,
    Candidate,
    R,
    Racer,
    candidates,
    mean_error,
    rank,
)
from ..model import Model
from ..table import SolverTable
from ..teacher import Pairs
from .memory import Batcher
from .method import GivenStart, Start, neighbour_start
from .settings import Settings
from .state import NfeState, label_of
from .task import SEARCH, Event, Meter

LARGE_BUDGET = 20_000


def kept_classical(settings: Settings) -> int:
    """Return how many classical solvers of a search may be started from, and are scored."""
    return 3 if (settings.limit or 0) >= LARGE_BUDGET else 2


@dataclass(frozen=True)
class Search:
    """The search of one NFE.

    planned: the most model calls that it makes. pairs: the first of them are raced on. learned: the
    tables of other NFEs so far. save and report: called after each measurement.
    """

    model: Model
    settings: Settings
    meter: Meter
    batcher: Batcher
    nfe: int
    planned: int
    pairs: Pairs
    learned: Mapping[int, SolverTable]
    save: Callable[[], None]
    report: Callable[[Event], None]

    def starts(self, state: NfeState) -> list[Start]:
        """Return the tables to start from, best first. The search is made once and saved."""
        classical = candidates(self.model, self.nfe, self.settings.ending)
        if state.ranked is None:
            self._rank(state, classical)
        labels = [label_of(entry) for entry in state.ranked or []]
        chosen = {each.label: each for each in classical if each.label in labels}
        best = chosen[next(label for label in labels if label in chosen)]
        near = {each.label: each for each in self._neighbours(best)}
        return [chosen.get(label) or near[label] for label in labels]

    def _rank(self, state: NfeState, classical: list[Candidate]) -> None:
        """Rank the classical solvers, and the learned nodes with the best one's weights.

        The mean error of a pair decides: like the loss that is trained, it is not dominated by the
        few pairs that end in another picture. What is measured is saved.
        """
        raced = state.raced = {} if state.raced is None else state.raced
        before = self.meter.calls - self.nfe * sum(map(len, raced.values()))
        runs = self.planned // self.nfe

        def report(count: int, best: Racer) -> None:
            # A batch that ran out of memory is not counted.
            self.meter.calls = calls = before + self.nfe * count
            self.save()
            done = min(1.0, count / runs)
            self.report(
                Event(SEARCH, self.nfe, count, runs, calls=calls, done=done, table=best.table)
            )

        def race(racers: Sequence[R], rounds: Sequence[tuple[int, int]]) -> list[tuple[float, R]]:
            pairs = self.pairs[:SEARCH_PAIRS]

            def run(batch: int) -> list[tuple[float, R]]:
                return rank(self.meter, racers, pairs, batch, rounds, mean_error, raced, report)

            return self.batcher.call(run)

        best = race(classical, SEARCH_ROUNDS)[: kept_classical(self.settings)]
        near = self._neighbours(best[0][1])
        ranked: list[tuple[float, Start]] = [*best, *(race(near, ()) if near else [])]
        ranked.sort(key=lambda each: math.inf if math.isnan(each[0]) else each[0])
        state.ranked, state.raced = [start.label for _, start in ranked], None
        self.save()

    def _neighbours(self, solver: Candidate) -> list[GivenStart]:
        """Return starts with the learned nodes of the nearest NFE below and above."""
        if not self.settings.neighbours:
            return []
        below = max((n for n in self.learned if n < self.nfe), default=None)
        above = min((n for n in self.learned if n > self.nfe), default=None)
        return [
            neighbour_start(self.model, self.learned[n], solver, self.nfe)
            for n in (below, above)
            if n is not None
        ]
