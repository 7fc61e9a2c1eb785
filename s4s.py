"""Set up S4S and run it. Needs only Python 3.10 or newer.

    python s4s.py                  set up and open the panel in a browser
    python s4s.py COMMAND ...      set up and run `python -m trainer COMMAND ...`
    python s4s.py test [ARGS]      set up, with the test packages too, and run pytest ARGS

Packages go into .venv next to this file, or into the folder in the environment variable S4S_VENV.
If the running Python already has every package, it is used instead.
"""

import os
import sys

if sys.version_info < (3, 10):  # noqa: UP036 - older versions fail on the code below
    sys.exit("error: S4S needs Python 3.10 or newer; this is " + sys.version.split()[0] + ".")

CALLED, HERE = map(os.path.dirname, (os.path.abspath(__file__), os.path.realpath(__file__)))
sys.path[:] = [HERE, *(path for path in sys.path if path != CALLED)]  # a link's folder is foreign
from trainer.__main__ import forget_working_folder

forget_working_folder()  # before anything else is imported

import hashlib
import importlib.util
import re
import signal
import subprocess
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

ROOT = Path(HERE)
DEFAULT_COMMAND = ["panel"]
EXTRAS = ROOT / "requirements"
RUN_FILES = [ROOT / "requirements.txt", EXTRAS / "panel.txt", EXTRAS / "lpips.txt"]
TEST_FILES = [*RUN_FILES, EXTRAS / "dev.txt"]


class SetupError(Exception):
    """Setup failed. The message says why and what to do."""


# Requirements

LINE = r'([A-Za-z0-9._-]+)(?:>=([0-9.]+))?(?:; python_version < "3\.([0-9]{1,3})")?'


def requirements(file: Path) -> list[tuple[str, str]]:
    """Return (name, minimum version) pairs from a requirements file; "0" if it sets no version.

    Packages that only an older Python needs are left out: name>=1.2; python_version < "3.11".
    """
    pairs = []
    for line in file.read_text(encoding="utf-8").splitlines():
        line = line.split("#")[0].strip()
        if not line:
            continue
        match = re.fullmatch(LINE, line)
        if match is None:
            raise SetupError(f"{file}: expected lines like name>=1.2, got '{line}'.")
        if match[3] is None or sys.version_info < (3, int(match[3])):
            pairs.append((match[1], match[2] or "0"))
    return pairs


def release(version: str) -> tuple[int, ...]:
    """Return a version's leading numbers: 2.1.0+cu121 and 2.1rc1 both give (2, 1)."""
    numbers = [int(n) for n in re.split(r"[^0-9.]", version)[0].split(".") if n]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def satisfied(files: list[Path]) -> bool:
    """Return whether the running Python has every package in the files."""
    for name, minimum in (pair for file in files for pair in requirements(file)):
        try:
            installed = metadata.version(name)
        except metadata.PackageNotFoundError:
            return False
        if not installed or release(installed) < release(minimum):
            return False
    return True


# The environment


def answer(python: Path, *arguments: str) -> bytes:
    """Return what an environment's Python prints, or nothing if it does not work."""
    try:
        done = subprocess.run([str(python), *arguments], cwd=ROOT, capture_output=True)
    except OSError:
        return b""
    return done.stdout if done.returncode == 0 else b""


def stamps(folder: Path, python: Path, files: list[Path]) -> dict[Path, bytes]:
    """Map each stamp file to its content. A stamp marks a requirements file as installed."""
    version = answer(python, "-c", "import sys; print(sys.version)")
    digests = {file: hashlib.sha256(version + file.read_bytes()).hexdigest() for file in files}
    return {folder / f"s4s-{file.stem}.stamp": digests[file].encode() for file in files}


def is_ready(folder: Path, python: Path, files: list[Path]) -> bool:
    return python.exists() and all(
        path.is_file() and path.read_bytes() == digest
        for path, digest in stamps(folder, python, files).items()
    )


def has_pip(python: Path) -> bool:
    return bool(answer(python, "-m", "pip", "--version"))


def make_venv(folder: Path, python: Path) -> None:
    """Create a virtual environment, or complete an unfinished one. Deletes nothing."""
    if not all(importlib.util.find_spec(name) for name in ("venv", "ensurepip")):
        raise SetupError(
            "this Python has no venv module. Install it (on Debian and Ubuntu: "
            "'sudo apt install python3-venv') and run the same command again."
        )
    print(f"s4s: creating an environment in {folder}", flush=True)
    created = subprocess.call([sys.executable, "-m", "venv", folder], cwd=ROOT) == 0
    if not (created and has_pip(python)):
        raise SetupError(f"could not create an environment in {folder}. Delete it and try again.")


def install(python: Path, files: list[Path]) -> None:
    names = ", ".join(dict.fromkeys(name for file in files for name, _ in requirements(file)))
    print(f"s4s: installing {names} (this can take a while)", flush=True)
    command = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
    listed = [part for file in files for part in ("-r", str(file))]
    if subprocess.call([*command, *listed], cwd=ROOT):
        raise SetupError(
            "pip could not install the packages (see above). Check the network and the free disk "
            "space, and run the same command again."
        )


def prepare(folder: Path, files: list[Path]) -> Path:
    """Install the packages in the files into the environment in `folder`; return its Python.

    Stamps are removed first and written last, so an interrupted setup is repeated. All child
    processes run in the checkout, because they could import from the user's working folder.
    """
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    try:
        if is_ready(folder, python, files):
            return python
        if not has_pip(python):
            make_venv(folder, python)
        expected = stamps(folder, python, files)
        for path in expected:
            path.unlink(missing_ok=True)
        install(python, files)
        for path, digest in expected.items():
            path.write_bytes(digest)
    except OSError as error:
        raise SetupError(
            f"could not set up {folder}: {error}. Fix that, or delete the folder, and run the "
            "same command again."
        ) from error
    return python


# Running


def run(command: Sequence[str], cwd: Path | None = None) -> int:
    """Run a command to its end and return its exit code.

    Ctrl-C reaches the command directly, and the command decides when to stop. SIGTERM is passed
    on to it.
    """
    started: list[subprocess.Popen[bytes]] = []
    signal.signal(signal.SIGTERM, lambda *_: [process.terminate() for process in started])
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:  # the command would not hear it either
        signal.signal(signal.SIGINT, lambda *_: None)  # an exception could lose the exit code
    process = subprocess.Popen(command, cwd=cwd)
    started.append(process)
    code = process.wait()
    return code if code >= 0 else 128 - code


def start(arguments: list[str]) -> int:
    """Set up the packages for a command, run it, and return its exit code."""
    testing = arguments[:1] == ["test"]
    files = TEST_FILES if testing else RUN_FILES
    folder = Path(os.environ.get("S4S_VENV") or ROOT / ".venv").absolute()
    python = sys.executable if satisfied(files) else str(prepare(folder, files))
    if testing:
        return run([python, "-m", "pytest", *arguments[1:]], cwd=ROOT)
    main = str(ROOT / "trainer" / "__main__.py")
    return run([python, main, *(arguments or DEFAULT_COMMAND)])


def main() -> int:
    try:
        return start(sys.argv[1:])
    except (SetupError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Stopped. Run the same command to continue.", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
