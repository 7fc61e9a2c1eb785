"""Families of solvers: each lowers its arrays to a `Program` (table:solver-types of the paper).

`lower(space, form, arrays)` takes float64 tensors under the names of `SolverTable.arrays`, with
optional leading dimensions, and is differentiable in all of them.
"""

from . import lms, pc, ss

_LOWER = {"lms": lms.lower, "pc": pc.lower, "ss": ss.lower}


def lower(family, space, form, arrays):
    """Lower a family's arrays to a Program."""
    return _LOWER[family](space, form, **arrays)
