"""The folders of solver files and jobs, the same for every host and the command line.

Environment variables: S4S_HOME replaces the data folder; S4S_SOLVERS (a list separated as PATH is)
replaces the folders of solver files.
"""

import os
import sys
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path

from ..atomic import write_new
from ..errors import SolverFileError

CHECKOUT = Path(__file__).absolute().parents[2]
NAME = "s4s_solvers"
"""The name of the solver folder among a host's model folders."""

DEMO = "demo.safetensors"
DEMO_SOLVER = Path(__file__).absolute().parents[1] / "demo" / "solver.safetensors"
"""The solver that ships with the demo model; DEMO is the name it is offered under."""

MAX_LISTED = 10_000
_HOST_PARENTS = ("custom_nodes", "extensions")
_registered: list[Path] = []


def data_home() -> Path:
    """Return the folder of everything that S4S keeps for this user."""
    if os.environ.get("S4S_HOME"):
        return Path(os.environ["S4S_HOME"])
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "s4s"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "s4s"
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "s4s"


def make_absolute() -> None:
    """Make the folders named by the environment absolute, before the process changes directory."""
    if os.environ.get("S4S_HOME"):
        os.environ["S4S_HOME"] = str(data_home().absolute())
    if os.environ.get("S4S_SOLVERS"):
        named = (str(folder.absolute()) for folder in solver_folders())
        os.environ["S4S_SOLVERS"] = os.pathsep.join(named)


def jobs_home() -> Path:
    """Return the folder of training jobs."""
    return data_home() / "jobs"


def panel_packages() -> Path:
    """Return the folder for the panel's packages, one per Python version."""
    return data_home() / "panel" / str(sys.implementation.cache_tag)


def register_solver_folders(folders: Iterable[str | os.PathLike[str]]) -> None:
    """Set a host's solver folders; a second call replaces the first."""
    _registered[:] = map(Path, folders)


def _host_folders(checkout: Path) -> list[Path]:
    """Return the solver folder of the host that the checkout is installed in, if any."""
    inside = checkout.parent.name in _HOST_PARENTS
    return [checkout.parents[1] / "models" / NAME] if inside else []


def solver_folders() -> list[Path]:
    """Return the folders of solver files, the one for new files first. They may not exist yet."""
    if os.environ.get("S4S_SOLVERS"):
        return [Path(part) for part in os.environ["S4S_SOLVERS"].split(os.pathsep) if part]
    named = _registered or _host_folders(CHECKOUT)
    return list(dict.fromkeys([*named, data_home() / "solvers"]))


def solver_files() -> dict[str, Path]:
    """Return solver files by name (a posix path relative to its folder); the first folder wins."""
    files: dict[str, Path] = {}
    for folder in solver_folders():
        paths = (path for path in folder.rglob("*") if path.suffix.lower() == ".safetensors")
        for path in sorted(paths)[:MAX_LISTED]:
            if path.is_file() and not path.name.startswith("."):
                files.setdefault(path.relative_to(folder).as_posix(), path)
    return dict(sorted(files.items()))


def find_solver(name: str) -> Path:
    """Return the path of a listed solver; raise SolverFileError for any other name."""
    files = solver_files()
    if name not in files:
        raise SolverFileError(
            f"There is no solver file '{str(name)[:100]}'. Put it into {solver_folders()[0]} "
            "and refresh the list."
        )
    return files[name]


_RESERVED = {"con", "prn", "aux", "nul", *(f"{p}{n}" for p in ("com", "lpt") for n in range(1, 10))}


def safe_stem(stem: object) -> str:
    """Return a file name without suffix that is valid on every operating system."""
    safe = "".join(c if c.isalnum() or c in "-_.+ " else "-" for c in str(stem)).strip(" .-")[:80]
    return f"{safe}_" if safe.partition(".")[0].lower() in _RESERVED else safe or "solver"


def names_for(folder: str | os.PathLike[str], stem: object) -> Iterator[Path]:
    """Yield paths for a new solver file: stem.safetensors, stem-2.safetensors, ..."""
    safe, folder = safe_stem(stem), Path(folder)
    yield folder / f"{safe}.safetensors"
    for number in count(2):
        yield folder / f"{safe}-{number}.safetensors"


def publish(data: bytes, stem: object) -> Path:
    """Write a solver file into the solver folder and return its path.

    An existing file with the same bytes is reused, so repeating an interrupted publish makes no
    second copy.
    """
    folder = solver_folders()[0]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        same = (path for path in sorted(folder.glob("*.safetensors")) if _holds(path, data))
        return next(same, None) or write_new(names_for(folder, stem), data)
    except OSError as error:
        reason = error.strerror or error
        raise SolverFileError(f"Could not save the solver in {folder}: {reason}.") from error


def _holds(path: Path, data: bytes) -> bool:
    """Return whether a file has these bytes; False if it cannot be read."""
    try:
        return path.stat().st_size == len(data) and path.read_bytes() == data
    except OSError:
        return False
