"""What people are told beside the image: warnings on the page, and facts in the image's metadata."""

import logging

from server import PromptServer

from ..s4s_core.errors import S4SError
from ..s4s_core.hosting import facts, mismatches
from ..s4s_core.solver_file import load_unchanged
from . import library
from .wiring import identity, pixels

LOADER = "S4SLoadSolver"


def send(event, data):
    """Send an event to every page; nothing where there is no server."""
    if getattr(PromptServer, "instance", None) is not None:
        PromptServer.instance.send_sync(event, data)


def warn(text):
    """Show a warning on the page, at the node that is running, and in the log."""
    logging.warning("S4S: %s", text)
    node = getattr(getattr(PromptServer, "instance", None), "last_node_id", None)
    send("s4s.warning", {"node": node, "text": text})


def warn_of_mismatches(pack, guider, x):
    """Warn where a solver meets another model, guidance or size than it was trained for."""
    width, height = pixels(guider.inner_model, x.shape)
    sentences = mismatches(
        pack,
        model_hash=identity(guider.model_patcher),
        cfg=getattr(guider, "cfg", None),
        width=width,
        height=height,
    )
    for sentence in sentences:
        warn(sentence)


def record(extra_pnginfo, pack):
    """Note a solver in the metadata that images of this prompt are saved with."""
    if isinstance(extra_pnginfo, dict) and pack is not None:
        noted = extra_pnginfo.setdefault("s4s", [])
        if facts(pack) not in noted:
            noted.append(facts(pack))


def record_prompt(request):
    """A prompt as it is posted, with the facts of the files that it loads in its metadata.

    Nodes whose result is cached do not run again, so they alone could not note it.
    """
    prompt = request.get("prompt")
    loaders = [
        node["inputs"].get("solver")
        for node in (prompt.values() if isinstance(prompt, dict) else ())
        if isinstance(node, dict) and node.get("class_type") == LOADER and "inputs" in node
    ]
    for name in loaders:
        try:
            pack = load_unchanged(library.find(name))
        except S4SError:
            continue  # the node itself will say what is wrong
        extra = request.setdefault("extra_data", {}).setdefault("extra_pnginfo", {})
        record(extra, pack)
    return request
