"""Models of researchers: a function of theirs that returns one.

    def my_model(choice): ...     # gets the ModelChoice, returns an object with the core's contract

It must provide space, sigma_min, sigma_max, shape and denoise. Whatever else the contract of
`trainer.models` names is filled in where it is missing: three channels are shown as the colours of
pixels in [-1, 1], and without a `fingerprint` teacher results are not kept between runs.
"""

import importlib
import importlib.util
import math
import sys
from pathlib import Path

from s4s_core.errors import ModelError, S4SError
from s4s_core.names import check_space

from .contract import about, complete, no_conditions, no_pictures, rgb_pictures

NEEDED = ("space", "sigma_min", "sigma_max", "shape", "denoise")


def open_function(choice):
    """The model that the function named by choice.path returns."""
    function = _find(choice.path)
    try:
        model = function(choice)
    except S4SError:
        raise
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        raise ModelError(f"{choice.path} did not return a model but raised {said}") from error
    _check(model, choice.path)
    pixels = len(model.shape) == 3 and model.shape[0] == 3
    facts = about(choice.label, "", choice.cfg or 1.0, choice.width, choice.height)
    return complete(
        model,
        name=choice.label,
        about=facts,
        device="cpu",
        fingerprint=None,
        conditions=no_conditions,
        decode=rgb_pictures if pixels else no_pictures,
    )


def _find(path):
    """The function of module:function or file.py:function."""
    source, _, name = path.rpartition(":")
    if not source or not name.isidentifier():
        raise ModelError(f"'{path}' names no function: write module:function or file.py:function.")
    try:
        module = _load_file(source) if source.endswith(".py") else importlib.import_module(source)
    except Exception as error:  # whatever the user's own code raises while it is imported
        said = f"{type(error).__name__}: {error}"
        raise ModelError(f"'{source}' cannot be imported: {said}") from error
    function = getattr(module, name, None)
    if not callable(function):
        raise ModelError(f"'{source}' has no function '{name}'.")
    return function


def _load_file(source):
    """The module of a file, which finds its neighbours as a script would."""
    path = Path(source).expanduser().resolve()
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    spec = importlib.util.spec_from_file_location(f"s4s_model_{path.stem}", path)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    sys.path.append(str(path.parent))
    spec.loader.exec_module(module)
    return module


def _check(model, path):
    """ModelError unless the model has what the core needs."""
    missing = [name for name in NEEDED if not hasattr(model, name)]
    if missing:
        raise ModelError(
            f"{path} returned a {type(model).__name__} without {', '.join(missing)}: "
            f"a model needs {', '.join(NEEDED)}."
        )
    check_space(model.space)
    try:
        low, high, shape = float(model.sigma_min), float(model.sigma_max), tuple(model.shape)
    except (TypeError, ValueError) as error:
        raise ModelError(f"{path}: its sigmas must be numbers, its shape a tuple.") from error
    if not 0 < low < high < math.inf or not all(type(n) is int and n > 0 for n in shape):
        facts = f"sigma_min {low:g}, sigma_max {high:g} and shape {shape}"
        raise ModelError(
            f"{path} returned a model with {facts}: its sigmas must be 0 < sigma_min < sigma_max, "
            "its shape whole numbers."
        )
