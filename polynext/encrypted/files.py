"""What travels between client and server: one file each, with a header that says what it is and what it goes with."""

import json
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from polynext.errors import PolyNeXtError

FORMAT = "polynext-encrypted"
VERSION = 1


def write_parts(path: Path, kind: str, header: Mapping[str, Any], parts: Mapping[str, Any]) -> None:
    """Writes SEAL objects, which know how to save themselves to files only, under a header."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + ".part")
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(unfinished, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("header.json", json.dumps({"format": FORMAT, "version": VERSION, "kind": kind, **header}))
        for name, part in parts.items():
            file = Path(folder) / name
            part.save(str(file))
            archive.write(file, name)
            file.unlink()
    unfinished.replace(path)


def read_header(path: Path, kind: str) -> dict[str, Any]:
    """A file's header, if it is of this kind and of a version that this program reads."""
    if not path.is_file():
        raise PolyNeXtError(f"there is no file {path}: expected {KINDS[kind]}.")
    try:
        with zipfile.ZipFile(path) as archive:
            header = json.loads(archive.read("header.json"))
    except (zipfile.BadZipFile, KeyError, ValueError, EOFError, OSError) as error:
        raise PolyNeXtError(
            f"{path} is no file of encrypted inference, or it was cut short: make or send {KINDS[kind]} again."
        ) from error
    if header.get("format") != FORMAT or header.get("kind") != kind:
        raise PolyNeXtError(f"{path} is {KINDS.get(header.get('kind'), 'something else')}: expected {KINDS[kind]}.")
    if header["version"] != VERSION:
        raise PolyNeXtError(
            f"{path} has format version {header['version']}, and this program reads version {VERSION}: "
            "use the same version of polynext on both sides."
        )
    return header


KINDS = {
    "secret": "a client's secret key",
    "evaluation": "evaluation keys, as `polynext encrypted keygen` writes them",
    "request": "a request, as `polynext encrypted encrypt` writes it",
    "answer": "an answer, as `polynext encrypted run` writes it",
}


class Parts:
    """The SEAL objects in a file, unpacked for as long as this is open."""

    def __init__(self, path: Path):
        self.path = path

    def __enter__(self) -> "Parts":
        self.folder = tempfile.TemporaryDirectory()
        try:
            with zipfile.ZipFile(self.path) as archive:
                archive.extractall(self.folder.name)  # checks every part's checksum
        except (zipfile.BadZipFile, EOFError, OSError) as error:
            self.folder.cleanup()
            raise PolyNeXtError(f"{self.path} is damaged ({error}): make or send it again.") from error
        return self

    def __exit__(self, *_: object) -> None:
        self.folder.cleanup()

    def __getitem__(self, name: str) -> Path:
        return Path(self.folder.name) / name

    def names(self, prefix: str) -> list[str]:
        return sorted(f.name for f in Path(self.folder.name).iterdir() if f.name.startswith(prefix))


def check_fits(path: Path, header: Mapping[str, Any], offer: str, key: str | None = None) -> None:
    """That a file was made for this network's parameters, and with these keys."""
    if header["offer"] != offer:
        raise PolyNeXtError(
            f"{path} was made for parameters {header['offer']}, and these are {offer}: "
            "make it again with the offer of the server that is to answer."
        )
    if key is not None and header["key"] != key:
        raise PolyNeXtError(
            f"{path} was made with key {header['key']}, and this one is {key}: use the files of one keygen."
        )
