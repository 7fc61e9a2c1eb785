"""Solver Info: what a solver file says, as text, and its table as a picture."""

from ..s4s_core.app.description import describe
from ..s4s_core.errors import HostError, visible
from . import inputs, sheets
from .attach import NOT_CONNECTED
from .plot import plot


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

    def show(self, solver, steps):
        if solver is None:
            raise HostError(NOT_CONNECTED)
        text = described(solver)
        picture = plot(solver[steps or solver.nfes[0]])
        return {"ui": {"text": [text]}, "result": (text, sheets.as_image(picture))}


def described(pack):
    """A pack in words, one fact a line, whatever its file says."""
    about = describe(pack).plain()
    lines = [about["name"] or "A solver without a name"]
    if about["model"].get("name"):
        lines.append(f"Model: {about['model']['name']}")
    lines.append(f"Steps: {', '.join(map(str, pack.nfes))} ({pack.space})")
    if about["cfg"]:
        low, high = about["cfg"]
        lines.append(f"CFG: {low:g}" if low == high else f"CFG: {low:g} to {high:g}")
    if about["resolution"]:
        lines.append("Size: {:g} x {:g}".format(*about["resolution"]))
    if about["teacher"].get("nfe"):
        name = about["teacher"].get("name") or about["teacher"].get("family") or "teacher"
        lines.append(f"Teacher: {name}, {about['teacher']['nfe']} calls")
    for nfe, share in about["ratios"].items():
        if share is not None:
            lines.append(f"{nfe} steps: {share:.0%} of the best classical solver's error")
    calls = about["training"].get("calls")
    if isinstance(calls, int | float):
        lines.append(f"Trained with {calls:,} model calls")
    if about["notes"]:
        lines.append(about["notes"])
    lines.append(f"SHA-256: {about['sha256']}")
    return "\n".join(map(_line, lines))


def _line(text):
    """A text in one line, without marks that cannot be seen."""
    return visible(" ".join(text.split()))
