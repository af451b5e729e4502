"""The memory of this process: how it is allocated, and how much is in use."""

import ctypes
import sys
from pathlib import Path
from typing import Any

import psutil

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # glibc's malloc.h


def keep_freed_memory() -> bool:
    """Makes the process keep freed memory for reuse instead of returning it to the system.

    By default a freed feature map of a few megabytes is returned, and all pages of the next one are mapped and zeroed
    again, which slows CPU inference. The command line calls this when it starts. Importing polynext does not, so call
    it in your own programs. Returns whether it worked: on Linux with glibc only.
    """
    mallopt = of_glibc("mallopt")
    return bool(mallopt and mallopt(TRIM_THRESHOLD, 2**31 - 1) == 1 and mallopt(MMAP_THRESHOLD, 2**30) == 1)


def return_freed_memory() -> None:
    """Returns freed memory to the system, with glibc; call it before forking, or both processes hold the memory."""
    if malloc_trim := of_glibc("malloc_trim"):
        malloc_trim(0)


def of_glibc(function: str) -> Any:
    """A function of the C library; None if it is not glibc."""
    return getattr(ctypes.CDLL(None), function, None) if sys.platform.startswith("linux") else None


def peak_memory() -> int:
    """The peak resident memory of this process in bytes, since its start or, on Linux, since `reset_peak_memory`."""
    if sys.platform.startswith("linux"):  # getrusage would include memory of the parent process
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    if sys.platform == "win32":
        return psutil.Process().memory_info().peak_wset
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def reset_peak_memory() -> None:
    """Restarts `peak_memory` on Linux; elsewhere it has no effect."""
    if sys.platform.startswith("linux"):
        Path("/proc/self/clear_refs").write_text("5")


def resident_memory() -> int:
    """The resident memory of this process in bytes."""
    return psutil.Process().memory_info().rss


def available_memory() -> int:
    """The memory of the machine that is available, in bytes."""
    return psutil.virtual_memory().available
