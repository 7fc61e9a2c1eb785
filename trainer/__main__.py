"""The start of every trainer process: `python -m trainer`, or better this file by its path.

Python imports from the folder that it is started in, such as Downloads, where anything may lie.
By its path this file is found without that folder, and takes it off `sys.path` before it imports
anything. With -m, Python itself imports a few modules first.
"""

import os
import sys

PACKAGE = os.path.dirname(os.path.abspath(__file__))


def forget_working_folder() -> None:
    """Make the folder of this package importable and the working folder not, unless it is that one.

    An empty part of PYTHONPATH stands for the working folder, so child processes get none.
    """
    try:
        working = os.getcwd()
    except OSError:  # it was deleted
        working = ""
    home, unwanted = os.path.dirname(PACKAGE), ("", os.curdir, working)
    kept = [path for path in sys.path if path not in (*unwanted, PACKAGE)]
    sys.path[:] = kept if home in kept else [home, *kept]
    parts = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join(part for part in parts if part not in unwanted)


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
    forget_working_folder()
    os.environ["PYTHONSAFEPATH"] = "1"  # for child processes; Python 3.10 ignores it
    sys.exit(main())
