"""The ComfyUI nodes: thin wrappers over `..s4s_core`, and what ComfyUI reads from this pack.

Imports here are relative (ComfyUI has a module called `nodes` of its own), and never reach trainer:
training runs in its own process.
"""

NODE_CLASS_MAPPINGS = {}
NODE_DISPLAY_NAME_MAPPINGS = {}
