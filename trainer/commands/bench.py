"""`bench NAME`: run a benchmark from tools/bench, which only a source checkout has."""

import argparse
import importlib
import sys
from typing import Any

from s4s_core.app.folders import CHECKOUT
from s4s_core.errors import S4SError

MISSING = (
    "Benchmarks are part of the source checkout, not of the installed package. "
    "Clone the repository and run `python s4s.py bench` there."
)


def _benchmarks() -> Any | None:
    """Import tools/bench/command.py, or return None where there is no checkout."""
    if not (CHECKOUT / "tools" / "bench").is_dir():
        return None
    if str(CHECKOUT) not in sys.path:
        sys.path.insert(0, str(CHECKOUT))
    return importlib.import_module("tools.bench.command")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    benchmarks = _benchmarks()
    if benchmarks is None:
        parser.description = MISSING
        parser.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    else:
        benchmarks.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    benchmarks = _benchmarks()
    if benchmarks is None:
        raise S4SError(MISSING)
    return benchmarks.run(args)
