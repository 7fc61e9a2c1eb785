"""Set up S4S and run it; needs nothing but Python 3.10 or newer.

    python s4s.py                  set up, and open the panel in a browser
    python s4s.py COMMAND ...      set up, and run `python -m trainer COMMAND ...`
    python s4s.py test [ARGS]      set up with the tests' own needs, and run pytest ARGS

Packages go into .venv beside this file, or into the folder that the environment variable S4S_VENV
names. If the running Python already has what is needed, it is used as it is.
"""

import sys

if sys.version_info < (3, 10):  # noqa: UP036 - said before an older Python stumbles over the rest
    sys.exit("error: S4S needs Python 3.10 or newer, and this is " + sys.version.split()[0] + ".")

import hashlib
import importlib.util
import os
import re
import signal
import subprocess
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent
DEFAULT_COMMAND = ["panel"]
EXTRAS = ROOT / "requirements"
RUN_FILES = [ROOT / "requirements.txt", EXTRAS / "panel.txt", EXTRAS / "lpips.txt"]
TEST_FILES = [*RUN_FILES, EXTRAS / "dev.txt"]


class SetupError(Exception):
    """Setting up failed; the message says in one sentence why and what to do."""


# What is required, and is it here?


def requirements(file: Path) -> list[tuple[str, str]]:
    """The (name, lowest version) pairs of a requirements file; "0" where it sets no version."""
    pairs = []
    for line in file.read_text(encoding="utf-8").splitlines():
        line = line.split("#")[0].strip()
        if not line:
            continue
        match = re.fullmatch(r"([A-Za-z0-9._-]+)(?:>=([0-9.]+))?", line)
        if match is None:
            raise SetupError(f"{file} may only hold lines like name>=1.2, not '{line}'.")
        pairs.append((match[1], match[2] or "0"))
    return pairs


def release(version: str) -> tuple[int, ...]:
    """The numbers of a version that order it: 2.1.0+cu121 and 2.1rc1 are both (2, 1)."""
    numbers = [int(n) for n in re.match(r"[0-9.]*", version)[0].split(".") if n]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def satisfied(files: list[Path]) -> bool:
    """Does the running interpreter have everything that the files list?"""
    for name, lowest in (pair for file in files for pair in requirements(file)):
        try:
            installed = metadata.version(name)
        except metadata.PackageNotFoundError:
            return False
        if not installed or release(installed) < release(lowest):
            return False
    return True


# The environment


def stamps(folder: Path, python: Path, files: list[Path]) -> dict[Path, str]:
    """Where an environment notes that a file's packages are installed, and the text to find."""
    show_version = [python, "-c", "import sys; print(sys.version)"]
    version = subprocess.run(show_version, capture_output=True).stdout
    return {
        folder / f"s4s-{file.stem}.stamp": hashlib.sha256(version + file.read_bytes()).hexdigest()
        for file in files
    }


def is_ready(folder: Path, python: Path, files: list[Path]) -> bool:
    return python.exists() and all(
        path.is_file() and path.read_text(encoding="utf-8") == text
        for path, text in stamps(folder, python, files).items()
    )


def has_pip(python: Path) -> bool:
    show_version = [python, "-m", "pip", "--version"]
    return python.exists() and subprocess.run(show_version, capture_output=True).returncode == 0


def make_venv(folder: Path, python: Path) -> None:
    """Make a virtual environment, or complete one that was left half-made; deletes nothing."""
    if not all(importlib.util.find_spec(name) for name in ("venv", "ensurepip")):
        raise SetupError(
            "this Python has no venv module: install it (on Debian and Ubuntu, "
            "'sudo apt install python3-venv') and run the same command again."
        )
    print(f"s4s: making an environment in {folder}", flush=True)
    made = subprocess.call([sys.executable, "-m", "venv", folder]) == 0
    if not (made and has_pip(python)):
        raise SetupError(f"could not make an environment in {folder}: delete it and try again.")


def install(python: Path, files: list[Path]) -> None:
    names = ", ".join(dict.fromkeys(name for file in files for name, _ in requirements(file)))
    print(f"s4s: installing {names}; this can take a while", flush=True)
    command = [python, "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
    if subprocess.call([*command, *(part for file in files for part in ("-r", file))]):
        raise SetupError(
            "pip could not install the packages (its own words are above): check the network "
            "and the free disk space, and run the same command again."
        )


def prepare(folder: Path, files: list[Path]) -> Path:
    """The Python of the environment in `folder`, with everything that the files list installed.

    Stamps are removed first and written last, so that what was interrupted is taken up again.
    """
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if is_ready(folder, python, files):
        return python
    if not has_pip(python):
        make_venv(folder, python)
    notes = stamps(folder, python, files)
    for path in notes:
        path.unlink(missing_ok=True)
    install(python, files)
    for path, text in notes.items():
        path.write_text(text, encoding="utf-8")
    return python


# The job


def run(command: list, **options) -> int:
    """Run a command to its end and return its exit code.

    Ctrl-C reaches the command by itself, and it decides when to stop; a request to terminate is
    passed on.
    """
    process = subprocess.Popen(command, **options)
    signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    while True:
        try:
            code = process.wait()
            return code if code >= 0 else 128 - code
        except KeyboardInterrupt:
            continue


def start(arguments: list[str]) -> int:
    """Set up what the arguments need, run them, and return the exit code."""
    testing = arguments[:1] == ["test"]
    files = TEST_FILES if testing else RUN_FILES
    folder = Path(os.environ.get("S4S_VENV") or ROOT / ".venv").absolute()
    python = sys.executable if satisfied(files) else prepare(folder, files)
    if testing:
        return run([python, "-m", "pytest", *arguments[1:]], cwd=ROOT)
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    return run([python, "-m", "trainer", *(arguments or DEFAULT_COMMAND)], env=environment)


def main() -> int:
    try:
        return start(sys.argv[1:])
    except (SetupError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped: run the same command to continue.", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
