"""Measure the overhead of the `s4s` sampler in ComfyUI, against stock samplers.

    python tools/bench_comfyui.py path/to/ComfyUI [--steps 8] [--size 64] [--repeats 30]

The model costs next to nothing, so this times the sampler and the host around it. It uses CPU time,
which other programs hardly affect. All samplers take turns in one process; the result is the median
over the repeats, with the middle half of them as the spread.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
STOCK = (("euler", "karras"), ("ipndm", "karras"))


def cpu_seconds(
    bench: Any, model: Any, latent: dict[str, Any], sampler: str, scheduler: str, steps: int
) -> float:
    """Sample one image and return the CPU time."""
    start = time.process_time()
    plain = bench.plain()
    names = {"sampler_name": sampler, "scheduler": scheduler}
    bench.ksample(model, plain, plain, latent, steps=steps, cfg=1.0, **names)
    return time.process_time() - start


def measure(bench: Any, steps: int, size: int, repeats: int) -> dict[str, list[float]]:
    """{sampler: seconds of each repeat}; samplers take turns."""
    import torch

    model, _ = bench.null_model()
    pack = bench.classical(bench.core_model("EPS"), (steps,))
    (applied,) = bench.node["S4SApplySolver"].apply(model, pack)
    latent = {"samples": torch.zeros(1, 4, size, size)}
    runs = [(model, *names) for names in STOCK] + [(applied, "s4s", "s4s")]
    seconds: dict[str, list[float]] = {sampler: [] for _, sampler, _ in runs}
    with torch.inference_mode():
        for repeat in range(repeats + 3):
            for chosen, sampler, scheduler in runs:
                spent = cpu_seconds(bench, chosen, latent, sampler, scheduler, steps)
                if repeat >= 3:  # the first three warm up
                    seconds[sampler].append(spent)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("comfyui", help="folder of ComfyUI")
    parser.add_argument("--steps", type=int, default=8, help="steps per image (default: 8)")
    parser.add_argument("--size", type=int, default=64, help="side of the latent (default: 64)")
    parser.add_argument("--repeats", type=int, default=30, help="timed images per sampler")
    args = parser.parse_args()
    sys.path[:0] = [str(ROOT / "tests" / "helpers")]
    from comfyui_checks import Bench, start

    with tempfile.TemporaryDirectory() as base:
        bench = Bench(start(args.comfyui, str(ROOT), base), base)
        seconds = measure(bench, args.steps, args.size, args.repeats)
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    for name, times in seconds.items():
        low, _, high = statistics.quantiles(times, n=4)
        print(f"{name:<8} {1e3 * medians[name]:7.2f} ms  ({1e3 * low:.2f} to {1e3 * high:.2f})")
    ratios = {f"s4s/{name}": round(medians["s4s"] / medians[name], 3) for name, _ in STOCK}
    print(json.dumps(ratios))


if __name__ == "__main__":
    main()
