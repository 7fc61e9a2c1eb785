"""The metadata of a solver file, and the ModelSpec keys for file browsers.

All keys are optional, and unknown keys are kept:
    name, author, licence, notes   text
    model           {name, hash, comfy, architecture, prediction}   the model it was trained for
    cfg             [lowest, highest]             guidance scales it was trained for
    resolution      [width, height]               in pixels
    teacher         {solver, schedule, nfe, ...}
    training        {method, loss, seed, calls, ...}   cost in model calls, never in seconds
    scores          {nfe: {solver, teacher error and each classical solver's, ...}}
    thumbnail       data URI of a small picture
"""

import hashlib
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .errors import TableError

if TYPE_CHECKING:
    from .table import SolverPack

_TEXT = ("name", "author", "licence", "notes", "thumbnail")
_OBJECTS = ("model", "teacher", "training", "scores")
_MAX_TEXT = 100_000
_MAX_DEPTH = 8
_MAX_INTEGER = (1 << 64) - 1
_THUMBNAIL = re.compile(r"data:image/(jpeg|png|webp);base64,[A-Za-z0-9+/]+={0,2}")


def _check_json(value: object, depth: int = 0) -> None:
    """Raise ValueError unless `value` is JSON of bounded depth with finite numbers."""
    if depth > _MAX_DEPTH:
        raise ValueError("its metadata is nested too deeply")
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise ValueError("its metadata has a key that is not text")
            _check_json(key, depth)
            _check_json(item, depth + 1)
    elif isinstance(value, list | tuple):
        for item in value:
            _check_json(item, depth + 1)
    elif isinstance(value, str):
        if len(value) > _MAX_TEXT:
            raise ValueError(f"its metadata has a text of more than {_MAX_TEXT} characters")
        value.encode("utf-8")
    elif isinstance(value, float):
        if value != value or abs(value) == float("inf"):
            raise ValueError("its metadata has a number that is not finite")
    elif isinstance(value, int):
        if abs(value) > _MAX_INTEGER:
            raise ValueError("its metadata has an integer of more than 64 bits")
    elif value is not None:
        raise ValueError(f"its metadata contains a {type(value).__name__}")


def check_metadata(metadata: Mapping[str, Any]) -> None:
    """Raise ValueError unless `metadata` is JSON and its known keys have the right types."""
    about = dict(metadata)
    _check_json(about)
    for key in _TEXT:
        if not isinstance(about.get(key, ""), str):
            raise ValueError(f"its metadata '{key}' is not text")
    for key in _OBJECTS:
        if not isinstance(about.get(key, {}), dict):
            raise ValueError(f"its metadata '{key}' is not an object")
    for key in ("cfg", "resolution"):
        pair = about.get(key, [1, 1])
        good = isinstance(pair, list | tuple) and len(pair) == 2
        if not good or not all(type(v) in (int, float) and 0 <= v < 1e6 for v in pair):
            raise ValueError(f"its metadata '{key}' is not a pair of numbers")
    if "thumbnail" in about and not _THUMBNAIL.fullmatch(about["thumbnail"]):
        raise ValueError("its thumbnail is not a data URI of an image")


def hash_kind(text: str) -> str:
    """Return the kind of a hash: the part before a colon, or "" if there is none."""
    return text.partition(":")[0] if ":" in text else ""


def model_hashes(about: Mapping[str, Any]) -> dict[str, str]:
    """Return {kind: hash} of the model that a solver is for: of the file, of ComfyUI, or both."""
    known = map(about.get("model", {}).get, ("comfy", "hash"))
    return {hash_kind(text): text for text in known if text and isinstance(text, str)}


def check_mergeable(about: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    """Raise TableError if two solvers are known to be for different models or guidance scales."""
    ours, theirs = model_hashes(about), model_hashes(other)
    shared = ours.keys() & theirs.keys()
    if shared and all(ours[kind] != theirs[kind] for kind in shared):
        raise TableError("Cannot merge solvers for different models.")
    if "cfg" in about and "cfg" in other and list(about["cfg"]) != list(other["cfg"]):
        raise TableError("Cannot merge solvers for different CFG scales.")


def modelspec(pack: "SolverPack", data: bytes) -> dict[str, str]:
    """Return the ModelSpec 1.0.1 metadata of a pack; `data` are the bytes of all its tensors."""
    about, steps = pack.metadata, ", ".join(map(str, pack.nfes))
    model = {k: v for k, v in about.get("model", {}).items() if isinstance(v, str)}
    keys = {
        "sai_model_spec": "1.0.1",
        "architecture": f"{model.get('architecture', 'diffusion')}/solver",
        "implementation": "s4s",
        "title": about.get("name", "S4S solver"),
        "usage_hint": f"Sampler s4s, scheduler s4s, steps {steps}.",
        "hash_sha256": "0x" + hashlib.sha256(data).hexdigest(),
        "license": about.get("licence"),
        "author": about.get("author"),
        "thumbnail": about.get("thumbnail"),
        "prediction_type": model.get("prediction"),
        "resolution": "x".join(str(int(v)) for v in about.get("resolution", [])),
    }
    return {f"modelspec.{k}": str(v) for k, v in keys.items() if v}
