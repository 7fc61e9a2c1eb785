"""Run mypy on the whole product: `python tools/check_types.py [MYPY OPTIONS]`.

The nodes import the core relatively, as ComfyUI loads this folder as a package whatever its name.
mypy is shown the checkout under a fixed name for them, through a link in a temporary folder.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ["s4s_core", "trainer", "s4s_webui", "tools"]


def main(options: list[str]) -> int:
    mypy = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), *options]
    code = subprocess.call([*mypy, *PACKAGES], cwd=ROOT)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "s4s_pack").symlink_to(ROOT, target_is_directory=True)
        environment = os.environ | {"MYPYPATH": folder}
        return subprocess.call([*mypy, "-p", "s4s_pack.nodes"], cwd=folder, env=environment) or code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
