"""Processes that others can see and end: locks that die with their holder, and whole trees."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

WINDOWS = sys.platform == "win32"
_FAR = 1 << 30
"""Where Windows locks a byte: a locked one cannot be read, and the holder's number must be."""

_POLL = 0.02

DETACHED_IN = None
"""The working folder of detached processes; None is that of whoever starts them."""

if WINDOWS:
    import msvcrt
else:
    import fcntl


def _grab(handle, shared=False):
    """Lock an open file without waiting; False where another process holds it."""
    try:
        if WINDOWS:
            os.lseek(handle, _FAR, os.SEEK_SET)
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


class Lock:
    """A file that one process holds, with its number inside.

    The system frees it when that process ends, however it ends, so neither a crash nor a reboot
    leaves a lock behind, and a number that was given to another process deceives nobody.
    """

    def __init__(self, path):
        self.path, self._handle = Path(path), None

    def take(self, wait=1.0):
        """Hold the lock; False if it is still another's after `wait` seconds.

        Whoever asks `holder` locks the file for an instant, so a short wait is always due.
        """
        handle = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
        deadline = time.monotonic() + wait
        while not _grab(handle):
            if time.monotonic() > deadline:
                os.close(handle)
                return False
            time.sleep(_POLL)
        os.ftruncate(handle, 0)
        os.lseek(handle, 0, os.SEEK_SET)
        os.write(handle, str(os.getpid()).encode())
        self._handle = handle
        return True

    def release(self):
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.release()


def holder(path):
    """The number of the process that holds a lock (0 while it is just taking it), or None."""
    try:
        handle = os.open(path, os.O_RDWR)
    except OSError:
        return None
    try:
        if _grab(handle, shared=True):
            return None
        os.lseek(handle, 0, os.SEEK_SET)
        text = os.read(handle, 32)
        return int(text) if text.isdigit() else 0
    finally:
        os.close(handle)


def lead_group():
    """Make this process the leader of a group, so that `end_tree` finds its children."""
    if not WINDOWS and os.getpgid(0) != os.getpid():
        os.setsid()


def end_tree(pid):
    """End the process `pid`, which leads a group, and all that it has started."""
    if WINDOWS:
        line = ["taskkill", "/T", "/F", "/PID", str(pid)]
        subprocess.run(line, capture_output=True, creationflags=subprocess.CREATE_NO_WINDOW)
        return
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def start_detached(command, log, folder=None, **environment):
    """Start a process that outlives this one; its output is appended to the file `log`.

    It works in `folder`, or else where this process does, with these variables of the environment
    beside those of this process. A caller whose working folder will not outlive it sets
    DETACHED_IN: in a folder that is gone, torch does not even load.
    """
    options = {"start_new_session": True}
    if WINDOWS:
        flags = subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.CREATE_NO_WINDOW
        options = {"creationflags": flags}
    with open(log, "ab") as output:
        return subprocess.Popen(
            command,
            cwd=folder or DETACHED_IN,
            env=os.environ | environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            **options,
        )
