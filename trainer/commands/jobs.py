"""`jobs`: list, add, show, cancel, resume and delete training jobs."""

import json

ACTIONS = ("list", "add", "show", "cancel", "resume", "delete")


def add_arguments(parser):
    from ..arguments import add_train_arguments

    parser.add_argument("action", choices=ACTIONS, nargs="?", default="list")
    parser.add_argument("id", nargs="*", help="jobs to show, cancel, resume or delete")
    parser.add_argument("--json", action="store_true", help="print views as JSON")
    add_train_arguments(parser.add_argument_group("what to train, for add"))


def run(args):
    from s4s_core.errors import JobError

    if args.action in ("show", "cancel", "resume", "delete") and not args.id:
        raise JobError(f"Which job? Write jobs {args.action} ID; jobs list shows them.")
    return {"list": _list, "add": _add, "show": _show}.get(args.action, _each)(args)


def _list(args):
    from s4s_core.app.jobs import list_jobs

    views = list_jobs()
    if args.json:
        print(json.dumps({"jobs": [view.plain() for view in views]}, indent=1))
    else:
        print("\n".join(map(_line, views)) or "There are no jobs.")
    return 0


def _add(args):
    from ..arguments import config_of
    from ..jobs import queue_job

    job = queue_job(config_of(args))
    print(json.dumps(job.view().plain(), indent=1) if args.json else f"Queued {job.id}")
    return 0


def _show(args):
    from s4s_core.app.jobs import Job

    from ..jobs import config_of

    for id in args.id:
        job = Job(id)
        view = job.view()
        if args.json:
            sheet = job.sheet()
            more = {"metrics": job.metrics(), "log": job.log_tail()}
            more |= {"config": config_of(job).plain(), "grid": sheet and str(sheet)}
            print(json.dumps(view.plain() | more, indent=1))
        else:
            print(_line(view), *_details(view, job), sep="\n")
    return 0


def _each(args):
    """Cancel, resume or delete."""
    from s4s_core.app.jobs import Job

    for id in args.id:
        getattr(Job(id), args.action)()
    if args.json:
        left = [] if args.action == "delete" else [Job(id).view().plain() for id in args.id]
        print(json.dumps({"jobs": left}, indent=1))
    return 0


def _line(view):
    nfes = ",".join(map(str, view.nfes))
    share = f"{view.progress:4.0%}" if view.status == "running" else "    "
    return f"{view.id}  {view.status:<11} {share}  {view.name} (NFE {nfes})"


def _details(view, job):
    from s4s_core.app.progress import duration

    yield view.message
    if view.eta is not None:
        yield f"{duration(view.eta)} left at most"
    if view.error:
        yield f"exit code {view.exit_code}; the end of the log:"
        yield job.log_tail()
