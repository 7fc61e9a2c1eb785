"""What people are told where a package is missing: a command line that they can copy."""

import shlex
import subprocess
import sys

from s4s_core.folders import CHECKOUT
from s4s_core.processes import WINDOWS


def typed(command):
    """A command as it is typed here, quoted where it must be."""
    parts = list(map(str, command))
    return subprocess.list2cmdline(parts) if WINDOWS else shlex.join(parts)


def list_of(extra):
    """The file that lists an extra's packages; a wheel does not have it."""
    return CHECKOUT / "requirements" / f"{extra}.txt"


def install_line(extra):
    """The command that installs an extra for the very Python that is running."""
    file = list_of(extra)
    what = ["-r", file] if file.is_file() else [f"s4s-solver[{extra}]"]
    return typed([sys.executable, "-m", "pip", "install", *what])
