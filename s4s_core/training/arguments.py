"""Check what `fit` is given besides its model and its Settings."""

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from numbers import Integral
from typing import Any, cast

from ..contract import Rule, accepts, check_attributes, is_text, shown
from ..errors import ObjectiveError, TrainingError
from ..model import Model
from ..objectives import RULES as OBJECTIVE
from ..sampling import require_guidance
from ..table import MAX_NFE, SolverTable
from ..teacher import Teacher

_LONGEST_NAME = 255
_ROUNDING = 2e-3
"""Noise levels that differ relatively by at most this are the same: files and hosts round them."""


def _is_path(value: Any) -> bool:
    """Can it be the path of a file? What the system raises makes this rule say no, except on
    Windows, which calls a long name a missing file."""
    path = os.fspath(value)
    with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
        os.lstat(path)
    return isinstance(path, str) and path != "" and len(os.path.basename(path)) <= _LONGEST_NAME


RULES = {
    "callback": Rule("a function of an event", lambda v: accepts(v, 1), True),
    "init": Rule("the name of a solver or a table", lambda v: isinstance(v, str | SolverTable)),
    "decode": Rule("a function of results", lambda v: accepts(v, 1), True),
    "cache": Rule("the path of a folder", _is_path, True),
    "state": Rule("the path of a file", _is_path, True),
    "cancelled": Rule("a function without arguments", lambda v: accepts(v, 0), True),
}
"""What arguments of `fit` must be; those that are optional may be None."""

TEACHER = {
    "nfe": Rule("a whole number >= 0", lambda v: type(v) is int and v >= 0, True),
    "name": Rule("text", is_text, True),
    "key": Rule("text or None", lambda v: v is None or is_text(v), True),
}
"""What a teacher's attributes must be, where it has them."""


def check_arguments(given: Mapping[str, object]) -> None:
    """Raise an error for the first argument that breaks its rule."""
    for name, rule in RULES.items():
        value = given[name]
        if not (rule.optional and value is None) and not rule.allows(value):
            raise TrainingError(f"{name} must be {rule.words}, not {shown(value)}.")
    objective = given["objective"]
    if objective is not None and not isinstance(objective, str):
        check_attributes(objective, OBJECTIVE, "objective", ObjectiveError)


def known_teacher(teacher: object) -> Teacher | int:
    """Return a teacher, or a number of calls, if it is one; else raise TrainingError."""
    if isinstance(teacher, SolverTable):
        return teacher
    if isinstance(teacher, Integral) and not isinstance(teacher, bool):
        if 1 <= (calls := int(teacher)) <= MAX_NFE // 2:  # to choose one, its calls are doubled
            return calls
    elif accepts(teacher, 2):
        check_attributes(teacher, TEACHER, "teacher", TrainingError)
        return cast(Teacher, teacher)
    raise TrainingError(
        f"teacher must be a number of calls from 1 to {MAX_NFE // 2}, a table, or a function of x "
        f"and cond, not {shown(teacher)}."
    )


def step_counts(nfe: Any) -> tuple[Any, ...]:
    """Return one or several step counts as a tuple of what was given; Settings checks them."""
    several = isinstance(nfe, Iterable) and not isinstance(nfe, str | bytes)
    return tuple(nfe) if several and getattr(nfe, "ndim", None) != 0 else (nfe,)


def check_table(name: str, table: SolverTable, model: Model) -> None:
    """Raise unless a table is for models of this space, noise levels and guidance."""
    begins, ending = float(table.sigmas[0]), table.ending
    low, high = float(model.sigma_min), float(model.sigma_max)
    if table.space != model.space:
        raise TrainingError(
            f"{name} is a table of the space {table.space}, but the model's is {model.space}: use "
            "one for this model."
        )
    if abs(begins - high) > _ROUNDING * high or 0 < ending < low * (1 - _ROUNDING):
        raise TrainingError(
            f"{name} is a table from noise level {begins:.4g} to {ending:.4g}, but the model's are "
            f"{high:.4g} to {low:.4g}: use one for this model."
        )
    if table.guidance is not None:
        require_guidance(model.denoise)
