"""`train`: learn a solver for a model, save it, and show how it compares."""

import json
import time
from pathlib import Path


def add_arguments(parser):
    from ..arguments import add_train_arguments

    add_train_arguments(parser)
    parser.add_argument(
        "--out",
        default="solver.safetensors",
        help="where to save the solver (default: %(default)s)",
    )
    parser.add_argument("--state", help="file to save the run in; the same command resumes it")
    parser.add_argument(
        "--no-picture",
        action="store_true",
        help="no comparison at the end and no picture: only what training has measured itself",
    )
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")


def run(args):
    from s4s_core import save_solver
    from s4s_core.solver_file import check_path
    from s4s_core.training.distributed import join, rank_and_world

    from ..arguments import config_of
    from ..models import open_model
    from ..progress import ProgressLine
    from ..training import described, teacher_of, train

    out, config = check_path(args.out), config_of(args)
    join()
    model = open_model(config.model)
    line, began = ProgressLine(), time.monotonic()
    teacher = teacher_of(config, model)
    result = train(config, model, _listener(config, line), args.state, teacher=teacher)
    if rank_and_world()[0]:
        return 0
    pack = described(result.pack, model, config)
    save_solver(out, pack)
    errors, picture = _compared(args, teacher, model, result, line)
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


def _compared(args, teacher, model, result, line):
    """(errors, path of the picture or None) of what was trained, against its own teacher."""
    from ..comparison import Comparison, scores_as_errors

    if args.no_picture:
        return scores_as_errors(result.scores), None
    comparison = Comparison(model, line, teacher=teacher)
    errors, shown = comparison.against_classical(result.pack, result.pack.nfes)
    return errors, comparison.save_picture(shown, Path(args.out).with_suffix(".png"))


def _listener(config, line):
    """Shows fit's events on the progress line."""
    from ..progress import clock
    from ..training import Course

    course = Course(config)

    def listen(event):
        now = course.line(event)
        left = "" if now["eta"] is None else f"  {clock(now['eta'])} left at most"
        line.show(now["progress"], now["message"] + left)

    return listen


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
