"""The panel's own server: loopback only, for its own page only, no share link, no analytics."""

import json
import os
import secrets
import signal
import socket
import sys
import tempfile
import threading
import time
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from s4s_core.app import processes
from s4s_core.app.folders import make_absolute
from s4s_core.errors import S4SError
from s4s_core.solver_file import MAX_FILE

from .guard import MOST_BODY, Guard
from .markup import RUN
from .uploads import own_folder

HOST = "127.0.0.1"
PORT = 7864
"""The default port, if it is free."""

COMFYUI_ADDRESS = "S4S_COMFYUI"
"""Environment variable: the address of the ComfyUI that started the panel."""

_COMFYUI_SECONDS = 5.0


class ComfyUIHost:
    """The ComfyUI that started this panel."""

    def __init__(self, address: str) -> None:
        self.address = address

    def before_training(self) -> None:
        """Ask ComfyUI to unload its models once its current prompt is done.

        If ComfyUI does not answer, it keeps its memory and training starts anyway.
        """
        from http.client import HTTPException
        from urllib.request import ProxyHandler, Request, build_opener

        body = json.dumps({"unload_models": True, "free_memory": True}).encode()
        headers = {"Content-Type": "application/json"}
        request = Request(f"{self.address}/free", body, headers)
        with suppress(OSError, HTTPException):
            build_opener(ProxyHandler({})).open(request, timeout=_COMFYUI_SECONDS).close()


def comfyui_host() -> ComfyUIHost | None:
    """Return the ComfyUI that started this panel, or None."""
    address = os.environ.get(COMFYUI_ADDRESS)
    return ComfyUIHost(address) if address else None


def open_socket(port: int | None = None) -> socket.socket:
    """Listen on the loopback interface; without a port, on PORT or else on any free one."""
    for attempt in (PORT, 0) if port is None else (port,):
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        if os.name != "nt":  # there the option would let two panels share a port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, attempt))
            listener.listen(128)
            return listener
        except (OSError, OverflowError) as error:
            listener.close()
            problem = error
    raise S4SError(f"Could not use port {port} ({problem}). Choose another one, or 0 for any.")


def prepare_environment(folder: str | os.PathLike[str]) -> None:
    """Set what Gradio reads when it is imported.

    Drops all GRADIO_ variables: they could open a share link or serve folders. Uploads and all else
    that Gradio writes go to `folder`, which becomes the working folder too, because old versions of
    Gradio serve that. It is deleted with the panel, so jobs run where the panel was started, with
    the system's own folder for temporary files, and a relative S4S_HOME is resolved from there.
    """
    make_absolute()
    processes.DETACHED_IN = Path.cwd()
    for name in [name for name in os.environ if name.startswith("GRADIO_")]:
        del os.environ[name]
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    os.environ["GRADIO_TEMP_DIR"] = str(folder)
    tempfile.tempdir = str(folder)  # TMPDIR would reach the jobs, which outlive the folder
    os.chdir(folder)


def application(folder: Path) -> Guard:
    """Return the guarded ASGI application of the panel; `folder` is where it writes."""
    from fastapi import FastAPI
    from fastapi.responses import PlainTextResponse

    from . import build, compat

    app, run = FastAPI(docs_url=None, redoc_url=None, openapi_url=None), secrets.token_hex(8)
    app.get(RUN)(lambda: PlainTextResponse(run))
    return Guard(compat.mount(app, build(comfyui_host(), run), MAX_FILE), folder)


class _Ended(BaseException):
    """A signal asks this process to end."""


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise an exception in the block, and end this process after it.

    A running uvicorn takes SIGTERM for itself, stops, and raises it again. A SIGHUP that is
    ignored, as under nohup, stays so.
    """

    def end(*_: object) -> None:
        raise _Ended

    signal.signal(signal.SIGTERM, end)
    if sys.platform != "win32" and signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:
        signal.signal(signal.SIGHUP, lambda *_: signal.raise_signal(signal.SIGTERM))
    try:
        yield
    except _Ended:  # at once: threads that wait for other processes would be waited for
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.raise_signal(signal.SIGTERM)


def serve(port: int | None = None, follow: int | None = None, browser: bool = True) -> None:
    """Serve until Ctrl-C, a request to terminate, or the end of the process `follow`."""
    if follow is not None and not 0 < follow < 1 << 31:
        raise S4SError("--follow must be the number of a process.")
    listener = open_socket(port)
    url = f"http://{HOST}:{listener.getsockname()[1]}/"
    start = Path.cwd()
    with ended_by_signals(), own_folder() as folder:
        prepare_environment(folder)
        try:
            _run(application(folder), listener, url, follow, browser)
        finally:
            os.chdir(start)  # Windows cannot delete a working folder


def _run(app: Guard, listener: socket.socket, url: str, follow: int | None, browser: bool) -> None:
    """Answer requests until something ends the server."""
    import uvicorn

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                print(f"S4S panel: {url}", flush=True)
                if browser:
                    threading.Thread(target=webbrowser.open, args=[url], daemon=True).start()

    server = Server(
        uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=2, ws_max_size=MOST_BODY)
    )
    if follow:
        threading.Thread(target=_stop_with, args=[follow, server], daemon=True).start()
    server.run(sockets=[listener])


def _stop_with(pid: int, server: Any) -> None:
    """Stop the server when a process ends."""
    while processes.is_alive(pid):
        time.sleep(1)
    server.should_exit = True
