"""The checkpoint that the host has loaded, and its memory."""

import sys

from modules import sd_models
from modules.call_queue import queue_lock

_MANAGERS = ("backend.memory_management", "ldm_patched.modules.model_management")
"""Where Forge and Neo, then reForge and Classic, move weights by themselves."""

_moved = False


def checkpoint():
    """{"model_name", "model_hash"} of the loaded checkpoint, for `mismatches`; {} if none is."""
    info = getattr(sd_models.model_data.sd_model, "sd_checkpoint_info", None)
    if info is None:
        return {}
    return {"model_name": info.name_for_extra, "model_hash": info.sha256}


def free():
    """Empty the GPU for training, once no job runs. The host takes its model back by itself (Forge
    and kin), or at the next job through `take_back` (A1111)."""
    global _moved
    with queue_lock:
        manager = next((sys.modules[name] for name in _MANAGERS if name in sys.modules), None)
        if manager is not None:
            manager.unload_all_models()
            manager.soft_empty_cache()
        elif sd_models.model_data.sd_model is not None:
            sd_models.send_model_to_cpu(sd_models.model_data.sd_model)
            _moved = True


def take_back():
    """Return the model to the GPU if `free` took it from there."""
    global _moved
    if _moved:
        sd_models.send_model_to_device(sd_models.model_data.sd_model)
        _moved = False
