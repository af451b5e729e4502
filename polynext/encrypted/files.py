"""The files that clients and servers exchange. A header says what a file is, and for which keys and client spec.

A file is an uncompressed zip archive. The reader does not trust it: everything in it is checked here.
"""

import json
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import Any

from polynext.encrypted.client_spec import ClientSpec
from polynext.encrypted.runtime.backends import get_backend
from polynext.encrypted.runtime.backends.protocol import Savable
from polynext.errors import PolyNeXtError
from polynext.files import UNREADABLE

FORMAT = "polynext-encrypted"
VERSION = 4
HEADER = "header.json"
LONGEST_HEADER = 4096  # bytes; headers are much shorter

KINDS = {
    "secret": "a client's secret key",
    "evaluation": "evaluation keys, written by `polynext encrypted keygen`",
    "request": "a request, written by `polynext encrypted encrypt`",
    "answer": "an answer, written by `polynext encrypted run`",
}


def folder_beside(path: Path) -> "tempfile.TemporaryDirectory[str]":
    """A temporary folder next to a file, with access for its owner only, because it may hold a secret key."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return tempfile.TemporaryDirectory(dir=path.parent)
    except OSError as error:
        raise PolyNeXtError(
            f"cannot write to {path.parent} ({error.strerror}): make it writable or choose another folder."
        ) from error


def write_parts(
    path: Path, kind: str, header: Mapping[str, Any], parts: Mapping[str, Savable | Path], mode: int = 0o666
) -> None:
    """Write a header and keys or ciphertexts, given as objects or files. An incomplete file never appears at `path`,
    and permissions never exceed `mode`."""
    with folder_beside(path) as folder:
        whole, part_file = Path(folder) / "whole", Path(folder) / "part"
        whole.touch(mode)
        with zipfile.ZipFile(whole, "w", zipfile.ZIP_STORED) as archive:
            archive.writestr(HEADER, json.dumps({**header, "format": FORMAT, "version": VERSION, "kind": kind}))
            for name, part in parts.items():
                if not isinstance(part, Path):
                    part.save(str(part_file))
                archive.write(part if isinstance(part, Path) else part_file, name)
        whole.replace(path)


def read_header(path: Path, kind: str) -> dict[str, Any]:
    """A file's header. Raises PolyNeXtError unless it has this kind and the current version."""
    if not path.is_file():
        raise PolyNeXtError(f"there is no file {path}: expected {KINDS[kind]}.")
    unreadable = PolyNeXtError(
        f"{path} is not a file of encrypted inference, or it is incomplete: make or send {KINDS[kind]} again."
    )
    try:
        with opened(path) as archive:
            short = archive.getinfo(HEADER).file_size <= LONGEST_HEADER
            header = json.loads(archive.read(HEADER)) if short else None
    except UNREADABLE as error:
        raise unreadable from error
    if not isinstance(header, dict):
        raise unreadable
    if header.get("format") != FORMAT or header.get("kind") != kind:
        found = KINDS.get(str(header.get("kind")), "something else")
        raise PolyNeXtError(f"{path} is {found}: expected {KINDS[kind]}.")
    if header.get("version") != VERSION:
        raise PolyNeXtError(
            f"{path} has format version {header.get('version')}, and this program reads version {VERSION}: "
            "use the same version of polynext on both sides."
        )
    images = header.get("images") if kind in ("request", "answer") else 1
    names = ("client_spec", "backend", "library", "file_format", "key")
    if type(images) is not int or images < 1 or not all(isinstance(header.get(name), str) for name in names):
        raise unreadable
    return header


@contextmanager
def opened(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open a file's archive. Its parts must not become larger when they are unpacked."""
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        if any(m.compress_type != zipfile.ZIP_STORED for m in members):
            raise zipfile.BadZipFile("its parts are compressed")
        if sum(m.file_size for m in members) > path.stat().st_size:
            raise zipfile.BadZipFile("its parts are longer than the file")
        yield archive


@contextmanager
def unpacked(path: Path, names: Iterable[str]) -> Iterator[dict[str, Path]]:
    """Unpack keys or ciphertexts into temporary files, by name. The archive must have exactly these names."""
    with folder_beside(path) as folder:
        try:
            with opened(path) as archive:
                _, *found = archive.namelist()
                # This stops at the first difference: a false header could name more parts than fit into memory.
                if not all(name == wanted for name, wanted in zip_longest(found, names)):
                    raise zipfile.BadZipFile("it has other parts than expected")
                archive.extractall(folder, found)  # checks every part's checksum
        except UNREADABLE as error:
            raise PolyNeXtError(f"{path} is damaged ({error}): make or send it again.") from error
        yield {name: Path(folder) / name for name in found}


def numbered(name: str, count: int) -> Iterator[str]:
    """Names of `count` ciphertexts."""
    return (f"{name}-{i:06}" for i in range(count))


def header_for(spec: ClientSpec, key: str, **more: int) -> dict[str, Any]:
    """The header of a file. `key` names the keys that it was made with."""
    backend = get_backend(spec.backend)
    names = {"backend": backend.name, "library": backend.library, "file_format": backend.file_format}
    return {"client_spec": spec.fingerprint, **names, "key": key, **more}


def check_fits(path: Path, header: Mapping[str, Any], spec: ClientSpec, key: str | None = None) -> None:
    """Raise PolyNeXtError unless a file was made for this client spec, and with these keys."""
    if header["backend"] != spec.backend:
        raise PolyNeXtError(
            f"{path} was made for the {header['backend']} backend, and the client spec has the {spec.backend} backend: "
            "make it again with this server's client spec."
        )
    reads = get_backend(spec.backend).file_format
    if header["file_format"] != reads:
        raise PolyNeXtError(
            f"{path} was written by {header['file_format']} ({header['library']}), and this is {reads}: "
            "install the same version of the library on both sides and make the file again."
        )
    if header["client_spec"] != spec.fingerprint:
        raise PolyNeXtError(
            f"{path} was made for client spec {header['client_spec']}, and this is {spec.fingerprint}: "
            "make it again with this server's client spec."
        )
    if key is not None and header["key"] != key:
        raise PolyNeXtError(
            f"{path} was made with key {header['key']}, and this is {key}: use files of the same keygen."
        )
