"""Solver files, format 1: a SolverPack as .safetensors (see docs/solver-files.md).

Per NFE the float64 tensors `nfe{N}/sigmas`, `nfe{N}/call_sigmas` and the family's coefficients.
The metadata value `s4s` is one canonical JSON object: what the pack says about itself, the family,
order and form of each table, and a SHA-256 over all of that and the tensors. ModelSpec keys stand
beside it for file browsers. The same pack gives the same bytes.
"""

import json
import re
import stat
import struct
from functools import lru_cache
from itertools import chain, combinations
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, deserialize

from .atomic import write_atomic, write_new
from .errors import SolverFileError, TableError, visible
from .metadata import check_alike, check_metadata, modelspec
from .table import SolverPack, SolverTable, canonical_json

FORMAT = 1
MAX_FILE = 1 << 20
MAX_HEADER = 256 << 10
_NAME = re.compile(r"nfe([1-9][0-9]{0,3})/([a-z_]{1,16})")
_DESCRIBED = ("family", "order", "form")
_LONGEST_FAULT = 300


def _tensors(pack):
    """All arrays of a pack under their names in the file, in the order of the file."""
    named = {
        f"nfe{nfe}/{name}": array
        for nfe, table in pack.tables.items()
        for name, array in table.arrays.items()
    }
    return dict(sorted(named.items()))


def _statement(pack):
    """The `s4s` object of a file."""
    described = {
        str(nfe): {key: getattr(table, key) for key in _DESCRIBED} | {"ending": table.ending}
        for nfe, table in pack.tables.items()
    }
    return {
        "format": FORMAT,
        "space": pack.space,
        "tables": described,
        "about": dict(pack.metadata),
        "sha256": pack.digest,
    }


def dump_solver(pack):
    """The bytes of a solver file."""
    try:
        check_metadata(pack.metadata)
        statement = canonical_json(_statement(pack))
    except ValueError as error:
        raise SolverFileError(f"this solver cannot be saved: {error}") from None
    tensors = _tensors(pack)
    data = b"".join(array.astype("<f8").tobytes() for array in tensors.values())
    header, offset = {"__metadata__": modelspec(pack, data) | {"s4s": statement}}, 0
    for name, array in tensors.items():
        span = [offset, offset + array.nbytes]
        header[name] = {"dtype": "F64", "shape": list(array.shape), "data_offsets": span}
        offset = span[1]
    text = canonical_json(header).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > MAX_HEADER or 8 + len(text) + len(data) > MAX_FILE:
        raise SolverFileError("this solver cannot be saved: it exceeds the size of a solver file.")
    return struct.pack("<Q", len(text)) + text + data


def check_path(path):
    """`path` as a Path, if a solver can be saved under that name: worth asking before training."""
    path = Path(path)
    if path.suffix.lower() != ".safetensors":
        raise SolverFileError(f"{path.name}: a solver file's name must end in .safetensors.")
    if "\0" not in str(path) and not path.parent.is_dir():
        raise SolverFileError(f"{path}: the folder {path.parent} does not exist.")
    return path


def save_solver(path, pack):
    """Write a pack to `path` (.safetensors), atomically; the same pack gives the same bytes."""
    path, data = check_path(path), dump_solver(pack)
    try:
        write_atomic(path, data)
    except (OSError, ValueError) as error:
        raise _fault(path, "cannot be written", error) from error


def save_new_solver(paths, pack):
    """Write a pack to the first of `paths` that no file has, and return it: see `write_new`."""
    paths, data = iter(paths), dump_solver(pack)
    first = check_path(next(paths))
    try:
        return write_new(chain([first], paths), data)
    except OSError as error:
        raise _fault(first, "cannot be written", error) from error


def _fault(path, what, error):
    """One line about a file and what is wrong with it; both may hold a stranger's text."""
    reason = str(getattr(error, "strerror", None) or error).rstrip(".")
    if len(reason) > _LONGEST_FAULT:
        reason = reason[:_LONGEST_FAULT] + "..."
    return SolverFileError(visible(f"{path}: {what}: {reason}."))


def _unique(pairs):
    """A JSON object, refused if a key stands in it twice."""
    keys = dict(pairs)
    if len(keys) != len(pairs):
        raise ValueError("a key stands twice in its header")
    return keys


def _no_constant(name):
    raise ValueError(f"its metadata contains {name}")


