"""S4S as a ComfyUI node pack.

ComfyUI loads this folder by path, as a package. Everything else (a WebUI, `python -m trainer`) only
puts the folder on sys.path or imports this file as a plain module, and then nothing happens here.
"""

if __package__:
    from .nodes import NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS

    WEB_DIRECTORY = "./web"

    __all__ = ["NODE_CLASS_MAPPINGS", "NODE_DISPLAY_NAME_MAPPINGS", "WEB_DIRECTORY"]
