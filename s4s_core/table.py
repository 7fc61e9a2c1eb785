"""A solver is data: `SolverTable` is one solver at one NFE, `SolverPack` the tables of a model.

A table holds phi of the paper's table:solver-types and the times that go with it:
    sigmas       [steps + 1]  nodes of the update, strictly decreasing; the last is the ending
    call_sigmas  [nfe]        noise levels passed to the network (the paper's decoupled steps)
    guidance     [nfe]        optional: call j is made at a guidance scale of 1 + m_j (cfg - 1)
    coefficients per family, with step i going from node i-1 to node i (rows count from 0 here):
        lms  b [steps, order]             b[i, j] weighs f of call i - j
        pc   b as lms, a [steps - 1, order + 1]   a[i, j] weighs f of call i + 1 - j in correcting
                                          node i + 1; j = 0 is the evaluation at the predicted point
        ss   b [steps, order]             b[i, j] weighs stage j of step i
             a [steps, order, order]      a[i, j, l] weighs stage l in the point of stage j, l < j
Weights that would reach before the first call, or past the last stage, must be zero.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import TableError
from .names import check_form

MAX_NFE = 1000
MAX_ORDER = 64

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


def canonical_json(value: object) -> str:
    """Return the canonical JSON of a value: sorted keys, no spaces, ASCII, finite numbers only."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _numbers(name: str, values: npt.ArrayLike) -> Array:
    """Return a float64 copy of `values`."""
    try:
        return np.array(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise TableError(f"{name} must be an array of numbers: {error}.") from None


def _frozen(name: str, values: npt.ArrayLike, shape: tuple[int, ...]) -> Array:
    """Return a read-only float64 copy of `values`, checked for its shape, NaN and inf."""
    array = _numbers(name, values)
    if array.shape != shape:
        raise TableError(f"{name} must have shape {shape}, not {array.shape}.")
    if not np.isfinite(array).all():
        raise TableError(f"{name} must be finite.")
    array.setflags(write=False)
    return array


def _check_values(table: "SolverTable") -> None:
    """Raise TableError for nodes that do not decrease or leave the space, a call at sigma 0, or a
    negative multiplier of guidance."""
    sigmas, calls = table.sigmas, table.call_sigmas
    if not (np.diff(sigmas) < 0).all():
        raise TableError("sigmas must be strictly decreasing.")
    if sigmas[-1] < 0:
        raise TableError("sigmas must be >= 0.")
    if not (calls > 0).all():
        raise TableError("call_sigmas must be > 0: a model cannot be called at sigma 0.")
    if table.guidance is not None and (table.guidance < 0).any():
        raise TableError("guidance must be >= 0.")
    if table.space == "flow" and max(sigmas[0], calls.max()) > 1:
        raise TableError("sigmas of a flow model must be <= 1.")
    if table.form == "noise" and table.space == "flow" and sigmas[0] == 1:
        raise TableError(
            "The noise form of a flow model cannot start at sigma 1. Use velocity or data."
        )


def _reach(steps: int, width: int, seen: int) -> Mask:
    """Return the mask [steps, width] of available evaluations: row r has seen `seen` + r."""
    return np.asarray(np.arange(width)[None, :] < np.arange(steps)[:, None] + seen)


def _lms_masks(steps: int, order: int, nfe: int) -> dict[str, Mask]:
    """One call per step, and no weight on a call before the first."""
    if nfe != steps:
        raise TableError(f"A multistep table of {steps} steps needs {steps} calls, not {nfe}.")
    return {"b": _reach(steps, order, 1)}


def _pc_masks(steps: int, order: int, nfe: int) -> dict[str, Mask]:
    """As lms; the corrector of node i + 1 sees calls 0 .. i + 1."""
    return _lms_masks(steps, order, nfe) | {"a": _reach(steps - 1, order + 1, 2)}


def _ss_masks(steps: int, order: int, nfe: int) -> dict[str, Mask]:
    """`order` calls per step, perhaps fewer in the last; a stage sees only earlier stages."""
    if not order * (steps - 1) < nfe <= order * steps:
        raise TableError(
            f"A single-step table of order {order} and {steps} steps cannot have {nfe} calls."
        )
    stages = np.full((steps, 1), order)
    stages[-1] = nfe - order * (steps - 1)
    b = np.asarray(np.arange(order)[None, :] < stages)
    return {"b": b, "a": b[:, :, None] & np.tri(order, k=-1, dtype=bool)}


_MASKS: dict[str, Callable[[int, int, int], dict[str, Mask]]] = {
    "lms": _lms_masks,
    "pc": _pc_masks,
    "ss": _ss_masks,
}
FAMILIES = tuple(_MASKS)


def coefficient_masks(family: str, steps: int, order: int, nfe: int) -> dict[str, Mask]:
    """Return which entries of a family's coefficient arrays are used; the others must be zero."""
    return _MASKS[family](steps, order, nfe)


@dataclass(frozen=True, eq=False)
class SolverTable:
    """One solver at one NFE: frozen, validated, float64, hashed by content."""

    family: str
    order: int
    form: str
    space: str
    sigmas: Array
    call_sigmas: Array
    coefficients: Mapping[str, Array] = field(repr=False)
    guidance: Array | None = None
    digest: str = field(init=False, repr=False)
    """SHA-256 of the whole table."""

    def __post_init__(self) -> None:
        if self.family not in FAMILIES:
            raise TableError(
                f"Unknown family '{self.family}'. Choose one of {', '.join(FAMILIES)}."
            )
        check_form(self.form, self.space)
        if not (type(self.order) is int and 1 <= self.order <= MAX_ORDER):
            raise TableError(f"order must be an integer from 1 to {MAX_ORDER}.")
        points = _numbers("sigmas", self.sigmas).shape
        calls = _numbers("call_sigmas", self.call_sigmas).shape
        if len(points) != 1 or len(calls) != 1 or points[0] < 2 or not 1 <= calls[0] <= MAX_NFE:
            raise TableError(f"A table needs at least 2 nodes and 1 to {MAX_NFE} calls.")
        masks = coefficient_masks(self.family, points[0] - 1, self.order, calls[0])
        if set(self.coefficients) != set(masks):
            raise TableError(
                f"A table of family {self.family} needs exactly {', '.join(sorted(masks))}."
            )
        put = object.__setattr__
        put(self, "sigmas", _frozen("sigmas", self.sigmas, points))
        put(self, "call_sigmas", _frozen("call_sigmas", self.call_sigmas, calls))
        if self.guidance is not None:
            put(self, "guidance", _frozen("guidance", self.guidance, calls))
        arrays = {k: _frozen(k, self.coefficients[k], masks[k].shape) for k in sorted(masks)}
        put(self, "coefficients", MappingProxyType(arrays))
        for name, mask in masks.items():
            if arrays[name][~mask].any():
                raise TableError(f"{name} has a weight on an evaluation that does not exist yet.")
        _check_values(self)
        put(self, "digest", self._digest())

    def _digest(self) -> str:
        digest = hashlib.sha256(f"{self.family} {self.order} {self.form} {self.space}".encode())
        for name, array in self.arrays.items():
            digest.update(f" {name} {array.shape} ".encode() + array.astype("<f8").tobytes())
        return digest.hexdigest()

    @property
    def arrays(self) -> dict[str, Array]:
        """All arrays by name: sigmas, call_sigmas, guidance if there is any, the coefficients."""
        guidance = {} if self.guidance is None else {"guidance": self.guidance}
        times = {"sigmas": self.sigmas, "call_sigmas": self.call_sigmas}
        return {**times, **guidance, **self.coefficients}

    @property
    def masks(self) -> dict[str, Mask]:
        """The coefficients that may be nonzero, by name."""
        return coefficient_masks(self.family, self.steps, self.order, self.nfe)

    @property
    def nfe(self) -> int:
        """The model calls of a full run."""
        return len(self.call_sigmas)

    @property
    def steps(self) -> int:
        return len(self.sigmas) - 1

    @property
    def nfe_per_step(self) -> int:
        """The model calls of a full step."""
        return self.order if self.family == "ss" else 1

    @property
    def ending(self) -> float:
        """The last node: 0, or the sigma at which the run stops."""
        return float(self.sigmas[-1])

    def replace(self, **arrays: npt.ArrayLike | None) -> "SolverTable":
        """Return the same solver with some arrays replaced, validated again.

        `guidance=None` removes the multipliers.
        """
        merged: dict[str, Any] = {**self.arrays, **arrays}
        times, guidance = (merged.pop("sigmas"), merged.pop("call_sigmas")), None
        if "guidance" in merged:
            guidance = merged.pop("guidance")
        kind = self.family, self.order, self.form, self.space
        return SolverTable(*kind, *times, merged, guidance)

    @property
    def part_name(self) -> str:
        """The name of the table as a part of a pack: its calls and its first level."""
        return f"{self.nfe}@{self.sigmas[0]:.6g}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SolverTable) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)


@dataclass(frozen=True, eq=False)
class SolverPack:
    """The tables of one model for several NFEs, and their metadata.

    `pack[5]` is the table of 5 model calls. `parts` are tables that begin at a lower level, for
    runs below full strength (image-to-image); no two have the same calls and first level.
    `metadata` is a JSON mapping (see metadata.py).
    """

    tables: Mapping[int, SolverTable]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    parts: tuple[SolverTable, ...] = ()

    def __post_init__(self) -> None:
        if not self.tables:
            raise TableError("A pack needs at least one table.")
        for nfe, table in self.tables.items():
            if not isinstance(table, SolverTable) or nfe != table.nfe:
                raise TableError(f"Entry {nfe} of the pack is not a table of {nfe} calls.")
        tables = dict(sorted(self.tables.items()))
        parts = tuple(sorted(self.parts, key=lambda part: (part.nfe, -part.sigmas[0])))
        if len({table.space for table in (*tables.values(), *parts)}) > 1:
            raise TableError("All tables of a pack must have the same space.")
        begins = min(table.sigmas[0] for table in tables.values())
        if any(part.sigmas[0] >= begins for part in parts):
            raise TableError("A part of a pack must begin below the level of its tables.")
        if len({part.part_name for part in parts}) < len(parts):
            raise TableError("Two parts of a pack have the same calls and first level.")
        object.__setattr__(self, "tables", MappingProxyType(tables))
        object.__setattr__(self, "metadata", MappingProxyType(dict(self.metadata)))
        object.__setattr__(self, "parts", parts)

    @classmethod
    def of(
        cls,
        *tables: SolverTable,
        metadata: Mapping[str, Any] | None = None,
        parts: Iterable[SolverTable] = (),
    ) -> "SolverPack":
        """Return a pack of tables, each filed under its NFE."""
        return cls({table.nfe: table for table in tables}, metadata or {}, tuple(parts))

    def described(self, metadata: Mapping[str, Any]) -> "SolverPack":
        """Return the same tables with other metadata."""
        return replace(self, metadata=metadata)

    @property
    def named(self) -> dict[str, SolverTable]:
        """All tables by the names that files give them: "5", and parts such as "5@1.161"."""
        return {str(nfe): table for nfe, table in self.tables.items()} | {
            part.part_name: part for part in self.parts
        }

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the tables and the metadata: the identity of a solver file's contents."""
        tables = {name: table.digest for name, table in self.named.items()}
        text = canonical_json({"tables": tables, "about": dict(self.metadata)})
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def nfes(self) -> tuple[int, ...]:
        return tuple(self.tables)

    @property
    def sets_guidance(self) -> bool:
        """Does any table set the guidance of its calls?"""
        return any(table.guidance is not None for table in self.named.values())

    @property
    def guided(self) -> bool:
        """Does any table change the guidance of a call?"""
        multipliers = (table.guidance for table in self.named.values())
        return any(each is not None and bool((each != 1).any()) for each in multipliers)

    @property
    def space(self) -> str:
        return next(iter(self.tables.values())).space

    @property
    def begins(self) -> float:
        """The noise level at which a run at full strength begins."""
        return float(self.tables[self.nfes[0]].sigmas[0])

    @property
    def ending(self) -> float:
        """The noise level that every table reaches."""
        return max(table.ending for table in self.tables.values())

    def __getitem__(self, nfe: int) -> SolverTable:
        if nfe not in self.tables:
            choices = ", ".join(map(str, self.nfes))
            raise TableError(f"This solver has no table for {nfe} steps. Choose one of {choices}.")
        return self.tables[nfe]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SolverPack) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)
