"""Checks of untrusted values against the annotations of a dataclass, and such objects from JSON.

No torch. A field is annotated with its type, and with rules where it has any:
Annotated[int, between(0, 9)].
"""

import json
import math
import re
from collections.abc import Callable, Collection
from dataclasses import MISSING, fields, is_dataclass
from functools import lru_cache
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from .errors import short, visible

T = TypeVar("T")
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


def above(low: float) -> Rule:
    """A number that is greater."""
    return lambda name, value: "" if value > low else f"{name} must be > {low}."


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
        if len(value) <= most and visible(value) == value
        else f"{name} must be one line of at most {most} characters."
    )


def at_most(count: int) -> Rule:
    """A list of limited length."""
    return lambda name, value: (
        "" if len(value) <= count else f"{name} must have at most {count} entries."
    )


def matching(pattern: str, says: str) -> Rule:
    """Text of a form."""
    return lambda name, value: "" if re.fullmatch(pattern, value) else f"{name} must be {says}."


def check_fields(instance: Any, error: type[Exception]) -> None:
    """Make the fields of a frozen dataclass what their annotations say; raise `error` for one that
    does not fit."""
    for name, hint in _hints(instance.__class__).items():
        object.__setattr__(instance, name, fitting(name, getattr(instance, name), hint, error))


@lru_cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


@lru_cache
def _parts(hint: Any) -> tuple[Any, Any, tuple[Any, ...], list[Rule]]:
    """Split an annotation into its type, the origin (list of list[int]), the parts and rules."""
    kind, *rules = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    return kind, get_origin(kind), get_args(kind), rules


def fitting(name: str, value: Any, hint: Any, error: type[Exception]) -> Any:
    """Return `value` as the annotated type; raise `error`, which names the field, unless it fits.

    Lists become tuples where tuples are wanted, whole numbers floats, numpy's numbers Python's, and
    objects dataclasses.
    """
    kind, origin, inner, rules = _parts(hint)
    if kind in (int, float):
        value = _plain(value)
    if kind is Any:
        return value
    if origin in (Union, UnionType):  # T | None
        (wanted,) = (part for part in inner if part is not NoneType)
        return None if value is None else fitting(name, value, wanted, error)
    if origin in (tuple, list):
        if not isinstance(value, list | tuple):
            raise error(f"{name} must be a list.")
        value = origin(fitting(f"every entry of {name}", v, inner[0], error) for v in value)
    elif origin is dict and isinstance(value, dict):
        each = f"every entry of {name}"
        value = {key: fitting(each, v, inner[1], error) for key, v in value.items()}
    elif isinstance(kind, type) and is_dataclass(kind) and isinstance(value, dict):
        value = record(kind, value, error)
    elif kind is float and type(value) is int:
        value = float(value) if value.bit_length() < MOST_BITS else math.inf
    elif type(value) is not (origin or kind):
        raise error(f"{name} must be {TYPES.get(kind, f'a section: [{name}]')}.")
    if kind is float and not math.isfinite(value):
        raise error(f"{name} must be a finite number.")
    if kind is str and any("\ud800" <= c <= "\udfff" for c in value):
        raise error(f"{name} is not valid Unicode.")
    for complaint in filter(None, (rule(name, value) for rule in rules)):
        raise error(complaint)
    return value


def _plain(value: Any) -> Any:
    """Return a number as one of Python's, and anything else as it is."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return value
    return int(value) if isinstance(value, Integral) else float(value)


def record(kind: type[T], values: object, error: type[Exception]) -> T:
    """Make a dataclass from an object of JSON; raise `error` unless it fits.

    Keys that the dataclass does not have are ignored: a later version may have written them.
    """
    if not isinstance(values, dict):
        raise error(f"{kind.__name__} must be an object.")
    given = {}
    for field in fields(kind):  # type: ignore[arg-type]
        if field.name in values:
            given[field.name] = values[field.name]
        elif field.default is MISSING and field.default_factory is MISSING:
            raise error(f"{field.name} is missing.")
    made = kind(**given)
    check_fields(made, error)
    return made


def parse_json(data: bytes) -> Any:
    """Parse JSON; raise ValueError unless it is valid.

    NaN and infinity, which version 0.1 wrote, are None.
    """
    try:
        return json.loads(data, parse_constant=lambda _: None)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
