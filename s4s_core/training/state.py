"""The saved state of a run: nested dicts of numbers, text and tensors, written atomically.

A file is .safetensors: the tensors, and the rest as canonical JSON in its metadata. Nothing is
pickled, and a file holds either the old state or the new one, never a mixture.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from ..atomic import sweep, write_atomic
from ..errors import SavedRunError, TrainingError
from ..lock import Lock
from ..regular import is_file
from ..table import canonical_json
from .settings import VERSION_0_1, upgraded

STATE_VERSION = 4
_MARK = "$tensor"
StrPath = str | os.PathLike[str]
History = list[list[float]]
"""[model calls, validation error] after each step."""


@dataclass
class NfeState:
    """Progress of one goal. A field is None until it is known.

    raced: squared errors that the search has measured, by label.
    ranked: labels of the starts that the search found, best first (version 0.1: [solver, order,
        schedule]).
    first_calls: the run's model calls when this NFE began to train.
    marks: what is scored so far.
    kept: the index in the ranking of the start that is returned instead of the trained table.
    method: what the training method saves for itself.
    """

    raced: dict[str, torch.Tensor] | None = None
    ranked: list[Any] | None = None
    first_calls: int | None = None
    history: History | None = None
    log: list[str] | None = None
    marks: list[list[float]] | None = None
    scores: dict[str, Any] | None = None
    kept: int | None = None
    method: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, plain: dict[str, Any]) -> "NfeState":
        """Read what `plain` returns."""
        known = {each.name for each in fields(cls)} - {"method"}
        return cls(
            **{key: value for key, value in plain.items() if key in known},
            method={key: value for key, value in plain.items() if key not in known},
        )

    def plain(self) -> dict[str, Any]:
        """Return the fields that are known; those of the method stand beside the others."""
        own = {key: value for key, value in vars(self).items() if key != "method"}
        known = {key: value for key, value in own.items() if value is not None}
        if self.scores is not None:
            known["kept"] = self.kept
        return {**self.method, **known}

    def add_log(self, *lines: str) -> None:
        """Append to the log."""
        self.log = [*(self.log or []), *lines]


@dataclass
class RunState:
    """Everything that a run needs to resume. `calls` is None until the pairs are drawn.

    drawn: how many pairs are drawn. nfes: the progress of each goal, by its key.
    movements: how far teachers move when their calls are doubled, as far as it is measured.
    teacher: [solver, order] of the teacher that the run chose, if it was to choose one.
    """

    identity: dict[str, Any]
    seed: int
    calls: int | None = None
    drawn: int | None = None
    nfes: dict[str, NfeState] = field(default_factory=dict)
    costs: Any = None
    teacher: list[Any] | None = None
    movements: dict[str, float] = field(default_factory=dict)

    @classmethod
    def open(cls, path: StrPath | None, identity: dict[str, Any], seed: int) -> "RunState":
        """Read the state at `path`, or make a new one; refuse the state of another run."""
        state = None if path is None else cls.read(path)
        if state is None:
            return cls(identity, seed)
        if state.identity != identity:
            raise SavedRunError(
                f"{path} belongs to a run with other settings: restore them to go on."
            )
        return state

    @classmethod
    def read(cls, path: StrPath) -> "RunState | None":
        """Read the state of any run; None if there is no file."""
        plain = read_state(path)
        if plain is None:
            return None
        nfes = {nfe: NfeState.of(part) for nfe, part in plain.get("nfes", {}).items()}
        return cls(
            _current_identity(plain),
            plain.get("seed", 0),
            plain.get("calls"),
            plain.get("drawn"),
            nfes,
            plain.get("costs"),
            plain.get("teacher"),
            plain.get("movements", {}),
        )

    def plain(self) -> dict[str, Any]:
        """Return the state as nested dicts."""
        nfes = {nfe: part.plain() for nfe, part in self.nfes.items()}
        state = {"identity": self.identity, "seed": self.seed, "calls": self.calls, "nfes": nfes}
        known = {
            "drawn": self.drawn,
            "costs": self.costs,
            "teacher": self.teacher,
            "movements": self.movements or None,
        }
        return state | {name: value for name, value in known.items() if value is not None}


def label_of(entry: Any) -> str:
    """Return the label of an entry of NfeState.ranked; version 0.1 saved its parts."""
    return entry if isinstance(entry, str) else "{} {}, {}".format(*entry)


def _current_identity(plain: dict[str, Any]) -> dict[str, Any]:
    """Return the identity of a saved run, as this version writes it."""
    identity: dict[str, Any] = plain.get("identity", {})
    settings = compared(upgraded(identity.get("settings", {})))
    if identity.get("version") == 2:
        return identity | {"version": STATE_VERSION, "settings": VERSION_0_1 | settings}
    return identity | {"settings": settings}


def compared(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that a run must share to be resumed: all but the batch.

    A batch is as large as memory allows, and changes results by rounding only. Strengths count
    where there are any: runs of earlier versions have none.
    """
    left = {name: value for name, value in settings.items() if name != "batch"}
    return left if left.get("strengths") else {k: v for k, v in left.items() if k != "strengths"}


