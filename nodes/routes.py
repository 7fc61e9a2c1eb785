"""What the sidebar asks for: JSON over the host's own server.

Reading needs nothing. Whatever changes something must come from ComfyUI's own page (see `guard`).
"""

import asyncio
import base64
import binascii
import json
import re
from functools import wraps
from urllib.parse import urlencode

import comfy.model_management
from aiohttp import web

from ..s4s_core.app import jobs
from ..s4s_core.app.description import describe, describe_table
from ..s4s_core.errors import S4SError
from ..s4s_core.solver_file import load_unchanged
from . import learning, library, notices
from .guard import is_own
from .panel import PANEL, is_ready

_LARGEST_BODY = 10_000
_DATA_URI = re.compile(r"data:(image/(?:jpeg|png|webp));base64,(.+)", re.DOTALL)


class Refused(S4SError):
    """A request that is answered with an error: its status and a sentence."""

    def __init__(self, status, sentence):
        super().__init__(sentence)
        self.status = status


def answering(handler):
    """A route that answers with what a handler returns as JSON, or with {"error": sentence}."""

    @wraps(handler)
    async def answer(request):
        try:
            result = await handler(request)
        except S4SError as error:
            status = error.status if isinstance(error, Refused) else 400
            result = web.json_response({"error": str(error)}, status=status)
        response = result if isinstance(result, web.Response) else web.json_response(result)
        response.headers["X-Content-Type-Options"] = "nosniff"
        return response

    return answer


def guarded(handler):
    """A handler for pages of this server only."""

    @wraps(handler)
    async def guard(request):
        if not is_own(request.headers):
            raise Refused(403, "This request does not come from ComfyUI's own page: reload it.")
        return await handler(request)

    return guard


async def solvers(request):
    return await asyncio.to_thread(listing)


def listing():
    """Every solver file with its summary, or with what is wrong with it."""
    found = []
    for name, path in library.files().items():
        entry = {"file": name, "error": None, "thumbnail": None}
        try:
            about = describe(load_unchanged(path)).plain()
        except S4SError as error:
            about = {"error": str(error)}
        if about.get("thumbnail"):
            query = urlencode({"file": name, "v": about["sha256"][:8]})
            about["thumbnail"] = f"/s4s/thumbnail?{query}"
        found.append(entry | about)
    return {"folder": str(library.home()), "solvers": found}


async def thumbnail(request):
    pack = await asyncio.to_thread(_pack, request)
    match = _DATA_URI.fullmatch(pack.metadata.get("thumbnail") or "")
    if match is None:
        raise Refused(404, "This solver has no thumbnail.")
    try:
        picture = base64.b64decode(match[2])
    except binascii.Error as error:
        raise Refused(404, "This solver's thumbnail is damaged.") from error
    return web.Response(body=picture, content_type=match[1])


async def table(request):
    nfe = request.query.get("nfe", "")
    if not (nfe.isascii() and nfe.isdigit() and len(nfe) < 5):
        raise Refused(400, "The number of steps must be a whole number.")
    return describe_table(await asyncio.to_thread(_pack, request), int(nfe))


def _pack(request):
    """The solver of the listed file that a request names; reads the disk."""
    path = library.files().get(request.query.get("file", ""))
    if path is None:
        raise Refused(404, "There is no such solver file: refresh the list.")
    return load_unchanged(path)


async def list_jobs(request):
    running = learning.running()
    views = await asyncio.to_thread(jobs.list_jobs)
    return {"jobs": ([running] if running else []) + [view.plain() for view in views]}


@guarded
async def cancel_job(request):
    name = (await _body(request)).get("id")
    if not isinstance(name, str):
        raise Refused(400, 'Say which job: {"id": text}.')
    if name == learning.JOB:
        if learning.running() is None:
            raise Refused(404, "No training runs in the graph.")
        comfy.model_management.interrupt_current_processing()
    else:
        await asyncio.to_thread(lambda: jobs.Job(name).cancel())
    return {"id": name}


async def _body(request):
    """The JSON object that a request carries."""
    try:
        body = json.loads(await _bytes(request))
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise Refused(400, "The request's body must be a JSON object.")
    return body


async def _bytes(request):
    """A request's body, of which no more is read than any of ours has."""
    try:
        await request.content.readexactly(_LARGEST_BODY + 1)
    except asyncio.IncompleteReadError as error:
        return error.partial
    raise Refused(413, f"The request's body must be at most {_LARGEST_BODY} bytes.")


async def panel_address(request):
    return {"url": PANEL.url(), "ready": is_ready()}


@guarded
async def start_panel(request):
    install = (await _body(request)).get("install") is True
    try:
        return {"url": await asyncio.to_thread(PANEL.start, install)}
    except S4SError as error:
        raise Refused(503, str(error)) from error


ROUTES = {
    ("GET", "/s4s/solvers"): solvers,
    ("GET", "/s4s/thumbnail"): thumbnail,
    ("GET", "/s4s/table"): table,
    ("GET", "/s4s/jobs"): list_jobs,
    ("POST", "/s4s/jobs/cancel"): cancel_job,
    ("GET", "/s4s/panel"): panel_address,
    ("POST", "/s4s/panel"): start_panel,
}


def register():
    """Add the routes and the note in images to the host's server."""
    server = notices.server()
    for (method, path), handler in ROUTES.items():
        server.routes.route(method, path)(answering(handler))
    server.add_on_prompt_handler(notices.record_prompt)
