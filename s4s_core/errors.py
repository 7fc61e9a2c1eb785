"""Every error that S4S raises on purpose: one sentence that says what is wrong and what to do."""

import shlex
import subprocess
import sys


def typed(command):
    """A command as it is typed here, quoted where it must be."""
    parts = list(map(str, command))
    return subprocess.list2cmdline(parts) if sys.platform == "win32" else shlex.join(parts)


def pip_line(*what):
    """The command that installs something for the very Python that is running."""
    return typed([sys.executable, "-m", "pip", "install", *what])


def visible(text):
    """A stranger's text for a message: whatever cannot be seen, or moves a cursor, is replaced."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


class S4SError(Exception):
    """Base of all errors that are meant to be shown to a person as they stand."""


class TableError(S4SError, ValueError):
    """A solver table, a schedule or an option of theirs is not valid."""


class SolverFileError(S4SError):
    """A solver file cannot be read or written; the message names the file and the fault."""


class HostError(S4SError):
    """A host asks a solver for something that it cannot give."""


class ModelError(S4SError):
    """A model broke the contract `denoise(x, sigma) -> x0`."""


class ObjectiveError(S4SError):
    """A training objective cannot be used as asked."""


class ConfigError(S4SError):
    """What a job is asked to do is not valid."""


class JobError(S4SError):
    """A job cannot be had, or not be treated as asked."""


class TrainingError(S4SError):
    """Training cannot start or go on as asked."""


class TrainingCancelled(TrainingError):
    """Training was stopped on request; its saved state can be resumed."""


class TrainingDiverged(TrainingError):
    """The loss became NaN or infinite again and again; `table` is the last good one, if any."""

    def __init__(self, message, table=None):
        super().__init__(message)
        self.table = table
