"""The folders of solver files and jobs, the same for every host and the command line.

Environment variables: S4S_HOME replaces the data folder; S4S_SOLVERS (a list separated as PATH is)
replaces the folders of solver files.
"""

import errno
import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from ..atomic import sweep_folder, write_new
from ..errors import SolverFileError, visible

CHECKOUT = Path(__file__).absolute().parents[2]
NAME = "s4s_solvers"
"""The name of the solver folder among a host's model folders."""

DEMO = "demo.safetensors"
DEMO_SOLVER = Path(__file__).absolute().parents[1] / "demo" / "solver.safetensors"
"""The solver that ships with the demo model; DEMO is the name it is offered under."""

MAX_LISTED, MAX_FAULTS = 10_000, 100
_UNSHOWABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, line breaks, changes of direction, and bytes that are not UTF-8."""

_HOST_PARENTS = ("custom_nodes", "extensions")
_registered: list[Path] = []
_DAY = 86_400


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
    chosen = os.environ.get("S4S_SOLVERS", "").split(os.pathsep)
    if any(chosen):
        return [Path(part) for part in chosen if part]
    named = _registered or _host_folders(CHECKOUT)
    return list(dict.fromkeys([*named, data_home() / "solvers"]))


@dataclass(frozen=True)
class Listing:
    """The entries of folders.

    files: solver files by name, a posix path relative to their folder. faults: why an entry cannot
    be listed, a sentence each, by a name that can be shown anywhere.
    """

    files: dict[str, Path]
    faults: dict[str, str]


def list_solvers() -> Listing:
    """List the folders of solver files."""
    return list_folders(solver_folders())


def solver_files() -> dict[str, Path]:
    """Return the solver files by name, ascending."""
    return list_solvers().files


def list_folders(folders: Iterable[Path]) -> Listing:
    """List the solver files in folders and their subfolders; of one name, the first folder wins.

    Whatever an entry is, the others are listed.
    """
    files: dict[str, str] = {}
    faults: dict[str, str] = {}
    for folder in folders:
        for name, fault in _walk(folder):
            if fault is None:
                files.setdefault(name, os.path.join(folder, name))
            else:
                faults.setdefault(showable(name), fault)
    shown = {name: faults[name] for name in sorted(faults)[:MAX_FAULTS]}
    if len(faults) > MAX_FAULTS:
        shown["..."] = f"{len(faults) - MAX_FAULTS:,} more entries cannot be listed."
    if len(files) > MAX_LISTED:
        shown["*.safetensors"] = f"Only {MAX_LISTED:,} of {len(files):,} files are listed."
    return Listing({name: Path(files[name]) for name in sorted(files)[:MAX_LISTED]}, shown)


def _walk(folder: Path) -> Iterator[tuple[str, str | None]]:
    """Yield the names of what a folder contains, each with why it cannot be listed, or None.

    A folder that does not exist is empty.
    """
    pending = [""]
    while pending:
        inside = pending.pop()
        try:
            with os.scandir(os.path.join(folder, inside)) as entries:
                for entry in entries:
                    is_folder, fault = _look(entry)
                    if is_folder and fault is None:
                        pending.append(f"{inside}{entry.name}/")
                    elif is_folder or _is_offered(entry.name):
                        yield inside + entry.name, fault
        except FileNotFoundError:  # not made yet, or just deleted
            continue
        except OSError as error:
            yield inside or str(folder), _reason(error)


def _is_offered(name: str) -> bool:
    """Return whether a file of this name is offered as a solver."""
    return name.lower().endswith(".safetensors") and not name.startswith(".")


def _look(entry: os.DirEntry[str]) -> tuple[bool, str | None]:
    """Return whether an entry is a folder, and why it cannot be listed, or None."""
    try:
        is_folder, is_file, is_link = entry.is_dir(), entry.is_file(), entry.is_symlink()
    except OSError as error:  # for example a link that leads in a circle
        return False, _reason(error)
    if _UNSHOWABLE.search(entry.name):
        return is_folder, "The name has characters that cannot be shown. Rename it."
    if is_folder:
        return True, "Links to folders are not followed." if is_link else None
    if is_file:
        return False, None
    return False, "The link leads to no file." if is_link else "It is not a file."


def _reason(error: OSError) -> str:
    return f"{error.strerror or error}."


def showable(path: str | os.PathLike[str]) -> str:
    """Return a path or a name with escapes instead of characters that cannot be shown."""
    text = os.fspath(path)
    return _UNSHOWABLE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def find_solver(name: object) -> Path:
    """Return the path of a listed solver; raise SolverFileError for any other value."""
    found = solver_files().get(name) if isinstance(name, str) else None
    if found is None:
        said = visible(name[:100]) if isinstance(name, str) else type(name).__name__
        raise SolverFileError(
            f"There is no solver file '{said}'. Put it into {showable(solver_folders()[0])} and "
            "refresh the list."
        )
    return found


PLAIN_STEM = "solver"
MAX_STEM, MAX_STEM_BYTES = 80, 200
"""The longest stem. A name may have 255 bytes, and a number and a suffix follow the stem."""

RESERVED = {"con", "prn", "aux", "nul", "conin$", "conout$"} | {
    f"{port}{n}" for port in ("com", "lpt") for n in "0123456789¹²³"
}
"""Names of devices on Windows, in lower case, in any folder and with any ending."""

_REFUSED = (errno.ENAMETOOLONG, errno.EILSEQ, errno.EINVAL)
"""How a file system refuses a name."""


def safe_stem(stem: object) -> str:
    """Return a file name without suffix that is valid on every operating system."""
    safe = _cut("".join(c if c.isalnum() or c in "-_.+ " else "-" for c in str(stem)))
    device, dot, rest = safe.partition(".")
    if device.rstrip().lower() in RESERVED:
        safe = _cut(f"{device}_{dot}{rest}")
    return safe or PLAIN_STEM


def _cut(stem: str) -> str:
    """Shorten a stem; it begins and ends with neither a space nor a dot nor a dash."""
    short = stem.strip(" .-")[:MAX_STEM].encode()[:MAX_STEM_BYTES]
    return short.decode(errors="ignore").rstrip(" .-")


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
    with _explain_error(folder):
        folder.mkdir(parents=True, exist_ok=True)
        same = (path for path in sorted(folder.glob("*.safetensors")) if _holds(path, data))
        found = next(same, None)
    return found or save_new(folder, stem, data)


def save_new(folder: Path, stem: object, data: bytes) -> Path:
    """Write a new solver file into a folder and return its path.

    It is named after `stem`, or after PLAIN_STEM if the file system refuses that name. What killed
    writers left there is removed.
    """
    sweep_folder(folder, _DAY)
    with _explain_error(folder):
        try:
            return write_new(names_for(folder, stem), data)
        except OSError as error:
            if error.errno not in _REFUSED:
                raise
        return write_new(names_for(folder, PLAIN_STEM), data)


@contextmanager
def _explain_error(folder: Path) -> Iterator[None]:
    """Turn an OSError into a SolverFileError that names the folder."""
    try:
        yield
    except OSError as error:
        where, reason = showable(folder), _reason(error)
        raise SolverFileError(f"Could not save the solver in {where}: {reason}") from error


def _holds(path: Path, data: bytes) -> bool:
    """Return whether a file has these bytes; False if it cannot be read."""
    try:
        return path.stat().st_size == len(data) and path.read_bytes() == data
    except OSError:
        return False
