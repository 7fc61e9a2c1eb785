"""`train`: train a solver for a model, save it, and show how it compares."""

import json
import os
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from s4s_core.training.fit import Result
    from s4s_core.training.plan import CallPlan
    from s4s_core.training.task import Event

    from ..config import TrainConfig
    from ..models.contract import TrainerModel
    from ..progress import ProgressLine
    from ..saved_run import SavedRun

GO_ON = "Run the same command again to go on, or add --fresh to begin anew."
PICTURES = 10
"""How many pictures of each solver the sheet at the end shows."""


def add_arguments(parser: ArgumentParser) -> None:
    from ..arguments import add_train_arguments

    add_train_arguments(parser)
    parser.add_argument(
        "--out",
        default="solver.safetensors",
        help="where to save the solver (default: %(default)s)",
    )
    parser.add_argument(
        "--fresh", action="store_true", help="begin anew instead of going on with a stopped run"
    )
    parser.add_argument(
        "--state", help="keep the run in this file (default: in OUT.run, until OUT is saved)"
    )
    parser.add_argument("--no-picture", action="store_true", help="skip the picture at the end")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")


def run(args: Namespace) -> int:
    from s4s_core.solver_file import check_path
    from s4s_core.training.distributed import joined

    from ..arguments import check_no_input, config_from_args

    out, config = check_path(args.out), config_from_args(args)
    check_no_input("--out", out, args.config)
    check_replaceable(out)
    with joined():
        return _train_and_save(args, config, out)


def check_replaceable(out: Path) -> None:
    """Raise S4SError if `out` is anything but a solver file: a checkpoint, for example."""
    from s4s_core import load_solver
    from s4s_core.errors import S4SError, SolverFileError

    if not os.path.lexists(out):
        return
    try:
        if os.path.isfile(out) and (os.path.getsize(out) == 0 or load_solver(out)):
            return
    except (OSError, SolverFileError):
        pass
    raise S4SError(f"{out} exists and is not a solver file. Choose another --out, or move it away.")


def _train_and_save(args: Namespace, config: "TrainConfig", out: Path) -> int:
    """Train, save the solver and print the summary; return the exit code."""
    from s4s_core import save_solver
    from s4s_core.app.description import describe
    from s4s_core.training.distributed import is_first

    from ..comparison import scores_as_errors
    from ..models import open_model
    from ..progress import ProgressLine
    from ..saved_run import SavedRun, identify
    from ..training import with_training_facts

    line, began = ProgressLine(), time.monotonic()
    saved = SavedRun(out, args.state)
    if args.fresh:
        saved.forget()
    model = open_model(config.model)
    identify(model, config.model)
    result = _train(config, model, saved, line)
    if result is None:
        return 130
    if is_first():
        save_solver(out, with_training_facts(result.pack, model, config))
    saved.remove()
    if not is_first():
        return 0
    try:
        picture = None if args.no_picture else _picture(out, model, result, line)
    except KeyboardInterrupt:
        line.say(f"Stopped. The solver is saved in {out}.")
        return 130
    line.close()
    summary = {
        "errors": scores_as_errors(result.scores),
        "calls": result.calls,
        "seconds": round(time.monotonic() - began, 1),
        "log": result.log,
        "file": str(out),
        "picture": picture,
    }
    titles = describe(result.pack).titles
    print(json.dumps(summary, indent=1) if args.json else summary_text(summary, titles))
    return 0


def _train(
    config: "TrainConfig", model: "TrainerModel", saved: "SavedRun", line: "ProgressLine"
) -> "Result | None":
    """Train, or go on with a saved run; None if the user stops it and can go on later."""
    from s4s_core.training.distributed import is_first

    from ..estimate import measure_model
    from ..training import call_plan, train

    plan = call_plan(config)
    with saved.kept():
        share = saved.share(plan)
        if share is None and is_first():
            line.say(measure_model(config, model).text)
        try:
            return train(config, model, _callback(plan, line, share), saved.path)
        except KeyboardInterrupt:
            share = saved.share(plan)
            if share is None:
                raise
            if is_first():
                line.say(f"Stopped at {_percent(share)}. {GO_ON}")
            return None


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _callback(
    plan: "CallPlan", line: "ProgressLine", share: float | None
) -> "Callable[[Event], None]":
    """Return a callback that shows fit's events; `share` is that of the run that goes on."""
    from s4s_core.app.plan import RunProgress
    from s4s_core.app.progress import duration

    progress, going_on = RunProgress(plan, share=share or 0.0), share is not None

    def show(event: "Event") -> None:
        nonlocal going_on
        now = progress.line(event)
        if going_on:
            line.say(f"Going on at {_percent(now.progress)}.")
            going_on = False
        left = "" if now.eta is None else f"  at most {duration(now.eta)} left"
        line.show(now.progress, now.message + left)

    return show


def _picture(
    out: Path, model: "TrainerModel", result: "Result", line: "ProgressLine"
) -> str | None:
    """Draw the teacher, the best classical solvers and ours on fresh noise; return the path."""
    from s4s_core import SolverTable

    from ..comparison import Comparison
    from ..results import if_memory_allows, makes_pictures

    if not if_memory_allows(lambda: makes_pictures(model)):
        return None
    assert isinstance(result.teacher, SolverTable)  # a config names no other kind
    comparison = Comparison(model, line, PICTURES, teacher=result.teacher)
    return comparison.save_picture(comparison.of_training(result), out.with_suffix(".png"))


def summary_text(summary: dict[str, Any], titles: Mapping[str, str]) -> str:
    """Format the summary for people; `titles` are those of the tables by name."""
    from s4s_core.app.progress import duration

    from ..comparison import errors_text

    lines = [errors_text(summary["errors"], titles), *summary["log"]]
    lines.append(f"{summary['calls']:,} model calls in {duration(summary['seconds'])}.")
    lines.append(f"Solver:  {summary['file']}")
    if summary["picture"]:
        lines.append(f"Picture: {summary['picture']}")
    return "\n".join(lines)
