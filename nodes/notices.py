"""What people are told beside the image: warnings on the page, facts in the image's metadata."""

import logging

from server import PromptServer

from ..s4s_core.app.comfyui import identity
from ..s4s_core.errors import S4SError
from ..s4s_core.hosting import image_metadata, mismatches
from ..s4s_core.solver_file import load_unchanged
from . import library
from .graph import ancestors, class_of, literal
from .wiring import model_name, pixels

KEY = "s4s"
LOADER = "S4SLoadSolver"
SAMPLERS = ("S4SKSampler", "S4SSampler")

_told = None, set()
"""The prompt that was last warned, and of what."""


def server():
    """The running server, or None."""
    return getattr(PromptServer, "instance", None)


def send(event, data):
    """Send an event to every page; nothing where there is no server."""
    if server() is not None:
        server().send_sync(event, data)


def warn(text):
    """Show a warning on the page and in the log; once in a prompt, however often it samples."""
    global _told
    prompt = running_prompt()
    prompt_before, told = _told
    told = set() if prompt is None or prompt != prompt_before else told
    _told = prompt, told | {text}
    if text not in told:
        logging.warning("S4S: %s", text)
        send("s4s.warning", {"node": getattr(server(), "last_node_id", None), "text": text})


def running_prompt():
    """The id of the prompt that runs, or None."""
    queue = getattr(server(), "prompt_queue", None)
    running = list(queue.currently_running.values()) if queue is not None else []
    return running[0][1] if running else None


def warn_of_mismatches(pack, guider, x):
    """Warn where a solver meets another model, guidance or size than it was trained for."""
    width, height = pixels(guider.inner_model, x.shape) or (None, None)
    found = mismatches(
        pack,
        model_name=model_name(guider.inner_model),
        model_hash=identity(guider.inner_model),
        cfg=getattr(guider, "cfg", None),
        width=width,
        height=height,
    )
    for sentence in found:
        warn(sentence)


def record(extra_pnginfo, pack, nfe=None):
    """Note a solver in the metadata that the images of a prompt are saved with."""
    if not isinstance(extra_pnginfo, dict) or pack is None:
        return
    noted, fact = extra_pnginfo.setdefault(KEY, []), image_metadata(pack, nfe)
    if not any(old["hash"] == fact["hash"] and nfe in (None, old["nfe"]) for old in noted):
        noted.append(fact)


def record_prompt(request):
    """A request to run a prompt, with the solvers that its samplers use in its metadata.

    Done when it is posted, because nodes whose result is cached do not run again.
    """
    prompt = request.get("prompt")
    for name, entry in prompt.items() if isinstance(prompt, dict) else ():
        if not isinstance(entry, dict) or not _samples(entry):
            continue
        for other in ancestors(prompt, name).values():
            if class_of(other) == LOADER:
                extra = request.setdefault("extra_data", {}).setdefault("extra_pnginfo", {})
                _record_file(extra, literal(other, "solver"), literal(entry, "steps"))
    return request


def _samples(entry):
    """Is this a node that samples with a solver, or names the sampler that does?"""
    named = KEY in (literal(entry, "sampler_name"), literal(entry, "scheduler"))
    return class_of(entry) in SAMPLERS or named


def _record_file(extra, name, steps):
    try:
        pack = load_unchanged(library.find(name))
    except S4SError:
        return  # the node itself will say what is wrong
    record(extra, pack, steps)
