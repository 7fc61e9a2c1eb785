"""What the sidebar asks for: JSON routes on ComfyUI's server.

Reading is open to everyone. Requests that change something must come from ComfyUI's own page: a
page of another site can reach a server on this machine, even under a host name of its own that
points here. So these requests need the header X-S4S, which a foreign page cannot send unasked, an
Origin equal to the Host, and a Host that ComfyUI is known to have.
"""

import asyncio
import base64
import binascii
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from functools import wraps
from ipaddress import ip_address
from operator import itemgetter
from typing import Any
from urllib.parse import urlencode, urlsplit

import comfy.model_management
from aiohttp import web
from comfy.cli_args import args

from ..s4s_core.app import jobs
from ..s4s_core.app.description import describe_table, summary
from ..s4s_core.errors import S4SError
from ..s4s_core.solver_file import load_unchanged
from ..s4s_core.table import SolverPack
from . import files, notices, training
from .panel import PANEL, is_ready

Handler = Callable[[web.Request], Awaitable[Any]]

_LARGEST_BODY = 10_000
_DATA_URI = re.compile(r"data:(image/(?:jpeg|png|webp));base64,(.+)", re.DOTALL)
_EVERYWHERE = {"0.0.0.0", "::"}


class Refused(S4SError):
    """A request that is answered with an error status and a message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def answering(handler: Handler) -> Callable[[web.Request], Awaitable[web.Response]]:
    """Make a route that answers with a handler's result as JSON, or with {"error": message}."""

    @wraps(handler)
    async def answer(request: web.Request) -> web.Response:
        try:
            result = await handler(request)
        except S4SError as error:
            status = error.status if isinstance(error, Refused) else 400
            result = web.json_response({"error": str(error)}, status=status)
        response = result if isinstance(result, web.Response) else web.json_response(result)
        response.headers["X-Content-Type-Options"] = "nosniff"
        return response

    return answer


def guarded(handler: Handler) -> Handler:
    """Restrict a handler to requests from ComfyUI's own page."""

    @wraps(handler)
    async def guard(request: web.Request) -> Any:
        if not is_from_own_page(request.headers):
            raise Refused(403, "This request does not come from ComfyUI's page. Reload the page.")
        return await handler(request)

    return guard


def is_from_own_page(headers: Mapping[str, str]) -> bool:
    """Does a request with these headers come from a page of this server?"""
    host, origin = headers.get("Host", "").lower(), headers.get("Origin")
    same = origin is None or origin.lower() in (f"http://{host}", f"https://{host}")
    site = headers.get("Sec-Fetch-Site", "same-origin") in ("same-origin", "none")
    return headers.get("X-S4S") == "1" and same and site and _is_known(_host_name(host))


