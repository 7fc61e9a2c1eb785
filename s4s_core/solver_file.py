"""Solver files, formats 1 and 2: a SolverPack as .safetensors (see docs/solver-files.md).

For each table the float64 tensors `nfe{N}/sigmas`, `nfe{N}/call_sigmas` and the coefficients. In
format 2 there may also be `nfe{N}/guidance`, and parts (tables for runs below full strength), which
are named by their NFE and first level: `nfe{N}@{level}/sigmas`. A pack with neither is written in
format 1. The metadata value `s4s` is a canonical JSON object, the manifest: the pack's metadata,
the family, order and form of each table, and a SHA-256 over all of that and the tensors. ModelSpec
keys beside it serve file browsers. The same pack gives the same bytes.
"""

import json
import math
import os
import re
import stat
import struct
from collections.abc import Callable, Iterable
from functools import lru_cache
from itertools import combinations
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from safetensors import SafetensorError, deserialize

from .atomic import StrPath, write_atomic
from .errors import SolverFileError, TableError, short, visible
from .metadata import check_mergeable, check_metadata, modelspec
from .table import Array, SolverPack, SolverTable, canonical_json

PLAIN, EXTENDED = 1, 2
"""The formats: without and with guidance or parts."""

MAX_FILE = 1 << 20
MAX_HEADER = 256 << 10
_TENSOR_NAME = re.compile(r"nfe([1-9][0-9]{0,3}(?:@[0-9.e+-]{1,12})?)/([a-z_]{1,16})")
_TABLE_KEYS = ("family", "order", "form")
_MAX_REASON = 300
_deserialize: Callable[[bytes], list[tuple[str, dict[str, Any]]]] = deserialize


def _tensors(pack: SolverPack) -> dict[str, Array]:
    """Return all arrays of a pack by their names in the file, in file order."""
    named = {
        f"nfe{key}/{name}": array
        for key, table in pack.named.items()
        for name, array in table.arrays.items()
    }
    return dict(sorted(named.items()))


def _format(pack: SolverPack) -> int:
    return EXTENDED if pack.sets_guidance or pack.parts else PLAIN


def _manifest(pack: SolverPack) -> dict[str, object]:
    """Return the `s4s` object of a file."""
    tables = {
        name: {key: getattr(table, key) for key in _TABLE_KEYS} | {"ending": table.ending}
        for name, table in pack.named.items()
    }
    return {
        "format": _format(pack),
        "space": pack.space,
        "tables": tables,
        "about": dict(pack.metadata),
        "sha256": pack.digest,
    }


def dump_solver(pack: SolverPack) -> bytes:
    """Return the bytes of a solver file."""
    try:
        check_metadata(pack.metadata)
        manifest = canonical_json(_manifest(pack))
    except ValueError as error:
        raise SolverFileError(f"Could not save this solver: {error}.") from None
    tensors = _tensors(pack)
    data = b"".join(array.astype("<f8").tobytes() for array in tensors.values())
    header: dict[str, object] = {"__metadata__": modelspec(pack, data) | {"s4s": manifest}}
    offset = 0
    for name, array in tensors.items():
        span = [offset, offset + array.nbytes]
        header[name] = {"dtype": "F64", "shape": list(array.shape), "data_offsets": span}
        offset = span[1]
    text = canonical_json(header).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > MAX_HEADER or 8 + len(text) + len(data) > MAX_FILE:
        raise SolverFileError(
            "Could not save this solver: it exceeds the maximum size of a solver file (1 MB, "
            "header 256 KB)."
        )
    return struct.pack("<Q", len(text)) + text + data


def check_path(path: StrPath) -> Path:
    """Return `path` as a Path; raise SolverFileError if no solver can be saved there."""
    path = Path(path)
    if path.suffix.lower() != ".safetensors":
        raise SolverFileError(f"{path.name}: the name of a solver file must end in .safetensors.")
    if "\0" not in str(path) and not os.path.isdir(path.parent):
        raise SolverFileError(f"{path}: the folder {path.parent} does not exist.")
    try:
        os.lstat(path)
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:  # for example a name that is too long
        raise _file_error(path, "cannot be written", error) from error
    return path


