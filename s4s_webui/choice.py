"""The solver that the running job uses.

A WebUI works on one job at a time, and hands neither its schedules nor the helpers that sample on
their own (face detailers) anything of a script's settings: so the choice is kept here.
"""

from s4s_core.errors import HostError
from s4s_core.folders import find_solver, solver_files, solver_folders
from s4s_core.solver_file import load_unchanged

NONE = "None"
"""What the list of solvers shows for no choice."""

_chosen = NONE


def choose(name):
    """Use the solver file of that name from now on."""
    global _chosen
    _chosen = name or NONE


def chosen():
    """The name of the chosen solver file, or NONE."""
    return _chosen


def choices():
    """What can be chosen: every solver file, after NONE."""
    return [NONE, *solver_files()]


def chosen_pack():
    """The chosen solver; HostError or SolverFileError says what to do if there is none."""
    if _chosen == NONE:
        raise HostError(
            "No S4S solver is chosen: pick a file in the section 'S4S' below the settings, or put "
            f"one into {solver_folders()[0]} first."
        )
    return load_unchanged(find_solver(_chosen))
