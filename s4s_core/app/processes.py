"""Other processes: how S4S starts its own parts, sees that they live, and ends whole trees."""

import os
import signal
import subprocess
import sys
from contextlib import suppress

from ..lock import WINDOWS
from .folders import CHECKOUT

DETACHED_IN = None
"""The working folder of detached processes; None is that of whoever starts them."""

_SYNCHRONIZE, _WAIT_TIMEOUT = 0x100000, 0x102

_LINE = (
    "import runpy, sys; "
    "[s.reconfigure(encoding='utf-8', errors='replace') for s in (sys.stdout, sys.stderr)]; "
    "sys.path.insert(0, {home!r}); "
    "runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
)


def command(module, *arguments):
    """The command line that runs `python -m module arguments` out of this checkout.

    It does not lean on PYTHONPATH or the working folder: the embedded Python of ComfyUI's portable
    build for Windows ignores both. Its output is UTF-8, as whoever starts it reads it.
    """
    line = _LINE.format(home=str(CHECKOUT), module=module)
    return [sys.executable, "-c", line, *map(str, arguments)]


def trainer_command(*arguments):
    """The command line of `python -m trainer ARGUMENTS`; the wheel calls it s4s_trainer."""
    module = "trainer" if (CHECKOUT / "trainer").is_dir() else "s4s_trainer"
    return command(module, *arguments)


def is_alive(pid):
    """Does the process `pid` still run? On POSIX, one that nobody has waited for counts too."""
    if sys.platform == "win32":  # os.kill would end it
        import ctypes

        kernel = ctypes.windll.kernel32
        handle = kernel.OpenProcess(_SYNCHRONIZE, False, pid)
        if not handle:
            return False
        waited = kernel.WaitForSingleObject(handle, 0)
        kernel.CloseHandle(handle)
        return waited == _WAIT_TIMEOUT
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def lead_group():
    """Make this process the leader of a group, so that `end_tree` finds its children."""
    if not WINDOWS and os.getpgid(0) != os.getpid():
        os.setsid()


def end_tree(pid):
    """End the process `pid`, which leads a group, and all that it has started."""
    if WINDOWS:
        line = ["taskkill", "/T", "/F", "/PID", str(pid)]
        subprocess.run(line, capture_output=True, creationflags=subprocess.CREATE_NO_WINDOW)
        return
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def start_detached(command, log, folder=None, **environment):
    """Start a process that outlives this one; its output is appended to the file `log`.

    It works in `folder`, or else where this process does, with these variables of the environment
    beside those of this process. A caller whose working folder will not outlive it sets
    DETACHED_IN: in a folder that is gone, torch does not even load.
    """
    options = {"start_new_session": True}
    if WINDOWS:
        flags = subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.CREATE_NO_WINDOW
        options = {"creationflags": flags}
    with open(log, "ab") as output:
        return subprocess.Popen(
            command,
            cwd=folder or DETACHED_IN,
            env=os.environ | environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            **options,
        )
