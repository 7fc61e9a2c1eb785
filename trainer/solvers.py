"""New solver files: where they go, without ever replacing one."""

from s4s_core.atomic import write_atomic
from s4s_core.errors import SolverFileError
from s4s_core.folders import free_name, solver_folders


def publish(data, stem):
    """Put the bytes of a solver file into the solvers' folder and return its path.

    A file that holds the same bytes already is the one: a run that was cut off between here and
    its own note of it leaves no second copy.
    """
    folder = solver_folders()[0]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in sorted(folder.glob("*.safetensors")):
            if path.stat().st_size == len(data) and path.read_bytes() == data:
                return path
        path = free_name(folder, stem)
        write_atomic(path, data)
    except OSError as error:
        reason = error.strerror or error
        raise SolverFileError(f"{folder}: the solver cannot be saved there: {reason}.") from error
    return path
