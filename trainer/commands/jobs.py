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

    from .. import jobs

    if args.action in ("show", "cancel", "resume", "delete") and not args.id:
        raise JobError(f"Which job? Write jobs {args.action} ID; jobs list shows them.")
    return {"list": _list, "add": _add, "show": _show}.get(args.action, _each)(jobs, args)


def _list(jobs, args):
    from s4s_core.app.jobs import list_jobs

    views = list_jobs()
    if args.json:
        print(json.dumps({"jobs": views}, indent=1))
    else:
        print("\n".join(map(_line, views)) or "There are no jobs.")
    return 0


def _add(jobs, args):
    from ..arguments import config_of

    id = jobs.add(config_of(args))
    print(json.dumps(jobs.job(id).view(), indent=1) if args.json else f"Queued {id}")
    return 0


def _show(jobs, args):
    for id in args.id:
        job = jobs.job(id)
        view = job.view()
        if args.json:
            grid = job.grid()
            more = {"metrics": job.metrics(), "log": job.log_tail(), "config": job.config.plain()}
            print(json.dumps({**view, **more, "grid": grid and str(grid)}, indent=1))
        else:
            print(_line(view), *_details(view, job), sep="\n")
    return 0


def _each(jobs, args):
    """Cancel, resume or delete."""
    act = getattr(jobs, args.action)
    for id in args.id:
        act(id)
    if args.json:
        left = [] if args.action == "delete" else [jobs.job(id).view() for id in args.id]
        print(json.dumps({"jobs": left}, indent=1))
    return 0


def _line(view):
    nfes = ",".join(map(str, view["nfes"]))
    share = f"{view['progress']:4.0%}" if view["status"] == "running" else "    "
    return f"{view['id']}  {view['status']:<11} {share}  {view['name']} (NFE {nfes})"


def _details(view, job):
    from ..progress import clock

    yield view["message"]
    if view["eta"] is not None:
        yield f"{clock(view['eta'])} left at most"
    if view["error"]:
        yield f"exit code {view['exit_code']}; the end of the log:"
        yield job.log_tail()
