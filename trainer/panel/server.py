"""The panel's own server: loopback only, for its own page only, no share link, no analytics.

Any web site can make a browser send requests to 127.0.0.1, and can point a DNS name there. So the
server answers a request only if its Host names this machine and, where the browser reports it, the
request came from the panel's own page.
"""

import asyncio
import json
import os
import secrets
import socket
import threading
import time
import webbrowser
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from s4s_core.app import processes
from s4s_core.app.folders import make_absolute
from s4s_core.errors import S4SError
from s4s_core.solver_file import MAX_FILE

from .markup import RUN
from .uploads import own_folder, trim

HOST = "127.0.0.1"
PORT = 7864
"""The default port, if it is free."""

COMFYUI_ADDRESS = "S4S_COMFYUI"
"""Environment variable: the address of the ComfyUI that started the panel."""

_COMFYUI_SECONDS = 5.0
_HOST_NAMES = ("127.0.0.1", "localhost", "[::1]")
_MAX_DRAINED, _DRAIN_SECONDS = 16 << 20, 10
_REFUSAL = b"The S4S panel only answers its own page on this machine."

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = Iterable[tuple[str, str]]


def is_own_host(host: str) -> bool:
    """Does a Host header name this machine? The port may be any: a tunnel uses another one."""
    name, colon, port = host.rpartition(":") if not host.endswith("]") else (host, "", "")
    name = name if colon else host
    return name in _HOST_NAMES and (not colon or port.isdigit())


def is_allowed(headers: Headers, websocket: bool = False) -> bool:
    """May the server answer a request with these headers? Names are in lower case."""
    values: dict[str, str] = {}
    for name, value in headers:
        if name in ("host", "origin") and name in values:
            return False
        values[name] = value
    if not is_own_host(values.get("host", "")):
        return False
    if "origin" in values:
        return values["origin"] in (f"http://{values['host']}", f"https://{values['host']}")
    if websocket:
        return False
    return values.get("sec-fetch-site") != "cross-site" or _is_link(values)


def _is_link(values: dict[str, str]) -> bool:
    """Did somebody follow a link on another site? That only opens the page."""
    return values.get("sec-fetch-mode") == "navigate" and values.get("sec-fetch-dest") == "document"


class Guard:
    """ASGI middleware around the whole application: pages, uploads, queue, files, websockets.

    uploads: the folder that they go to, which is kept small.
    """

    def __init__(self, app: Any, uploads: Path) -> None:
        self.app, self.uploads = app, uploads

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        kind = scope["type"]
        if kind in ("http", "websocket"):
            text = [(n.decode("latin-1"), v.decode("latin-1")) for n, v in scope["headers"]]
            if not is_allowed(text, kind == "websocket"):
                refuse = _refuse_http if kind == "http" else _refuse_websocket
                await refuse(receive, send)
                return
            if scope["path"].endswith("/upload"):
                trim(self.uploads)
        await self.app(scope, receive, send)


async def _refuse_http(receive: Receive, send: Send) -> None:
    """Answer 403 after reading the body: a client that is still sending would see a reset."""
    with suppress(asyncio.TimeoutError):
        await asyncio.wait_for(_drain(receive), _DRAIN_SECONDS)
    headers = [
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"content-length", str(len(_REFUSAL)).encode()),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": 403, "headers": headers})
    await send({"type": "http.response.body", "body": _REFUSAL})


async def _drain(receive: Receive) -> None:
    """Read and drop a request's body, up to a limit."""
    size, more = 0, True
    while more and size < _MAX_DRAINED:
        message = await receive()
        size += len(message.get("body", b""))
        more = message["type"] == "http.request" and message.get("more_body", False)


async def _refuse_websocket(receive: Receive, send: Send) -> None:
    await receive()
    await send({"type": "websocket.close", "code": 1008})


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

    Drops all GRADIO_ variables: they could open a share link or serve folders. Uploads go to
    `folder`, which becomes the working folder too, because old versions of Gradio serve that. It is
    deleted with the panel, so jobs run where the panel was started, and a relative S4S_HOME is
    resolved from there.
    """
    make_absolute()
    processes.DETACHED_IN = Path.cwd()
    for name in [name for name in os.environ if name.startswith("GRADIO_")]:
        del os.environ[name]
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    os.environ["GRADIO_TEMP_DIR"] = str(folder)
    os.chdir(folder)


def application(uploads: Path) -> Guard:
    """Return the guarded ASGI application of the panel; `uploads` is the folder that they go to."""
    from fastapi import FastAPI
    from fastapi.responses import PlainTextResponse

    from . import build, compat

    app, run = FastAPI(docs_url=None, redoc_url=None, openapi_url=None), secrets.token_hex(8)
    app.get(RUN)(lambda: PlainTextResponse(run))
    return Guard(compat.mount(app, build(comfyui_host(), run), MAX_FILE), uploads)


def serve(port: int | None = None, follow: int | None = None, browser: bool = True) -> None:
    """Serve until Ctrl-C, a request to terminate, or the end of the process `follow`."""
    listener = open_socket(port)
    url = f"http://{HOST}:{listener.getsockname()[1]}/"
    start = Path.cwd()
    with own_folder() as folder:
        prepare_environment(folder)
        import uvicorn

        class Server(uvicorn.Server):
            async def startup(self, sockets: list[socket.socket] | None = None) -> None:
                await super().startup(sockets)
                if self.started:
                    print(f"S4S panel: {url}", flush=True)
                    if browser:
                        threading.Thread(target=webbrowser.open, args=[url], daemon=True).start()

        app = application(folder)
        config = uvicorn.Config(
            app,
            log_level="warning",
            timeout_graceful_shutdown=2,
            ws_max_size=1 << 22,
        )
        server = Server(config)
        if follow:
            threading.Thread(target=_stop_with, args=[follow, server], daemon=True).start()
        try:
            server.run(sockets=[listener])
        finally:
            os.chdir(start)  # Windows cannot delete a working folder


def _stop_with(pid: int, server: Any) -> None:
    """Stop the server when a process ends."""
    while processes.is_alive(pid):
        time.sleep(1)
    server.should_exit = True
