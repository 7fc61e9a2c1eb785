"""`bench NAME`: rerun a benchmark of this repository; each writes its table to docs/benchmarks/."""

import importlib

BENCHMARKS = {
    "training": "error against model calls spent, for every training method",
    "engine": "time of the sampling loop itself, against a bare Euler loop and diffusers",
}


def _training_options(parser):
    parser.add_argument("--model", default="mixture", help="mixture (default), demo, ...")
    parser.add_argument("--nfe", default="4,5,6,8", help="model calls (default 4,5,6,8)")
    parser.add_argument("--budget", type=int, default=150_000, help="NFE-equivalents of a run")
    parser.add_argument("--fresh", type=int, default=512, help="fresh pairs to score on")


OPTIONS = {"training": _training_options}


def add_arguments(parser):
    names = parser.add_subparsers(title="benchmarks", metavar="NAME", required=True)
    for name, summary in BENCHMARKS.items():
        bench = names.add_parser(name, help=summary, description=summary)
        OPTIONS.get(name, lambda parser: None)(bench)
        bench.add_argument("--json", action="store_true", help="print the result as JSON")
        bench.add_argument("--out", metavar="FOLDER", help="write the result as Markdown and JSON")
        bench.set_defaults(bench=name)


def run(args):
    from ..bench.report import publish

    module = importlib.import_module(f"..bench.{args.bench}", __package__)
    publish(module.measure(args), args)
    return 0
