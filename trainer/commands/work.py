"""`work`: train one queued job, as the queue's runner does it."""


def add_arguments(parser):
    parser.add_argument("id", help="the job")


def run(args):
    from ..jobs.worker import work

    return work(args.id)
