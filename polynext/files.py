"""Files that are whole or not there, and folders with one process at work in them."""

import os
import struct
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

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
def lock_folder(folder: Path, message: str) -> Iterator[None]:
    """Hold an exclusive lock on a folder. If another process holds it, raise PolyNeXtError with this message.

    The operating system releases the lock if the process dies.
    """
    lock = FileLock(folder / ".lock", timeout=0, thread_local=False)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout as error:
        raise PolyNeXtError(message) from error
    except OSError as error:
        raise PolyNeXtError(f"cannot write to {folder} ({error.strerror}): give another folder.") from error
    try:
        yield
    finally:
        lock.release()
