"""`train`: learn a solver for a model, save it, and show how it compares."""

import json
import time


def add_arguments(parser):
    from s4s_core.names import EFFORTS, METHODS

    from ..models import MODELS

    efforts = ", ".join(f"{name} {calls:,}" for name, calls in EFFORTS.items())
    parser.add_argument("--model", default="demo", help=f"{', '.join(MODELS)} (default: demo)")
    parser.add_argument("--nfe", default="5", help="model calls, such as 5 or 4,5,6,8 (default: 5)")
    parser.add_argument(
        "--out",
        default="solver.safetensors",
        help="where to save the solver (default: %(default)s)",
    )
    parser.add_argument("--cfg", type=float, default=2.0, help="guidance scale (default: 2)")
    parser.add_argument(
        "--effort",
        choices=EFFORTS,
        default="normal",
        help=f"model calls per NFE of gauss-newton: {efforts} (default: normal)",
    )
    parser.add_argument("--budget", type=int, help="model calls per NFE, instead of an effort")
    parser.add_argument(
        "--method", choices=METHODS, default=METHODS[0], help="default: %(default)s"
    )
    parser.add_argument(
        "--init",
        default="auto",
        help="where to start: auto (default), or solver:order:schedule such as ipndm:3:edm",
    )
    parser.add_argument("--seed", type=int, default=0, help="default: 0")
    parser.add_argument("--state", help="file to save the run in; the same command resumes it")
    parser.add_argument("--no-picture", action="store_true", help="save no comparison picture")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")


def run(args):
    from s4s_core import fit, save_solver
    from s4s_core.names import EFFORTS
    from s4s_core.solver_file import check_path
    from s4s_core.training.parallel import join, rank_and_world

    from ..arguments import whole_numbers
    from ..comparison import Comparison
    from ..models import load_model
    from ..progress import ProgressLine, clock

    out, nfes = check_path(args.out), whole_numbers("--nfe", args.nfe)
    join()
    model = load_model(args.model, args.cfg)
    line, began = ProgressLine(), time.monotonic()

    def listen(event):
        if event.phase == "teacher":
            line.show(0.0, f"the teacher renders what to learn from: {event.step}/{event.total}")
            return
        done = (nfes.index(event.nfe) + event.done) / len(nfes)
        left = "" if event.eta is None else f"  {clock(event.eta)} left at most"
        line.show(done, f"NFE {event.nfe}  step {event.step}  error {event.validation:.4f}{left}")

    budget = args.budget or (EFFORTS[args.effort] if args.method == "gauss-newton" else None)
    result = fit(
        model, nfes, args.method, args.seed, budget, listen, init=args.init, state=args.state
    )
    if rank_and_world()[0]:
        return 0
    pack = described(result.pack, model, args, out)
    save_solver(out, pack)
    comparison = Comparison(model)
    errors, shown = comparison.against_classical(pack, pack.nfes, line)
    picture = None if args.no_picture else comparison.save_picture(shown, out.with_suffix(".png"))
    line.close()
    summary = {
        "errors": errors,
        "calls": result.calls,
        "seconds": round(time.monotonic() - began, 1),
        "log": result.log,
        "file": str(out),
        "picture": picture,
    }
    print(json.dumps(summary, indent=1) if args.json else text(summary))
    return 0


def described(pack, model, args, out):
    """The pack with what it was trained for in its header."""
    from s4s_core.table import SolverPack

    about = {
        "name": f"{args.model} solver",
        "model": {"name": args.model, "hash": getattr(model, "fingerprint", "")},
        "cfg": [args.cfg, args.cfg],
    }
    if len(model.shape) == 3:
        about["resolution"] = [model.shape[2], model.shape[1]]
    return SolverPack(pack.tables, {**about, **pack.metadata})


def text(summary):
    """The summary for people."""
    from ..comparison import errors_text
    from ..progress import clock

    lines = [errors_text(summary["errors"]), *summary["log"]]
    lines.append(f"{summary['calls']} model calls, {clock(summary['seconds'])} in all.")
    lines.append(f"Solver:  {summary['file']}")
    if summary["picture"]:
        lines.append(f"Picture: {summary['picture']}")
    return "\n".join(lines)
