"""The memory of this process: how it gets it, and how much it had."""

import ctypes
import os
import sys
from pathlib import Path
from typing import Any

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # glibc's malloc.h


def keep_freed_memory() -> bool:
    """Lets the process reuse freed memory instead of returning it to the system, for as long as it lives.

    A feature map of a few megabytes is by default given back when freed, and every page of the next one is mapped and
    zeroed anew, which slows CPU inference. The command line does this at its start; a library has no business to,
    so call it yourself. Returns whether it worked: on Linux with glibc only.
    """
    mallopt = of_glibc("mallopt")
    return bool(mallopt and mallopt(TRIM_THRESHOLD, 2**31 - 1) == 1 and mallopt(MMAP_THRESHOLD, 2**30) == 1)


def return_freed_memory() -> None:
    """Returns freed memory to the system after all, where it can.

    To be done before a process forks or makes room for another: what was free would otherwise be held by both.
    """
    if malloc_trim := of_glibc("malloc_trim"):
        malloc_trim(0)


def of_glibc(function: str) -> Any:
    """A function of the C library; None on a system with another one."""
    return getattr(ctypes.CDLL(None), function, None) if sys.platform.startswith("linux") else None


def peak_memory() -> int:
    """The most bytes of memory that this process had, since it started or since `reset_peak_memory`."""
    if sys.platform.startswith("linux"):  # getrusage would count what the parent had when it started this process
        return status("VmHWM")
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def reset_peak_memory() -> None:
    """Starts `peak_memory` anew, where the system can; elsewhere it goes on counting from the start."""
    if sys.platform.startswith("linux"):
        Path("/proc/self/clear_refs").write_text("5")


def resident_memory() -> int:
    """Bytes of memory that this process has now."""
    return status("VmRSS") if sys.platform.startswith("linux") else peak_memory()


def available_memory() -> int:
    """Bytes of memory that the machine could still give."""
    if sys.platform.startswith("linux"):
        return field_of(Path("/proc/meminfo"), "MemAvailable")
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def status(field: str) -> int:
    """A size from Linux's account of this process."""
    return field_of(Path("/proc/self/status"), field)


def field_of(file: Path, field: str) -> int:
    lines = file.read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))
