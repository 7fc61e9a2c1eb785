"""The command line: one table of commands, and exit codes for their errors.

A command NAME is a module, commands/NAME.py unless MODULES names another one, with two functions:
    add_arguments(parser)     adds its options; must not import anything heavy
    run(args) -> exit code    does the work
Only the chosen command's module is imported, so that help is instant.
"""

import argparse
import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from io import TextIOWrapper

import s4s_core
from s4s_core import __version__
from s4s_core.errors import S4SError, visible

from .__main__ import pythons_folders

COMMANDS = {
    "panel": "train, follow and compare solvers in a browser",
    "train": "train a solver for a model",
    "jobs": "queue, list, cancel, resume and delete training jobs",
    "estimate": "measure the time and memory that a training run will take",
    "sample": "render pictures with a solver",
    "compare": "compare a solver with its teacher and classical solvers",
    "render": "render teacher, classical solver and learned solver from the same noise",
    "inspect": "show the contents of solver files",
    "bench": "run a benchmark",
    "queue": "run the queued jobs (started automatically)",
    "work": "train one queued job (started by the queue)",
}
MODULES = {"estimate": ".estimate", "queue": ".jobs.runner", "work": ".jobs.worker"}


def build_parser(chosen: str | None) -> argparse.ArgumentParser:
    """Return the parser of all commands, with the options of the chosen one only."""
    parser = argparse.ArgumentParser(prog="s4s", description="Train and use diffusion solvers.")
    parser.add_argument("--version", action="version", version=f"s4s {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, summary in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary)
        if name == chosen:
            path = MODULES.get(name, f".commands.{name}")
            module = importlib.import_module(path, __package__)
            module.add_arguments(command)
            command.set_defaults(run=module.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 1 for an S4SError, 130 for Ctrl-C."""
    argv = sys.argv[1:] if argv is None else argv
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a Windows code page cannot show every name
            encoding = "utf-8" if sys.flags.utf8_mode else None  # else what PYTHONIOENCODING says
            stream.reconfigure(encoding=encoding, errors="backslashreplace")
    args = build_parser(argv[0] if argv else None).parse_args(argv)
    try:
        code: int = args.run(args)
        sys.stdout.flush()
        return code
    except S4SError as error:
        _complain(str(error))
        return 1
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader (`| head`) is gone; Python flushes once more at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except Exception as error:  # noqa: BLE001 - for example a model's own code
        if isinstance(error, ImportError | SyntaxError) and not _is_foreign(error):
            raise  # `__main__` says what to do about an incomplete environment
        for line in "".join(traceback.format_exception(error)).splitlines():
            print(visible(line.expandtabs()), file=sys.stderr)
        what = f"{type(error).__name__}: {error}".rstrip(": .")
        _complain(f"Unexpected {what}. The lines above say where.")
        return 1


def _is_foreign(error: Exception) -> bool:
    """Did it come through code that is neither ours nor installed, such as a model's own?"""
    known = (*map(os.path.dirname, (__file__, s4s_core.__file__)), *pythons_folders(), "<frozen")
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    return not all(file.startswith(known) for file in files)


def _complain(message: str) -> None:
    """Print an error as one line, whatever it contains."""
    print(f"error: {visible(' '.join(message.split()))}", file=sys.stderr)
