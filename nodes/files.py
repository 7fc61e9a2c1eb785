"""Solver files: load, save, merge."""

from ..s4s_core.solver_file import load_unchanged, merge_packs
from . import inputs, library


class LoadSolver:
    DESCRIPTION = "Loads a learned solver from models/s4s_solvers."
    CATEGORY = inputs.CATEGORY
    RETURN_TYPES = (inputs.SOLVER,)
    RETURN_NAMES = ("solver",)
    OUTPUT_TOOLTIPS = ("The solver: a table for each number of steps that it was trained for.",)
    FUNCTION = "load"

    @classmethod
    def INPUT_TYPES(cls):
        names = list(library.files())
        tooltip = "A solver file of models/s4s_solvers; demo.safetensors fits the Demo Model."
        return {"required": {"solver": (names, {"tooltip": tooltip})}}

    @classmethod
    def IS_CHANGED(cls, solver):
        """The contents' hash: a file that was written anew is loaded anew."""
        return library.fingerprint(solver)

    @classmethod
    def VALIDATE_INPUTS(cls, solver):
        """True, or what is wrong; a name that comes by wire (None here) shows when it is loaded."""
        return solver is None or library.problem(solver) or True

    def load(self, solver):
        return (load_unchanged(library.find(solver)),)


class SaveSolver:
    DESCRIPTION = "Saves a solver to models/s4s_solvers. A file that is there is never overwritten."
    CATEGORY = inputs.CATEGORY
    RETURN_TYPES = (inputs.SOLVER, "STRING")
    RETURN_NAMES = ("solver", "file")
    OUTPUT_TOOLTIPS = ("The solver as it was saved.", "The name of the file.")
    FUNCTION = "save"
    OUTPUT_NODE = True

    @classmethod
    def INPUT_TYPES(cls):
        name = {
            "default": "my solver",
            "tooltip": "Name of the file; a number is added where it is taken. "
            "Folders are made with /.",
        }
        notes = {
            "default": "",
            "multiline": True,
            "tooltip": "Anything that the file shall say about itself, such as your name.",
        }
        return {
            "required": {"solver": inputs.solver(), "filename": ("STRING", name)},
            "optional": {"notes": ("STRING", notes)},
        }

    @classmethod
    def VALIDATE_INPUTS(cls, filename):
        """True, or what is wrong, before anything is trained; None is a name that comes by wire."""
        return filename is None or library.problem_with_name(filename) or True

    def save(self, solver, filename, notes=""):
        solver, name = library.save(solver, filename, notes)
        return {"ui": {"text": [f"Saved as {name}"]}, "result": (solver, name)}


class MergeSolvers:
    DESCRIPTION = (
        "Joins solvers that were trained for one model and CFG at different numbers of steps into "
        "one, so that the steps slider moves between them."
    )
    CATEGORY = inputs.CATEGORY
    RETURN_TYPES = (inputs.SOLVER,)
    RETURN_NAMES = ("solver",)
    OUTPUT_TOOLTIPS = ("A solver that holds the tables of all.",)
    FUNCTION = "merge"

    @classmethod
    def INPUT_TYPES(cls):
        more = inputs.solver("One more solver of the same model and CFG.")
        return {
            "required": {
                "solver_1": inputs.solver("Its description (model, scores, notes) is kept."),
                "solver_2": more,
            },
            "optional": {"solver_3": more, "solver_4": more},
        }

    def merge(self, solver_1, solver_2, solver_3=None, solver_4=None):
        packs = [solver_1, solver_2, solver_3, solver_4]
        return (merge_packs([pack for pack in packs if pack is not None]),)
