"""The panel's own packages, for a Python without gradio, such as ComfyUI's.

Installing gradio would change packages that the host needs. So it goes into a separate folder that
only the panel's process uses; jobs and renderings use the host's packages.
"""

import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from s4s_core.app.folders import CHECKOUT, panel_packages
from s4s_core.app.processes import trainer_command
from s4s_core.errors import S4SError, shell_line
from s4s_core.lock import Lock
from s4s_core.regular import remove_tree

from ..extras import install_line, list_of

NEW = ".new-"
"""Prefix of the folders of unfinished downloads."""


def provide_gradio(install: bool = False) -> None:
    """Make gradio importable: from this Python, or from the panel's folder.

    With `install`, download it into that folder if needed.
    """
    if find_spec("gradio") is not None:
        return
    if not panel_packages().is_dir():
        if not install or not list_of("panel").is_file():
            raise S4SError(_advice())
        _install()
    sys.path.insert(0, str(panel_packages().absolute()))


def _advice() -> str:
    if not list_of("panel").is_file():  # a wheel: the user manages its environment
        return f"The panel needs gradio. Install it with: {install_line('panel')}"
    line = shell_line(trainer_command("panel", "--install"))
    return f"The panel needs gradio. To download it into a separate folder, run: {line}"


def _install() -> None:
    """Download the packages; their folder appears only when it is complete."""
    target = panel_packages()
    home = target.parent
    try:
        home.mkdir(parents=True, exist_ok=True)
        with Lock(home / "lock") as lock:
            if not lock.take():
                raise S4SError("Another process is downloading gradio. Wait and try again.")
            for left in home.glob(f"{NEW}*"):
                remove_tree(left)
            with tempfile.TemporaryDirectory(
                prefix=NEW, dir=home, ignore_cleanup_errors=True
            ) as folder:
                new = Path(folder).absolute() / "packages"
                print(f"s4s: downloading gradio into {target}", flush=True)
                _run_pip(new)
                new.rename(target)
    except OSError as error:
        reason = error.strerror or error
        raise S4SError(f"Could not save gradio in {home}: {reason}.") from error


def _run_pip(folder: Path) -> None:
    """Fill a folder with pip, showing its output; raise S4SError with its last line on failure."""
    pip = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
    command = [*pip, "--target", str(folder), "-r", str(list_of("panel"))]
    done = subprocess.run(  # in our own folder: what lies in the user's must not be imported
        command, cwd=CHECKOUT, stderr=subprocess.PIPE, text=True, errors="replace"
    )
    sys.stderr.write(done.stderr)
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        reason = lines[-1].removeprefix("ERROR: ") if lines else f"exit code {done.returncode}"
        raise S4SError(
            f"Could not download gradio ({reason}). Check the network and the free disk space, "
            "then try again."
        )
