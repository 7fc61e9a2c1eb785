"""S4S core: learned diffusion solvers as tables, and one loop that runs them.

    from s4s_core import schedule, classical_table, sample, load_solver, save_solver

Importing this package imports nothing heavy; names load on first use.
"""

import importlib

__version__ = "0.1.0"

_HOMES = {
    "SolverPack": "table",
    "SolverTable": "table",
    "classical_table": "classical",
    "fit": "training.fit",
    "load_solver": "solver_file",
    "sample": "sampling",
    "save_solver": "solver_file",
    "schedule": "schedules",
}

__all__ = sorted(_HOMES)


def __getattr__(name):
    if name not in _HOMES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    value = getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__():
    return sorted({*globals(), *_HOMES})
