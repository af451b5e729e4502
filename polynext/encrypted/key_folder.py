"""The folder of a client's keys. Keys are made whole or not at all, by one process at a time.

evaluation.keys    for the server
client_spec.json   what the keys were made for
secret.key         moved here last, so that a folder with it is complete
parts.json         sizes and hashes of the evaluation keys, made when they are first sent to a service
.new               files that are being made; left behind by a killed process and removed by the next one
"""

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

from annotated_types import Len
from filelock import FileLock, Timeout
from pydantic import BaseModel, ValidationError

from polynext.encrypted.files import unpacked
from polynext.encrypted.messages import ManifestPart
from polynext.errors import PolyNeXtError
from polynext.files import write_atomically

SECRET, CLIENT_SPEC, EVALUATION, PARTS = "secret.key", "client_spec.json", "evaluation.keys", "parts.json"
NEW, LOCK = ".new", ".lock"
LOCK_SECONDS = 3600.0  # another process may be making large keys
FREE_DISK = 2**30  # bytes that new keys leave free


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Create a folder with access for its owner only, and hold its lock. The system releases it if the process dies."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = FileLock(folder / LOCK, timeout=LOCK_SECONDS, thread_local=False)
        lock.acquire()
    except Timeout as error:
        message = f"another process is making keys in {folder}: wait for it, or choose another folder."
        raise PolyNeXtError(message) from error
    except OSError as error:
        raise cannot_write(folder, error) from error
    try:
        shutil.rmtree(folder / NEW, ignore_errors=True)  # of a process that was killed
        yield
    finally:
        lock.release()


@contextmanager
def new_keys(folder: Path) -> Iterator[Path]:
    """A folder for new files, which move into `folder` together. The caller holds the lock."""
    new = folder / NEW
    try:
        new.mkdir(mode=0o700, parents=True)
        yield new
        for name in (EVALUATION, CLIENT_SPEC, SECRET):
            flush(new / name)
        for name in (EVALUATION, CLIENT_SPEC, SECRET):
            (new / name).replace(folder / name)
        flush(folder)
    except OSError as error:
        raise cannot_write(folder, error) from error
    finally:
        shutil.rmtree(new, ignore_errors=True)


def flush(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def cannot_write(folder: Path, error: OSError) -> PolyNeXtError:
    return PolyNeXtError(f"cannot write keys to {folder} ({error.strerror}): free some space or choose another folder.")


def require_room(folder: Path, size: int) -> None:
    """Raises PolyNeXtError if keys of this size would fill the disk."""
    nearest = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.exists())
    free = shutil.disk_usage(nearest).free
    if free < size + FREE_DISK:
        raise PolyNeXtError(
            f"the keys take up to {size / 2**20:.0f} MB, and {folder} has {free / 2**20:.0f} MB left: free some space "
            "or choose another folder."
        )


class PartList(BaseModel):
    """The content of `parts.json`: the name of the keys, and the parts of the evaluation keys."""

    key: str
    parts: Annotated[list[ManifestPart], Len(1, 4097)]


def manifest(folder: Path, key: str, names: list[str]) -> list[ManifestPart]:
    """Names, sizes and hashes of the parts of the evaluation keys."""
    with locked(folder):
        try:
            saved = PartList.model_validate_json((folder / PARTS).read_bytes())
            if saved.key == key and [part.name for part in saved.parts] == names:
                return saved.parts
        except (OSError, ValidationError):
            pass  # there is none yet, or it is damaged
        with unpacked(folder / EVALUATION, names) as files:
            described = [describe(name, path) for name, path in files.items()]
        write_atomically(folder / PARTS, PartList(key=key, parts=described).model_dump_json().encode())
        return described


def describe(name: str, path: Path) -> ManifestPart:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return ManifestPart(name=name, bytes=path.stat().st_size, sha256=digest)


def remove_oldest(folder: Path, most: int) -> None:
    """Remove the least recently used key folders in a folder, if there are more than `most`."""
    found = sorted((each for each in folder.iterdir() if each.is_dir()), key=lambda each: each.stat().st_mtime)
    for oldest in found[: max(0, len(found) - most)]:
        with locked(oldest):
            shutil.rmtree(oldest, ignore_errors=True)
