"""`train`: train a solver for a model, save it, and show how it compares."""

import json
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from s4s_core.training.fit import Result
    from s4s_core.training.task import Event

    from ..comparison import Errors
    from ..config import TrainConfig
    from ..models.contract import TrainerModel
    from ..progress import ProgressLine


def add_arguments(parser: ArgumentParser) -> None:
    from ..arguments import add_train_arguments

    add_train_arguments(parser)
    parser.add_argument(
        "--out",
        default="solver.safetensors",
        help="where to save the solver (default: %(default)s)",
    )
    parser.add_argument("--state", help="save the run in this file; the same command resumes it")
    parser.add_argument(
        "--no-picture",
        action="store_true",
        help="skip the comparison and its picture; report training's own scores",
    )
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")


def run(args: Namespace) -> int:
    from s4s_core import save_solver
    from s4s_core.solver_file import check_path
    from s4s_core.training.distributed import join, rank_and_world

    from ..arguments import config_from_args
    from ..models import open_model
    from ..progress import ProgressLine
    from ..training import train, with_training_facts

    out, config = check_path(args.out), config_from_args(args)
    join()
    model = open_model(config.model)
    line, began = ProgressLine(), time.monotonic()
    result = train(config, model, _callback(config, line), args.state)
    if rank_and_world()[0]:
        return 0
    save_solver(out, with_training_facts(result.pack, model, config))
    errors, picture = _compare(args, model, result, line)
    line.close()
    summary = {
        "errors": errors,
        "calls": result.calls,
        "seconds": round(time.monotonic() - began, 1),
        "log": result.log,
        "file": str(out),
        "picture": picture,
    }
    print(json.dumps(summary, indent=1) if args.json else summary_text(summary))
    return 0


def _compare(
    args: Namespace, model: "TrainerModel", result: "Result", line: "ProgressLine"
) -> "tuple[Errors, str | None]":
    """Return the errors against the run's teacher, and the path of the picture if there is one."""
    from s4s_core import SolverTable

    from ..comparison import Comparison, scores_as_errors

    if args.no_picture:
        return scores_as_errors(result.scores), None
    assert isinstance(result.teacher, SolverTable)  # a config names no other kind
    comparison = Comparison(model, line, teacher=result.teacher)
    errors, shown = comparison.against_classical(result.pack, result.pack.nfes)
    return errors, comparison.save_picture(shown, Path(args.out).with_suffix(".png"))


def _callback(config: "TrainConfig", line: "ProgressLine") -> "Callable[[Event], None]":
    """Return a callback that shows fit's events on the progress line."""
    from s4s_core.app.plan import RunProgress
    from s4s_core.app.progress import duration

    from ..training import call_plan

    progress = RunProgress(call_plan(config))

    def show(event: "Event") -> None:
        now = progress.line(event)
        left = "" if now["eta"] is None else f"  at most {duration(now['eta'])} left"
        line.show(now["progress"], now["message"] + left)

    return show


def summary_text(summary: dict[str, Any]) -> str:
    """Format the summary for people."""
    from s4s_core.app.progress import duration

    from ..comparison import errors_text

    lines = [errors_text(summary["errors"]), *summary["log"]]
    lines.append(f"{summary['calls']} model calls in {duration(summary['seconds'])}.")
    lines.append(f"Solver:  {summary['file']}")
    if summary["picture"]:
        lines.append(f"Picture: {summary['picture']}")
    return "\n".join(lines)
