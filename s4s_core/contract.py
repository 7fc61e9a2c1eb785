"""Check a model against the contract of `model.py`, wherever one enters; and whatever has rules."""

import inspect
import math
import reprlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from .errors import ModelError, S4SError, visible
from .model import Condition, Model, all_rows, takes_guidance, writable
from .names import SPACES

_LARGEST, _MOST_SIDES, _HIGHEST = 2**32, 32, 1e9
"""No sample has more numbers or dimensions, and no noise level is higher: its square must fit into
float32."""

ABSENT = object()
"""The value of an attribute that is not there."""


class Rule(NamedTuple):
    """What an attribute must be, in words and as a test."""

    words: str
    holds: Callable[[Any], bool]
    optional: bool = False

    def allows(self, value: object) -> bool:
        """Does it hold? Not for a value whose own code fails when it is looked at."""
        try:
            return bool(self.holds(value))
        except Exception:  # whatever that code raises
            return False


def accepts(function: object, count: int) -> bool:
    """Can a function be called with `count` arguments? True for builtins that do not say."""
    if not callable(function):
        return False
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        return False
    except ValueError:
        pass
    return True


def _is_level(value: Any) -> bool:
    """Is it a number > 0 and at most _HIGHEST, or a tensor of one?"""
    return not isinstance(value, bool | str | bytes) and 0 < float(value) <= _HIGHEST


def _is_shape(value: Any) -> bool:
    if not isinstance(value, tuple | list) or not 0 < len(value) <= _MOST_SIDES:
        return False
    return all(type(size) is int and size > 0 for size in value) and math.prod(value) <= _LARGEST


def is_text(value: Any) -> bool:
    """Is it text that can be written to a file?"""
    return isinstance(value, str) and value.encode(errors="replace").decode() == value


def _are_times(value: Any) -> bool:
    functions = (getattr(value, name, None) for name in ("time", "sigma"))
    return value is None or all(accepts(each, 1) for each in functions)


def _computes(device: Any) -> bool:
    """Can torch compute on a device? Each kind of device has its own errors."""
    return torch.zeros(1, device=device).item() == 0


RULES = {
    "space": Rule(f"one of {', '.join(SPACES)}", lambda v: isinstance(v, str) and v in SPACES),
    "sigma_min": Rule("a number > 0 and at most 1e9", _is_level),
    "sigma_max": Rule("a number > 0 and at most 1e9", _is_level),
    "shape": Rule("a tuple of 1 to 32 positive integers", _is_shape),
    "denoise": Rule(
        "a function of x, sigma and cond", lambda v: any(accepts(v, n) for n in (2, 3))
    ),
    "conditions": Rule("a function of batch and generator", lambda v: accepts(v, 2), True),
    "device": Rule("a device that torch can compute on", _computes, True),
    "times": Rule("None, or an object with time and sigma", _are_times, True),
    "takes_guidance": Rule("True or False", lambda v: isinstance(v, bool), True),
    "fingerprint": Rule("text or None", lambda v: v is None or is_text(v), True),
}
"""What `Model` asks of each attribute."""


def shown(value: object) -> str:
    """Return any object as a short text of one line."""
    return visible(reprlib.repr(value))


def attribute(thing: object, name: str, kind: str, error: type[S4SError] = ModelError) -> Any:
    """Return an attribute or ABSENT; raise `error`, which names it, if it cannot be read."""
    try:
        return getattr(thing, name)
    except AttributeError:
        return ABSENT
    except Exception as problem:  # whatever a property of theirs raises
        raise error(
            f"The {kind}'s {name} cannot be read: it raises {type(problem).__name__}."
        ) from problem


def check_attributes(
    thing: object,
    rules: Mapping[str, Rule],
    kind: str = "model",
    error: type[S4SError] = ModelError,
) -> None:
    """Raise `error` for the first attribute that breaks its rule; `kind` says what the thing is."""
    values = {name: attribute(thing, name, kind, error) for name in rules}
    needed = [name for name, rule in rules.items() if not rule.optional]
    missing = [name for name in needed if values[name] is ABSENT]
    if missing:
        raise error(
            f"A {type(thing).__name__} without {', '.join(missing)} is no {kind}: it needs "
            f"{', '.join(needed)}."
        )
    for name, rule in rules.items():
        if values[name] is not ABSENT and not rule.allows(values[name]):
            raise error(f"The {kind}'s {name} must be {rule.words}, not {shown(values[name])}.")


def check_contract(model: Model) -> None:
    """Raise ModelError unless the attributes are what `Model` says; call nothing."""
    check_attributes(model, RULES)
    low, high = float(model.sigma_min), float(model.sigma_max)
    if low >= high:
        raise ModelError(f"The model's sigma_max must be > sigma_min ({low:g}), not {high:g}.")
    if model.space == "flow" and high > 1:
        raise ModelError(f"The model's sigma_max must be <= 1 in the flow space, not {high:.9g}.")
    if takes_guidance(model) and not accepts(model.denoise, 4):
        raise ModelError("The model has takes_guidance, but its denoise has no fourth argument.")


def draw_conditions(model: Model, count: int, generator: torch.Generator) -> Condition | None:
    """Draw `count` conditions; raise ModelError unless rows can be selected from them.

    They are a copy: a model may fill the same buffer whenever it draws.
    """
    draw = getattr(model, "conditions", None)
    cond = None if draw is None else draw(count, generator)
    if not _has_rows(cond, count):
        raise ModelError(
            f"The model's conditions({count}, generator) must return None or {count} rows that a "
            f"tensor of indices selects from, not {shown(cond)}."
        )
    if not accepts(model.denoise, 2 if cond is None else 3):
        has, needs = ("no ", "needs cond") if cond is None else ("", "has no third argument, cond")
        raise ModelError(f"The model has {has}conditions, but its denoise {needs}.")
    return writable(all_rows(cond, count))


def _has_rows(cond: Condition | None, count: int) -> bool:
    """Can rows be selected from `count` conditions?"""
    if cond is None or count == 0:
        return True
    try:
        cond[torch.full((2,), count - 1)]
        counted = hasattr(cond, "__len__") and not isinstance(cond, Mapping)
        return not counted or len(cond) == count
    except Exception:  # whatever their own code raises
        return False
