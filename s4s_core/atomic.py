"""Write files completely or not at all."""

import errno
import hashlib
import os
import secrets
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import TypeVar

from .regular import StrPath as StrPath
from .regular import is_file

T = TypeVar("T")

WINDOWS = sys.platform == "win32"
PATIENCE = 2.0
"""Seconds to wait for readers on Windows, which cannot replace an open file."""

PREFIX = ".s4s-"
SUFFIX = ".tmp"
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)


def temporary_stem(path: Path) -> str:
    """Return the prefix shared by all temporary files of `path`."""
    return f"{PREFIX}{hashlib.sha256(path.name.encode('utf-8', 'surrogatepass')).hexdigest()[:12]}"


def write_atomic(path: StrPath, data: bytes) -> None:
    """Replace `path` with `data`: temporary file, fsync, replace, fsync of the folder.

    After a crash, either the old or the new file is there. On an error (full disk, read-only
    folder, a pipe or a device in its place) OSError is raised, the file is unchanged and no
    temporary file is left.
    """
    target = Path(path)
    is_file(target)  # raises for what must not be replaced

    def move(temporary: Path) -> None:
        with suppress(OSError):  # no old file, or a file system without modes
            os.chmod(temporary, target.stat().st_mode & 0o777)
        _replace(temporary, target)

    _write_and_move(target, data, move)


def write_new(paths: Iterable[StrPath], data: bytes) -> Path:
    """Write `data` to the first of `paths` (all in one folder) that is free; return that path.

    Atomic like `write_atomic`, but never replaces a file, even with other writers at work.
    """
    candidates = map(Path, paths)
    first = next(candidates)
    return _write_and_move(
        first, data, lambda temporary: _move_to_free(temporary, chain([first], candidates))
    )


def _write_and_move(path: Path, data: bytes, move: Callable[[Path], T]) -> T:
    """Write a temporary file beside `path`, return move(temporary), and clean up."""
    temporary = path.parent / f"{temporary_stem(path)}-{secrets.token_hex(8)}{SUFFIX}"
    handle = os.open(temporary, _CREATE, 0o666)  # the umask applies, as to any new file
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        moved = move(temporary)
    finally:
        with suppress(OSError):  # already moved
            temporary.unlink()
    _sync_folder(path.parent)
    return moved


def _move_to_free(temporary: Path, paths: Iterable[Path]) -> Path:
    """Move a file to the first free path and return it.

    On a file system without hard links, an empty file reserves the path first; a process killed
    right then leaves it behind.
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


def _reserve(path: Path) -> bool:
    """Create an empty file; return False if the path exists."""
    try:
        os.close(os.open(path, _CREATE, 0o666))
    except FileExistsError:
        return False
    return True


def _replace(temporary: Path, path: Path) -> None:
    """Call os.replace; on Windows, retry while another process reads the old file."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return os.replace(temporary, path)
        except PermissionError:
            if not WINDOWS or time.monotonic() > deadline:
                raise
        time.sleep(0.01)


def _sync_folder(folder: Path) -> None:
    """Make a rename durable where folders can be synced (not on Windows and some file systems).

    Errors are ignored: the new file is already in place.
    """
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def sweep(path: StrPath) -> None:
    """Remove temporary files that killed writers of `path` left behind.

    Call this only from the sole writer of `path`.
    """
    target = Path(path)
    for leftover in target.parent.glob(f"{temporary_stem(target)}-*{SUFFIX}"):
        with suppress(OSError):  # harmless if it stays
            leftover.unlink()


def sweep_folder(folder: StrPath, seconds: float = 0.0) -> None:
    """Remove temporary files of at least that age that killed writers left in a folder.

    Where others may write too, choose an age that no writing takes.
    """
    for leftover in Path(folder).glob(f"{PREFIX}*{SUFFIX}"):
        with suppress(OSError):
            if not seconds or leftover.lstat().st_mtime < time.time() - seconds:
                leftover.unlink()
