"""What people are told where an extra's packages are missing."""

from s4s_core.folders import CHECKOUT
from s4s_core.starting import pip_line


def list_of(extra):
    """The file that lists an extra's packages; a wheel does not have it."""
    return CHECKOUT / "requirements" / f"{extra}.txt"


def install_line(extra):
    """The command that installs an extra for the very Python that is running."""
    file = list_of(extra)
    return pip_line("-r", file) if file.is_file() else pip_line(f"s4s-solver[{extra}]")
