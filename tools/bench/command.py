"""Command line of the benchmarks: `bench NAME [options]`."""

import argparse
import importlib

from .report import publish

BENCHMARKS = {
    "training": "error against training cost, for every training method",
    "paper": "the paper's tables on the bundled model: solvers, schedules, ablations, rivals",
    "strength": "image-to-image on the bundled model: trained parts, the fallback, stock choices",
    "engine": "time spent in the sampling loop itself, against a bare Euler loop and diffusers",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add one subcommand per benchmark, without importing any of them."""
    names = parser.add_subparsers(title="benchmarks", metavar="NAME", required=True)
    for name, summary in BENCHMARKS.items():
        bench = names.add_parser(name, help=summary, description=summary)
        if name == "training":
            _add_training_options(bench)
        elif name == "paper":
            _add_paper_options(bench)
        elif name == "strength":
            _add_strength_options(bench)
        bench.add_argument("--json", action="store_true", help="print the report as JSON")
        bench.add_argument(
            "--out", metavar="FOLDER", help="also write the report as Markdown and JSON"
        )
        bench.set_defaults(bench=name)


def run(args: argparse.Namespace) -> int:
    """Run the chosen benchmark, publish its report and return the exit code."""
    benchmark = importlib.import_module(f".{args.bench}", __package__)
    publish(benchmark.measure(args), args)
    return 0


def _add_training_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--model", default="mixture", help="model to train on (default: mixture)")
    add("--nfe", default="4,5,6,8", help="model calls per sample (default: 4,5,6,8)")
    add("--budget", type=int, default=150_000, help="NFE-equivalents per run (default: 150000)")
    add("--seed", type=int, default=0, help="training seed (default: 0)")
    add("--fresh", type=int, default=512, help="fresh pairs to score on (default: 512)")
    add(
        "--efforts",
        action="store_true",
        help="measure quick and normal effort on the bundled model instead",
    )


def _add_strength_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--seeds", type=int, default=2, help="training seeds, from 0 on (default: 2)")
    add(
        "--work",
        metavar="FOLDER",
        default="strength-work",
        help="folder for trained solvers; an interrupted run goes on (default: %(default)s)",
    )


def _add_paper_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--quick", action="store_true", help="check a few orderings in about a minute")
    add("--budget", type=int, default=8_000, help="NFE-equivalents per cell (default: 8000)")
    add("--seed", type=int, default=0, help="first of three training seeds (default: 0)")
    add("--work", metavar="FOLDER", help="folder for finished cells")
    add("--images", metavar="FILE", help="training pictures (.safetensors) to compare with")
    add("--lpips", metavar="FOLDER", help="weights of LPIPS (alexnet.safetensors) to score with")
    add(
        "--model",
        default="demo",
        metavar="FILE.py:NAME",
        help="measure another model, which NAME() returns (default: the bundled model)",
    )
    add("--sections", metavar="A,B", help="measure only these sections; all results are reported")
    add("--pictures", metavar="FOLDER", help="draw sheets of pictures of finished headlines")
    add("--workers", type=int, default=1, help="worker processes (default: 1)")
    add("--minutes", type=float, help="stop after this long; 0 only reports finished cells")
    add(
        "--frechet",
        type=int,
        default=2048,
        metavar="N",
        help="pictures per Fréchet distance, 0 to skip them (default: 2048)",
    )
