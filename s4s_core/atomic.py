"""Writes that either happen whole or not at all."""

import hashlib
import os
import secrets
import sys
import time
from contextlib import suppress
from pathlib import Path

WINDOWS = sys.platform == "win32"
PATIENCE = 2.0
"""Seconds that a replacement waits for readers on Windows, where no open file can be replaced."""

PREFIX = ".s4s-"
SUFFIX = ".tmp"


def temporary_stem(path):
    """How the names of a file's temporaries begin."""
    return f"{PREFIX}{hashlib.sha256(path.name.encode('utf-8', 'surrogatepass')).hexdigest()[:12]}"


def write_atomic(path, data):
    """Replace `path` by `data` (bytes): temporary file, fsync, replace, fsync of the folder.

    A crash at any moment leaves the old file or the new one; an error (a full disk, a read-only
    folder) raises OSError and leaves neither a changed file nor a temporary one.
    """
    path = Path(path)
    temporary = path.parent / f"{temporary_stem(path)}-{secrets.token_hex(8)}{SUFFIX}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    handle = os.open(temporary, flags, 0o666)  # the umask applies, as to any new file
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        with suppress(OSError):  # a new file keeps the default; some file systems have no modes
            os.chmod(temporary, path.stat().st_mode & 0o777)
        _replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _replace(temporary, path):
    """os.replace; on Windows again and again while somebody reads the old file."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return os.replace(temporary, path)
        except PermissionError:
            if not WINDOWS or time.monotonic() > deadline:
                raise
        time.sleep(0.01)


def _sync_folder(folder):
    """Make a rename durable where folders can be synced: Windows and some file systems cannot.

    The new file is in place by now, so a failure here is no reason to report it as not written.
    """
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def sweep(path):
    """Remove temporaries of `path` that a killed process left behind.

    Only for who alone writes this file: temporaries of other files are other processes' affair.
    """
    path = Path(path)
    for orphan in path.parent.glob(f"{temporary_stem(path)}-*{SUFFIX}"):
        with suppress(OSError):  # what cannot be removed does no harm
            orphan.unlink()
