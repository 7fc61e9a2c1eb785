"""`compare`: teacher, classical solvers and a learned solver on the same noise."""

import json


def add_arguments(parser):
    from ..arguments import add_model_arguments

    add_model_arguments(parser)
    parser.add_argument("--solver", help="a solver file (default: the one bundled with the demo)")
    parser.add_argument("--nfe", default="", help="model calls (default: all in the file)")
    parser.add_argument("--count", type=int, default=32, help="pairs to score on (default: 32)")
    parser.add_argument("--seed", type=int, default=0, help="default: 0")
    parser.add_argument("--out", default="compare.png", help="default: compare.png")
    parser.add_argument("--json", action="store_true", help="print the errors as JSON")


def run(args):
    from s4s_core import load_solver

    from ..arguments import check_draw, check_folder, model_of, whole_numbers
    from ..comparison import Comparison, check_fit, errors_text, own_teacher
    from ..models import bundled_solver, open_model
    from ..progress import ProgressLine, warn

    check_draw(args.count, args.seed)
    check_folder("--out", args.out)
    choice = model_of(args)
    pack = load_solver(args.solver or bundled_solver(choice.kind))
    nfes = whole_numbers("--nfe", args.nfe) if args.nfe else pack.nfes
    for nfe in nfes:
        pack[nfe]  # one that it lacks is refused before the work
    model = open_model(choice)
    warn(check_fit(pack, model))
    line = ProgressLine()
    comparison = Comparison(model, line, args.count, args.seed, own_teacher(pack, model))
    errors, shown = comparison.against_classical(pack, nfes)
    picture = comparison.save_picture(shown, args.out)
    line.close()
    if args.json:
        print(json.dumps({"errors": errors, "picture": picture}))
    else:
        print(errors_text(errors) + (f"\nPicture: {picture}" if picture else ""))
    return 0
