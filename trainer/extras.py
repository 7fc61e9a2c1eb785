"""Optional packages: import them, or say how to install them."""

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

from s4s_core.app.folders import CHECKOUT
from s4s_core.errors import ModelError, pip_install_line


def list_of(extra: str) -> Path:
    """Return the requirements file of an extra; it does not exist in a wheel."""
    return CHECKOUT / "requirements" / f"{extra}.txt"


def install_line(extra: str) -> str:
    """Return the command that installs an extra for the running Python."""
    file = list_of(extra)
    return pip_install_line(*(("-r", file) if file.is_file() else (f"s4s-solver[{extra}]",)))


def import_extras(*names: str) -> list[Any]:
    """Import modules; raise ModelError with advice if one is missing or broken."""
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        raise ModelError(f"This needs {' and '.join(missing)}. {_advice()}")
    try:
        return [importlib.import_module(name) for name in names]
    except (ImportError, OSError, RuntimeError) as error:
        raise ModelError(f"Could not import {' or '.join(names)}: {error}") from error


def _advice() -> str:
    """Return how to install the packages.

    A WebUI resets its Python at the next start, so there S4S must run in the environment that
    s4s.py makes (and marks with stamp files).
    """
    stamped = any(Path(sys.prefix).glob("s4s-*.stamp"))
    if CHECKOUT.parent.name == "extensions" and not stamped:
        return (
            "A WebUI removes such packages from its Python: close the WebUI, run "
            f"'python s4s.py' in {CHECKOUT} and train there."
        )
    return f"Install it with: {install_line('diffusers')}"
