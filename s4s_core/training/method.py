"""What `fit` and the front ends know about a training method."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import torch

from ..candidates import Candidate
from ..classical import classical_table
from ..errors import TrainingError
from ..model import Model
from ..names import METHODS, check_name, load
from ..spacing import lay_nodes
from ..table import SolverTable
from .settings import Settings
from .state import NfeState
from .task import Task


@dataclass(frozen=True)
class GivenStart:
    """A start that is no classical solver on a schedule.

    The caller passed it as a table, or it has the learned nodes of another NFE.
    """

    table: SolverTable
    schedule: str = "given"
    label: str = "given"


Start = Candidate | GivenStart


def neighbour_start(model: Model, learned: SolverTable, solver: Candidate, nfe: int) -> GivenStart:
    """Return a start of `nfe` calls with nodes laid as learned ones lie, and guidance likewise.

    Its weights are the classical ones of `solver` on these nodes.
    """
    nodes = lay_nodes(learned.sigmas, nfe)
    table = classical_table(solver.solver, nodes, solver.order, model.space)
    if learned.guidance is not None:
        places = np.linspace(0, 1, nfe), np.linspace(0, 1, learned.nfe)
        table = table.replace(guidance=np.interp(*places, learned.guidance))
    label = f"{solver.solver} {solver.order}, learned nodes of {learned.nfe} steps"
    return GivenStart(table, f"learned {learned.nfe}", label)


class Method(ABC):
    """A way to train tables. What it needs and its default budget are in names.METHODS.

    Adding one takes its own file, a line in names.METHODS, and tests.
    """

    def __init__(self, name: str) -> None:
        self.name, self.entry = name, METHODS[name]

    @abstractmethod
    def planned_calls(self, settings: Settings, nfe: int) -> int:
        """Return the most model calls that training one NFE can use."""

    @abstractmethod
    def least_calls(self, model: Model, start: Start, settings: Settings) -> int:
        """Return the fewest model calls with which training from `start` can do anything."""

    @abstractmethod
    def judged_results(self, nfe: int, calls: int) -> float:
        """Return how often the objective is computed in that many model calls."""

    @abstractmethod
    def run(
        self, task: Task, starts: list[Start], settings: Settings, state: NfeState
    ) -> tuple[Start, SolverTable]:
        """Train; return the chosen start and the best table on the validation pairs.

        `starts` come best first. Progress goes to state.method (numbers, text, tensors, and dicts
        and lists of them), so that a saved run resumes to the same bytes, and to state.history.
        """

    def loss(self, distances: torch.Tensor, task: Task) -> float:
        """Return the loss that is trained, from the objective's distance of each pair."""
        return float(distances.mean())


def find_method(name: str) -> Method:
    """Return the method registered under a name."""
    check_name(METHODS, "method", name, TrainingError)
    method: Method = load(METHODS[name].place)
    return method
