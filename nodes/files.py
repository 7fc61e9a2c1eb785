"""Solver files: which ones ComfyUI offers, and the nodes that load, save and merge them."""

import hashlib
import os
from pathlib import Path
from typing import Any

import folder_paths

from ..s4s_core.app import folders
from ..s4s_core.app.description import summary
from ..s4s_core.errors import S4SError, SolverFileError, visible
from ..s4s_core.solver_file import dump_solver, load_unchanged, merge_packs, read_solver
from ..s4s_core.table import SolverPack
from . import inputs
from .inputs import InputTypes


def register_folder() -> None:
    """Make models/s4s_solvers a model folder of ComfyUI and tell the core about all such folders.

    extra_model_paths.yaml may have named more of them before.
    """
    kind = folders.NAME
    folder_paths.add_model_folder_path(kind, os.path.join(folder_paths.models_dir, kind), True)
    named, _ = folder_paths.folder_names_and_paths[kind]
    folder_paths.folder_names_and_paths[kind] = (named, {".safetensors"})
    folders.register_solver_folders(named)


def home() -> Path:
    """Return the folder for new files."""
    return folders.solver_folders()[0]


def list_solvers() -> folders.Listing:
    """List the solver files, the demo's included."""
    found = folders.list_solvers()
    files = {folders.DEMO: folders.DEMO_SOLVER} | found.files
    return folders.Listing(dict(sorted(files.items())), found.faults)


def solver_files() -> dict[str, Path]:
    """Return the paths of all solver files by name, the demo's included."""
    return list_solvers().files


def find(name: str) -> Path:
    """Return the path of a listed solver file; nothing else is ever opened."""
    listed = solver_files()
    return listed[name] if name in listed else folders.find_solver(name)  # raises SolverFileError


def load(name: str) -> SolverPack:
    """Load a listed solver file."""
    return load_unchanged(find(name))


def all_step_counts() -> list[int]:
    """Return the step counts of all solver files, ascending; damaged files are skipped."""
    return sorted({n for path in solver_files().values() for n in summary(path).get("nfes", ())})


def save(pack: SolverPack, filename: str, notes: str = "") -> tuple[SolverPack, str]:
    """Save a solver under a free name in the first folder; return it as saved, and the name.

    Saving the same solver under the same name again writes nothing.
    """
    stem = Path(check_name(filename))
    about = dict(pack.metadata) | {"name": stem.name} | ({"notes": notes} if notes else {})
    pack = pack.described(about)
    folder = home() / stem.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SolverFileError(
            f"Could not create the folder {folder}: {error.strerror}. Choose another name."
        ) from error
    path = folder / f"{folders.safe_stem(stem.name)}.safetensors"
    if not _holds(path, pack):
        path = folders.save_new(folder, stem.name, dump_solver(pack))
    return pack, path.relative_to(home()).as_posix()


def _holds(path: Path, pack: SolverPack) -> bool:
    try:
        return load_unchanged(path) == pack
    except S4SError:
        return False


def check_name(filename: str) -> str:
    """Return a relative file name without its ending; raise SolverFileError if it is unusable."""
    stem = filename.strip().replace("\\", "/").removesuffix(".safetensors").strip("/")
    parts = stem.split("/")
    usable = all(part.strip(". ") and not set(part) & set('<>:"|?*') for part in parts)
    if not (usable and visible(stem) == stem):
        raise SolverFileError(
            f"'{filename}' is not a valid file name. Use letters, digits and spaces, and / for a "
            "folder."
        )
    return stem


class LoadSolver:
    DESCRIPTION = "Loads a learned solver from models/s4s_solvers."
    CATEGORY = inputs.CATEGORY
    RETURN_TYPES = (inputs.SOLVER,)
    RETURN_NAMES = ("solver",)
    OUTPUT_TOOLTIPS = ("The solver, with a table for each step count it was trained for.",)
    FUNCTION = "load"

    @classmethod
    def INPUT_TYPES(cls) -> InputTypes:
        tooltip = "A solver file in models/s4s_solvers. demo.safetensors fits the Demo Model."
        return {"required": {"solver": (list(solver_files()), {"tooltip": tooltip})}}

    @classmethod
    def IS_CHANGED(cls, solver: str) -> str:
        """Return a hash of the file, so that a changed file is loaded again."""
        try:
            return hashlib.sha256(read_solver(find(solver))).hexdigest()
        except S4SError as error:
            return str(error)

    @classmethod
    def VALIDATE_INPUTS(cls, solver: str | None) -> bool | str:
        return inputs.validate(load, solver)

    def load(self, solver: str) -> tuple[SolverPack]:
        return (load(solver),)


class SaveSolver:
    DESCRIPTION = "Saves a solver to models/s4s_solvers. Existing files are never overwritten."
    CATEGORY = inputs.CATEGORY
    RETURN_TYPES = (inputs.SOLVER, "STRING")
    RETURN_NAMES = ("solver", "file")
    OUTPUT_TOOLTIPS = ("The solver as saved.", "The name of the file.")
    FUNCTION = "save"
    OUTPUT_NODE = True

    @classmethod
    def INPUT_TYPES(cls) -> InputTypes:
        name = {
            "default": "my solver",
            "tooltip": "Name of the file. If it is taken, a number is added. Use / for folders.",
        }
        notes = {
            "default": "",
            "multiline": True,
            "tooltip": "Notes to store in the file, such as your name.",
        }
        return {
            "required": {"solver": inputs.solver(), "filename": ("STRING", name)},
            "optional": {"notes": ("STRING", notes)},
        }

    @classmethod
    def VALIDATE_INPUTS(cls, filename: str | None) -> bool | str:
        return inputs.validate(check_name, filename)

    def save(self, solver: SolverPack, filename: str, notes: str = "") -> dict[str, Any]:
        solver, name = save(solver, filename, notes)
        return {"ui": {"text": [f"Saved as {name}"]}, "result": (solver, name)}


class MergeSolvers:
    DESCRIPTION = (
        "Merges solvers that were trained for the same model and CFG with different step counts, "
        "so that one solver covers all of them."
    )
    CATEGORY = inputs.CATEGORY
    RETURN_TYPES = (inputs.SOLVER,)
    RETURN_NAMES = ("solver",)
    OUTPUT_TOOLTIPS = ("One solver with the tables of all.",)
    FUNCTION = "merge"

    @classmethod
    def INPUT_TYPES(cls) -> InputTypes:
        more = inputs.solver("Another solver for the same model and CFG.")
        return {
            "required": {
                "solver_1": inputs.solver("Its description (model, scores, notes) is kept."),
                "solver_2": more,
            },
            "optional": {"solver_3": more, "solver_4": more},
        }

    def merge(
        self,
        solver_1: SolverPack,
        solver_2: SolverPack,
        solver_3: SolverPack | None = None,
        solver_4: SolverPack | None = None,
    ) -> tuple[SolverPack]:
        packs = [solver_1, solver_2, solver_3, solver_4]
        return (merge_packs([pack for pack in packs if pack is not None]),)
