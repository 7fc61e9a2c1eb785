"""Overhead of the `s4s` sampler in ComfyUI: seconds per image with a null model, against stock.

    python tools/bench_comfyui.py path/to/ComfyUI [--steps 8] [--size 64] [--repeats 30]

A null model costs next to nothing, so what is measured is the sampler itself and the host around
it. Seconds are of the processor, so that other programs disturb little. All samplers take turns in
one run; the figure is the median over the repeats, and the spread is the middle half of them.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
STOCK = (("euler", "karras"), ("ipndm", "karras"))


def timed(bench, model, latent, sampler, scheduler, steps):
    began = time.process_time()
    plain = bench.plain()
    names = {"sampler_name": sampler, "scheduler": scheduler}
    bench.ksample(model, plain, plain, latent, steps=steps, cfg=1.0, **names)
    return time.process_time() - began


def measure(bench, steps, size, repeats):
    """{sampler: seconds of each repeat}, all taking turns."""
    import torch

    model, _ = bench.null_model()
    pack = bench.classical(bench.core_model("EPS"), (steps,))
    (applied,) = bench.node["S4SApplySolver"].apply(model, pack)
    latent = {"samples": torch.zeros(1, 4, size, size)}
    runs = [(model, *names) for names in STOCK] + [(applied, "s4s", "s4s")]
    seconds = {sampler: [] for _, sampler, _ in runs}
    with torch.inference_mode():
        for repeat in range(repeats + 3):
            for chosen, sampler, scheduler in runs:
                spent = timed(bench, chosen, latent, sampler, scheduler, steps)
                if repeat >= 3:  # the first ones warm up
                    seconds[sampler].append(spent)
    return seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("comfyui", help="the folder of ComfyUI")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--size", type=int, default=64, help="side of the latent")
    parser.add_argument("--repeats", type=int, default=30)
    args = parser.parse_args()
    sys.path[:0] = [str(ROOT / "tests" / "helpers")]
    from comfyui_checks import Bench, start

    with tempfile.TemporaryDirectory() as base:
        bench = Bench(start(args.comfyui, str(ROOT), base), base)
        found = measure(bench, args.steps, args.size, args.repeats)
    medians = {name: statistics.median(times) for name, times in found.items()}
    for name, times in found.items():
        low, _, high = statistics.quantiles(times, n=4)
        print(f"{name:<8} {1e3 * medians[name]:7.2f} ms  ({1e3 * low:.2f} to {1e3 * high:.2f})")
    ratios = {f"s4s/{name}": round(medians["s4s"] / medians[name], 3) for name, _ in STOCK}
    print(json.dumps(ratios))


if __name__ == "__main__":
    main()
