"""`estimate`: time and peak memory of a training, from a dry run of a few model calls."""

import json


def add_arguments(parser):
    from ..arguments import add_train_arguments

    add_train_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print the estimate as JSON")


def run(args):
    from s4s_core.app.progress import duration

    from ..arguments import config_of
    from ..estimate import measure, size

    found = measure(config_of(args))
    if args.json:
        print(json.dumps(found.plain()))
        return 0
    print(f"{duration(found.seconds)} at most: {found.calls:,} model calls on {found.device}.")
    print(f"Peak memory: about {size(found.memory_bytes)}.")
    for warning in found.warnings:
        print(warning)
    return 0
