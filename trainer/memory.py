"""Peak memory of this process on the device that computes, and how much is available."""

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


class Peak:
    """Watches a device from now on: a GPU's allocator, or this process's main memory."""

    def __init__(self, device: "torch.device") -> None:
        import torch

        self.device, self.cuda = device, torch.cuda if device.type == "cuda" else None
        if self.cuda:
            self.cuda.reset_peak_memory_stats(device)

    def bytes(self) -> int:
        """Return the peak so far."""
        if self.cuda:
            return int(self.cuda.max_memory_reserved(self.device))
        return peak_of_process()

    def room(self) -> int:
        """Return the bytes that this process could use in total; 0 if unknown."""
        if self.cuda:
            free, _ = self.cuda.mem_get_info(self.device)
            return int(free + self.cuda.memory_reserved(self.device))
        free = available()
        return free and free + peak_of_process()


def peak_of_process() -> int:
    """Return the most main memory that this process has used at once."""
    if sys.platform == "win32":
        return _windows_peak()
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _windows_peak() -> int:
    if sys.platform != "win32":  # lets mypy skip the rest elsewhere
        return 0
    import ctypes
    from ctypes import wintypes

    class Counters(ctypes.Structure):
        _fields_ = [("cb", wintypes.DWORD), ("faults", wintypes.DWORD)] + [
            (name, ctypes.c_size_t)
            for name in ("peak", "now", "pp", "p", "pn", "n", "pagefile", "peak_pagefile")
        ]

    counters = Counters(cb=ctypes.sizeof(Counters))
    kernel = ctypes.WinDLL("kernel32")
    kernel.GetCurrentProcess.restype = wintypes.HANDLE
    query = kernel.K32GetProcessMemoryInfo
    query.argtypes = [wintypes.HANDLE, ctypes.POINTER(Counters), wintypes.DWORD]
    query(kernel.GetCurrentProcess(), ctypes.byref(counters), counters.cb)
    return int(counters.peak)


def available() -> int:
    """Return the free main memory in bytes; 0 if the system does not say."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    if "SC_AVPHYS_PAGES" in getattr(os, "sysconf_names", {}):
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return 0
