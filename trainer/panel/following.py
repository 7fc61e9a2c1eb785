"""Is a process that is not our child still there?"""

import os
import sys

_SYNCHRONIZE, _WAIT_TIMEOUT = 0x100000, 0x102


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
