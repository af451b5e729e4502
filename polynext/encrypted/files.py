"""What travels between client and server: one file each, with a header that says what it is and what it goes with.

A file is a zip archive, nothing in it compressed. Who reads one trusts nothing in it but the checks made here.
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
LONGEST_HEADER = 4096  # bytes, many times what one takes

KINDS = {
    "secret": "a client's secret key",
    "evaluation": "evaluation keys, as `polynext encrypted keygen` writes them",
    "request": "a request, as `polynext encrypted encrypt` writes it",
    "answer": "an answer, as `polynext encrypted run` writes it",
}


def folder_beside(path: Path) -> "tempfile.TemporaryDirectory[str]":
    """A temporary folder next to a file, for its owner only: others must not come near a secret key."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return tempfile.TemporaryDirectory(dir=path.parent)
    except OSError as error:
        raise PolyNeXtError(
            f"{path.parent} cannot be written to ({error.strerror}), where {path.name} is made or unpacked: "
            "make it writable or choose another folder."
        ) from error


def write_parts(
    path: Path, kind: str, header: Mapping[str, Any], parts: Mapping[str, Savable | Path], mode: int = 0o666
) -> None:
    """Writes keys or ciphertexts, or the files they are in, under a header. The file is there when it is whole, and
    never with more access than `mode`."""
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
    """A file's header, if it is of this kind and of a version that this program reads."""
    if not path.is_file():
        raise PolyNeXtError(f"there is no file {path}: expected {KINDS[kind]}.")
    unreadable = PolyNeXtError(
        f"{path} is not a file of encrypted inference, or it was cut short: make or send {KINDS[kind]} again."
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
    """A file's archive, if its parts take no more room unpacked than they do in the file."""
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        if any(m.compress_type != zipfile.ZIP_STORED for m in members):
            raise zipfile.BadZipFile("its parts are compressed")
        if sum(m.file_size for m in members) > path.stat().st_size:
            raise zipfile.BadZipFile("its parts are longer than all of it")
        yield archive


@contextmanager
def unpacked(path: Path, names: Iterable[str]) -> Iterator[dict[str, Path]]:
    """The keys or ciphertexts in a file by name, each in a file for as long as this is open. The file must hold these
    and nothing else."""
    with folder_beside(path) as folder:
        try:
            with opened(path) as archive:
                _, *found = archive.namelist()
                # Stops where they differ: a header can promise more names than fit into memory.
                if not all(name == wanted for name, wanted in zip_longest(found, names)):
                    raise zipfile.BadZipFile("its parts are not those it should have")
                archive.extractall(folder, found)  # checks every part's checksum
        except UNREADABLE as error:
            raise PolyNeXtError(f"{path} is damaged ({error}): make or send it again.") from error
        yield {name: Path(folder) / name for name in found}


def numbered(name: str, count: int) -> Iterator[str]:
    """The names of so many ciphertexts."""
    return (f"{name}-{i:06}" for i in range(count))


def key_names(rotations: Iterable[int]) -> dict[int, str]:
    """The names of rotation keys."""
    return {step: f"rotation-{step}" for step in rotations}


def header_for(spec: ClientSpec, key: str, **more: int) -> dict[str, Any]:
    """What a file says of itself. `key` names the keys it goes with."""
    backend = get_backend(spec.backend)
    names = {"backend": backend.name, "library": backend.library, "file_format": backend.file_format}
    return {"client_spec": spec.fingerprint, **names, "key": key, **more}


def check_fits(path: Path, header: Mapping[str, Any], spec: ClientSpec, key: str | None = None) -> None:
    """That a file was made for this network's parameters, and with these keys."""
    if header["backend"] != spec.backend:
        raise PolyNeXtError(
            f"{path} was made by the {header['backend']} backend, and this offer is of the {spec.backend} backend: "
            "make it again with the offer of the server that is to answer."
        )
    reads = get_backend(spec.backend).file_format
    if header["file_format"] != reads:
        raise PolyNeXtError(
            f"{path} was written by {header['file_format']} ({header['library']}), which {reads} here does not read: "
            "install the same version of the library on both sides and make the file again."
        )
    if header["client_spec"] != spec.fingerprint:
        raise PolyNeXtError(
            f"{path} was made for parameters {header['client_spec']}, and these are {spec.fingerprint}: "
            "make it again with the offer of the server that is to answer."
        )
    if key is not None and header["key"] != key:
        raise PolyNeXtError(
            f"{path} was made with key {header['key']}, and this one is {key}: use the files of one keygen."
        )
