"""The solver that the running job uses, how a picture records it, and its X/Y/Z plot axis.

A WebUI works on one job at a time and passes none of a script's settings to its schedules, nor to
helpers that sample by themselves (face detailers). So the choice is kept here.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from modules import scripts
from modules.paths_internal import models_path

from s4s_core.app import folders
from s4s_core.errors import HostError, short
from s4s_core.hosting import image_metadata
from s4s_core.solver_file import load_unchanged
from s4s_core.table import SolverPack

Processing = Any
"""A host's modules.processing.StableDiffusionProcessing: one job."""

NONE = "None"
"""What the list of solvers shows for no choice."""

SOLVER, HASH, CALLS, HIRES_CALLS = "S4S solver", "S4S hash", "S4S NFE", "S4S hires NFE"
"""Keys in a picture's infotext."""

AXIS_LABEL, AXIS_FIELD = "S4S solver", "s4s_solver"
"""The axis's label, and the job's attribute that holds its value."""

_chosen = NONE


def register() -> None:
    """Look for solvers among the host's models and where a job of this checkout saves them."""
    usual = folders.CHECKOUT.parents[1] / "models" / folders.NAME
    folders.register_solver_folders([Path(models_path, folders.NAME), usual])


def choose(name: str) -> None:
    """Use the solver file of that name from now on."""
    global _chosen
    _chosen = name


def choices() -> list[str]:
    """Return what can be chosen: NONE and every solver file."""
    return [NONE, *folders.solver_files()]


def faults() -> dict[str, str]:
    """Return why entries of the solver folders cannot be chosen, by name."""
    return folders.list_solvers().faults


def load_solver(name: str) -> SolverPack:
    """Load a listed solver file."""
    return load_unchanged(folders.find_solver(name))


def chosen_solver() -> SolverPack:
    """Load the chosen solver; raise HostError or SolverFileError if there is none."""
    if _chosen == NONE:
        raise HostError(
            "No S4S solver is chosen. Choose a file in the section 'S4S' below the settings, or "
            f"put one into {folders.showable(folders.solver_folders()[0])} first."
        )
    return load_solver(_chosen)


def write_infotext(p: Processing, pack: SolverPack, calls: int) -> None:
    """Add the solver's file, its hash and the model calls of this pass to the infotext."""
    about = image_metadata(pack, calls)
    key = HIRES_CALLS if p.is_hr_pass else CALLS
    p.extra_generation_params.update({SOLVER: _chosen, HASH: about["hash"], key: about["nfe"]})


def axis_value(p: Processing) -> str | None:
    """Return the solver that the plot axis sets for a job; it goes before the section's choice."""
    return getattr(p, AXIS_FIELD, None)


def register_axis() -> None:
    """Add the axis to the X/Y/Z plot, if the host has that script and the axis is new."""
    plots = [d.module for d in scripts.scripts_data if hasattr(d.module, "axis_options")]
    for plot in plots:
        if all(option.label != AXIS_LABEL for option in plot.axis_options):
            option = plot.AxisOption(
                AXIS_LABEL, str, _apply_axis, confirm=_confirm_axis, choices=choices
            )
            plot.axis_options.append(option)


def _apply_axis(p: Processing, value: str, _values: Sequence[str]) -> None:
    setattr(p, AXIS_FIELD, value)


def _confirm_axis(_p: Processing, values: Sequence[str]) -> None:
    unknown = sorted(set(values) - set(choices()))
    if unknown:
        raise RuntimeError(f"There is no S4S solver '{short(unknown[0])}'.")
