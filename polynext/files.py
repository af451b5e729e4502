"""Atomic writes, folders with an exclusive lock, and reading files that may be damaged."""

import json
import os
import struct
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from polynext.errors import PolyNeXtError

# The exceptions of reading an archive that is truncated, damaged or malicious.
UNREADABLE = (zipfile.BadZipFile, struct.error, EOFError, KeyError, OSError, OverflowError, RuntimeError, ValueError)


def require_place(path: Path) -> None:
    """Raises if no file can be written to a path; to be called before long work."""
    if path.is_dir():
        raise PolyNeXtError(f"{path} is a folder: give a file.")
    nearest = next(parent for parent in path.absolute().parents if parent.exists())
    if not nearest.is_dir():
        raise PolyNeXtError(f"cannot write {path}: {nearest} is not a folder.")


def write_atomically(path: Path, data: bytes) -> None:
    """Writes a temporary file and renames it, so that a killed process leaves the old file or the new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise PolyNeXtError(
            f"cannot write {path} ({error.strerror}): free some space or choose another folder. Saved files are intact."
        ) from error


@contextmanager
def reading(message: str) -> Iterator[None]:
    """Raises PolyNeXtError with this message for any exception inside: libraries raise all kinds for damaged files."""
    try:
        yield
    except PolyNeXtError:
        raise
    except Exception as error:
        raise PolyNeXtError(message) from error


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file that this package wrote."""
    with reading(f"{path} is damaged, or of another version: remove it, and what it has is made again."):
        record = json.loads(path.read_bytes())
        return {**record}


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
