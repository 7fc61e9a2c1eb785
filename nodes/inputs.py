"""Inputs that several nodes share, with their tooltips and checks."""

import re
from collections.abc import Callable
from typing import Any

import comfy.samplers

from ..s4s_core.errors import HostError, S4SError, TrainingError
from ..s4s_core.training.settings import Settings

CATEGORY = "S4S"
SOLVER = "S4S_SOLVER"
SAMPLER_NAME = "s4s"
"""The name of our sampler and scheduler in ComfyUI's lists."""

AUTO = "auto"
LARGEST_SEED = 0xFFFFFFFFFFFFFFFF
LARGEST_STEPS = 100

Input = tuple[Any, dict[str, Any]]
"""ComfyUI's input: a type or a list of choices, and options."""
InputTypes = dict[str, dict[str, Any]]


def solver(tooltip: str = "The learned solver, from Load Solver or Train Solver.") -> Input:
    return SOLVER, {"tooltip": tooltip}


def model(
    tooltip: str = "The diffusion model, with any LoRA, ControlNet or patch already applied.",
) -> Input:
    return "MODEL", {"tooltip": tooltip}


def positive() -> Input:
    return "CONDITIONING", {"tooltip": "What you want to see in the image."}


def negative() -> Input:
    return "CONDITIONING", {"tooltip": "What you want to keep out of the image."}


def latent(tooltip: str = "The latent image to start from.") -> Input:
    return "LATENT", {"tooltip": tooltip}


def seed(tooltip: str = "The random seed of the noise.", changes: bool = True) -> Input:
    """A seed; if it `changes`, the page draws a new one after every run."""
    options = {"default": 0, "min": 0, "max": LARGEST_SEED, "control_after_generate": changes}
    return "INT", options | {"tooltip": tooltip}


def cfg(default: float = 7.0) -> Input:
    return "FLOAT", {
        "default": default,
        "min": 0.0,
        "max": 100.0,
        "step": 0.1,
        "round": 0.01,
        "tooltip": "Guidance scale. A solver works best at the scale it was trained for.",
    }


def denoise() -> Input:
    return "FLOAT", {
        "default": 1.0,
        "min": 0.0,
        "max": 1.0,
        "step": 0.01,
        "tooltip": "How much of the image to redraw: 1 for text to image, less for img2img.",
    }


def vae(tooltip: str) -> Input:
    return "VAE", {"tooltip": tooltip}


def stock_samplers() -> list[str]:
    """Return the names of ComfyUI's samplers without ours."""
    return [name for name in comfy.samplers.KSampler.SAMPLERS if name != SAMPLER_NAME]


def stock_schedulers() -> list[str]:
    """Return the names of ComfyUI's schedulers without ours."""
    return [name for name in comfy.samplers.KSampler.SCHEDULERS if name != SAMPLER_NAME]


def teacher_sampler() -> Input:
    return [AUTO, *stock_samplers()], {
        "default": AUTO,
        "tooltip": "The sampler whose images the solver learns to match: one that adds no noise. "
        "auto: the solver that suits the model and CFG.",
    }


def teacher_scheduler() -> Input:
    return [AUTO, *stock_schedulers()], {
        "default": AUTO,
        "tooltip": "The teacher's noise schedule. auto: the one that suits the model.",
    }


def teacher_steps() -> Input:
    return "INT", {
        "default": 20,
        "min": 2,
        "max": 200,
        "tooltip": "Steps of the teacher: enough that more would not change its images.",
    }


def validate(parse: Callable[[Any], object], value: object) -> bool | str:
    """Return True, or why `parse` refuses a value, for VALIDATE_INPUTS.

    None means that the value arrives over a link; it is parsed when the node runs.
    """
    try:
        if value is not None:
            parse(value)
    except S4SError as error:
        return str(error)
    return True


def parse_steps(value: object) -> int:
    """Return a step count; raise HostError if it is not a whole number above 0."""
    text = str(value)
    if not (text.isdecimal() and int(text) > 0):
        raise HostError("Steps must be a whole number above 0.")
    return int(text)


def parse_strengths(text: object) -> tuple[float, ...]:
    """Return the strengths in a text such as 0.3, 0.5; raise TrainingError if invalid."""
    parts = [part for part in re.split(r"[,;\s]+", str(text).strip()) if part]
    try:
        numbers = tuple(map(float, parts))
    except ValueError:
        raise TrainingError("Strengths must be numbers such as 0.3, 0.5, 0.75.") from None
    return Settings(strengths=numbers).strengths


def parse_step_counts(text: object) -> tuple[int, ...]:
    """Return the step counts in a text such as 4,5,6, ascending; raise TrainingError if invalid."""
    parts = [part for part in re.split(r"[,;\s]+", str(text).strip()) if part]
    valid = (p.isascii() and p.isdigit() and 0 < int(p) <= LARGEST_STEPS for p in parts)
    if not parts or not all(valid):
        raise TrainingError(
            f"Step counts must be whole numbers from 1 to {LARGEST_STEPS}, such as 5 or 4,5,6."
        )
    return tuple(sorted({int(part) for part in parts}))
