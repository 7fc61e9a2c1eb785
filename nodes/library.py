"""The solver files that this ComfyUI offers: its model folders, the core's, and the demo's."""

import hashlib
import os
from contextlib import suppress
from pathlib import Path

import folder_paths

from ..s4s_core.app import folders
from ..s4s_core.errors import S4SError, SolverFileError
from ..s4s_core.solver_file import load_unchanged, save_new_solver
from ..s4s_core.table import SolverPack

KIND = folders.NAME


def register_folder():
    """Make models/s4s_solvers a model folder of the host, and tell the core of all such folders.

    extra_model_paths.yaml may have named more of them before.
    """
    folder_paths.add_model_folder_path(KIND, os.path.join(folder_paths.models_dir, KIND), True)
    named, _ = folder_paths.folder_names_and_paths[KIND]
    folder_paths.folder_names_and_paths[KIND] = (named, {".safetensors"})
    folders.register_solver_folders(named)


def home():
    """Where new files go."""
    return folders.solver_folders()[0]


def files():
    """{name: path} of every solver file, the demo's included."""
    return dict(sorted(({folders.DEMO: folders.DEMO_SOLVER} | folders.solver_files()).items()))


def find(name):
    """The path of a listed name; nothing else is ever opened."""
    found = files()
    return found[name] if name in found else folders.find_solver(name)  # which says what to do


def problem(name):
    """What is wrong with a file of that name, in a sentence; None if it can be loaded."""
    try:
        load_unchanged(find(name))
    except S4SError as error:
        return str(error)
    return None


def fingerprint(name):
    """A hash of a file's contents, or the fault that loading will name."""
    try:
        return hashlib.sha256(find(name).read_bytes()).hexdigest()
    except (OSError, S4SError) as error:
        return str(error)


def all_nfes():
    """Every number of steps that some file holds, ascending; damaged files are passed over."""
    found = set()
    for path in files().values():
        with suppress(S4SError):
            found.update(load_unchanged(path).nfes)
    return sorted(found)


def save(pack, filename, notes=""):
    """(pack as saved, name): written to the first folder under a free name.

    The same solver saved again under the same name is not written twice.
    """
    stem = _checked_stem(filename)
    about = dict(pack.metadata) | {"name": Path(stem).name} | ({"notes": notes} if notes else {})
    pack = SolverPack(pack.tables, about)
    folder = home() / Path(stem).parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SolverFileError(
            f"The folder {folder} cannot be made ({error.strerror}): choose another name."
        ) from error
    path = folder / f"{folders.safe_stem(Path(stem).name)}.safetensors"
    if path.exists() and _same(path, pack):
        return pack, path.relative_to(home()).as_posix()
    path = save_new_solver(folders.names_for(folder, Path(stem).name), pack)
    return pack, path.relative_to(home()).as_posix()


def _same(path, pack):
    """Does the file at `path` hold this very pack?"""
    try:
        return load_unchanged(path) == pack
    except S4SError:
        return False


def problem_with_name(filename):
    """Why a solver cannot be saved under that name, in a sentence; None if it can."""
    try:
        _checked_stem(filename)
    except SolverFileError as error:
        return str(error)
    return None


def _checked_stem(filename):
    """A relative name without its ending; a name that leaves the folder is refused."""
    stem = filename.strip().replace("\\", "/").removesuffix(".safetensors").strip("/")
    parts = stem.split("/")
    good = all(part.strip(". ") and not set(part) & set('<>:"|?*') for part in parts)
    if not (good and stem.isprintable()):
        raise SolverFileError(
            f"'{filename}' cannot be the name of a file: use letters, digits and spaces, and / for "
            "a folder."
        )
    return stem
