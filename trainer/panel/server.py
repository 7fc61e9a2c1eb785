"""The panel's own server: loopback only, no share link, no analytics, ready within seconds."""

import os
import socket
import tempfile
import threading
import time
import webbrowser
from pathlib import Path

from s4s_core.app import processes
from s4s_core.app.folders import make_absolute
from s4s_core.errors import S4SError
from s4s_core.solver_file import MAX_FILE

HOST = "127.0.0.1"
PORT = 7864
"""Where the panel is found if nothing else is asked for and the port is free."""


def open_socket(port=None):
    """A listening socket on the loopback interface; without a wish, PORT or else any free port."""
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
    raise S4SError(f"Port {port} cannot be used ({problem}): choose another one, or 0 for any.")


def prepare_environment(folder):
    """Settings of Gradio that can only be made before it is imported.

    Whatever the environment says of Gradio is dropped: it could open a share link or folders.
    Uploads go to `folder`, which is also the working folder, because old Gradios serve that. It
    goes with the panel: jobs run where the panel was started, and S4S_HOME is meant from there.
    """
    make_absolute()
    processes.DETACHED_IN = Path.cwd()
    for name in [name for name in os.environ if name.startswith("GRADIO_")]:
        del os.environ[name]
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    os.environ["GRADIO_TEMP_DIR"] = str(folder)
    os.chdir(folder)


def application(max_file_size=MAX_FILE):
    """The guarded ASGI application of the whole panel."""
    from fastapi import FastAPI

    from . import build, comfyui, compat
    from .security import Guard

    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    return Guard(compat.mount(app, build(comfyui.hooks()), max_file_size))


def serve(port=None, follow=None, browser=True):
    """Serve until Ctrl-C, a request to terminate, or the end of the process `follow`."""
    listener = open_socket(port)
    url = f"http://{HOST}:{listener.getsockname()[1]}/"
    start = Path.cwd()
    with tempfile.TemporaryDirectory(prefix="s4s-panel-", ignore_cleanup_errors=True) as folder:
        prepare_environment(folder)
        import uvicorn

        class Server(uvicorn.Server):
            async def startup(self, sockets=None):
                await super().startup(sockets)
                if self.started:
                    print(f"S4S panel: {url}", flush=True)
                    if browser:
                        threading.Thread(target=webbrowser.open, args=[url], daemon=True).start()

        config = uvicorn.Config(
            application(), log_level="warning", timeout_graceful_shutdown=2, ws_max_size=1 << 22
        )
        server = Server(config)
        if follow:
            threading.Thread(target=_follow, args=[follow, server], daemon=True).start()
        try:
            server.run(sockets=[listener])
        finally:
            os.chdir(start)  # Windows removes no folder that is somebody's working folder


def _follow(pid, server):
    """End the server when a process has ended."""
    from s4s_core.app.processes import is_alive

    while is_alive(pid):
        time.sleep(1)
    server.should_exit = True
