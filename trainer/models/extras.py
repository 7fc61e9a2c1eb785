"""Packages that not everyone needs: without them, one sentence says how to install them."""

import importlib
import importlib.util

from s4s_core.errors import ModelError

HINT = 'pip install "s4s-solver[diffusers]", or in a checkout -r requirements/diffusers.txt'


def import_diffusers():
    """The packages diffusers and transformers; ModelError where they are missing or broken."""
    missing = [n for n in ("diffusers", "transformers") if importlib.util.find_spec(n) is None]
    if missing:
        names = " and ".join(missing)
        raise ModelError(f"This needs {names}, which Python does not find here: {HINT}.")
    try:
        return [importlib.import_module(name) for name in ("diffusers", "transformers")]
    except (ImportError, OSError, RuntimeError) as error:
        raise ModelError(f"diffusers cannot be imported: {error}") from error
