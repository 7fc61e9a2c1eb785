"""Solver Info: what a solver file says, as text, and its table as a picture."""

from . import inputs


class SolverInfo:
    DESCRIPTION = "What a solver was trained for, how it scores, and a plot of its table."
    CATEGORY = inputs.CATEGORY
    RETURN_TYPES = ("STRING", "IMAGE")
    RETURN_NAMES = ("text", "plot")
    OUTPUT_TOOLTIPS = ("The solver in words.", "Its noise levels and coefficients.")
    FUNCTION = "show"
    OUTPUT_NODE = True

    @classmethod
    def INPUT_TYPES(cls):
        steps = {
            "default": 0,
            "min": 0,
            "max": 1000,
            "tooltip": "The table to plot, by its number of steps; 0 plots the first.",
        }
        return {"required": {"solver": inputs.solver(), "steps": ("INT", steps)}}
