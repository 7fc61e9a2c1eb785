"""Models to train for. `open_model(choice)` turns a ModelChoice into one that fulfils

the core's contract:
    space, sigma_min, sigma_max, shape     of x, without the batch
    denoise(x, sigma, cond=None) -> x0     sigma [batch]; guidance included
    conditions(batch, generator)           what training draws from; None where there are none
    device                                 where x belongs
    fingerprint                            identity of all that results depend on, or None
and the trainer's:
    name                                   for people
    about                                  {model, cfg, resolution} of a solver file's metadata
    decode(x) -> [batch, 3, h, w]          pictures in [0, 1], or None where nothing can be shown
Importing this package does not import torch.
"""

import importlib

from .choice import DTYPES, MODELS, ModelChoice

__all__ = ["DTYPES", "MODELS", "ModelChoice", "bundled_solver", "open_model"]

OPENERS = {
    "demo": "bundled:open_demo",
    "demo-vp": "bundled:open_demo",
    "demo-flow": "bundled:open_demo",
    "mixture": "bundled:open_mixture",
    "mixture-flow": "bundled:open_mixture",
    "diffusers": "pipeline:open_pipeline",
    "comfyui": "comfyui:open_checkpoint",
    "python": "python:open_function",
}


def open_model(choice):
    """The model that `choice` names, ready to compute; ModelError says why it cannot be had."""
    module, function = OPENERS[choice.kind].split(":")
    return getattr(importlib.import_module(f".{module}", __package__), function)(choice)


def bundled_solver(kind):
    """Path of the solver file that ships with a model."""
    from .bundled import solver_path

    return solver_path(kind)
