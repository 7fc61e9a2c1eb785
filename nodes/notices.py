"""What users learn besides the image: warnings on the page, facts in the image's metadata."""

import logging
from typing import Any

import torch
from server import PromptServer

from ..s4s_core.app.comfyui import (
    Guider,
    guidance_scales,
    identity,
    levels_of,
    model_family,
    pixels_per_latent,
)
from ..s4s_core.errors import S4SError
from ..s4s_core.hosting import image_metadata, mismatches
from ..s4s_core.table import SolverPack
from . import files
from .inputs import SAMPLER_NAME

Graph = dict[str, Any]
"""A prompt as the page posts it: {id: {class_type, inputs}}, with links as [id, slot]."""
Entry = dict[str, Any]

METADATA = "s4s"
LOADER = "S4SLoadSolver"
SAMPLERS = ("S4SKSampler", "S4SSampler")

_shown: tuple[str | None, set[str]] = None, set()
"""The last prompt with warnings, and their texts."""


def server() -> Any:
    """Return ComfyUI's running server, or None."""
    return getattr(PromptServer, "instance", None)


def send(event: str, data: dict[str, Any]) -> None:
    """Send an event to every open page, if there is a server."""
    if server() is not None:
        server().send_sync(event, data)


def show_on_node(node: str | None, text: str) -> None:
    """Show a text on a node of the page while it runs."""
    if server() is not None and node is not None:
        server().send_progress_text(text, node)


def warn(text: str) -> None:
    """Show a warning on the page and in the log, once per prompt however often it samples."""
    global _shown
    prompt = _running_prompt()
    last_prompt, texts = _shown
    texts = set() if prompt is None or prompt != last_prompt else texts
    _shown = prompt, texts | {text}
    if text not in texts:
        logging.warning("S4S: %s", text)
        send("s4s.warning", {"node": getattr(server(), "last_node_id", None), "text": text})


def _running_prompt() -> str | None:
    """Return the id of the running prompt, or None."""
    queue = getattr(server(), "prompt_queue", None)
    running = list(queue.currently_running.values()) if queue is not None else []
    return running[0][1] if running else None


def warn_about_mismatches(pack: SolverPack, guider: Guider, x: torch.Tensor) -> None:
    """Warn if model, guidance or size differ from what a solver was trained for."""
    scales = guidance_scales(guider)
    base = guider.inner_model
    factor = pixels_per_latent(base) or 0
    warnings = mismatches(
        pack,
        model_name=model_family(base),
        model_hash=identity(base),
        cfg=None if "cfg1" in scales else getattr(guider, "cfg", None),
        width=x.shape[-1] * factor,
        height=x.shape[-2] * factor,
        sigma_max=levels_of(base.model_sampling)[1],
    )
    if pack.sets_guidance and not scales:
        warnings.append(
            "The solver sets the guidance of each step, but this guider has no CFG: it runs as it "
            "is. Use CFGGuider with the CFG that the solver was trained for."
        )
    for text in warnings:
        warn(text)


def record_solver(
    extra_pnginfo: dict[str, Any] | None, pack: SolverPack | None, nfe: int | None = None
) -> None:
    """Add a solver to the metadata that a prompt's images are saved with."""
    if not isinstance(extra_pnginfo, dict) or pack is None:
        return
    recorded, fact = extra_pnginfo.setdefault(METADATA, []), image_metadata(pack, nfe)
    if not any(old["hash"] == fact["hash"] and nfe in (None, old["nfe"]) for old in recorded):
        recorded.append(fact)


def record_prompt(request: dict[str, Any]) -> dict[str, Any]:
    """Add the solvers that a prompt samples with to its metadata; return the request.

    This happens when the prompt is posted, because nodes with a cached result do not run again.
    """
    prompt = request.get("prompt")
    if not isinstance(prompt, dict):
        return request
    for name, entry in prompt.items():
        if not isinstance(entry, dict) or not _samples(entry):
            continue
        for other in ancestors(prompt, name).values():
            if other.get("class_type") == LOADER:
                extra = request.setdefault("extra_data", {}).setdefault("extra_pnginfo", {})
                _record_file(extra, _literal(other, "solver"), _literal(entry, "steps"))
    return request


def _samples(entry: Entry) -> bool:
    """Does this node sample with a solver, or name the sampler that does?"""
    named = SAMPLER_NAME in (_literal(entry, "sampler_name"), _literal(entry, "scheduler"))
    return entry.get("class_type") in SAMPLERS or named


def _record_file(extra: dict[str, Any], name: Any, steps: Any) -> None:
    if not isinstance(name, str):
        return
    try:
        pack = files.load(name)
    except S4SError:
        return  # the node reports what is wrong when it runs
    record_solver(extra, pack, steps)


def ancestors(graph: Graph, node: str) -> dict[str, Entry]:
    """Return a node of a prompt and everything it depends on, by id."""
    collected: dict[str, Entry] = {}
    waiting = [str(node)]
    while waiting:
        name = waiting.pop()
        entry = graph.get(name)
        if name in collected or not isinstance(entry, dict):
            continue
        collected[name] = entry
        inputs = entry.get("inputs")
        values = inputs.values() if isinstance(inputs, dict) else ()
        waiting += [str(v[0]) for v in values if isinstance(v, list) and len(v) == 2]
    return collected


def _literal(entry: Entry, name: str) -> Any:
    """Return the value of an input that is not a link, or None."""
    inputs = entry.get("inputs")
    value = inputs.get(name) if isinstance(inputs, dict) else None
    return None if isinstance(value, list) else value
