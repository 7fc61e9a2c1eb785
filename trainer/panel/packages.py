"""The panel's own packages, for a Python that has no gradio, such as ComfyUI's.

gradio moves packages that the host needs as they are. So it goes into a folder of its own, and only
the panel's process looks there: jobs and renderings are started with this Python as it is.
"""

import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from s4s_core.app.folders import CHECKOUT, panel_packages
from s4s_core.errors import S4SError, shell_line
from s4s_core.lock import Lock

from ..extras import install_line, list_of

NEW = ".new-"
"""How the folders of downloads begin that are under way, or were cut off."""


def provide_gradio(install=False):
    """Make gradio importable: this Python's, or else the panel's own, downloaded if asked for."""
    if find_spec("gradio") is not None:
        return
    if not panel_packages().is_dir():
        if not install or not list_of("panel").is_file():
            raise S4SError(_advice())
        _install()
    sys.path.insert(0, str(panel_packages().absolute()))


def _advice():
    if not list_of("panel").is_file():  # a wheel: its environment is the user's own
        return f"The panel needs gradio, which this installs: {install_line('panel')}"
    line = shell_line([sys.executable, "-m", "trainer", "panel", "--install"])
    return (
        "The panel needs gradio, which is downloaded into a folder of its own by this command, "
        f"given in {CHECKOUT}: {line}"
    )


def _install():
    """Download the packages; their folder is there whole or not at all."""
    target = panel_packages()
    home = target.parent
    try:
        home.mkdir(parents=True, exist_ok=True)
        with Lock(home / "lock") as lock:
            if not lock.take():
                raise S4SError("Another process downloads gradio: wait for it, and try again.")
            for left in home.glob(f"{NEW}*"):
                shutil.rmtree(left, ignore_errors=True)
            with tempfile.TemporaryDirectory(
                prefix=NEW, dir=home, ignore_cleanup_errors=True
            ) as folder:
                new = Path(folder).absolute() / "packages"
                print(f"s4s: downloading gradio into {target}", flush=True)
                _run_pip(new)
                new.rename(target)
    except OSError as error:
        reason = error.strerror or error
        raise S4SError(f"{home}: gradio cannot be put there: {reason}.") from error


def _run_pip(folder):
    """Have pip fill a folder, in full view; S4SError repeats the last that it said of a failure."""
    pip = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
    command = [*pip, "--target", folder, "-r", list_of("panel")]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, errors="replace")
    sys.stderr.write(done.stderr)
    if done.returncode:
        said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        reason = said[-1].removeprefix("ERROR: ") if said else f"exit code {done.returncode}"
        raise S4SError(
            f"gradio could not be downloaded ({reason}): check the network and the free disk "
            "space, and try again."
        )
