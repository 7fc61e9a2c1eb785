"""`bench NAME`: rerun a benchmark of this repository; each writes its table to docs/benchmarks/."""

import importlib

BENCHMARKS = {
    "engine": "time of the sampling loop itself, against a bare Euler loop and diffusers",
}


def add_arguments(parser):
    names = parser.add_subparsers(title="benchmarks", metavar="NAME", required=True)
    for name, summary in BENCHMARKS.items():
        bench = names.add_parser(name, help=summary, description=summary)
        bench.add_argument("--json", action="store_true", help="print the result as JSON")
        bench.add_argument("--out", metavar="FOLDER", help="write the result as Markdown and JSON")
        bench.set_defaults(bench=name)


def run(args):
    from ..bench.report import publish

    module = importlib.import_module(f"..bench.{args.bench}", __package__)
    publish(module.measure(args), args)
    return 0
