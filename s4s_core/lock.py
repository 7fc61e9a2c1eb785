"""Locks that die with the process that holds them."""

import os
import sys
import time
from pathlib import Path

WINDOWS = sys.platform == "win32"
_FAR = 1 << 30
"""Where Windows locks a byte: a locked one cannot be read, and the holder's number must be."""

_POLL = 0.02

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
