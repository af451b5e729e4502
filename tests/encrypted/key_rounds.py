"""Make or load keys in a folder and check that they belong together: python key_rounds.py SPEC FOLDER."""

import sys
from pathlib import Path

from polynext.encrypted import Client, ClientSpec
from polynext.encrypted.files import read_header
from polynext.encrypted.key_folder import EVALUATION, SECRET, manifest
from polynext.encrypted.runtime.backends.protocol import Part


def main(spec: ClientSpec, folder: Path) -> None:
    print("ready", flush=True)
    sys.stdin.readline()
    client = Client.load_or_keygen(spec, folder, allow_unencrypted=True)
    names = {read_header(folder / name, kind)["key"] for name, kind in ((SECRET, "secret"), (EVALUATION, "evaluation"))}
    assert names == {client.key}, names
    parts = manifest(folder, client.key, [part.name for part in Part.keys(spec.rotations)])
    print(client.key, parts[0].sha256, flush=True)


if __name__ == "__main__":
    main(ClientSpec.load(Path(sys.argv[1])), Path(sys.argv[2]))
