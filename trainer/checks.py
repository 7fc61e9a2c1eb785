"""Checks of untrusted values against the annotations of a dataclass. No torch.

A field is annotated with its type, and with rules where it has any: Annotated[int, between(0, 9)].
"""

import math
import re
from collections.abc import Callable, Collection
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from s4s_core.errors import S4SError, short

Rule = Callable[[str, Any], str]
"""(field, value) -> what is wrong in one sentence, or ""."""

TYPES = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
MOST_BITS = 1000
"""Whole numbers of fewer bits are also numbers: no float holds more than 1024."""


def between(low: float, high: float) -> Rule:
    """A number in a range."""
    return lambda name, value: (
        "" if low <= value <= high else f"{name} must be between {low} and {high}."
    )


def one_of(kind: str, names: Collection[str]) -> Rule:
    """A registered name."""
    return lambda name, value: (
        ""
        if value in names
        else f"Unknown {kind} '{short(value)}'. Choose one of {', '.join(names)}."
    )


def line(most: int) -> Rule:
    """One printable line."""
    return lambda name, value: (
        ""
        if len(value) <= most and value.isprintable()
        else f"{name} must be one line of at most {most} characters."
    )


def matching(pattern: str, says: str) -> Rule:
    """Text of a form."""
    return lambda name, value: "" if re.fullmatch(pattern, value) else f"{name} must be {says}."


def check_fields(instance: object, error: type[S4SError]) -> None:
    """Make the fields of a frozen dataclass what their annotations say; raise `error` for one that
    does not fit."""
    for name, hint in get_type_hints(type(instance), include_extras=True).items():
        object.__setattr__(instance, name, fitting(name, getattr(instance, name), hint, error))


def fitting(name: str, value: Any, hint: Any, error: type[S4SError]) -> Any:
    """Return `value` as the annotated type; raise `error`, which names the field, unless it fits.

    Lists become tuples, and whole numbers become floats where a number is wanted.
    """
    kind, *rules = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    if get_origin(kind) is tuple:
        if not isinstance(value, list | tuple):
            raise error(f"{name} must be a list.")
        value = tuple(fitting(f"each of {name}", v, get_args(kind)[0], error) for v in value)
    elif kind is float and type(value) is int:
        value = float(value) if value.bit_length() < MOST_BITS else math.inf
    elif type(value) is not (get_origin(kind) or kind):
        raise error(f"{name} must be {TYPES.get(kind, f'a section: [{name}]')}.")
    if kind is float and not math.isfinite(value):
        raise error(f"{name} must be a finite number.")
    if kind is str and any("\ud800" <= c <= "\udfff" for c in value):
        raise error(f"{name} is not valid Unicode.")
    for complaint in filter(None, (rule(name, value) for rule in rules)):
        raise error(complaint)
    return value
