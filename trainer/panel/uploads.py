"""The folder of a running panel: all that Gradio writes goes there, and it is deleted with the
panel.

A panel that is killed leaves its folder behind; the next one removes it. A lock in each folder says
whether its panel lives.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from s4s_core.app.folders import data_home
from s4s_core.errors import S4SError
from s4s_core.lock import Lock, holder
from s4s_core.regular import remove_tree

MOST_BYTES = 64 << 20
"""Bytes of files that a panel keeps: each is read at once and needed no more."""

LOCK = "lock"
_PATIENCE = 10.0


def uploads_home() -> Path:
    """Return the folder of the folders of all panels."""
    return data_home().absolute() / "uploads"


@contextmanager
def own_folder() -> Iterator[Path]:
    """Make a folder for this process's panel, after removing those of dead ones."""
    home = uploads_home()
    try:
        home.mkdir(parents=True, exist_ok=True)
        with Lock(home / LOCK) as door:  # nobody sweeps while another one's lock is not yet taken
            if door.take(_PATIENCE):
                _sweep(home)
            folder = Path(tempfile.mkdtemp(prefix="s4s-panel-", dir=home))
            mine = Lock(folder / LOCK)
            mine.take()
    except OSError as error:
        raise S4SError(f"Could not make a folder in {home}: {error.strerror or error}.") from None
    try:
        yield folder
    finally:
        mine.release()
        remove_tree(folder)


def _sweep(home: Path) -> None:
    """Remove the folders of panels that are no longer alive."""
    for folder in home.glob("s4s-panel-*"):
        if holder(folder / LOCK) is None:
            remove_tree(folder)


def trim(folder: Path, most: int = MOST_BYTES) -> None:
    """Remove the oldest files below a panel's folder until the others are at most `most` bytes."""
    found = []
    for place, _, names in os.walk(folder):
        for path in (Path(place, name) for name in names):
            with suppress(OSError):
                status = path.lstat()
                found.append((status.st_mtime_ns, status.st_size, path))
    left = sum(size for _, size, _ in found)
    for _, size, path in sorted(found):
        if left <= most:
            return
        if path != folder / LOCK:
            left -= size
            with suppress(OSError):  # its folder goes too, unless it holds another file
                path.unlink()
                path.parent.rmdir()
