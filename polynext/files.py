"""Files that are whole or not there, and folders with one process at work in them."""

import os
import struct
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from polynext.errors import PolyNeXtError

# All that reading an archive raises if it is cut short, damaged or made to harm.
UNREADABLE = (zipfile.BadZipFile, struct.error, EOFError, KeyError, OSError, OverflowError, RuntimeError, ValueError)


def require_place(path: Path) -> None:
    """Raises if there can be no file at a path: better before the work that it is to hold than after."""
    if path.is_dir():
        raise PolyNeXtError(f"{path} is a folder: give a file.")
    nearest = next(parent for parent in path.absolute().parents if parent.exists())
    if not nearest.is_dir():
        raise PolyNeXtError(f"there can be no file {path}: {nearest} is no folder.")


def write_atomically(path: Path, data: bytes) -> None:
    """Writes beside the place and then moves there: a process killed at any moment leaves the old file or the new."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with beside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise PolyNeXtError(
            f"cannot write {path} ({error.strerror}): make room or choose another folder; what was saved is whole."
        ) from error


@contextmanager
def alone_in(folder: Path, sentence: str) -> Iterator[None]:
    """Raises with this sentence if another process is in the folder so. One that was killed is not any more."""
    if sys.platform == "win32":  # which has no such locks
        yield
        return
    import fcntl

    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".lock").open("w")
    except OSError as error:
        raise PolyNeXtError(f"cannot write to {folder} ({error.strerror}): give another folder.") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise PolyNeXtError(sentence) from error
        yield
