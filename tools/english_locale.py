"""Makes locales/en/nodeDefs.json from the nodes' own texts.

    python tools/english_locale.py           # writes the file
    python tools/english_locale.py --print   # what the nodes are, as ComfyUI's /object_info has it

The nodes are loaded as ComfyUI loads them, into the tests' double of it. The file is what
translators start from; where a language lacks a text, ComfyUI shows what the nodes say.
"""

import argparse
import importlib.util
import json
import os
import sys
import tempfile
from itertools import chain
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOUBLE = ROOT / "tests" / "comfyui" / "double"
ENGLISH = ROOT / "locales" / "en" / "nodeDefs.json"


def loaded_pack(base):
    """This checkout as ComfyUI's package, with the double in ComfyUI's place."""
    os.environ |= {"DOUBLE_BASE": base, "S4S_HOME": base}
    (Path(base) / "models").mkdir()
    sys.path.insert(0, str(DOUBLE))
    spec = importlib.util.spec_from_file_location("pack", ROOT / "__init__.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["pack"] = module
    spec.loader.exec_module(module)
    return module


def object_info(pack):
    """{key: entry} of all nodes, as ComfyUI's /object_info has them."""
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


def texts(info):
    """The texts of one node, from its entry."""
    given = chain(*(info["input"].get(g, {}).items() for g in ("required", "optional")))
    labels = zip(info["output_name"], info["output_tooltips"], strict=True)
    return {
        "display_name": info["display_name"],
        "description": info["description"],
        "inputs": {name: {"name": name, "tooltip": entry[1]["tooltip"]} for name, entry in given},
        "outputs": {str(i): {"name": n, "tooltip": tip} for i, (n, tip) in enumerate(labels)},
    }


def english(entries):
    return {name: texts(info) for name, info in entries.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--print", action="store_true", help="print what the nodes are")
    only_print = parser.parse_args().print
    with tempfile.TemporaryDirectory() as base:
        entries = object_info(loaded_pack(base))
    if only_print:
        print(json.dumps(entries))
    else:
        text = json.dumps(english(entries), indent=2, ensure_ascii=False)
        ENGLISH.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
