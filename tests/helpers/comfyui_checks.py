"""What must hold in ComfyUI and in its double alike: python comfyui_checks.py HOST PACK BASE.

Every function called `check_...` in the modules comfyui_checks_*.py is a check. All run in one
process, which loads the pack by path as ComfyUI does, and print one JSON line each.
"""

import importlib
import json
import os
import sys
import traceback
from pathlib import Path

from comfyui_bench import Bench, Skipped, start


def checks():
    """{name: function} of all checks."""
    named = {}
    for path in sorted(Path(__file__).parent.glob("comfyui_checks_*.py")):
        module = importlib.import_module(path.stem)
        named |= {k: v for k, v in vars(module).items() if k.startswith("check_")}
    return named


def main(host, pack, base):
    import torch

    bench = Bench(start(host, pack, base), base)
    wanted = os.environ.get("ONLY", "")
    for name, check in checks().items():
        if wanted not in name:
            continue
        result = {"name": name, "fault": None}
        try:
            with torch.inference_mode():
                check(bench)
        except Skipped as reason:
            result["skip"] = str(reason)
        except Exception:
            result["fault"] = traceback.format_exc()
        print("RESULT " + json.dumps(result), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:4])
