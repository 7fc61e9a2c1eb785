"""How a part of S4S starts another one as a process of its own, and how people are told to."""

import shlex
import subprocess
import sys
from pathlib import Path

HOME = Path(__file__).absolute().parents[1]
"""The folder that s4s_core and the trainer are imported from."""

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
    line = _LINE.format(home=str(HOME), module=module)
    return [sys.executable, "-c", line, *map(str, arguments)]


def typed(command):
    """A command as it is typed here, quoted where it must be."""
    parts = list(map(str, command))
    return subprocess.list2cmdline(parts) if sys.platform == "win32" else shlex.join(parts)


def pip_line(*what):
    """The command that installs something for the very Python that is running."""
    return typed([sys.executable, "-m", "pip", "install", *what])
