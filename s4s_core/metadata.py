"""What a solver file says about itself, and the ModelSpec keys that file browsers read.

All keys of the metadata are optional, and unknown keys are kept:
    name, author, licence, notes   text
    model           {name, hash, comfy, architecture, prediction}   what it was trained for
    cfg             [lowest, highest]             guidance scales it was trained for
    resolution      [width, height]               in pixels
    teacher         {solver, schedule, nfe, ...}
    training        {method, loss, seed, calls, ...}   cost in model calls, never in seconds
    scores          {nfe: {solver, teacher error and each classical solver's, ...}}
    thumbnail       data URI of a small picture
"""

import hashlib
import re

from .errors import TableError

_TEXT = ("name", "author", "licence", "notes", "thumbnail")
_OBJECTS = ("model", "teacher", "training", "scores")
_MAX_TEXT = 100_000
_MAX_DEPTH = 8
_MAX_WHOLE = (1 << 64) - 1
_THUMBNAIL = re.compile(r"data:image/(jpeg|png|webp);base64,[A-Za-z0-9+/]+={0,2}")


def _check_json(value, depth=0):
    """Plain JSON of bounded depth, with text keys and numbers that a float holds; or ValueError."""
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
            raise ValueError("its metadata contains an overlong text")
        value.encode("utf-8")
    elif isinstance(value, float):
        if value != value or abs(value) == float("inf"):
            raise ValueError("its metadata contains a number that is not finite")
    elif isinstance(value, int):
        if abs(value) > _MAX_WHOLE:
            raise ValueError("its metadata contains a whole number of more than 64 bits")
    elif value is not None:
        raise ValueError(f"its metadata contains a {type(value).__name__}")


def check_metadata(about):
    """ValueError unless `about` is plain JSON whose known keys have the right types."""
    about = dict(about)
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
        raise ValueError("its thumbnail is not a data URI of a picture")


def hash_kind(text):
    """The kind of a hash: what stands before a colon, if one does."""
    return text.partition(":")[0] if ":" in text else ""


def model_hashes(about):
    """{kind: hash} of the model that a solver is for: it may know the file's and ComfyUI's."""
    known = map(about.get("model", {}).get, ("comfy", "hash"))
    return {hash_kind(text): text for text in known if text and isinstance(text, str)}


def check_alike(about, other):
    """TableError if two solvers say that they are for different models or guidance scales."""
    ours, theirs = model_hashes(about), model_hashes(other)
    shared = ours.keys() & theirs.keys()
    if shared and all(ours[kind] != theirs[kind] for kind in shared):
        raise TableError("two of the solvers are for different models: merge those of one model.")
    if "cfg" in about and "cfg" in other and list(about["cfg"]) != list(other["cfg"]):
        raise TableError("two of the solvers are for different CFGs: merge those of one CFG.")


def modelspec(pack, data):
    """ModelSpec 1.0.1 metadata of a pack; `data` are the bytes of all tensors."""
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