def strict_json(text):
    """Parse JSON without duplicate keys, NaN or infinity; ValueError otherwise."""
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except RecursionError:
        raise ValueError("its header is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"its header is not valid JSON: {error}") from None


def _header(data):
    """The JSON header of a safetensors file."""
    if len(data) < 8:
        raise ValueError("it is too short")
    (length,) = struct.unpack("<Q", data[:8])
    if length > min(MAX_HEADER, len(data) - 8):
        raise ValueError("its header is cut off or too large")
    header = strict_json(data[8 : 8 + length].decode("utf-8"))
    if not isinstance(header, dict):
        raise ValueError("its header is not an object")
    return header


def _statement_of(header):
    """The `s4s` object of a header, its structure checked."""
    metadata = header.get("__metadata__")
    if not isinstance(metadata, dict) or not isinstance(metadata.get("s4s"), str):
        raise ValueError("it is not an S4S solver: its metadata has no entry 's4s'")
    statement = strict_json(metadata["s4s"])
    if not isinstance(statement, dict) or type(statement.get("format")) is not int:
        raise ValueError("its entry 's4s' has no format number")
    if statement["format"] != FORMAT:
        raise ValueError(
            f"it has format {statement['format']}, this version reads format {FORMAT}: update S4S"
        )
    known = {"format": int, "space": str, "tables": dict, "about": dict, "sha256": str}
    if set(statement) != set(known) or any(type(statement[k]) is not t for k, t in known.items()):
        raise ValueError(f"its entry 's4s' must hold {', '.join(known)}")
    return statement


def _arrays(data):
    """Arrays by NFE and name; the safetensors library checks offsets, holes and overlaps."""
    tables = {}
    for name, entry in deserialize(data):
        match = _NAME.fullmatch(name)
        if not match or entry["dtype"] != "F64":
            raise ValueError(f"its tensor {name[:40]!r} has no place in a solver")
        array = np.frombuffer(entry["data"], dtype="<f8").reshape(entry["shape"])
        tables.setdefault(int(match[1]), {})[match[2]] = array
    return tables


def _table(nfe, arrays, described, space):
    """One validated table of the file."""
    if not isinstance(described, dict) or set(described) != {*_DESCRIBED, "ending"}:
        raise ValueError(f"its description of NFE {nfe} is incomplete")
    if not {"sigmas", "call_sigmas"} <= set(arrays):
        raise ValueError(f"its tensors of NFE {nfe} are incomplete")
    times = [arrays.pop("sigmas"), arrays.pop("call_sigmas")]
    fields = [described[key] for key in _DESCRIBED]
    types = [type(field) for field in (*fields, described["ending"])]
    if types[:3] != [str, int, str] or types[3] not in (int, float):
        raise ValueError(f"its description of NFE {nfe} has a wrong type")
    table = SolverTable(*fields, space, *times, arrays)
    if table.nfe != nfe or table.ending != described["ending"]:
        raise ValueError(f"its tensors of NFE {nfe} contradict their description")
    return table


def parse_solver(data):
    """The pack in the bytes of a solver file; ValueError says what is wrong with them."""
    statement = _statement_of(_header(data))
    described, arrays = statement["tables"], _arrays(data)
    if set(described) != {str(nfe) for nfe in arrays}:
        raise ValueError("its description and its tensors name different NFEs")
    tables = {
        nfe: _table(nfe, arrays[nfe], described[str(nfe)], statement["space"]) for nfe in arrays
    }
    check_metadata(statement["about"])
    pack = SolverPack(tables, statement["about"])
    if statement["sha256"] != pack.digest:
        raise ValueError("its contents do not match its hash: the file is damaged, get it again")
    return pack


def load_solver(path):
    """Read and validate a solver file; SolverFileError names the file and the fault."""
    path = Path(path)
    try:
        if stat.S_ISFIFO(path.stat().st_mode):  # opening one would wait for a writer
            raise ValueError("it is a pipe")
        with path.open("rb") as file:
            data = file.read(MAX_FILE + 1)
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        raise _fault(path, "cannot be read", error) from error
    return checked_solver(data, path)


def checked_solver(data, name):
    """The pack in a file's bytes; SolverFileError says `name` and the fault, in one short line."""
    if len(data) > MAX_FILE:
        raise _fault(name, "cannot be used", "it is larger than 1 MB and so not a solver file")
    try:
        return parse_solver(data)
    except (ValueError, OverflowError, SafetensorError) as error:
        raise _fault(name, "cannot be used", error) from None


@lru_cache(maxsize=2048)
def _loaded(path, stamp):
    return load_solver(path)


def load_unchanged(path):
    """`load_solver`, read again only when the file is another one or has changed.

    A copy may bring the old time and size along; the file's number and its own time tell.
    """
    path = Path(path)
    try:
        found = path.stat()
    except (OSError, ValueError):
        return load_solver(path)  # it says what is wrong
    stamp = found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino
    return _loaded(path, stamp)


def merge_packs(packs):
    """One pack of all tables of several packs of one model; two tables of one NFE are refused.

    The metadata of the first pack stands; scores of all are kept. Packs that are for different
    models, as far as they say so, or for different guidance scales are refused.
    """
    packs, tables, scores = list(packs), {}, {}
    for one, other in combinations(packs, 2):
        check_alike(one.metadata, other.metadata)
    for pack in packs:
        for nfe, table in pack.tables.items():
            if tables.setdefault(nfe, table) != table:
                raise TableError(f"two of the solvers hold different tables for {nfe} steps.")
        scores |= pack.metadata.get("scores", {})
    if not tables:
        raise TableError("there is nothing to merge.")
    about = dict(packs[0].metadata)
    return SolverPack(tables, about | {"scores": scores} if scores else about)
