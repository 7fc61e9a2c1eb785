"""Writes that either happen whole or not at all."""

import errno
import hashlib
import os
import secrets
import sys
import time
from contextlib import suppress
from itertools import chain
from pathlib import Path

WINDOWS = sys.platform == "win32"
PATIENCE = 2.0
"""Seconds that a replacement waits for readers on Windows, where no open file can be replaced."""

PREFIX = ".s4s-"
SUFFIX = ".tmp"
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)


def temporary_stem(path):
    """How the names of a file's temporaries begin."""
    return f"{PREFIX}{hashlib.sha256(path.name.encode('utf-8', 'surrogatepass')).hexdigest()[:12]}"


def write_atomic(path, data):
    """Replace `path` by `data` (bytes): temporary file, fsync, replace, fsync of the folder.

    A crash at any moment leaves the old file or the new one; an error (a full disk, a read-only
    folder) raises OSError and leaves neither a changed file nor a temporary one.
    """
    path = Path(path)

    def put(temporary):
        with suppress(OSError):  # a new file keeps the default; some file systems have no modes
            os.chmod(temporary, path.stat().st_mode & 0o777)
        _replace(temporary, path)

    _written(path, data, put)


def write_new(paths, data):
    """Write `data` to the first of `paths`, all of one folder, that no file has; returns that path.

    As `write_atomic`, but nothing is ever replaced, whoever else writes there at the same time.
    """
    paths = iter(paths)
    first = Path(next(paths))
    return _written(first, data, lambda temporary: _place(temporary, chain([first], paths)))


def _written(path, data, put):
    """What put(temporary) returns: `data` stand in that file, beside `path`, which is then gone."""
    temporary = path.parent / f"{temporary_stem(path)}-{secrets.token_hex(8)}{SUFFIX}"
    handle = os.open(temporary, _NEW, 0o666)  # the umask applies, as to any new file
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        placed = put(temporary)
    finally:
        with suppress(OSError):  # moved away, or in nobody's way
            temporary.unlink()
    _sync_folder(path.parent)
    return placed


def _place(temporary, paths):
    """Give a file the first of the names that is free, and return it.

    Where the file system has no links, an empty file takes the name before: a kill just then
    leaves it.
    """
    for path in paths:
        try:
            os.link(temporary, path)
        except FileExistsError:
            continue
        except OSError:
            if not _reserve(path):
                continue
            _replace(temporary, path)
        return path
    raise FileExistsError(errno.EEXIST, "every name is taken")


def _reserve(path):
    """Make an empty file of that name, unless there is one."""
    try:
        os.close(os.open(path, _NEW, 0o666))
    except FileExistsError:
        return False
    return True


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
