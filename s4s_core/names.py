"""Registries of everything that can be chosen by name. Importing them does not import torch.

To add a solver, schedule, objective or training method, write its file and its tests, and add one
line here: the name and "module:object", relative to s4s_core.
"""

import difflib
import importlib
import inspect
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

from .errors import S4SError, TableError, TrainingError, short

AUTO = "auto"
"""Lets training choose its start, its objective or its teacher."""

SOLVERS = {
    "euler": "classical.multistep:euler",
    "ddim": "classical.multistep:euler",
    "ipndm": "classical.multistep:ipndm",
    "adams-bashforth": "classical.multistep:adams_bashforth",
    "dpm-solver": "classical.single_step:dpm_solver",
    "dpmpp": "classical.multistep:dpmpp",
    "exp-lagrange": "classical.multistep:exp_lagrange",
    "unipc-bh1": "classical.unipc:bh1",
    "unipc-bh2": "classical.unipc:bh2",
    "heun": "classical.single_step:heun",
    "gaussian": "classical.multistep:gaussian",
}

SCHEDULES = {
    "uniform": "schedules.closed:uniform",
    "quadratic": "schedules.closed:quadratic",
    "edm": "schedules.closed:edm",
    "logsnr": "schedules.closed:logsnr",
    "dmn": "schedules.dmn:dmn",
    "gits": "schedules.gits:gits",
    "ays": "schedules.ays:ays",
}


class ObjectiveEntry(NamedTuple):
    """A training objective: where it lives, and whether it is a sum of squares."""

    place: str
    squares: bool


OBJECTIVES = {
    "look": ObjectiveEntry("objectives:Look", squares=True),
    "l2": ObjectiveEntry("objectives:L2", squares=True),
    "l1": ObjectiveEntry("objectives:L1", squares=False),
    "huber": ObjectiveEntry("objectives:Huber", squares=False),
    "lpips-alex": ObjectiveEntry("objectives:Lpips", squares=True),
    "lpips-vgg": ObjectiveEntry("objectives:Lpips", squares=True),
    "lpips-squeeze": ObjectiveEntry("objectives:Lpips", squares=True),
}


class MethodEntry(NamedTuple):
    """A training method: where its `Method` lives, and what front ends ask about it.

    needs_gradient: the model must be differentiable.
    learns_times: the noise levels of the calls are learned.
    needs_squares: the objective must be a sum of squares.
    default_budget: model calls of the first NFE; None trains for as long as the epochs take.
    """

    place: str
    needs_gradient: bool
    learns_times: bool
    needs_squares: bool
    default_budget: int | None


METHODS = {
    "gauss-newton": MethodEntry("training.gauss_newton:GAUSS_NEWTON", False, True, True, 10_000),
    "s4s": MethodEntry("training.gradient:S4S", True, False, False, None),
    "s4s-alt": MethodEntry("training.gradient:S4S_ALT", True, True, False, None),
    "joint": MethodEntry("training.gradient:JOINT", True, True, False, None),
    "ld3": MethodEntry("training.gradient:LD3", True, True, False, None),
}
DEFAULT_METHOD = "gauss-newton"

EFFORTS = {"quick": 4_000, "normal": 10_000, "thorough": 40_000}
"""All model calls that a run may make for its first NFE: pairs, search, training and scoring."""
FURTHER_SHARE = 0.6
"""What each further NFE of the same run may take, relative to the first: it shares the pairs."""
PART_SHARE = 0.4
"""What each table for a strength may take, relative to the first: it shares the pairs' pictures."""


def further_calls(budget: int) -> int:
    """Return the model calls of each further NFE, given those of the first."""
    return int(FURTHER_SHARE * budget)


def effort_text(effort: str) -> str:
    """Say what an effort spends in all."""
    first, further = EFFORTS[effort], further_calls(EFFORTS[effort])
    return f"{first:,} model calls, {further:,} for each further step count"


def efforts_text() -> str:
    """Say what each effort spends in all."""
    return "; ".join(f"{effort}: {effort_text(effort)}" for effort in EFFORTS)


FREE, LAST_STEP, ALL_STEPS = "free", "last", "all"
CONSISTENT = (AUTO, FREE, LAST_STEP, ALL_STEPS)
"""The steps whose weights keep their sum while they are learned."""

MEASURES = {
    "rmse": ("RMSE", "classical"),
    "median": ("median error", "classical_median"),
    "look": ("look", "classical_look"),
}
"""What is scored: {key: (title, key of the best classical solver's)}."""

DOMAINS = ("sigma", "logsnr", "time")
"""The time variables in which the gradient methods can learn a solver's times."""

FORMS = {"ve": ("noise", "data"), "flow": ("velocity", "data", "noise")}
SPACES = tuple(FORMS)


def check_name(registry: Collection[str], kind: str, name: object, error: type[S4SError]) -> None:
    """Raise `error`, listing the valid names, unless `name` is registered."""
    if name not in registry:
        shown = short(str(name))
        near = difflib.get_close_matches(shown, registry, n=1)
        hint = f" Did you mean '{near[0]}'?" if near else ""
        raise error(f"Unknown {kind} '{shown}': choose one of {', '.join(registry)}.{hint}")


def load(place: str) -> Any:
    """Import the object at "module:object", relative to s4s_core."""
    module, name = place.split(":")
    return getattr(importlib.import_module(f".{module}", __package__), name)


def resolve(
    registry: Mapping[str, str], kind: str, name: str, error: type[S4SError]
) -> Callable[..., Any]:
    """Return the function registered under `name`; raise `error` if there is none."""
    check_name(registry, kind, name, error)
    function: Callable[..., Any] = load(registry[name])
    return function


def check_options(
    function: Callable[..., Any],
    kind: str,
    name: str,
    options: Iterable[str],
    error: type[S4SError],
) -> None:
    """Raise `error` for an option that `function` does not take, listing those it does."""
    known = [
        p.name for p in inspect.signature(function).parameters.values() if p.default is not p.empty
    ]
    for option in options:
        if option not in known:
            takes = ", ".join(known) if known else "none"
            raise error(f"The {kind} '{name}' has no option '{option}': it takes {takes}.")


def check_space(space: str) -> None:
    """Raise TableError unless `space` is known."""
    if space not in FORMS:
        raise TableError(f"Unknown space '{space}': choose one of {', '.join(SPACES)}.")


def check_form(form: str, space: str) -> None:
    """Raise TableError unless `form` exists in `space`."""
    check_space(space)
    if form not in FORMS[space]:
        raise TableError(
            f"The {space} space has no form '{form}': choose one of {', '.join(FORMS[space])}."
        )


def solver_parts(text: str) -> tuple[str, int, str]:
    """Split a solver name such as "ipndm:3:edm" into (solver, order, schedule)."""
    parts = text.split(":")
    if len(parts) != 3 or not re.fullmatch("[1-9][0-9]?", parts[1]):
        raise TrainingError(
            f"Invalid solver name '{short(text)}': write solver:order:schedule, such as "
            "ipndm:3:edm."
        )
    check_name(SOLVERS, "solver", parts[0], TrainingError)
    check_name(SCHEDULES, "schedule", parts[2], TrainingError)
    return parts[0], int(parts[1]), parts[2]


def solver_steps(solver: str, order: int, nfe: int, ending: float) -> int:
    """Return how many steps a classical solver takes in exactly `nfe` model calls."""
    if solver not in ("dpm-solver", "heun"):
        return nfe
    steps, rest = divmod(nfe + (solver == "heun" and ending == 0), order)
    if rest or not steps:
        raise TrainingError(f"{solver} of order {order} has no table of {nfe} calls.")
    return steps
