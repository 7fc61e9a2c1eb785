"""Packages that not everyone needs: without them, one sentence says how to install them."""

import importlib
import importlib.util
import sys
from pathlib import Path

from s4s_core.app.folders import CHECKOUT
from s4s_core.errors import ModelError, pip_install_line


def list_of(extra):
    """The file that lists an extra's packages; a wheel does not have it."""
    return CHECKOUT / "requirements" / f"{extra}.txt"


def install_line(extra):
    """The command that installs an extra for the very Python that is running."""
    file = list_of(extra)
    return pip_install_line(*(("-r", file) if file.is_file() else (f"s4s-solver[{extra}]",)))


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
