"""Write locales/en/nodeDefs.json from the texts of the nodes.

    python tools/english_locale.py           # write the file
    python tools/english_locale.py --print   # print the nodes as ComfyUI's /object_info shows them

The nodes are loaded the way ComfyUI loads them, with the tests' double in its place. Translators
start from this file; where a translation is missing, ComfyUI shows the text of the node.
"""

import argparse
import importlib.util
import json
import os
import sys
import tempfile
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DOUBLE = ROOT / "tests" / "comfyui" / "double"
ENGLISH = ROOT / "locales" / "en" / "nodeDefs.json"


def load_pack(base: str) -> ModuleType:
    """Load this checkout as a custom node pack of the double; `base` is an empty folder."""
    os.environ |= {"DOUBLE_BASE": base, "S4S_HOME": base}
    (Path(base) / "models").mkdir()
    sys.path.insert(0, str(DOUBLE))
    spec = importlib.util.spec_from_file_location("pack", ROOT / "__init__.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["pack"] = module
    spec.loader.exec_module(module)
    return module


def object_info(pack: ModuleType) -> dict[str, dict[str, Any]]:
    """{key: entry} of all nodes, as in ComfyUI's /object_info."""
    return {
        key: {
            "input": node.INPUT_TYPES(),
            "output": list(node.RETURN_TYPES),
            "output_name": list(getattr(node, "RETURN_NAMES", node.RETURN_TYPES)),
            "output_tooltips": list(node.OUTPUT_TOOLTIPS),
            "display_name": pack.NODE_DISPLAY_NAME_MAPPINGS[key],
            "description": node.DESCRIPTION,
        }
        for key, node in sorted(pack.NODE_CLASS_MAPPINGS.items())
    }


def texts(info: dict[str, Any]) -> dict[str, Any]:
    """Return the texts of one node from its entry."""
    given = chain(*(info["input"].get(g, {}).items() for g in ("required", "optional")))
    labels = zip(info["output_name"], info["output_tooltips"], strict=True)
    return {
        "display_name": info["display_name"],
        "description": info["description"],
        "inputs": {name: {"name": name, "tooltip": entry[1]["tooltip"]} for name, entry in given},
        "outputs": {str(i): {"name": n, "tooltip": tip} for i, (n, tip) in enumerate(labels)},
    }


def english(entries: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the content of nodeDefs.json for the entries of all nodes."""
    return {name: texts(info) for name, info in entries.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--print", action="store_true", help="print the nodes instead")
    only_print = parser.parse_args().print
    with tempfile.TemporaryDirectory() as base:
        entries = object_info(load_pack(base))
    if only_print:
        print(json.dumps(entries))
    else:
        text = json.dumps(english(entries), indent=2, ensure_ascii=False)
        ENGLISH.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
