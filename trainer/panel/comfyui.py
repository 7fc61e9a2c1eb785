"""The panel beside ComfyUI, which started it: ComfyUI frees the GPU before a model is opened."""

import json
import os
from contextlib import suppress

ADDRESS = "S4S_COMFYUI"
"""The variable of the environment with the address at which ComfyUI listens on this machine."""

_PATIENCE = 5.0


class Hooks:
    """What the panel asks of ComfyUI."""

    host = "ComfyUI"

    def __init__(self, address):
        self.address = address

    def before_training(self):
        """Have ComfyUI unload its models, at once or behind the prompt that runs.

        One that does not answer keeps its memory, and the training starts all the same.
        """
        from http.client import HTTPException
        from urllib.request import ProxyHandler, Request, build_opener

        body = json.dumps({"unload_models": True, "free_memory": True}).encode()
        headers = {"Content-Type": "application/json"}
        request = Request(f"{self.address}/free", body, headers)
        with suppress(OSError, HTTPException):
            build_opener(ProxyHandler({})).open(request, timeout=_PATIENCE).close()


def hooks():
    """The hooks of the ComfyUI that started this panel, or None."""
    address = os.environ.get(ADDRESS)
    return Hooks(address) if address else None
