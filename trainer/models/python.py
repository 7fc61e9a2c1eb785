"""Models from Python code: a user's function that returns one.

    def my_model(choice): ...     # takes the ModelChoice, returns a model

The model must have the attributes in NEEDED (see s4s_core/model.py). Anything else that
`contract.TrainerModel` names is filled in: three channels are shown as pixels in [-1, 1], and
without a `fingerprint` teacher results are not reused between runs. A model that `takes_guidance`
must have a `denoise` with four arguments.
"""

import importlib
import importlib.util
import inspect
import math
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from s4s_core.errors import ModelError, S4SError
from s4s_core.model import takes_guidance
from s4s_core.names import check_space

from . import ModelChoice
from .contract import TrainerModel, about, complete, no_conditions, no_pictures, rgb_pictures

NEEDED = ("space", "sigma_min", "sigma_max", "shape", "denoise")


def open_function(choice: ModelChoice) -> TrainerModel:
    """Return the model that the function named by choice.path returns."""
    function = _find(choice.path)
    try:
        model: Any = function(choice)
    except S4SError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise ModelError(f"{choice.path} raised {reason}") from error
    _check(model, choice.path)
    pixels = len(model.shape) == 3 and model.shape[0] == 3
    return complete(
        model,
        name=choice.label,
        about=about(choice.label, "", choice.cfg or 1.0, choice.width, choice.height),
        device="cpu",
        fingerprint=None,
        conditions=no_conditions,
        decode=rgb_pictures if pixels else no_pictures,
    )


def _find(path: str) -> Callable[[ModelChoice], object]:
    """Return the function named by module:function or file.py:function."""
    source, _, name = path.rpartition(":")
    if not source or not name.isidentifier():
        raise ModelError(f"'{path}' is not module:function or file.py:function.")
    try:
        module = _load_file(source) if source.endswith(".py") else importlib.import_module(source)
    except Exception as error:  # whatever the user's code raises on import
        reason = f"{type(error).__name__}: {error}"
        raise ModelError(f"Could not import '{source}': {reason}") from error
    function = getattr(module, name, None)
    if not callable(function):
        raise ModelError(f"'{source}' has no function '{name}'.")
    return function


def _load_file(source: str) -> ModuleType:
    """Import a file; like a script, it can import its neighbours."""
    path = Path(source).expanduser().resolve()
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    spec = importlib.util.spec_from_file_location(f"s4s_model_{path.stem}", path)
    assert spec is not None and spec.loader is not None  # true of any .py file
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    sys.path.append(str(path.parent))
    spec.loader.exec_module(module)
    return module


def _check(model: Any, path: str) -> None:
    """Raise ModelError unless the model has what the core needs."""
    missing = [name for name in NEEDED if not hasattr(model, name)]
    if missing:
        raise ModelError(
            f"{path} returned a {type(model).__name__} without {', '.join(missing)}. "
            f"A model needs {', '.join(NEEDED)}."
        )
    check_space(model.space)
    try:
        low, high, shape = float(model.sigma_min), float(model.sigma_max), tuple(model.shape)
    except (TypeError, ValueError) as error:
        raise ModelError(
            f"{path}: sigma_min and sigma_max must be numbers, and shape a tuple."
        ) from error
    if not 0 < low < high < math.inf or not all(type(n) is int and n > 0 for n in shape):
        raise ModelError(
            f"{path} returned a model with sigma_min {low:g}, sigma_max {high:g} and shape {shape}."
            " It needs 0 < sigma_min < sigma_max and a shape of positive integers."
        )
    if takes_guidance(model):
        _check_guidance(model.denoise, path)


def _check_guidance(denoise: Callable[..., Any], path: str) -> None:
    """Raise ModelError unless a fourth argument can be passed."""
    try:
        inspect.signature(denoise).bind(None, None, None, None)
    except TypeError as error:
        raise ModelError(
            f"{path} returned a model with takes_guidance, but its denoise has no fourth argument, "
            "guidance."
        ) from error