def _host_name(host: str) -> str:
    """Return the name or address in a Host header without the port; "" if there is none."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _is_known(name: str) -> bool:
    """Is this the local machine, or an address that ComfyUI listens on?

    If it listens everywhere, any name may reach it: a proxy's, or one in the network.
    """
    listens = {part.strip().lower() for part in args.listen.split(",")}
    return _is_loopback(name) or name in listens or bool(name and listens & _EVERYWHERE)


def _is_loopback(name: str) -> bool:
    try:
        return name == "localhost" or ip_address(name).is_loopback
    except ValueError:
        return False


async def solvers(request: web.Request) -> dict[str, Any]:
    return await asyncio.to_thread(listing)


def listing() -> dict[str, Any]:
    """Return all solver files, each with its description or with what is wrong with it."""
    found = files.list_solvers()
    entries = [_entry(name, summary(path)) for name, path in found.files.items()]
    entries += [_entry(name, {"error": fault}) for name, fault in found.faults.items()]
    return {"folder": str(files.home()), "solvers": sorted(entries, key=itemgetter("file"))}


def _entry(name: str, about: dict[str, Any]) -> dict[str, Any]:
    """Return what the sidebar is told of a file; `about` is its summary."""
    picture = None
    if about.get("thumbnail"):
        query = urlencode({"file": name, "v": about["sha256"][:8]})
        picture = f"/s4s/thumbnail?{query}"
    return about | {"file": name, "thumbnail": picture}


async def thumbnail(request: web.Request) -> web.Response:
    pack = await asyncio.to_thread(_pack, request)
    match = _DATA_URI.fullmatch(pack.metadata.get("thumbnail") or "")
    if match is None:
        raise Refused(404, "This solver has no thumbnail.")
    try:
        picture = base64.b64decode(match[2])
    except binascii.Error as error:
        raise Refused(404, "This solver's thumbnail is damaged.") from error
    return web.Response(body=picture, content_type=match[1])


async def table(request: web.Request) -> dict[str, Any]:
    nfe = request.query.get("nfe", "")
    if not (nfe.isascii() and nfe.isdigit() and len(nfe) < 5):
        raise Refused(400, "The step count must be a whole number.")
    return describe_table(await asyncio.to_thread(_pack, request), int(nfe))


def _pack(request: web.Request) -> SolverPack:
    """Load the listed solver file that a request names."""
    path = files.solver_files().get(request.query.get("file", ""))
    if path is None:
        raise Refused(404, "There is no such solver file. Refresh the list.")
    return load_unchanged(path)


async def list_jobs(request: web.Request) -> dict[str, Any]:
    running = training.running()
    views = await asyncio.to_thread(jobs.list_jobs)
    return {"jobs": [view.plain() for view in ([running] if running else []) + views]}


@guarded
async def cancel_job(request: web.Request) -> dict[str, Any]:
    name = (await _body(request)).get("id")
    if not isinstance(name, str):
        raise Refused(400, 'Name the job: {"id": text}.')
    if name == training.JOB:
        if training.running() is None:
            raise Refused(404, "No training is running in the graph.")
        comfy.model_management.interrupt_current_processing()
    else:
        await asyncio.to_thread(lambda: jobs.Job(name).cancel())
    return {"id": name}


async def _body(request: web.Request) -> dict[str, Any]:
    """Return the JSON object in a request's body."""
    try:
        body = json.loads(await _bytes(request))
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise Refused(400, "The request's body must be a JSON object.")
    return body


async def _bytes(request: web.Request) -> bytes:
    """Read a request's body; a larger one than our page sends is refused."""
    try:
        await request.content.readexactly(_LARGEST_BODY + 1)
    except asyncio.IncompleteReadError as error:
        return error.partial
    except web.RequestPayloadError as error:  # not what its Content-Encoding says
        raise Refused(400, "The request's body cannot be decompressed.") from error
    raise Refused(413, f"The request's body must be at most {_LARGEST_BODY} bytes.")


async def panel_address(request: web.Request) -> dict[str, Any]:
    return {"url": PANEL.url(), "ready": is_ready()}


@guarded
async def start_panel(request: web.Request) -> dict[str, Any]:
    install = (await _body(request)).get("install") is True
    try:
        return {"url": await asyncio.to_thread(PANEL.start, install)}
    except S4SError as error:
        raise Refused(503, str(error)) from error


ROUTES: dict[tuple[str, str], Handler] = {
    ("GET", "/s4s/solvers"): solvers,
    ("GET", "/s4s/thumbnail"): thumbnail,
    ("GET", "/s4s/table"): table,
    ("GET", "/s4s/jobs"): list_jobs,
    ("POST", "/s4s/jobs/cancel"): cancel_job,
    ("GET", "/s4s/panel"): panel_address,
    ("POST", "/s4s/panel"): start_panel,
}


def register() -> None:
    """Add the routes and the handler that records solvers in images to ComfyUI's server."""
    server = notices.server()
    for (method, path), handler in ROUTES.items():
        server.routes.route(method, path)(answering(handler))
    server.add_on_prompt_handler(notices.record_prompt)
