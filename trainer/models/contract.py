"""What the trainer asks of a model beyond the core's contract, and helpers to provide it."""

import hashlib

import torch

from s4s_core.errors import ModelError
from s4s_core.table import canonical_json


def no_conditions(batch, generator):
    """Conditions of a model that has none."""
    return None


def no_pictures(x):
    """Pictures of a model whose results cannot be shown."""
    return None


def rgb_pictures(x):
    """Pictures in [0, 1] of pixels in [-1, 1]."""
    return (x.float() / 2 + 0.5).clamp(0, 1)


def complete(model, **facts):
    """The model itself, with those of the facts as attributes that it does not have yet."""
    for name, value in facts.items():
        if not hasattr(model, name):
            try:
                setattr(model, name, value)
            except AttributeError as error:
                raise ModelError(f"The model has no '{name}', and takes none: {error}.") from error
    return model


def choose_device(name):
    """torch.device of a ModelChoice's `device`; ModelError where this machine has none."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
        if torch.backends.mps.is_available():
            name = "mps"
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ModelError(f"The device '{name}' cannot be used here: {reason}") from error


def about(name, digest, cfg, width=0, height=0, **facts):
    """Metadata of a solver file: the model, the guidance scale and, in pixels, the resolution."""
    known = {"model": {"name": name, "hash": digest, **facts}, "cfg": [cfg, cfg]}
    if width and height:
        known["resolution"] = [width, height]
    return known


def fingerprint(digest, *facts):
    """The identity of a model: a hash of its weights, and one of all else that results depend on.

    digest: SHA-256 of the weights, in hex; a kind in front of a colon is left out.
    """
    digest = digest.rpartition(":")[2]
    rest = hashlib.sha256(canonical_json(list(facts)).encode()).hexdigest()
    return f"{digest[:16]}-{rest[:16]}"
