"""The solver that the running job uses.

A WebUI works on one job at a time, and hands neither its schedules nor the helpers that sample on
their own (face detailers) anything of a script's settings: so the choice is kept here.
"""

from pathlib import Path

from modules.paths_internal import models_path

from s4s_core.app import folders
from s4s_core.errors import HostError
from s4s_core.solver_file import load_unchanged

NONE = "None"
"""What the list of solvers shows for no choice."""

_chosen = NONE


def register():
    """Look for solvers among the host's models, wherever it was told to keep these, and in the
    folder where a job of this checkout leaves them."""
    usual = folders.CHECKOUT.parents[1] / "models" / folders.NAME
    folders.register_solver_folders([Path(models_path, folders.NAME), usual])


def choose(name):
    """Use the solver file of that name from now on."""
    global _chosen
    _chosen = name


def chosen():
    """The name of the chosen solver file, or NONE."""
    return _chosen


def choices():
    """What can be chosen: every solver file, after NONE."""
    return [NONE, *folders.solver_files()]


def chosen_pack():
    """The chosen solver; HostError or SolverFileError says what to do if there is none."""
    if _chosen == NONE:
        raise HostError(
            "No S4S solver is chosen: pick a file in the section 'S4S' below the settings, or put "
            f"one into {folders.solver_folders()[0]} first."
        )
    return load_unchanged(folders.find_solver(_chosen))
