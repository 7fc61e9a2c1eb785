"""`jobs`: list, add, show, cancel, resume and delete training jobs."""

import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from typing import Any

from s4s_core.app.jobs import Job, JobView
from s4s_core.errors import S4SError, visible

from .inspect import score_lines

ACTIONS = ("list", "add", "show", "cancel", "resume", "delete")


def add_arguments(parser: ArgumentParser) -> None:
    from ..arguments import add_train_arguments

    parser.add_argument("action", choices=ACTIONS, nargs="?", default="list")
    parser.add_argument("id", nargs="*", help="jobs to show, cancel, resume or delete")
    parser.add_argument("--json", action="store_true", help="print the jobs as JSON")
    add_train_arguments(parser.add_argument_group("training options, for add"))


def run(args: Namespace) -> int:
    from s4s_core.errors import JobError

    if args.action in ("show", "cancel", "resume", "delete") and not args.id:
        raise JobError(f"Name a job: jobs {args.action} ID. Run 'jobs list' to see all jobs.")
    return {"list": _list, "add": _add, "show": _show}.get(args.action, _change)(args)


def _list(args: Namespace) -> int:
    from s4s_core.app.jobs import list_jobs

    views = list_jobs()
    if args.json:
        print(json.dumps({"jobs": [view.plain() for view in views]}, indent=1))
    else:
        print("\n".join(map(_line, views)) or "There are no jobs.")
    return 0


def _add(args: Namespace) -> int:
    from ..arguments import config_from_args
    from ..jobs import queue_job

    job = queue_job(config_from_args(args))
    print(json.dumps(job.view().plain(), indent=1) if args.json else f"Queued {job.id}")
    return 0


def _show(args: Namespace) -> int:
    from ..jobs import job_config, job_solver

    def show(job: Job) -> None:
        view, solver = job.view(), job_solver(job)
        if args.json:
            sheet = job.sheet()
            details = {
                "metrics": list(map(asdict, job.metrics())),
                "log": job.log_tail(),
                "config": job_config(job).plain(),
                "grid": sheet and str(sheet),
                "measures": solver and solver.plain()["measures"],
            }
            print(json.dumps(view.plain() | details, indent=1))
        else:
            scores = [] if solver is None else score_lines(solver)
            print(_line(view), *_details(view, job), *scores, sep="\n")

    return _for_each(args.id, show)


def _change(args: Namespace) -> int:
    """Cancel, resume or delete."""
    left: list[dict[str, Any]] = []

    def change(job: Job) -> None:
        getattr(job, args.action)()
        if args.action != "delete":
            left.append(job.view().plain())

    code = _for_each(args.id, change)
    if args.json:
        print(json.dumps({"jobs": left}, indent=1))
    return code


def _for_each(ids: Iterable[str], act: Callable[[Job], None]) -> int:
    """Act on each job, whatever becomes of the others; return 1 if one failed, and say why."""
    code = 0
    for id in ids:
        try:
            act(Job(id))
        except S4SError as error:
            print(f"error: {visible(str(error))}", file=sys.stderr)
            code = 1
    return code


def _line(view: JobView) -> str:
    nfes = ",".join(map(str, view.nfes))
    share = f"{view.progress:4.0%}" if view.status == "running" else "    "
    return f"{view.id}  {view.status:<11} {share}  {view.name} (NFE {nfes})"


def _details(view: JobView, job: Job) -> Iterator[str]:
    from s4s_core.app.progress import duration

    yield view.message
    if view.eta is not None:
        yield f"At most {duration(view.eta)} left"
    if view.error:
        yield f"Exit code {view.exit_code}. The end of the log:"
        yield from (visible(line.expandtabs()) for line in job.log_tail().splitlines())
