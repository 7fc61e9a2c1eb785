"""Writes that either happen whole or not at all."""

import os
import tempfile
from pathlib import Path

PREFIX = ".s4s-"
SUFFIX = ".tmp"


def write_atomic(path, data):
    """Replace `path` by `data` (bytes): temporary file, fsync, replace, fsync of the folder.

    A crash at any moment leaves the old file or the new one; an error (a full disk, a read-only
    folder) raises OSError and leaves neither a changed file nor a temporary one.
    """
    path = Path(path)
    handle, temporary = tempfile.mkstemp(prefix=PREFIX, suffix=SUFFIX, dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, _mode(path))
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _mode(path):
    """The permissions of the file that is replaced, or those of an ordinary new file."""
    if path.exists():
        return path.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def _sync_folder(folder):
    """Make a rename durable; Windows cannot open folders and does not need to."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sweep(folder):
    """Remove temporaries that a killed process left behind in `folder`."""
    for orphan in Path(folder).glob(f"{PREFIX}*{SUFFIX}"):
        orphan.unlink(missing_ok=True)
