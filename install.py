"""Installs what requirements.txt asks for and the running Python lacks.

A WebUI runs this at every start, ComfyUI-Manager after an update: so it needs nothing but Python,
says nothing when there is nothing to do, and never installs, moves or removes what belongs to the
host, not even through the needs of another package.
"""

import re
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

HOSTS_OWN = ("torch", "torchvision", "gradio", "numpy")
"""Every host brings these, in the versions that it works with."""


def version(name):
    """The installed version of a package, or None."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def missing(requirements):
    """The lines of a requirements file whose package is neither here nor the host's own."""
    lines = (line.partition("#")[0].strip() for line in requirements.splitlines())
    named = {re.match(r"[\w.-]+", line)[0].lower(): line for line in lines if line}
    return [line for name, line in named.items() if name not in HOSTS_OWN and not version(name)]


def install(lines):
    """Run pip for these lines, holding the host's own packages where they are."""
    held = [f"{name}=={version(name)}" for name in HOSTS_OWN if version(name)]
    with tempfile.TemporaryDirectory() as folder:
        constraints = Path(folder, "constraints.txt")
        constraints.write_text("\n".join(held), encoding="utf-8")
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--retries", "1"]
        done = subprocess.run([*pip, "-c", str(constraints), *lines], check=False)
    return done.returncode


def main():
    """Exit code: 0, or pip's where it failed; S4S then works without the missing packages."""
    lines = missing(Path(__file__).with_name("requirements.txt").read_text(encoding="utf-8"))
    if not lines:
        return 0
    print(f"S4S: installing {', '.join(lines)}", flush=True)
    code = install(lines)
    if code:
        print("S4S: that failed; what needs these packages will say so, all else works.")
    return code


if __name__ == "__main__":
    sys.exit(main())
