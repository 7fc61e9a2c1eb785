"""What a solver file says of its training: how, by which teacher, and with which scores."""

from collections.abc import Mapping
from typing import Any

from ..candidates import candidates
from ..model import Model
from ..objectives import Objective
from ..table import SolverTable
from ..teacher import Teacher
from .settings import Goal, Settings


def by_strength(goal: Goal) -> tuple[float, int]:
    """Sort goals by falling strength, the whole way first, and then by NFE."""
    return -(goal.strength or 1.0), goal.nfe


def name_in_pack(goal: Goal, table: SolverTable) -> str:
    """Return the name under which a pack files the table of a goal."""
    return str(goal.nfe) if goal.strength is None else table.part_name


def score_facts(goal: Goal, scores: Mapping[str, Any]) -> dict[str, Any]:
    """Return the scores of a goal's table; a part's say its strength."""
    return {**scores} if goal.strength is None else {**scores, "strength": goal.strength}


def training_facts(settings: Settings, objective: Objective, calls: int) -> dict[str, Any]:
    """Return how a table was trained, and what that cost in model calls."""
    facts = {key: getattr(settings, key) for key in ("method", "seed", "init")}
    return facts | {"samples": settings.sizes.train, "objective": objective.name, "calls": calls}


def teacher_facts(model: Model, teacher: Teacher) -> dict[str, Any]:
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
