"""The ComfyUI nodes: thin wrappers over `..s4s_core`, and what ComfyUI reads from this pack.

Imports here are relative (ComfyUI has its own module called `nodes`) and never reach trainer, which
runs in separate processes. Without ComfyUI there are no nodes, and importing this does nothing.
"""

from importlib.util import find_spec

NODE_CLASS_MAPPINGS: dict[str, type] = {}
NODE_DISPLAY_NAME_MAPPINGS: dict[str, str] = {}
if find_spec("comfy") is not None:
    from .catalogue import NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS

__all__ = ["NODE_CLASS_MAPPINGS", "NODE_DISPLAY_NAME_MAPPINGS"]
