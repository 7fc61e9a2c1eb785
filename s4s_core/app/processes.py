"""Child processes: start S4S commands, check that they are alive, end whole process trees."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ..regular import open_regular
from .folders import CHECKOUT

DETACHED_IN: Path | None = None
"""The working folder of detached processes; None means the current one.

Set it if the current folder may be removed: torch does not load in a folder that is gone.
"""

_PACKAGES = (CHECKOUT / "trainer", CHECKOUT / "s4s_trainer")
_SYNCHRONIZE, _WAIT_TIMEOUT = 0x100000, 0x102


def trainer_command(*arguments: object) -> list[str]:
    """Return the command line for `python -m trainer arguments` (s4s_trainer in the wheel).

    It names the file to run, because the embedded Python of ComfyUI's portable build for Windows
    ignores PYTHONPATH and the working folder, and others would import from that folder. With
    utf8 the output is UTF-8 whatever the code page.
    """
    package = next(path for path in _PACKAGES if path.is_dir())
    return [sys.executable, "-X", "utf8", str(package / "__main__.py"), *map(str, arguments)]


def is_alive(pid: int) -> bool:
    """Return whether a process is running; on POSIX a zombie counts as running."""
    if sys.platform == "win32":  # os.kill would end it
        import ctypes

        kernel = ctypes.windll.kernel32
        handle = kernel.OpenProcess(_SYNCHRONIZE, False, pid)
        if not handle:
            return False
        waited = kernel.WaitForSingleObject(handle, 0)
        kernel.CloseHandle(handle)
        return bool(waited == _WAIT_TIMEOUT)
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def lead_group() -> None:
    """Make this process the leader of a group, so that `end_tree` reaches its children."""
    if sys.platform != "win32" and os.getpgid(0) != os.getpid():
        os.setsid()


def end_tree(pid: int) -> None:
    """Kill a process that leads a group, and everything it has started."""
    if sys.platform == "win32":
        tools = Path(os.environ.get("SYSTEMROOT", r"C:\Windows")) / "System32"  # not from the cwd
        line = [str(tools / "taskkill.exe"), "/T", "/F", "/PID", str(pid)]
        subprocess.run(line, capture_output=True, creationflags=subprocess.CREATE_NO_WINDOW)
        return
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def no_window() -> int:
    """Return the creation flags that keep a child process from opening a console on Windows."""
    if sys.platform == "win32":
        return subprocess.CREATE_NO_WINDOW
    return 0


def start_detached(
    command: Sequence[str],
    log: str | os.PathLike[str],
    folder: str | os.PathLike[str] | None = None,
    **environment: str,
) -> subprocess.Popen[bytes]:
    """Start a process that outlives this one; its output is appended to the file `log`.

    It works in `folder` (DETACHED_IN or the current folder by default), with `environment` added
    to this process's variables. Raise OSError if it cannot be started or its log not written.
    """
    flags = no_window()
    if sys.platform == "win32":
        flags |= subprocess.CREATE_NEW_PROCESS_GROUP
    handle = open_regular(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with os.fdopen(handle, "ab") as output:
        return subprocess.Popen(
            list(command),
            cwd=folder or DETACHED_IN,
            env=os.environ | environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            creationflags=flags,
            start_new_session=sys.platform != "win32",
        )
