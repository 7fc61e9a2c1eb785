"""New solver files: where they go, without ever replacing one."""

from s4s_core.atomic import write_new
from s4s_core.errors import SolverFileError
from s4s_core.folders import names_for, solver_folders


def publish(data, stem):
    """Put the bytes of a solver file into the solvers' folder and return its path.

    A file that holds the same bytes already is the one: a run that was cut off between here and
    its own note of it leaves no second copy.
    """
    folder = solver_folders()[0]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        same = (path for path in sorted(folder.glob("*.safetensors")) if _holds(path, data))
        return next(same, None) or write_new(names_for(folder, stem), data)
    except OSError as error:
        reason = error.strerror or error
        raise SolverFileError(f"{folder}: the solver cannot be saved there: {reason}.") from error


def _holds(path, data):
    """Are these the bytes of the file? One that is gone or cannot be read holds others."""
    try:
        return path.stat().st_size == len(data) and path.read_bytes() == data
    except OSError:
        return False
