"""The axis "S4S solver" of the host's X/Y/Z plot."""

from modules import scripts

from . import choice

LABEL = "S4S solver"
FIELD = "s4s_solver"
"""Where the axis leaves its value; it goes before what the section says."""


def _apply(p, value, _values):
    setattr(p, FIELD, value)


def _confirm(_p, values):
    unknown = sorted(set(values) - set(choice.choices()))
    if unknown:
        raise RuntimeError(f"There is no S4S solver '{unknown[0]}'.")


def register():
    """Add the axis, if the plot's script is there and has no such axis yet."""
    plots = [d.module for d in scripts.scripts_data if hasattr(d.module, "axis_options")]
    for plot in plots:
        if all(option.label != LABEL for option in plot.axis_options):
            option = plot.AxisOption(LABEL, str, _apply, confirm=_confirm, choices=choice.choices)
            plot.axis_options.append(option)
