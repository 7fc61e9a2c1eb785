"""Packages that not everyone needs: without them, one sentence says how to install them."""

import importlib
import importlib.util
import sys
from pathlib import Path

from s4s_core.errors import ModelError
from s4s_core.folders import CHECKOUT

from ..installing import install_line


def import_extras(*names):
    """The modules of that name; ModelError, in a sentence, where one is missing or broken."""
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        raise ModelError(f"This needs {' and '.join(missing)}, {_advice()}")
    try:
        return [importlib.import_module(name) for name in names]
    except (ImportError, OSError, RuntimeError) as error:
        raise ModelError(f"{' or '.join(names)} cannot be imported: {error}") from error


def _advice():
    """How to have the packages: a WebUI undoes at its next start what is put into its own Python,
    so in one S4S is started in the environment that s4s.py makes (and leaves its stamps in)."""
    stamped = any(Path(sys.prefix).glob("s4s-*.stamp"))
    if CHECKOUT.parent.name == "extensions" and not stamped:
        return (
            "which this WebUI's Python lacks and would lose again: close the WebUI, run "
            f"'python s4s.py' in {CHECKOUT} and train there."
        )
    return f"which this command installs for the Python that runs here: {install_line('diffusers')}"
