"""Where solver files and jobs are kept, alike for every host and the command line.

Environment: S4S_HOME replaces the folder of all data, S4S_SOLVERS (a list of folders, separated as
in PATH) the folders of solver files.
"""

import os
import sys
from itertools import count
from pathlib import Path

from ..atomic import write_new
from ..errors import SolverFileError

CHECKOUT = Path(__file__).absolute().parents[2]
NAME = "s4s_solvers"
"""The solvers' folder among the models of a host."""

DEMO = "demo.safetensors"
DEMO_SOLVER = Path(__file__).absolute().parents[1] / "demo" / "solver.safetensors"
"""The solver in the box, for the demo model, and the name that it is offered under."""

MAX_LISTED = 10_000
_registered = []


def data_home():
    """The folder of everything that S4S keeps for this user."""
    if os.environ.get("S4S_HOME"):
        return Path(os.environ["S4S_HOME"])
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "s4s"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "s4s"
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "s4s"


def make_absolute():
    """Root the folders that the environment names: for a process that leaves its working folder."""
    if os.environ.get("S4S_HOME"):
        os.environ["S4S_HOME"] = str(data_home().absolute())
    if os.environ.get("S4S_SOLVERS"):
        named = (str(folder.absolute()) for folder in solver_folders())
        os.environ["S4S_SOLVERS"] = os.pathsep.join(named)


def jobs_home():
    """The folder of training jobs."""
    return data_home() / "jobs"


def panel_packages():
    """The folder of the panel's own packages, for a Python without gradio: those of this one."""
    return data_home() / "panel" / sys.implementation.cache_tag


def register_solver_folders(folders):
    """Let a host say where its solver files are; replaces what it said before."""
    _registered[:] = map(Path, folders)


def _host_folders(checkout):
    """The solvers' folder of the host that the checkout stands in, if it stands in one."""
    return [checkout.parents[1] / "models" / NAME] if checkout.parent.name in _HOSTS else []


_HOSTS = ("custom_nodes", "extensions")


def solver_folders():
    """Folders of solver files; new files go into the first. None of them need exist."""
    if os.environ.get("S4S_SOLVERS"):
        return [Path(part) for part in os.environ["S4S_SOLVERS"].split(os.pathsep) if part]
    named = _registered or _host_folders(CHECKOUT)
    return list(dict.fromkeys([*named, data_home() / "solvers"]))


def solver_files():
    """Solver files by name: posix paths relative to their folder, sorted; the first folder wins."""
    found = {}
    for folder in solver_folders():
        paths = (path for path in folder.rglob("*") if path.suffix.lower() == ".safetensors")
        for path in sorted(paths)[:MAX_LISTED]:
            if path.is_file() and not path.name.startswith("."):
                found.setdefault(path.relative_to(folder).as_posix(), path)
    return dict(sorted(found.items()))


def find_solver(name):
    """The path of a listed solver; whatever is not in the listing is refused."""
    files = solver_files()
    if name not in files:
        raise SolverFileError(
            f"There is no solver file '{str(name)[:100]}': put it into {solver_folders()[0]} "
            "and refresh the list."
        )
    return files[name]


_RESERVED = {"con", "prn", "aux", "nul", *(f"{p}{n}" for p in ("com", "lpt") for n in range(1, 10))}


def safe_stem(stem):
    """A file's name without its ending, with what is not safe on every system replaced."""
    safe = "".join(c if c.isalnum() or c in "-_.+ " else "-" for c in str(stem)).strip(" .-")[:80]
    return f"{safe}_" if safe.partition(".")[0].lower() in _RESERVED else safe or "solver"


def names_for(folder, stem):
    """Paths in `folder` for a new solver file, without end: stem.safetensors, stem-2, ..."""
    safe, folder = safe_stem(stem), Path(folder)
    yield folder / f"{safe}.safetensors"
    for number in count(2):
        yield folder / f"{safe}-{number}.safetensors"


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
