"""Solver Info: what a solver file says, as text, and one of its tables as a plot."""

from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from ..s4s_core.app import pictures
from ..s4s_core.app.comfyui import as_image
from ..s4s_core.app.description import describe
from ..s4s_core.errors import visible
from ..s4s_core.table import SolverPack, SolverTable
from . import inputs
from .inputs import InputTypes
from .sampler import require_solver

_SIZE, _EDGE, _TOP = (960, 420), 54, 56
_INK, _FAINT, _CALLS = "#222222", "#d8d8d8", "#d1495b"
_BARS = ("#2e6f95", "#edae49", "#66a182", "#8d6a9f", "#a0a0a0")

Box = tuple[float, float, float, float]
"""Left, top, right and bottom in pixels."""


class SolverInfo:
    DESCRIPTION = "Shows what a solver was trained for, how it scores, and a plot of its table."
    CATEGORY = inputs.CATEGORY
    RETURN_TYPES = ("STRING", "IMAGE")
    RETURN_NAMES = ("text", "plot")
    OUTPUT_TOOLTIPS = ("A description of the solver.", "Its noise levels and coefficients.")
    FUNCTION = "show"
    OUTPUT_NODE = True

    @classmethod
    def INPUT_TYPES(cls) -> InputTypes:
        steps = {
            "default": 0,
            "min": 0,
            "max": 1000,
            "tooltip": "The step count whose table to plot. 0 plots the first one.",
        }
        return {"required": {"solver": inputs.solver(), "steps": ("INT", steps)}}

    def show(self, solver: SolverPack | None, steps: int) -> dict[str, Any]:
        solver = require_solver(solver)
        text = description_text(solver)
        picture = plot(solver[steps or solver.nfes[0]])
        return {"ui": {"text": [text]}, "result": (text, as_image(picture))}


def description_text(pack: SolverPack) -> str:
    """Return a description of a pack, one fact per line, safe to print whatever the file says."""
    about = describe(pack)
    facts = about.facts() | {"SHA-256": about.sha256}
    lines = [about.title, *(f"{label}: {text}" for label, text in facts.items())]
    return "\n".join(visible(" ".join(line.split())) for line in lines)


def plot(table: SolverTable) -> Image.Image:
    """Draw a table: its noise levels on the left, its coefficients on the right."""
    image = Image.new("RGB", _SIZE, "white")
    draw, font = ImageDraw.Draw(image), pictures.font()
    title = f"{table.nfe} calls: {table.family}, order {table.order}, {table.form} form"
    draw.text((_EDGE, 14), title, fill=_INK, font=font)
    if table.guidance is not None:
        multipliers = ", ".join(f"{m:.2f}" for m in table.guidance)
        draw.text((_EDGE, 34), f"guidance by call, times: {multipliers}", fill=_CALLS, font=font)
    middle = _SIZE[0] // 2
    _plot_levels(draw, font, table, (_EDGE, _TOP, middle - 24, _SIZE[1] - _EDGE))
    _plot_bars(draw, font, table, (middle + 40, _TOP, _SIZE[0] - 20, _SIZE[1] - _EDGE))
    return image


def _plot_levels(
    draw: ImageDraw.ImageDraw, font: pictures.Font, table: SolverTable, box: Box
) -> None:
    """Plot log10 sigma by call: the nodes as a line, the times the network sees as circles."""
    left, top, right, bottom = box
    nodes, calls = table.sigmas, table.call_sigmas
    positive = np.concatenate([nodes[nodes > 0], calls[calls > 0]])
    low, high = np.log10(positive.min()), np.log10(positive.max())

    def place(share: float, sigma: float) -> tuple[float, float]:
        level = (np.log10(max(sigma, positive.min())) - low) / max(high - low, 1e-9)
        return left + share * (right - left), bottom - level * (bottom - top)

    for power in range(int(np.ceil(low)), int(np.floor(high)) + 1):
        _, y = place(0, 10.0**power)
        draw.line([(left, y), (right, y)], fill=_FAINT)
        draw.text((left - 6, y), f"{10.0**power:g}", fill=_INK, font=font, anchor="rm")
    line = [place(k / table.steps, sigma) for k, sigma in enumerate(nodes)]
    draw.line(line, fill=_BARS[0], width=2)
    for x, y in line:
        draw.ellipse([x - 4, y - 4, x + 4, y + 4], fill=_BARS[0])
    for k, sigma in enumerate(calls):
        x, y = place(k / table.nfe, sigma)
        draw.ellipse([x - 3, y - 3, x + 3, y + 3], outline=_CALLS, width=2)
    draw.text((left, bottom + 10), "sigma: nodes", fill=_BARS[0], font=font)
    draw.text((left + 110, bottom + 10), "model calls", fill=_CALLS, font=font)
    if nodes[-1] == 0:
        draw.text((right, bottom + 10), "ends at 0", fill=_INK, font=font, anchor="ra")


def _plot_bars(
    draw: ImageDraw.ImageDraw, font: pictures.Font, table: SolverTable, box: Box
) -> None:
    """Plot the last coefficient array: a group of bars per step, the newest evaluation first."""
    left, top, right, bottom = box
    name, array = sorted(table.coefficients.items())[-1]
    rows = array.reshape(len(array), -1)
    reach = max(1e-9, float(np.abs(rows).max()))
    zero = (top + bottom) / 2
    draw.line([(left, zero), (right, zero)], fill=_INK)
    for sign in (1, -1):
        y = zero - sign * (bottom - top) / 2 * 0.95
        draw.text((left - 4, y), f"{sign * reach:.2f}", fill=_INK, font=font, anchor="rm")
    group = (right - left) / len(rows)
    width = group * 0.8 / rows.shape[1]
    for step, row in enumerate(rows):
        for k, value in enumerate(row):
            x = left + step * group + group * 0.1 + k * width
            y = zero - value / reach * (bottom - top) / 2 * 0.95
            colour = _BARS[min(k, len(_BARS) - 1)]
            draw.rectangle([x, min(y, zero), x + width - 1, max(y, zero)], fill=colour)
    draw.text((left, bottom + 10), f"coefficients {name}, by step", fill=_INK, font=font)
