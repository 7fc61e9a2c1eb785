"""Open files that are files: nothing that blocks or never ends may stand in their place."""

import os
import stat

from .atomic import StrPath

_SAFE = sum(getattr(os, name, 0) for name in ("O_NONBLOCK", "O_NOFOLLOW", "O_CLOEXEC", "O_BINARY"))


def open_regular(path: StrPath, flags: int) -> int:
    """Open a file and return its handle; raise OSError for a link, pipe, device or folder."""
    handle = os.open(path, flags | _SAFE, 0o666)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(f"{path} is not a file")
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
        raise OSError(f"{path} is larger than {most:,} bytes")
    return data
