"""`sample`: render pictures with a learned or a classical solver."""

import json
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from s4s_core import SolverTable

    from ..models.contract import TrainerModel

PER_ROW = 10


def add_arguments(parser: ArgumentParser) -> None:
    from ..arguments import add_solver_arguments

    add_solver_arguments(parser, count=20, out="samples.png")
    parser.add_argument("--classical", help="solver:order:schedule instead of a solver file")
    parser.add_argument("--nfe", type=int, default=5, help="model calls (default: 5)")
    parser.add_argument("--json", action="store_true", help="print a summary as JSON")


def run(args: Namespace) -> int:
    from s4s_core.app.pictures import Row, save_png, sheet
    from s4s_core.errors import S4SError

    from ..arguments import PICTURE, check_draw, check_output, model_from_args
    from ..comparison import picture_rows
    from ..models import open_model
    from ..progress import ProgressLine
    from ..results import fresh_noise, makes_pictures, sample_results

    if args.nfe < 1:
        raise S4SError("--nfe must be >= 1.")
    check_draw(args.count, args.seed)
    check_output("--out", args.out, PICTURE, args.solver)
    choice = model_from_args(args)
    model = open_model(choice)
    if not makes_pictures(model):
        raise S4SError(f"The model '{model.name}' makes no pictures. Choose another one.")
    label, table = choose_table(model, choice.kind, args)
    line = ProgressLine()
    x, cond = fresh_noise(model, args.count, args.seed)
    results = sample_results(model, table, x, cond, lambda share: line.show(share, label))
    line.close()
    (row,) = picture_rows(model, [(label, results)])
    parts = row.pictures.split(PER_ROW)
    save_png(Path(args.out), sheet([Row("" if k else label, p) for k, p in enumerate(parts)]))
    done = {"file": args.out, "solver": label, "nfe": table.nfe, "seed": args.seed}
    print(json.dumps(done) if args.json else f"{args.count} pictures with {label}: {args.out}")
    return 0


def choose_table(model: "TrainerModel", kind: str, args: Namespace) -> "tuple[str, SolverTable]":
    """Return the label and the table that the options ask for."""
    from s4s_core.candidates import named_solver

    from ..arguments import pack_from_args
    from ..comparison import check_fit
    from ..progress import warn

    if args.classical is not None:
        table = named_solver(model, args.classical, args.nfe, 0.0).table
        return f"{args.classical} {args.nfe}", table
    pack = pack_from_args(args, kind)
    warn(check_fit(pack, model))
    return f"S4S {args.nfe}", pack[args.nfe]
