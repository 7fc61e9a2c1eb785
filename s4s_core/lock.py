"""File locks that the system releases when the process that holds them ends."""

import errno
import os
import sys
import time
from pathlib import Path

from .atomic import StrPath
from .regular import open_regular

WINDOWS = sys.platform == "win32"
_LOCK_OFFSET = 1 << 30
"""Windows forbids reading a locked byte, so the lock lies far behind the process number."""

_POLL = 0.02
_UNKNOWN = (errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.EIO)
"""Why a file that is there cannot be read; its owner may live."""

if sys.platform == "win32":
    import msvcrt

    def _try_lock(handle: int, shared: bool = False) -> bool:
        """Lock an open file without waiting; return False if another process holds it."""
        try:
            os.lseek(handle, _LOCK_OFFSET, os.SEEK_SET)
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

else:
    import fcntl

    def _try_lock(handle: int, shared: bool = False) -> bool:
        """Lock an open file without waiting; return False if another process holds it."""
        try:
            fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except OSError:
            return False
        return True


class Lock:
    """A lock file that contains the number of the process that holds it.

    The system releases the lock when that process ends, even by a crash or a reboot, so there are
    no stale locks, and reused process numbers do not matter.
    """

    def __init__(self, path: StrPath) -> None:
        self.path = Path(path)
        self._handle: int | None = None

    def take(self, wait: float = 1.0) -> bool:
        """Take the lock; return False if another process still holds it after `wait` seconds, and
        raise OSError if the file cannot be used.

        `holder` locks the file for a moment, so always allow a short wait.
        """
        handle = open_regular(self.path, os.O_RDWR | os.O_CREAT)
        deadline = time.monotonic() + wait
        while not _try_lock(handle):
            if time.monotonic() > deadline:
                os.close(handle)
                return False
            time.sleep(_POLL)
        os.ftruncate(handle, 0)
        os.lseek(handle, 0, os.SEEK_SET)
        os.write(handle, str(os.getpid()).encode())
        self._handle = handle
        return True

    def release(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def __enter__(self) -> "Lock":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def holder(path: StrPath) -> int | None:
    """Return the process that holds a lock, or None if it is free.

    It is 0 if it cannot be told: while the lock is being taken, or if the file cannot be read.
    """
    try:
        handle = open_regular(path, os.O_RDONLY)  # it may be another user's
    except OSError as error:
        return 0 if error.errno in _UNKNOWN else None
    try:
        if _try_lock(handle, shared=True):
            return None
        os.lseek(handle, 0, os.SEEK_SET)
        text = os.read(handle, 32)
        return int(text) if text.isdigit() else 0
    finally:
        os.close(handle)
