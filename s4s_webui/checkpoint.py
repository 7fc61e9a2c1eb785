"""The checkpoint that the host has loaded, and its memory."""

import sys
from typing import Any

from modules import sd_models
from modules.call_queue import queue_lock

_MANAGERS = ("backend.memory_management", "ldm_patched.modules.model_management")
"""Modules that move weights by themselves: of Forge and Neo, then of reForge and Classic."""

_moved = False


def checkpoint() -> dict[str, Any]:
    """Return model_name and model_hash of the loaded checkpoint for `mismatches`, or {}."""
    info = getattr(sd_models.model_data.sd_model, "sd_checkpoint_info", None)
    if info is None:
        return {}
    return {"model_name": info.name_for_extra, "model_hash": info.sha256}


def free() -> None:
    """Empty the GPU for training, once no job runs.

    Forge and its relatives load their model again by themselves, A1111 through `take_back`.
    """
    global _moved
    with queue_lock:
        manager = next((sys.modules[name] for name in _MANAGERS if name in sys.modules), None)
        if manager is not None:
            manager.unload_all_models()
            manager.soft_empty_cache()
        elif sd_models.model_data.sd_model is not None:
            sd_models.send_model_to_cpu(sd_models.model_data.sd_model)
            _moved = True


def take_back() -> None:
    """Return the model to the GPU if `free` moved it."""
    global _moved
    if _moved:
        sd_models.send_model_to_device(sd_models.model_data.sd_model)
        _moved = False
