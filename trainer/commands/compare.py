"""`compare`: teacher, classical solvers and a learned solver on the same noise."""

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING

from s4s_core.errors import TableError

if TYPE_CHECKING:
    from s4s_core import SolverPack

MOST_TABLES = 12
"""Step counts that are compared unless more are named."""


def add_arguments(parser: ArgumentParser) -> None:
    from ..arguments import add_solver_arguments

    add_solver_arguments(parser, count=32, out="compare.png")
    parser.add_argument(
        "--nfe", default="", help=f"model calls (default: all in the file, at most {MOST_TABLES})"
    )
    parser.add_argument("--json", action="store_true", help="print the errors as JSON")


def run(args: Namespace) -> int:
    from s4s_core.app.description import describe

    from ..arguments import (
        PICTURE,
        check_draw,
        check_output,
        model_from_args,
        pack_from_args,
        parse_counts,
    )
    from ..comparison import Comparison, check_fit, errors_text, recorded_teacher
    from ..models import open_model
    from ..progress import ProgressLine, warn

    check_draw(args.count, args.seed)
    check_output("--out", args.out, PICTURE, args.solver)
    choice = model_from_args(args)
    pack = pack_from_args(args, choice.kind)
    nfes = chosen(pack, parse_counts("--nfe", args.nfe) if args.nfe else ())
    model = open_model(choice)
    warn(check_fit(pack, model))
    teacher = recorded_teacher(pack, model, lambda warning: warn([warning]))
    line = ProgressLine()
    comparison = Comparison(model, line, args.count, args.seed, teacher)
    errors, shown = comparison.against_classical(pack, nfes)
    picture = comparison.save_picture(shown, args.out)
    line.close()
    if args.json:
        print(json.dumps({"errors": errors, "picture": picture}))
    else:
        text = errors_text(errors, describe(pack).titles)
        print(text + (f"\nPicture: {picture}" if picture else ""))
    return 0


def chosen(pack: "SolverPack", named: Sequence[int]) -> Sequence[int]:
    """Return the step counts to compare: those named, or the file's.

    Anyone may have written the file. A classical solver of a thousand calls takes long to make, and
    every step count is compared with all of them.
    """
    from ..config import MOST_NFE
    from ..progress import warn

    for nfe in named:
        pack[nfe]  # raises TableError if the file has none
    if named:
        return named
    nfes = [nfe for nfe in pack.nfes if nfe <= MOST_NFE][:MOST_TABLES]
    if not nfes:
        raise TableError(f"Every step count of the file is above {MOST_NFE}. Name one with --nfe.")
    if len(nfes) < len(pack.nfes):
        left = len(pack.nfes) - len(nfes)
        warn([f"{left} step counts of the file are not compared. Name them with --nfe."])
    return nfes
