"""`render`: teacher, classical solver and learned solver from the same noise, as pictures."""

from argparse import ArgumentParser, Namespace
from pathlib import Path


def add_arguments(parser: ArgumentParser) -> None:
    from ..arguments import add_model_arguments

    add_model_arguments(parser)
    parser.add_argument("--solver", help="a solver file (default: the demo's)")
    parser.add_argument("--nfe", type=int, default=5, help="model calls (default: 5)")
    parser.add_argument("--classical", default="auto", help="solver:order:schedule (default: auto)")
    parser.add_argument("--seed", type=int, default=0, help="default: 0")
    parser.add_argument("--count", type=int, default=4, help="pictures (default: 4)")
    parser.add_argument("--out", required=True, help="the folder to render into")


def run(args: Namespace) -> int:
    from s4s_core.errors import S4SError

    from ..arguments import check_no_input, model_from_args, pack_from_args
    from ..progress import warn
    from ..rendering import PICTURES, render

    if not (1 <= args.count <= 16 and 0 <= args.seed < 1 << 63):
        raise S4SError("--count must be between 1 and 16, and --seed >= 0.")
    choice = model_from_args(args)
    pack, out = pack_from_args(args, choice.kind), Path(args.out)
    for name in PICTURES:
        check_no_input("--out", out / f"{name}.png", args.solver)
    warn(render(choice, pack, out, args.nfe, args.seed, args.count, args.classical))
    print("\n".join(str(out / f"{name}.png") for name in PICTURES))
    return 0
