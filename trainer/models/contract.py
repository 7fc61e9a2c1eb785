"""What the trainer asks of a model beyond the core's contract, and helpers to provide it."""

import hashlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

import torch

from s4s_core.contract import Rule, accepts, is_text, shown
from s4s_core.errors import ModelError
from s4s_core.metadata import check_metadata
from s4s_core.model import Model, writable
from s4s_core.regular import open_regular
from s4s_core.table import canonical_json

_PIECE = 1 << 22
_WEIGHTS = ("model_index.json", "*/*.json", "*/*.safetensors")


@runtime_checkable
class TrainerModel(Model, Protocol):
    """A model that the trainer has opened.

    fingerprint: identifies everything the results depend on, or None to reuse nothing between runs.
    about: model, cfg and resolution, as the metadata of a solver file holds them.
    decode: turns x into pictures [batch, 3, h, w] in [0, 1]; returns None if there are none.
    """

    name: str
    about: Mapping[str, Any]
    device: torch.device | str
    fingerprint: str | None
    decode: Callable[[torch.Tensor], torch.Tensor | None]


def _is_metadata(value: Any) -> bool:
    try:
        check_metadata(value)
    except (TypeError, ValueError):
        return False
    return isinstance(value, Mapping)


RULES = {
    "name": Rule("text", is_text),
    "about": Rule("a mapping that the metadata of a solver file can hold", _is_metadata),
    "decode": Rule("a function of x", lambda v: accepts(v, 1)),
}
"""What `TrainerModel` asks of an attribute beyond the core's rules."""


def decoded(model: TrainerModel, x: torch.Tensor) -> torch.Tensor | None:
    """Return x as pictures, if the model makes any; raise ModelError if they are none."""
    pictures = model.decode(writable(x))
    if pictures is None:
        return None
    shape = tuple(getattr(pictures, "shape", ()))
    if len(shape) != 4 or shape[:2] != (len(x), 3) or not isinstance(pictures, torch.Tensor):
        got = f"shape {shape}" if shape else shown(pictures)
        raise ModelError(
            f"The model's decode must return None or pictures [batch, 3, height, width], not {got}."
        )
    return pictures


def no_pictures(x: torch.Tensor) -> None:
    """Provide `decode` for a model whose results are not pictures."""


def rgb_pictures(x: torch.Tensor) -> torch.Tensor:
    """Convert pixels in [-1, 1] to pictures in [0, 1]."""
    return (x.float() / 2 + 0.5).clamp(0, 1)


def complete(model: object, **attributes: Any) -> TrainerModel:
    """Set those attributes that the model lacks, and return it."""
    for name, value in attributes.items():
        if not hasattr(model, name):
            try:
                setattr(model, name, value)
            except AttributeError as error:
                raise ModelError(
                    f"The model has no '{name}' and it cannot be set: {error}."
                ) from error
    return cast(TrainerModel, model)


def choose_device(name: str) -> torch.device:
    """Return the torch device of a ModelChoice; raise ModelError if it is not available."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
        if torch.backends.mps.is_available():
            name = "mps"
    try:
        device = torch.empty(0, device=name).device
    except Exception as error:  # whatever a backend raises, a missing package among it
        reason = str(error).strip().partition("\n")[0].rstrip(".")
        raise ModelError(f"The device '{name}' is not available: {reason}.") from error
    if device.type == "meta":
        raise ModelError("The device 'meta' computes nothing. Choose another one.")
    return device


def about(
    name: str, digest: str, cfg: float, width: int = 0, height: int = 0, **facts: Any
) -> dict[str, Any]:
    """Return metadata for a solver file: model, guidance scale and resolution in pixels."""
    known: dict[str, Any] = {"model": {"name": name, "hash": digest, **facts}, "cfg": [cfg, cfg]}
    if width and height:
        known["resolution"] = [width, height]
    return known


def fingerprint(digest: str, *facts: Any) -> str:
    """Return the identity of a model: a hash of its weights and one of everything else.

    digest: SHA-256 of the weights in hex, optionally with a kind and a colon in front.
    """
    digest = digest.rpartition(":")[2]
    rest = hashlib.sha256(canonical_json(list(facts)).encode()).hexdigest()
    return f"{digest[:16]}-{rest[:16]}"


def file_digest(path: str | os.PathLike[str]) -> str:
    """Return a file's SHA-256 in hex: the checkpoint hash of model sites and WebUIs.

    Raise ModelError for what is no file, such as a pipe or a device.
    """
    digest = hashlib.sha256()
    try:
        handle = open_regular(os.path.realpath(path), os.O_RDONLY)  # links to files are followed
        with os.fdopen(handle, "rb") as file:
            while piece := file.read(_PIECE):
                digest.update(piece)
    except OSError as error:
        raise ModelError(f"Could not read {path}: {error.strerror or error}.") from error
    return digest.hexdigest()


def folder_digest(folder: str | os.PathLike[str]) -> str:
    """Return a SHA-256, in hex, over the names and hashes of a pipeline's weights and configs."""
    folder = Path(folder)
    found = {path for pattern in _WEIGHTS for path in folder.glob(pattern)}
    files = sorted(filter(os.path.isfile, found))
    lines = [f"{path.relative_to(folder).as_posix()} {file_digest(path)}\n" for path in files]
    return hashlib.sha256("".join(lines).encode()).hexdigest()