def save_solver(path: StrPath, pack: SolverPack) -> None:
    """Write a pack to `path` (.safetensors), atomically; the same pack gives the same bytes."""
    path, data = check_path(path), dump_solver(pack)
    try:
        write_atomic(path, data)
    except (OSError, ValueError) as error:
        raise _file_error(path, "cannot be written", error) from error


def _file_error(path: StrPath, what: str, error: object) -> SolverFileError:
    """Return an error of one line; path and reason may contain untrusted text."""
    reason = str(getattr(error, "strerror", None) or error).rstrip(".")
    return SolverFileError(visible(f"{path}: {what}: {short(reason, _MAX_REASON)}."))


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build a JSON object; raise ValueError on a duplicate key."""
    keys = dict(pairs)
    if len(keys) != len(pairs):
        raise ValueError("its header has a duplicate key")
    return keys


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"its metadata contains {name}")


def _strict_json(text: str) -> Any:
    """Parse JSON; raise ValueError on duplicate keys, NaN or infinity."""
    try:
        return json.loads(text, object_pairs_hook=_unique_keys, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("its header is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"its header is not valid JSON: {error}") from None


def _parse_header(data: bytes) -> dict[str, Any]:
    """Return the JSON header of a safetensors file."""
    if len(data) < 8:
        raise ValueError("it is too short")
    (length,) = struct.unpack("<Q", data[:8])
    if length > min(MAX_HEADER, len(data) - 8):
        raise ValueError("its header is truncated or too large")
    header = _strict_json(data[8 : 8 + length].decode("utf-8"))
    if not isinstance(header, dict):
        raise ValueError("its header is not an object")
    return header


def _parse_manifest(header: dict[str, Any]) -> dict[str, Any]:
    """Return the `s4s` object of a header after checking its keys and types."""
    metadata = header.get("__metadata__")
    if not isinstance(metadata, dict) or not isinstance(metadata.get("s4s"), str):
        raise ValueError("it is not an S4S solver (its metadata has no 's4s' entry)")
    manifest = _strict_json(metadata["s4s"])
    if not isinstance(manifest, dict) or type(manifest.get("format")) is not int:
        raise ValueError("its 's4s' entry has no format number")
    if manifest["format"] not in (PLAIN, EXTENDED):
        raise ValueError(
            f"it has format {manifest['format']}, but this version reads formats {PLAIN} and "
            f"{EXTENDED}. Update S4S"
        )
    known = {"format": int, "space": str, "tables": dict, "about": dict, "sha256": str}
    if set(manifest) != set(known) or any(type(manifest[k]) is not t for k, t in known.items()):
        raise ValueError(f"its 's4s' entry must contain exactly {', '.join(known)}")
    return manifest


def _parse_arrays(data: bytes) -> dict[str, dict[str, Array]]:
    """Return arrays by table and name; safetensors checks offsets, holes and overlaps."""
    tables: dict[str, dict[str, Array]] = {}
    for name, entry in _deserialize(data):
        match = _TENSOR_NAME.fullmatch(name)
        if not match or entry["dtype"] != "F64":
            raise ValueError(f"its tensor {name[:40]!r} does not belong in a solver file")
        array = np.frombuffer(entry["data"], dtype="<f8").reshape(entry["shape"])
        tables.setdefault(match[1], {})[match[2]] = array
    return tables


def _parse_table(name: str, arrays: dict[str, Array], entry: object, space: str) -> SolverTable:
    """Return one validated table of the file."""
    if not isinstance(entry, dict) or set(entry) != {*_TABLE_KEYS, "ending"}:
        raise ValueError(f"its description of NFE {name} is incomplete")
    if not {"sigmas", "call_sigmas"} <= set(arrays):
        raise ValueError(f"its tensors of NFE {name} are incomplete")
    sigmas, calls = arrays.pop("sigmas"), arrays.pop("call_sigmas")
    guidance = arrays.pop("guidance", None)
    family, order, form = (entry[key] for key in _TABLE_KEYS)
    types = [type(value) for value in (family, order, form)]
    if types != [str, int, str] or type(entry["ending"]) not in (int, float):
        raise ValueError(f"its description of NFE {name} has a value of the wrong type")
    table = SolverTable(family, order, form, space, sigmas, calls, arrays, guidance)
    ending, said = table.ending, entry["ending"]
    known = table.part_name if "@" in name else str(table.nfe)
    if known != name or ending != said or math.copysign(1, ending) != math.copysign(1, said):
        raise ValueError(f"its tensors of NFE {name} contradict their description")
    return table


def parse_solver(data: bytes) -> SolverPack:
    """Return the pack in the bytes of a solver file; raise ValueError if they are invalid."""
    header = _parse_header(data)
    manifest = _parse_manifest(header)
    entries, arrays = manifest["tables"], _parse_arrays(data)
    if set(entries) != set(arrays):
        raise ValueError("its description and its tensors name different NFEs")
    space = manifest["space"]
    tables = {name: _parse_table(name, arrays[name], entries[name], space) for name in arrays}
    check_metadata(manifest["about"])
    pack = SolverPack(
        {table.nfe: table for name, table in tables.items() if "@" not in name},
        manifest["about"],
        tuple(table for name, table in tables.items() if "@" in name),
    )
    if manifest["format"] != _format(pack):
        raise ValueError("its format number contradicts its tensors")
    if manifest["sha256"] != pack.digest:
        raise ValueError("its contents do not match its hash. The file is damaged: get a new copy")
    if canonical_json(manifest) != header["__metadata__"]["s4s"]:
        raise ValueError("its 's4s' entry is not canonical JSON")
    return pack


def load_solver(path: StrPath) -> SolverPack:
    """Read and validate a solver file; raise SolverFileError with the file and the reason."""
    return load_solver_bytes(read_solver(path), path)


def read_solver(path: StrPath) -> bytes:
    """Return the bytes of a solver file, at most one above MAX_FILE, unchecked; raise
    SolverFileError if it cannot be read."""
    path = Path(path)
    try:
        status = path.stat()
        if stat.S_ISFIFO(status.st_mode):  # opening one would wait for a writer
            raise ValueError("it is a pipe")
        if stat.S_ISREG(status.st_mode) and not status.st_size:
            return b""  # like the files in /proc: reading one may wait for ever
        with path.open("rb") as file:
            return file.read(MAX_FILE + 1)
    except (OSError, ValueError) as error:  # ValueError: a null byte in the name
        raise _file_error(path, "cannot be read", error) from error


def load_solver_bytes(data: bytes, name: StrPath) -> SolverPack:
    """Return the pack in a file's bytes; raise SolverFileError with `name` and the reason."""
    if len(data) > MAX_FILE:
        raise _file_error(name, "cannot be used", "it is larger than 1 MB, so not a solver file")
    try:
        return parse_solver(data)
    except (ValueError, OverflowError, SafetensorError) as error:
        raise _file_error(name, "cannot be used", error) from None


