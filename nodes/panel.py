"""The trainer panel: a separate process, started by a button in the sidebar."""

import importlib.util
import os
import subprocess
import threading
import time
from collections.abc import Sequence

from comfy.cli_args import args

from ..s4s_core.app import folders
from ..s4s_core.app.processes import trainer_command
from ..s4s_core.errors import HostError

PREFIX = "S4S panel: "
PATIENCE = 60.0
PATIENCE_INSTALLING = 1800.0
"""Seconds within which a panel must answer, without and with a download of gradio."""

_KEPT = 40


class Panel:
    """At most one panel process; it watches ComfyUI's process and ends with it."""

    def __init__(self, argv: Sequence[str] | None = None) -> None:
        self._argv = argv or trainer_command("panel", "--no-browser", "--follow", os.getpid())
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._url: str | None = None
        self._lines: list[str] = []

    def url(self) -> str | None:
        """Return the address of the running panel, or None."""
        return self._url if self._is_alive() else None

    def _is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, install: bool = False) -> str | None:
        """Start the panel unless it runs, wait until it answers, and return its address.

        Raise HostError if it does not start. install: download gradio first if it is missing.
        """
        with self._lock:
            if self.url() is None:
                self._launch(["--install"] if install else [])
                self._wait(PATIENCE_INSTALLING if install else PATIENCE)
            return self._url

    def _launch(self, options: Sequence[str]) -> None:
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

    def _read(self, process: subprocess.Popen[str]) -> None:
        """Take the address from the output, and keep reading so that the panel never blocks."""
        for line in process.stdout or ():
            if line.startswith(PREFIX):
                self._url = line.removeprefix(PREFIX).strip()
            self._lines = [*self._lines, line.rstrip()][-_KEPT:]

    def _wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while self._url is None and time.monotonic() < end and self._is_alive():
            time.sleep(0.05)
        if self._url is None:
            what = "did not answer in time" if self._is_alive() else "did not start"
            self.stop()
            why = next((line for line in reversed(self._lines) if line), "it printed nothing")
            raise HostError(f"The trainer panel {what}: {why[:300]}")

    def stop(self) -> None:
        """Stop the panel if it runs."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


def is_ready() -> bool:
    """Can the panel start without a download: is gradio in ComfyUI's Python or its own folder?"""
    return importlib.util.find_spec("gradio") is not None or folders.panel_packages().is_dir()


def own_address() -> str | None:
    """Return where the panel can ask ComfyUI to free memory: on this machine only, or None."""
    here = {part.strip() for part in args.listen.split(",")} & {"127.0.0.1", "0.0.0.0"}
    return f"http://127.0.0.1:{args.port}" if here and not args.tls_keyfile else None


PANEL = Panel()
