"""A folder that a detached process works in: its lock, its state and its log.

    lock        held by the process while it lives, with its process number inside
    state.json  written by whoever holds the lock, read by anybody
    log.txt     what the process printed
So what is alive is known without trusting process numbers, and survives crashes and reboots.
"""

import json
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..atomic import write_atomic
from ..lock import Lock, holder
from .processes import end_tree, start_detached

LOCK, STATE, LOG = "lock", "state.json", "log.txt"
STOP_SECONDS = 5.0
"""How long a killed process may take to let go of its lock."""

_LONGEST_LOG = 20_000


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
        deadline = time.monotonic() + STOP_SECONDS
        while self.is_running() and time.monotonic() < deadline:
            time.sleep(0.05)
        return not self.is_running()

    def read_state(self) -> Any:
        """Return what state.json holds; raise OSError or ValueError if it cannot be read."""
        return json.loads((self.path / STATE).read_text(encoding="utf-8"))

    def write_state(self, state: Mapping[str, Any]) -> None:
        """Replace state.json atomically; the caller holds the lock."""
        write_atomic(self.path / STATE, json.dumps(state, indent=1).encode())

    def log_tail(self, lines: int = 40) -> str:
        """Return the end of what the process printed."""
        try:
            text = (self.path / LOG).read_bytes()[-_LONGEST_LOG:].decode("utf-8", "replace")
        except OSError:
            return ""
        return "\n".join(text.splitlines()[-lines:])
