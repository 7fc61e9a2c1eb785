"""S4S core: diffusion ODE solvers as tables, one loop that runs them, and training.

    from s4s_core import schedule, classical_table, sample, load_solver, save_solver

Importing this package imports nothing heavy: names load on first use.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .classical import classical_table as classical_table
    from .model import Model as Model
    from .sampling import sample as sample
    from .schedules import schedule as schedule
    from .solver_file import load_solver as load_solver
    from .solver_file import save_solver as save_solver
    from .table import SolverPack as SolverPack
    from .table import SolverTable as SolverTable
    from .training.fit import fit as fit

__version__ = "0.1.0"

_MODULES = {
    "Model": "model",
    "SolverPack": "table",
    "SolverTable": "table",
    "classical_table": "classical",
    "fit": "training.fit",
    "load_solver": "solver_file",
    "sample": "sampling",
    "save_solver": "solver_file",
    "schedule": "schedules",
}

__all__ = sorted(_MODULES)


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    value: object = getattr(importlib.import_module(f".{_MODULES[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
