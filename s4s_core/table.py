"""A solver is data: `SolverTable` is one solver at one NFE, `SolverPack` several NFEs of a model.

A table holds what table:solver-types of the paper calls phi, and the times that go with it:
    sigmas       [steps + 1]  nodes of the update, strictly decreasing; the last is the ending
    call_sigmas  [nfe]        noise levels that the network is told (the paper's decoupled steps)
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
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType

import numpy as np

from .errors import TableError
from .names import check_form

MAX_NFE = 1000
MAX_ORDER = 64


def canonical_json(value):
    """The one JSON text of a value: sorted keys, no spaces, ASCII, finite numbers only."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _numbers(name, values):
    """A float64 copy of `values`."""
    try:
        return np.array(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise TableError(f"{name} is not an array of numbers: {error}.") from None


def _frozen(name, values, shape):
    """A read-only float64 copy of `values`, checked to be finite and of the given shape."""
    array = _numbers(name, values)
    if array.shape != shape:
        raise TableError(f"{name} has shape {array.shape} where {shape} is needed.")
    if not np.isfinite(array).all():
        raise TableError(f"{name} contains a value that is not finite.")
    array.setflags(write=False)
    return array


def _check_times(table):
    """Nodes strictly decreasing, levels within the space, no network call at sigma = 0."""
    sigmas, calls = table.sigmas, table.call_sigmas
    if not (np.diff(sigmas) < 0).all():
        raise TableError("sigmas must be strictly decreasing.")
    if sigmas[-1] < 0:
        raise TableError("sigmas must not be negative.")
    if not (calls > 0).all():
        raise TableError("call_sigmas must be positive: a model cannot be called at sigma 0.")
    if table.space == "flow" and max(sigmas[0], calls.max()) > 1:
        raise TableError("a flow model's sigmas must not exceed 1.")
    if table.form == "noise" and table.space == "flow" and sigmas[0] == 1:
        raise TableError(
            "the noise form cannot start a flow model at sigma 1: use velocity or data."
        )


def _reach(steps, width, seen):
    """Mask [steps, width] of the evaluations that exist: row r has seen `seen` + r of them."""
    return np.arange(width)[None, :] < np.arange(steps)[:, None] + seen


def _lms_masks(steps, order, nfe):
    """One call a step, and no weight on a call before the first."""
    if nfe != steps:
        raise TableError(f"a multistep table of {steps} steps needs {steps} calls, not {nfe}.")
    return {"b": _reach(steps, order, 1)}


def _pc_masks(steps, order, nfe):
    """As lms; the corrector of node i + 1 sees calls 0 .. i + 1."""
    return _lms_masks(steps, order, nfe) | {"a": _reach(steps - 1, order + 1, 2)}


def _ss_masks(steps, order, nfe):
    """`order` calls a step, the last step may have fewer; a stage sees only earlier ones."""
    if not order * (steps - 1) < nfe <= order * steps:
        raise TableError(
            f"a single-step table of order {order} and {steps} steps cannot have {nfe} calls."
        )
    stages = np.full((steps, 1), order)
    stages[-1] = nfe - order * (steps - 1)
    b = np.arange(order)[None, :] < stages
    return {"b": b, "a": b[:, :, None] & np.tri(order, k=-1, dtype=bool)}


_MASKS = {"lms": _lms_masks, "pc": _pc_masks, "ss": _ss_masks}
FAMILIES = tuple(_MASKS)


def coefficient_masks(family, steps, order, nfe):
    """Which entries of a family's coefficient arrays mean something; the others must be zero."""
    return _MASKS[family](steps, order, nfe)


@dataclass(frozen=True, eq=False)
class SolverTable:
    """One solver at one NFE; frozen, validated on construction, float64, hashed by content."""

    family: str
    order: int
    form: str
    space: str
    sigmas: np.ndarray
    call_sigmas: np.ndarray
    coefficients: Mapping = field(repr=False)

    def __post_init__(self):
        if self.family not in FAMILIES:
            raise TableError(
                f"Unknown family '{self.family}': choose one of {', '.join(FAMILIES)}."
            )
        check_form(self.form, self.space)
        if not (type(self.order) is int and 1 <= self.order <= MAX_ORDER):
            raise TableError(f"order must be a whole number from 1 to {MAX_ORDER}.")
        points = _numbers("sigmas", self.sigmas).shape
        calls = _numbers("call_sigmas", self.call_sigmas).shape
        if len(points) != 1 or len(calls) != 1 or points[0] < 2 or not 1 <= calls[0] <= MAX_NFE:
            raise TableError(f"a table needs 2 or more nodes and 1 to {MAX_NFE} calls.")
        masks = coefficient_masks(self.family, points[0] - 1, self.order, calls[0])
        if set(self.coefficients) != set(masks):
            raise TableError(f"a {self.family} table holds exactly {', '.join(sorted(masks))}.")
        put = object.__setattr__
        put(self, "sigmas", _frozen("sigmas", self.sigmas, points))
        put(self, "call_sigmas", _frozen("call_sigmas", self.call_sigmas, calls))
        arrays = {k: _frozen(k, self.coefficients[k], masks[k].shape) for k in sorted(masks)}
        put(self, "coefficients", MappingProxyType(arrays))
        for name, mask in masks.items():
            if arrays[name][~mask].any():
                raise TableError(f"{name} weighs an evaluation that does not exist at that point.")
        _check_times(self)
        put(self, "digest", self._digest())

    def _digest(self):
        """SHA-256 over everything that the table says."""
        digest = hashlib.sha256(f"{self.family} {self.order} {self.form} {self.space}".encode())
        for name, array in self.arrays.items():
            digest.update(f" {name} {array.shape} ".encode() + array.astype("<f8").tobytes())
        return digest.hexdigest()

    @property
    def arrays(self):
        """All arrays by name: sigmas, call_sigmas, then the coefficients."""
        return {"sigmas": self.sigmas, "call_sigmas": self.call_sigmas, **self.coefficients}

    @property
    def masks(self):
        """Boolean masks of the coefficients that are free, by name."""
        return coefficient_masks(self.family, self.steps, self.order, self.nfe)

    @property
    def nfe(self):
        """Model calls that a full run makes."""
        return len(self.call_sigmas)

    @property
    def steps(self):
        return len(self.sigmas) - 1

    @property
    def nfe_per_step(self):
        """Model calls of a full step."""
        return self.order if self.family == "ss" else 1

    @property
    def ending(self):
        """The last node: 0, or the smallest sigma that the run stops at."""
        return float(self.sigmas[-1])

    def replace(self, **arrays):
        """The same solver with some of its arrays replaced, validated again."""
        merged = {**self.arrays, **arrays}
        sigmas, calls = merged.pop("sigmas"), merged.pop("call_sigmas")
        return SolverTable(self.family, self.order, self.form, self.space, sigmas, calls, merged)

    def __eq__(self, other):
        return isinstance(other, SolverTable) and self.digest == other.digest

    def __hash__(self):
        return hash(self.digest)


@dataclass(frozen=True, eq=False)
class SolverPack:
    """The tables of several NFEs of one model, and what is known about them.

    `pack[5]` is the table of 5 model calls. `metadata` is a JSON-able mapping (see solver_file).
    """

    tables: Mapping
    metadata: Mapping = field(default_factory=dict)

    def __post_init__(self):
        if not self.tables:
            raise TableError("a pack needs at least one table.")
        for nfe, table in self.tables.items():
            if not isinstance(table, SolverTable) or nfe != table.nfe:
                raise TableError(f"entry {nfe} of the pack is not a table of {nfe} calls.")
        tables = dict(sorted(self.tables.items()))
        if len({table.space for table in tables.values()}) > 1:
            raise TableError("all tables of a pack must be of one space.")
        object.__setattr__(self, "tables", MappingProxyType(tables))
        object.__setattr__(self, "metadata", MappingProxyType(dict(self.metadata)))

    @classmethod
    def of(cls, *tables, metadata=None):
        """A pack of tables, each under its own NFE."""
        return cls({table.nfe: table for table in tables}, metadata or {})

    @cached_property
    def digest(self):
        """SHA-256 over the tables and the metadata: the identity of a solver file's contents."""
        tables = {str(nfe): table.digest for nfe, table in self.tables.items()}
        text = canonical_json({"tables": tables, "about": dict(self.metadata)})
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def nfes(self):
        return tuple(self.tables)

    @property
    def space(self):
        return next(iter(self.tables.values())).space

    def __getitem__(self, nfe):
        if nfe not in self.tables:
            held = ", ".join(map(str, self.nfes))
            raise TableError(f"this solver has no table for {nfe} steps: choose one of {held}.")
        return self.tables[nfe]

    def __eq__(self, other):
        return isinstance(other, SolverPack) and self.digest == other.digest

    def __hash__(self):
        return hash(self.digest)