def is_from_version_0_1(path: StrPath | None) -> bool:
    """Is there a saved run at `path` that version 0.1 began?"""
    plain = None if path is None else read_state(path)
    return plain is not None and plain.get("identity", {}).get("version") == 2


def _strip(value: Any, name: str, tensors: dict[str, torch.Tensor]) -> Any:
    """Return the JSON of a nested value; move its tensors to `tensors` under their paths."""
    if isinstance(value, torch.Tensor):
        tensors[name] = value.detach().cpu().contiguous().clone()
        return {_MARK: name}
    if isinstance(value, dict):
        return {key: _strip(item, f"{name}/{key}", tensors) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_strip(item, f"{name}/{i}", tensors) for i, item in enumerate(value)]
    return value


def _fill(value: Any, tensors: dict[str, torch.Tensor]) -> Any:
    """Invert `_strip`."""
    if isinstance(value, dict):
        if set(value) == {_MARK}:
            return tensors[value[_MARK]]
        return {key: _fill(item, tensors) for key, item in value.items()}
    return [_fill(item, tensors) for item in value] if isinstance(value, list) else value


def _digest(text: str, tensors: dict[str, torch.Tensor]) -> str:
    """Return a SHA-256 over the text and the tensors of a state."""
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        digest.update(f"{name} {tensors[name].dtype} {tuple(tensors[name].shape)} ".encode())
        digest.update(tensors[name].numpy().tobytes())
    return digest.hexdigest()


def pairs_folder(path: StrPath) -> Path:
    """Return the folder beside a state where its run keeps the teacher's results."""
    return Path(f"{path}.pairs")


def lock_path(path: StrPath) -> Path:
    """Return the lock beside a state, which its writer holds."""
    return Path(f"{path}.lock")


@contextmanager
def exclusive(path: StrPath) -> Iterator[None]:
    """Be the only process that writes the state at `path`; raise TrainingError if another does.

    The lock beside the state ends with its process. What a killed run left behind is removed.
    """
    path = Path(path)
    with Lock(lock_path(path)) as lock:
        with _explain_write_error(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            taken = lock.take()
        if not taken:
            raise TrainingError(
                f"{path} is in use by another training process: wait until it ends, or choose "
                "another file."
            )
        sweep(path)
        yield


@contextmanager
def _explain_write_error(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise TrainingError(
            f"Could not save the run to {path}: {error.strerror or error}."
        ) from error


def save_state(path: StrPath, state: dict[str, Any]) -> None:
    """Write a state, atomically."""
    tensors: dict[str, torch.Tensor] = {}
    text = canonical_json(_strip(state, "", tensors))
    tensors = tensors or {"empty": torch.zeros(0)}
    path = Path(path)
    with _explain_write_error(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        metadata = {"s4s-run": text, "sha256": _digest(text, tensors)}
        write_atomic(path, save(tensors, metadata))


def read_state(path: StrPath) -> dict[str, Any] | None:
    """Read a state; None if there is no file, TrainingError if it cannot be read, SavedRunError if
    it is damaged or no state."""
    try:
        if not is_file(path):
            return None
        with safe_open(path, "pt") as file:
            # Cloned: a tensor of a file is aligned in memory by chance, and that changes the last
            # bits of what is computed with it.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
            metadata = file.metadata() or {}
        if metadata["sha256"] != _digest(metadata["s4s-run"], tensors):
            raise ValueError("wrong checksum")
        state: dict[str, Any] = _fill(json.loads(metadata["s4s-run"]), tensors)
    except OSError as error:
        raise TrainingError(
            f"Could not read the saved run {path}: {error.strerror or error}."
        ) from error
    except (SafetensorError, KeyError, ValueError) as error:
        raise SavedRunError(f"{path} is not a valid saved run ({error}).") from None
    return state
