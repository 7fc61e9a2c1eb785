"""The one object that holds a run: nested dicts of numbers, text and tensors, saved atomically.

A file is .safetensors: the tensors, and the rest as canonical JSON in its metadata. Nothing is
pickled, and a state is either the old one or the new one, never a mixture.
"""

import hashlib
import json
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from ..atomic import sweep, write_atomic
from ..errors import TrainingError
from ..lock import Lock
from ..table import canonical_json

_MARK = "$tensor"


def _strip(value, name, tensors):
    """The JSON of a nested value; its tensors are moved to `tensors` under their paths."""
    if isinstance(value, torch.Tensor):
        tensors[name] = value.detach().cpu().contiguous().clone()
        return {_MARK: name}
    if isinstance(value, dict):
        return {key: _strip(item, f"{name}/{key}", tensors) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_strip(item, f"{name}/{i}", tensors) for i, item in enumerate(value)]
    return value


def _fill(value, tensors):
    """Inverse of `_strip`."""
    if isinstance(value, dict):
        if set(value) == {_MARK}:
            return tensors[value[_MARK]]
        return {key: _fill(item, tensors) for key, item in value.items()}
    return [_fill(item, tensors) for item in value] if isinstance(value, list) else value


def _digest(text, tensors):
    """SHA-256 over everything that a state says."""
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        digest.update(f"{name} {tensors[name].dtype} {tuple(tensors[name].shape)} ".encode())
        digest.update(tensors[name].numpy().tobytes())
    return digest.hexdigest()


@contextmanager
def writing(path):
    """Be the only one who writes the state at `path`: another process is refused in a sentence.

    A lock beside the state, which ends with its process. What a killed run left is removed.
    """
    path = Path(path)
    with Lock(path.with_name(path.name + ".lock")) as lock:
        with _sentence(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            taken = lock.take()
        if not taken:
            raise TrainingError(
                f"{path}: another process is training with this file: wait for it, or name another."
            )
        sweep(path)
        yield


@contextmanager
def _sentence(path):
    """Say in a sentence that a run cannot be saved."""
    try:
        yield
    except OSError as error:
        raise TrainingError(
            f"{path}: the run cannot be saved: {error.strerror or error}."
        ) from error


def save_state(path, state):
    """Write a state, atomically."""
    tensors = {}
    text = canonical_json(_strip(state, "", tensors))
    tensors = tensors or {"empty": torch.zeros(0)}
    path = Path(path)
    with _sentence(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        about = {"s4s-run": text, "sha256": _digest(text, tensors)}
        write_atomic(path, save(tensors, about))


def load_state(path, identity):
    """The state at `path`, or a new one; a state of another run is refused."""
    path = Path(path)
    if not path.exists():
        return {"identity": identity}
    try:
        with safe_open(path, "pt") as file:
            # Copies: a tensor of a file is aligned in memory by chance, and that changes the last
            # bits of what is computed with it.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
            about = file.metadata() or {}
        if about["sha256"] != _digest(about["s4s-run"], tensors):
            raise ValueError("it is damaged")
        state = _fill(json.loads(about["s4s-run"]), tensors)
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise TrainingError(
            f"{path}: is not a saved run ({error}): remove it to start anew."
        ) from None
    if state.get("identity") != identity:
        raise TrainingError(f"{path}: is of a run with other settings: remove it to start anew.")
    return state
