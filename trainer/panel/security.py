"""Keeps other web sites away from the panel.

A page of any site can make the browser send requests to 127.0.0.1, and a DNS name under its
control can point there. So a request is answered only if its Host names this machine and, where
the browser says so, the request was made by the panel's own page.
"""

import asyncio
from contextlib import suppress

HOSTS = ("127.0.0.1", "localhost", "[::1]")
MAX_DRAINED = 16 << 20
DRAIN_SECONDS = 10
_SENTENCE = b"This panel answers only its own page on this machine."


def host_is_ours(host):
    """Does a Host header name this machine? The port may be any: a tunnel has its own."""
    name, colon, port = host.rpartition(":") if not host.endswith("]") else (host, "", "")
    name = name if colon else host
    return name in HOSTS and (not colon or port.isdigit())


def is_allowed(headers, websocket=False):
    """May a request with these headers, (name, value) pairs as ASGI has them, be answered?"""
    values = {}
    for name, value in headers:
        if name in ("host", "origin") and name in values:
            return False
        values[name] = value
    if not host_is_ours(values.get("host", "")):
        return False
    if "origin" in values:
        return values["origin"] in (f"http://{values['host']}", f"https://{values['host']}")
    if websocket:
        return False
    return values.get("sec-fetch-site") != "cross-site" or _is_link(values)


def _is_link(values):
    """Was a link on another site followed? That only opens the page."""
    return values.get("sec-fetch-mode") == "navigate" and values.get("sec-fetch-dest") == "document"


class Guard:
    """ASGI middleware around the whole application: pages, uploads, queue, files, websockets."""

    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send):
        kind = scope["type"]
        if kind in ("http", "websocket"):
            text = [(n.decode("latin-1"), v.decode("latin-1")) for n, v in scope["headers"]]
            if not is_allowed(text, kind == "websocket"):
                refuse = _refuse_http if kind == "http" else _refuse_websocket
                await refuse(receive, send)
                return
        await self.app(scope, receive, send)


async def _refuse_http(receive, send):
    """403, after the body was read: a client still sending one would see a reset connection."""
    with suppress(asyncio.TimeoutError):
        await asyncio.wait_for(_drain(receive), DRAIN_SECONDS)
    headers = [
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"content-length", str(len(_SENTENCE)).encode()),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": 403, "headers": headers})
    await send({"type": "http.response.body", "body": _SENTENCE})


async def _drain(receive):
    """Read and forget a request's body, within bounds."""
    size, more = 0, True
    while more and size < MAX_DRAINED:
        message = await receive()
        size += len(message.get("body", b""))
        more = message["type"] == "http.request" and message.get("more_body", False)


async def _refuse_websocket(receive, send):
    await receive()
    await send({"type": "websocket.close", "code": 1008})
