"""Models from Python code: a user's function that returns one.

    def my_model(choice): ...     # takes the ModelChoice, returns a model

The model must fulfil `s4s_core.Model`. Anything else that `contract.TrainerModel` names is filled
in: three channels are shown as pixels in [-1, 1], and without a `fingerprint` teacher results are
not reused between runs.
"""

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from s4s_core.contract import check_attributes, check_contract
from s4s_core.errors import ModelError, S4SError

from . import ModelChoice
from .contract import RULES, TrainerModel, about, complete, no_pictures, rgb_pictures


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
    try:
        return _completed(model, choice)
    except ModelError as error:
        raise ModelError(f"{choice.path}: {error}") from error


def _completed(model: Any, choice: ModelChoice) -> TrainerModel:
    """Return the model with every attribute of a TrainerModel; raise ModelError if one is wrong."""
    check_contract(model)
    pixels = len(model.shape) == 3 and model.shape[0] == 3
    completed = complete(
        model,
        name=choice.label,
        about=about(choice.label, "", choice.cfg or 1.0, choice.width, choice.height),
        device="cpu",
        fingerprint=None,
        decode=rgb_pictures if pixels else no_pictures,
    )
    check_attributes(completed, RULES)
    return completed


def _find(path: str) -> Callable[[ModelChoice], object]:
    """Return the function named by module:function or file.py:function."""
    source, _, name = path.rpartition(":")
    if not source or not name.isidentifier():
        raise ModelError(f"'{path}' is not module:function or file.py:function.")
    try:
        module = _load_file(source) if source.endswith(".py") else importlib.import_module(source)
    except Exception as error:  # whatever the user's code raises on import
        reason = f"{type(error).__name__}: {error}"
        if isinstance(error, ModuleNotFoundError) and error.name == source.partition(".")[0]:
            reason += ". Nothing is imported from the working folder: name the file (my/model.py)"
        raise ModelError(f"Could not import '{source}': {reason}.") from error
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
