"""`compare`: teacher, classical solvers and a learned solver on the same noise."""

import json
from argparse import ArgumentParser, Namespace


def add_arguments(parser: ArgumentParser) -> None:
    from ..arguments import add_solver_arguments

    add_solver_arguments(parser, count=32, out="compare.png")
    parser.add_argument("--nfe", default="", help="model calls (default: all in the file)")
    parser.add_argument("--json", action="store_true", help="print the errors as JSON")


def run(args: Namespace) -> int:
    from s4s_core import load_solver

    from ..arguments import check_draw, check_folder, model_from_args, parse_counts
    from ..comparison import Comparison, check_fit, errors_text, recorded_teacher
    from ..models import bundled_solver, open_model
    from ..progress import ProgressLine, warn

    check_draw(args.count, args.seed)
    check_folder("--out", args.out)
    choice = model_from_args(args)
    pack = load_solver(args.solver or bundled_solver(choice.kind))
    nfes = parse_counts("--nfe", args.nfe) if args.nfe else pack.nfes
    for nfe in nfes:
        pack[nfe]  # raises TableError for a missing one before the work starts
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
        print(errors_text(errors) + (f"\nPicture: {picture}" if picture else ""))
    return 0
