"""`bench NAME`: rerun a benchmark of this repository; --out docs/benchmarks replaces its table."""

import importlib

BENCHMARKS = {
    "training": "error against model calls spent, for every training method",
    "paper": "the paper's tables on the bundled model: solvers, schedules, ablations, rivals",
    "engine": "time of the sampling loop itself, against a bare Euler loop and diffusers",
}


def _training_options(parser):
    parser.add_argument("--model", default="mixture", help="mixture (default), demo, ...")
    parser.add_argument("--nfe", default="4,5,6,8", help="model calls (default 4,5,6,8)")
    parser.add_argument("--budget", type=int, default=150_000, help="NFE-equivalents of a run")
    parser.add_argument("--seed", type=int, default=0, help="of every training (default: 0)")
    parser.add_argument("--fresh", type=int, default=512, help="fresh pairs to score on")


def _paper_options(parser):
    parser.add_argument("--quick", action="store_true", help="a few orderings, in a minute")
    parser.add_argument(
        "--budget", type=int, default=8_000, help="NFE-equivalents of a number (default: 8000)"
    )
    parser.add_argument("--seed", type=int, default=0, help="first of three seeds (default: 0)")
    parser.add_argument("--work", metavar="FOLDER", help="where finished cells are kept")
    parser.add_argument("--images", metavar="FILE", help="the training pictures (.safetensors)")
    parser.add_argument("--workers", type=int, default=1, help="processes (default: 1)")
    parser.add_argument("--minutes", type=float, help="stop in time; 0 only reports what is there")
    parser.add_argument(
        "--frechet",
        type=int,
        default=2048,
        metavar="N",
        help="pictures of a Fréchet distance, 0 for none (default: 2048)",
    )


OPTIONS = {"training": _training_options, "paper": _paper_options}


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
