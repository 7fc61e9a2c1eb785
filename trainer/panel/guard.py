"""Which requests the panel's server answers, and what becomes of those that fail.

Any web site can make a browser send requests to 127.0.0.1, and can point a DNS name there. So the
server answers a request only if its Host names this machine and, where the browser reports it, the
request came from the panel's own page. It also bounds what a request may bring and leave behind.
"""

import asyncio
import re
import sys
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from s4s_core.errors import short

from .uploads import trim

MOST_BODY = 1 << 22
"""Bytes that a request may bring: a page's fields, or a file of at most 1 MB."""

_HOST_NAMES = ("127.0.0.1", "localhost", "[::1]")
_MAX_DRAINED, _DRAIN_SECONDS = 16 << 20, 10
_FOREIGN = 403, b"The S4S panel only answers its own page on this machine."
_LARGE = 413, b"The S4S panel takes requests of at most 4 MB that say how long they are."
_FAILED = 500, b"The S4S panel could not answer this request. Its terminal says why."

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


def is_small(headers: Headers) -> bool:
    """Do these headers promise a body of at most MOST_BODY? The server takes no more than they say,
    so a body of unknown length is refused."""
    values = dict(headers)
    length = values.get("content-length", "0")
    known = "transfer-encoding" not in values and re.fullmatch("[0-9]{1,9}", length)
    return bool(known) and int(length) <= MOST_BODY


class Guard:
    """ASGI middleware around the whole application: pages, uploads, queue, files, websockets.

    folder: where the application writes; it is made small again after every request.
    """

    def __init__(self, app: Any, folder: Path) -> None:
        self.app, self.folder = app, folder

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        http = scope["type"] == "http"
        headers = [(n.decode("latin-1"), v.decode("latin-1")) for n, v in scope["headers"]]
        if not is_allowed(headers, not http):
            await (_refuse(receive, send, *_FOREIGN) if http else _close(receive, send))
        elif not is_small(headers):
            await _refuse(receive, send, *_LARGE)
        else:
            await self._answer(scope, receive, send)

    async def _answer(self, scope: Message, receive: Receive, send: Send) -> None:
        """Let the application answer; an error in it is a line in the terminal."""
        seen = set()

        async def noted_receive() -> Message:
            message = await receive()
            seen.add(message["type"])
            return message

        async def noted_send(message: Message) -> None:
            seen.add(message["type"])
            await send(message)

        try:
            await self.app(scope, noted_receive, noted_send)
        except Exception as error:  # noqa: BLE001 - of Gradio's own code, for any odd request
            if "http.disconnect" in seen:  # the client broke off, which is its own affair
                return
            where = f"{scope.get('method', 'websocket')} {scope['path']}"
            what = getattr(error, "exceptions", [error])[0]  # a group's first one
            print(short(f"error: {where}: {what!r}", 300), file=sys.stderr, flush=True)
            if scope["type"] == "http" and "http.response.start" not in seen:
                await _say(send, *_FAILED)
        finally:
            trim(self.folder)


async def _refuse(receive: Receive, send: Send, status: int, text: bytes) -> None:
    """Answer after reading the body: a client that is still sending would see a reset."""
    with suppress(asyncio.TimeoutError):
        await asyncio.wait_for(_drain(receive), _DRAIN_SECONDS)
    await _say(send, status, text)


async def _say(send: Send, status: int, text: bytes) -> None:
    headers = [
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"content-length", str(len(text)).encode()),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text})


async def _drain(receive: Receive) -> None:
    """Read and drop a request's body, up to a limit."""
    size, more = 0, True
    while more and size < _MAX_DRAINED:
        message = await receive()
        size += len(message.get("body", b""))
        more = message["type"] == "http.request" and message.get("more_body", False)


async def _close(receive: Receive, send: Send) -> None:
    """Refuse a websocket."""
    await receive()
    await send({"type": "websocket.close", "code": 1008})
