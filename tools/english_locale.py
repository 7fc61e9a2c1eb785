"""Makes locales/en/nodeDefs.json from the nodes, as a running ComfyUI describes them.

    python tools/english_locale.py URL

The file is what translators start from; ComfyUI itself shows what the nodes say where a language
lacks a text.
"""

import argparse
import json
import urllib.request
from itertools import chain
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ENGLISH = ROOT / "locales" / "en" / "nodeDefs.json"
PREFIX = "S4S"


def texts(info):
    """The texts of one node, from its entry in /object_info."""
    given = chain(*(info["input"].get(g, {}).items() for g in ("required", "optional")))
    labels = zip(info["output_name"], info["output_tooltips"], strict=True)
    return {
        "display_name": info["display_name"],
        "description": info["description"],
        "inputs": {name: {"name": name, "tooltip": entry[1]["tooltip"]} for name, entry in given},
        "outputs": {str(i): {"name": n, "tooltip": tip} for i, (n, tip) in enumerate(labels)},
    }


def english(object_info):
    """The texts of all of our nodes."""
    ours = sorted(name for name in object_info if name.startswith(PREFIX))
    return {name: texts(object_info[name]) for name in ours}


def as_text(value):
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("url", help="address of a running ComfyUI")
    url = parser.parse_args().url.rstrip("/")
    with urllib.request.urlopen(f"{url}/object_info") as answer:
        ENGLISH.write_text(as_text(english(json.load(answer))), encoding="utf-8")


if __name__ == "__main__":
    main()
