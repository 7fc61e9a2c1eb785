"""Files and folders that are what they should be: anything may stand in their place.

A pipe or a device would block or never end, and a link would lead to a file of somebody else.
"""

import errno
import os
import secrets
import stat
from contextlib import suppress

StrPath = str | os.PathLike[str]

_SAFE = sum(getattr(os, name, 0) for name in ("O_NONBLOCK", "O_NOFOLLOW", "O_CLOEXEC", "O_BINARY"))

_JUNCTION = 0xA0000003
"""How Windows marks a link to a folder that looks like a folder."""


def open_regular(path: StrPath, flags: int) -> int:
    """Open a file and return its handle; raise OSError for a link, pipe, device or folder."""
    handle = os.open(path, flags | _SAFE, 0o666)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "It is not a file", os.fspath(path))
    return handle


def read_end(path: StrPath, most: int) -> bytes:
    """Return at most the last bytes of a file."""
    with os.fdopen(open_regular(path, os.O_RDONLY), "rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - most))
        return file.read(most)


def read_whole(path: StrPath, most: int) -> bytes:
    """Return all bytes of a file; raise OSError if there are more than `most`."""
    data = read_end(path, most + 1)
    if len(data) > most:
        raise OSError(errno.EINVAL, f"It is larger than {most:,} bytes", os.fspath(path))
    return data


def is_file(path: StrPath) -> bool:
    """Does a file, or a link to one, stand there? Raise OSError for anything else that does."""
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "It is not a file", os.fspath(path))
    return True


def make_folder(path: StrPath) -> None:
    """Make a folder if there is none; raise OSError if a link or anything else stands there."""
    try:
        os.mkdir(path)
    except FileExistsError:
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            raise


def remove_tree(path: StrPath) -> None:
    """Remove what stands at a path, as far as that is possible; follow no link and never raise.

    A tree may be deeper than a path can be long, so each folder moves to the top before it is
    emptied.
    """
    folders, top = [os.fspath(path)], os.path.join(path, secrets.token_hex(8))
    for folder in folders:  # it grows
        for entry in _entries(folder):
            with suppress(OSError):
                if entry.is_dir(follow_symlinks=False):
                    folders.append(_moved(entry.path, f"{top}-{len(folders)}"))
                else:
                    os.unlink(entry.path)
    for folder in reversed(folders):
        with suppress(OSError):
            os.rmdir(folder)
    with suppress(OSError):  # no folder
        os.unlink(path)


def _moved(old: str, new: str) -> str:
    """Rename a folder and return its path; on Windows one with an open file keeps its name."""
    try:
        os.rename(old, new)
    except OSError:
        return old
    return new


def _entries(folder: str) -> list[os.DirEntry[str]]:
    """Return the entries of a folder; none if it is no folder, or a link."""
    try:
        status = os.lstat(folder)
        if stat.S_ISLNK(status.st_mode) or getattr(status, "st_reparse_tag", 0) == _JUNCTION:
            return []
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []
