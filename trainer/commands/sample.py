"""`sample`: render pictures with a learned solver, or with a classical one."""

import json


def add_arguments(parser):
    from ..arguments import add_model_arguments

    add_model_arguments(parser)
    parser.add_argument("--solver", help="a solver file (default: the one bundled with the demo)")
    parser.add_argument("--classical", help="solver:order:schedule instead of a file")
    parser.add_argument("--nfe", type=int, default=5, help="model calls (default: 5)")
    parser.add_argument("--count", type=int, default=20, help="pictures (default: 20)")
    parser.add_argument("--seed", type=int, default=0, help="default: 0")
    parser.add_argument("--out", default="samples.png", help="default: samples.png")
    parser.add_argument("--json", action="store_true", help="print what was done as JSON")


def run(args):
    from s4s_core.errors import S4SError

    from ..arguments import check_draw, check_folder, model_of
    from ..comparison import fresh_noise
    from ..models import open_model
    from ..pictures import can_show, grid, pictures, results, save_png, tiles
    from ..progress import ProgressLine

    if args.nfe < 1:
        raise S4SError("--nfe takes whole numbers from 1 on.")
    check_draw(args.count, args.seed)
    check_folder("--out", args.out)
    choice = model_of(args)
    model = open_model(choice)
    if not can_show(model):
        raise S4SError(f"The model '{model.name}' makes no pictures: choose another one.")
    label, table = choose_table(model, choice.kind, args)
    line = ProgressLine()
    x, cond = fresh_noise(model, args.count, args.seed)
    result = results(model, table, x, cond, lambda share: line.show(share, label))
    line.close()
    shown = tiles(pictures(model, result))
    rows = {(label if k == 0 else " " * k): part for k, part in enumerate(shown.split(10))}
    save_png(args.out, grid(rows))
    done = {"file": args.out, "solver": label, "nfe": table.nfe, "seed": args.seed}
    print(json.dumps(done) if args.json else f"{args.count} pictures with {label}: {args.out}")
    return 0


def choose_table(model, kind, args):
    """(label, table) of what the arguments ask for."""
    from s4s_core import load_solver
    from s4s_core.candidates import named_solver

    from ..comparison import check_fit
    from ..models import bundled_solver
    from ..progress import warn

    if args.classical:
        return f"{args.classical} {args.nfe}", named_solver(
            model, args.classical, args.nfe, 0.0
        ).table
    pack = load_solver(args.solver or bundled_solver(kind))
    warn(check_fit(pack, model))
    return f"S4S {args.nfe}", pack[args.nfe]
