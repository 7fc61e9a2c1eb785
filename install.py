"""Install the packages in requirements.txt that the running Python lacks.

A WebUI runs this at every start, ComfyUI-Manager after an update. So it needs only Python, prints
nothing if nothing is missing, and never installs, changes or removes a package that belongs to the
host, not even as a dependency of another package.
"""

import os
import sys

CALLED, HERE = map(os.path.dirname, (os.path.abspath(__file__), os.path.realpath(__file__)))
sys.path[:] = [HERE, *(path for path in sys.path if path != CALLED)]  # a link's folder is foreign
from trainer.__main__ import forget_working_folder

forget_working_folder()  # before anything else is imported

import re
import subprocess
import tempfile
from importlib import metadata
from pathlib import Path

ROOT = Path(HERE)
"""Where pip runs: nothing in the folder that the host was started in may be imported."""

HOST_PACKAGES = ("torch", "torchvision", "gradio", "numpy")
"""Every host brings these, in versions that work for it."""


def installed_version(name: str) -> str | None:
    """Return the installed version of a package, or None."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def is_for_this_python(line: str) -> bool:
    """Return whether a requirement is for every Python, or for ones older than a later version."""
    older = re.search(r'; python_version < "3\.([0-9]+)"', line)
    return older is None or sys.version_info < (3, int(older[1]))


def missing(requirements: str) -> list[str]:
    """Return the lines of a requirements file with packages to install."""
    lines = (line.partition("#")[0].strip() for line in requirements.splitlines())
    wanted = (line for line in lines if line and is_for_this_python(line))
    by_name = {re.split(r"[^\w.-]", line)[0].lower(): line for line in wanted}
    return [
        line
        for name, line in by_name.items()
        if name not in HOST_PACKAGES and not installed_version(name)
    ]


def install(lines: list[str]) -> int:
    """Install the lines with pip, leaving the host's packages alone; return pip's exit code."""
    versions = {name: installed_version(name) for name in HOST_PACKAGES}
    pinned = [f"{name}=={version}" for name, version in versions.items() if version]
    with tempfile.TemporaryDirectory() as folder:
        constraints = Path(folder, "constraints.txt")
        constraints.write_text("\n".join(pinned), encoding="utf-8")
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--retries", "1"]
        return subprocess.call([*pip, "-c", str(constraints), *lines], cwd=ROOT)


def main() -> int:
    """Return 0, or pip's exit code if it failed."""
    lines = missing((ROOT / "requirements.txt").read_text(encoding="utf-8"))
    if not lines:
        return 0
    print(f"S4S: installing {', '.join(lines)}", flush=True)
    code = install(lines)
    if code:
        print("S4S: the installation failed. Features that need these packages are unavailable.")
    return code


if __name__ == "__main__":
    sys.exit(main())
