"""The trainer panel as a process of its own, started by a button in the sidebar."""

import importlib.util
import os
import subprocess
import threading
import time

from comfy.cli_args import args

from ..s4s_core.app import folders
from ..s4s_core.app.processes import command
from ..s4s_core.errors import HostError

PREFIX = "S4S panel: "
PATIENCE = 60.0
PATIENCE_INSTALLING = 1800.0
"""Seconds until a panel must answer, and until one that first downloads gradio must."""

_KEPT = 40


class Panel:
    """At most one panel; it ends with ComfyUI, whose process it follows."""

    def __init__(self, argv=None):
        self._argv = argv or command("trainer", "panel", "--no-browser", "--follow", os.getpid())
        self._lock, self._process, self._url, self._lines = threading.Lock(), None, None, []

    def url(self):
        """The address of the running panel, or None."""
        alive = self._process is not None and self._process.poll() is None
        return self._url if alive else None

    def start(self, install=False):
        """The address, once the panel answers; HostError says why there is none.

        install: have the panel download gradio first, if it is missing.
        """
        with self._lock:
            if self.url() is None:
                self._launch(["--install"] if install else [])
                self._wait(PATIENCE_INSTALLING if install else PATIENCE)
            return self._url

    def _launch(self, options):
        self._url, self._lines = None, []
        environment = os.environ | {
            "S4S_SOLVERS": os.pathsep.join(map(str, folders.solver_folders())),
            "S4S_COMFYUI": own_address() or "",
        }
        self._process = subprocess.Popen(
            [*self._argv, *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
            env=environment,
        )
        threading.Thread(target=self._read, args=(self._process,), daemon=True).start()

    def _read(self, process):
        """Take the address from the output, and go on reading so that it never blocks."""
        for line in process.stdout:
            if line.startswith(PREFIX):
                self._url = line.removeprefix(PREFIX).strip()
            self._lines = [*self._lines, line.rstrip()][-_KEPT:]

    def _wait(self, patience):
        end = time.monotonic() + patience
        while self._url is None and time.monotonic() < end and self._process.poll() is None:
            time.sleep(0.05)
        if self._url is None:
            late = self._process.poll() is None
            self.stop()
            why = next((line for line in reversed(self._lines) if line), "it said nothing")
            what = "did not answer in time" if late else "could not be started"
            raise HostError(f"The trainer panel {what}: {why[:300]}")

    def stop(self):
        """End the panel, if it runs."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:  # it hangs: nothing of it is worth waiting for
                self._process.kill()
                self._process.wait()


def is_ready():
    """Can the panel start without a download? It finds gradio in ComfyUI's Python or its own."""
    return importlib.util.find_spec("gradio") is not None or folders.panel_packages().is_dir()


def own_address():
    """Where the panel can ask ComfyUI to free its memory: on this machine only, or None."""
    here = {part.strip() for part in args.listen.split(",")} & {"127.0.0.1", "0.0.0.0"}
    return f"http://127.0.0.1:{args.port}" if here and not args.tls_keyfile else None


PANEL = Panel()
