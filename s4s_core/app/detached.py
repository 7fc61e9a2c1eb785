"""A folder that a detached process works in: its lock, its state and its log.

    lock        held by the process while it lives, with its process number inside
    state.json  written by whoever holds the lock, read by anybody
    log.txt     what the process printed
So what is alive is known without trusting process numbers, and survives crashes and reboots.
"""

import errno
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from ..atomic import write_atomic
from ..checks import parse_json, record
from ..errors import short
from ..lock import Lock, holder
from ..regular import read_end, read_whole
from .estimate import size
from .processes import end_tree, start_detached

LOCK, STATE, LOG = "lock", "state.json", "log.txt"
STOP_SECONDS = 5.0
"""How long a killed process may take to let go of its lock."""

FULL = {
    errno.ENOSPC: "The disk is full",
    errno.EDQUOT: "The disk quota is used up",
    errno.EFBIG: "The limit on the size of a file is reached",
}
"""How a system says that a file has no room."""

T = TypeVar("T")

_LONGEST_LOG = 20_000
_LARGEST_STATE = 1 << 20
_LEAST_ROOM = 1_000_000
"""Bytes of free disk space below which a process may be unable to write."""

_ERROR = "error: "
"""How the commands begin the line that says why they fail."""

_EXCEPTION = re.compile(r"(\w+\.)*\w*(Error|Exception)\b")
"""How Python begins the last line of a traceback."""


def free_space(folder: Path) -> int:
    """Return the free bytes of a folder's disk; 0 if the folder is gone."""
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return 0


def full_disk(folder: Path, code: int = errno.ENOSPC) -> str:
    """Say why nothing more can be written to a folder, and what to do."""
    free = free_space(folder) / 1e6
    return f"{FULL[code]} ({free:,.1f} MB free in {folder}). Make room and try again."


class ProcessFolder:
    """The folder of one detached process."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def lock(self) -> Lock:
        return Lock(self.path / LOCK)

    def holder(self) -> int | None:
        """Return the number of the process that holds the lock, or None."""
        return holder(self.path / LOCK)

    def is_running(self) -> bool:
        return self.holder() is not None

    def start(
        self, command: Sequence[str], cwd: str | os.PathLike[str] | None = None, **env: str
    ) -> subprocess.Popen[bytes]:
        """Start a process that outlives this one; its output is appended to the log."""
        return start_detached(list(command), self.path / LOG, cwd, **env)

    def stop(self, pid: int) -> bool:
        """Kill a process tree and wait for the lock; return False if it is not released."""
        end_tree(pid)
        return self.ends_within(STOP_SECONDS)

    def ends_within(self, seconds: float) -> bool:
        """Wait for the lock; return False if it is not released. Others may hold it for a moment:
        the runner does, when a worker has ended."""
        deadline = time.monotonic() + seconds
        while self.is_running() and time.monotonic() < deadline:
            time.sleep(0.05)
        return not self.is_running()

    def read_state(self, kind: type[T]) -> T:
        """Return what state.json holds; raise OSError or ValueError if it cannot be read or does
        not fit the dataclass `kind`."""
        data = read_whole(self.path / STATE, _LARGEST_STATE)
        return record(kind, parse_json(data), ValueError)

    def write_state(self, state: Any) -> None:
        """Replace state.json with a dataclass, atomically; the caller holds the lock."""
        write_atomic(self.path / STATE, json.dumps(asdict(state), indent=1).encode())

    def lacks_room(self) -> bool:
        """Is the disk so full that a process may have no room for what it has to write?"""
        try:
            usage = shutil.disk_usage(self.path)
        except OSError:
            return False
        return usage.total > 0 and usage.free < _LEAST_ROOM

    def death(self) -> str:
        """Say why the process has ended without recording why, as far as one can tell."""
        if self.lacks_room():
            return full_disk(self.path)
        last = self.log_tail().strip().rpartition("\n")[2].strip()
        if last.startswith(_ERROR):
            return short(last.removeprefix(_ERROR), 300)
        if _EXCEPTION.match(last):
            return f"The process died: {short(last, 300)}"
        room = f"{size(free_space(self.path))} of disk space is free"
        return f"The process died unexpectedly, often because memory ran out ({room})."

    def log_tail(self, lines: int = 40) -> str:
        """Return the end of what the process printed."""
        try:
            text = read_end(self.path / LOG, _LONGEST_LOG).decode("utf-8", "replace")
        except OSError:
            return ""
        return "\n".join(text.splitlines()[-lines:])
