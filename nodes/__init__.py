"""The ComfyUI nodes: thin wrappers over `..s4s_core`, and what ComfyUI reads from this pack.

Imports here are relative (ComfyUI has a module called `nodes` of its own), and never reach trainer:
the panel and its jobs run in processes of their own. Where there is no ComfyUI there are no nodes,
and importing this package does nothing.
"""

from importlib.util import find_spec

if find_spec("comfy") is None:
    NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS = {}, {}
else:
    from .catalogue import NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS

__all__ = ["NODE_CLASS_MAPPINGS", "NODE_DISPLAY_NAME_MAPPINGS"]
