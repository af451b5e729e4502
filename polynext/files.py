"""Files that are whole or not there."""

import os
from pathlib import Path

from polynext.errors import PolyNeXtError


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
