"""One table of commands, and what becomes of their errors.

The command NAME is the module `commands/NAME.py`, with two functions:
    add_arguments(parser)     declares its arguments; must not import anything heavy
    run(args) -> exit code    does the work
Modules are imported only when their command is chosen, so that help is instant.
"""

import argparse
import importlib
import os
import sys

from s4s_core import __version__
from s4s_core.errors import S4SError

COMMANDS = {
    "panel": "train, follow and compare solvers in a browser",
    "train": "learn a solver for a model",
    "jobs": "queue, watch, cancel, resume and delete training jobs",
    "estimate": "measure how long a training will take, and its memory",
    "sample": "render pictures with a solver",
    "compare": "compare a solver with its teacher and with classical solvers",
    "render": "render teacher, classical solver and learned solver from the same noise",
    "inspect": "show what is inside solver files",
    "bench": "rerun a benchmark",
    "queue": "work through the queued jobs (started by itself)",
    "work": "train one queued job (started by the queue)",
}


def build_parser(chosen):
    """The parser of all commands; only the chosen one's arguments are filled in."""
    parser = argparse.ArgumentParser(prog="s4s", description="Learn and use diffusion solvers.")
    parser.add_argument("--version", action="version", version=f"s4s {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, summary in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary)
        if name == chosen:
            module = importlib.import_module(f".commands.{name}", __package__)
            module.add_arguments(command)
            command.set_defaults(run=module.run)
    return parser


def main(argv=None):
    """Run one command and return its exit code: 1 for an S4SError, 130 for Ctrl-C."""
    argv = sys.argv[1:] if argv is None else argv
    if hasattr(sys.stdout, "reconfigure"):  # a Windows code page cannot show every name
        sys.stdout.reconfigure(errors="replace")
    args = build_parser(argv[0] if argv else None).parse_args(argv)
    try:
        code = args.run(args)
        sys.stdout.flush()
        return code
    except S4SError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader (`| head`) has seen enough; Python flushes once more
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
