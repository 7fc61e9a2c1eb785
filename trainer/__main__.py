"""The start of every trainer process: `python -m trainer`, or better this file by its path.

Python imports from the folder that it is started in, such as Downloads, where anything may lie.
By its path this file is found without that folder, and takes it off `sys.path` before it imports
anything. With -m, Python itself imports a few modules first.
"""

import os
import sys

PACKAGE = os.path.dirname(os.path.abspath(__file__))


def forget_working_folder() -> None:
    """Make the folder of this package importable, and the working folder not.

    It stays importable if it is one of Python's own folders, or if Python is isolated, which then
    takes nothing from where it is started. An empty part of PYTHONPATH stands for the working
    folder, so child processes get none.
    """
    try:
        working = os.path.realpath(os.getcwd())
    except OSError:
        sys.exit("error: The folder that you are in was deleted. Change to another one.")

    def others(paths: list[str]) -> list[str]:
        return [path for path in paths if path and os.path.realpath(path) != working]

    own = sys.flags.isolated or working in map(os.path.realpath, pythons_folders())
    found = sys.path if own else others(sys.path)
    home, kept = os.path.dirname(PACKAGE), [path for path in found if path != PACKAGE]
    sys.path[:] = kept if home in kept else [home, *kept]
    parts = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join(others(parts))


def pythons_folders() -> list[str]:
    """Return where Python's modules and packages are, known without an import."""
    library, site = os.path.dirname(os.__file__), sys.modules.get("site")
    binary = os.path.join(library, "lib-dynload"), os.path.join(sys.base_prefix, "DLLs")
    packages = [] if site is None else [*site.getsitepackages(), site.getusersitepackages()]
    return [library, *binary, *packages]


def start() -> int | str:
    """Run the command line wherever Python was started: what the wheel's command `s4s` calls."""
    forget_working_folder()
    os.environ["PYTHONSAFEPATH"] = "1"  # for child processes; Python 3.10 ignores it
    return main()


def main() -> int | str:
    """Run the command line; return its exit code or the reason why it cannot be imported."""
    from importlib import import_module

    try:
        return int(import_module(f"{os.path.basename(PACKAGE)}.cli").main())
    except (ImportError, SyntaxError) as error:
        return (
            f"error: {error}. The Python environment {sys.prefix} is incomplete or damaged. If S4S "
            "made it, delete it and run the same command again."
        )


if __name__ == "__main__":
    sys.exit(start())
