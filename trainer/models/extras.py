"""Packages that not everyone needs: without them, one sentence says how to install them."""

import importlib
import importlib.util

from s4s_core.errors import ModelError

from ..installing import install_line


def import_extras(*names):
    """The modules of that name; ModelError, in a sentence, where one is missing or broken."""
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        raise ModelError(
            f"This needs {' and '.join(missing)}, which this command installs for the Python that "
            f"runs here: {install_line('diffusers')}"
        )
    try:
        return [importlib.import_module(name) for name in names]
    except (ImportError, OSError, RuntimeError) as error:
        raise ModelError(f"{' or '.join(names)} cannot be imported: {error}") from error
