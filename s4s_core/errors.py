"""Errors that S4S shows to people: each message says what is wrong and what to do."""

import shlex
import subprocess
import sys
from collections.abc import Iterable
from typing import Any
from unicodedata import category


def shell_line(command: Iterable[object]) -> str:
    """Return a command as one line to paste into this system's shell."""
    parts = list(map(str, command))
    return subprocess.list2cmdline(parts) if sys.platform == "win32" else shlex.join(parts)


def pip_install_line(*packages: object) -> str:
    """Return the command that installs packages for the running Python."""
    return shell_line([sys.executable, "-m", "pip", "install", *packages])


def visible(text: str) -> str:
    """Replace characters that are invisible or move the cursor in untrusted text; spaces stay."""
    return "".join(c if _is_visible(c) else "\N{REPLACEMENT CHARACTER}" for c in text)


def _is_visible(character: str) -> bool:
    return character.isprintable() or category(character) == "Zs"


def short(text: str, most: int = 80) -> str:
    """Return untrusted text as a printable line, cut after `most` characters."""
    return visible(text if len(text) <= most else f"{text[:most]}...")


class S4SError(Exception):
    """Base class of errors with a message for the user."""


class TableError(S4SError, ValueError):
    """A solver table, a schedule or one of their options is invalid."""


class SolverFileError(S4SError):
    """A solver file cannot be read or written; the message names the file."""


class HostError(S4SError):
    """A host asks a solver for something it cannot do."""


class ModelError(S4SError):
    """A model broke the contract of `s4s_core.Model`."""


class ObjectiveError(S4SError):
    """A training objective cannot be used as requested."""


class ConfigError(S4SError):
    """The configuration of a job is invalid."""


class JobError(S4SError):
    """A job does not exist or does not allow the requested action."""


class TrainingError(S4SError):
    """Training cannot start or continue."""


class SavedRunError(TrainingError):
    """A saved run is damaged or belongs to another run; `problem` says which, without advice."""

    def __init__(self, problem: str) -> None:
        super().__init__(f"{problem} Delete it to start over.")
        self.problem = problem


class TrainingCancelled(TrainingError):
    """Training was cancelled; its saved state can be resumed."""


class TrainingDiverged(TrainingError):
    """The loss kept becoming NaN or infinite; `table` is the last good SolverTable, if any."""

    def __init__(self, message: str, table: Any = None) -> None:
        super().__init__(message)
        self.table = table