def file_stamp(path: StrPath) -> tuple[int, ...]:
    """Return numbers that change with a file; raise SolverFileError if it cannot be found.

    A copied file may keep time and size, so the inode and the change time count too.
    """
    try:
        status = os.stat(path)
    except (OSError, ValueError) as error:
        raise _file_error(path, "cannot be read", error) from error
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino


@lru_cache(maxsize=2048)
def _load_stamped(path: str, stamp: tuple[int, ...]) -> SolverPack:
    return load_solver(path)


def load_unchanged(path: StrPath) -> SolverPack:
    """Like `load_solver`, but read the file again only if it has changed."""
    return _load_stamped(os.fspath(path), file_stamp(path))


def merge_packs(packs: Iterable[SolverPack]) -> SolverPack:
    """Return one pack with the tables of several packs of the same model.

    The first pack's metadata is kept, with the scores of all packs. Raise TableError if two tables
    of one NFE (or two parts of one NFE and level) differ, or if packs are known to be for different
    models or guidance scales.
    """
    packs, tables, scores = list(packs), dict[str, SolverTable](), dict[str, Any]()
    for one, other in combinations(packs, 2):
        check_mergeable(one.metadata, other.metadata)
    for pack in packs:
        for name, table in pack.named.items():
            if tables.setdefault(name, table) != table:
                raise TableError(f"Cannot merge: two solvers have different {name}-step tables.")
        scores |= pack.metadata.get("scores", {})
    if not tables:
        raise TableError("There is nothing to merge.")
    about = dict(packs[0].metadata)
    return SolverPack(
        {nfe: table for pack in packs for nfe, table in pack.tables.items()},
        about | {"scores": scores} if scores else about,
        tuple({part.part_name: part for pack in packs for part in pack.parts}.values()),
    )
