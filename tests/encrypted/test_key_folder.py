"""Keys are made whole or not at all, also by several processes at once and by processes that are killed."""

import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from polynext.encrypted import Client, ClientSpec
from polynext.encrypted.key_folder import EVALUATION, NEW, PARTS, SECRET, manifest
from polynext.encrypted.runtime.backends.protocol import Part
from polynext.errors import PolyNeXtError

SCRIPT = Path(__file__).with_name("key_rounds.py")
pytestmark = [
    pytest.mark.parametrize("backend", ["seal"], indirect=True),
    pytest.mark.parametrize("plan", [1], indirect=True),
]
ROUNDS = [3, pytest.param(50, marks=pytest.mark.slow)]


@pytest.fixture
def spec_file(spec: ClientSpec, tmp_path: Path) -> Path:
    """A client spec with small keys, so that many can be made."""
    parameters = replace(spec.parameters, ring_degree=2**13, prime_bits=(60, 60, 60))
    image, result = (replace(layout, slots=parameters.slots) for layout in (spec.image_layout, spec.result_layout))
    small = replace(spec, parameters=parameters, rotations=(1, 2, 4), image_layout=image, result_layout=result)
    small.save(tmp_path / "client_spec.json")
    return tmp_path / "client_spec.json"


def launch(spec_file: Path, keys: Path) -> "subprocess.Popen[str]":
    """A process that makes or loads keys when it gets a line."""
    command = [sys.executable, str(SCRIPT), str(spec_file), str(keys)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("rounds", ROUNDS)
def test_clients_that_start_at_once_share_their_keys(spec_file: Path, tmp_path: Path, rounds: int) -> None:
    for number in range(rounds):
        processes = [launch(spec_file, tmp_path / str(number)) for _ in range(2 + number % 2)]
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        printed = [process.communicate(timeout=300)[0] for process in processes]
        assert [process.returncode for process in processes] == [0] * len(processes)
        assert len(set(printed)) == 1 and printed[0].strip()
        assert Client.load(tmp_path / str(number))


@pytest.mark.parametrize("rounds", ROUNDS)
def test_a_killed_keygen_can_be_repeated(spec_file: Path, tmp_path: Path, rounds: int) -> None:
    """At random moments: afterwards there are keys that belong together, or none, and the next keygen works."""
    process, start = launch(spec_file, tmp_path / "whole"), time.monotonic()
    assert process.communicate("\n", timeout=300)[0].strip()
    took, chance, incomplete = time.monotonic() - start, random.Random(0), 0
    for number in range(rounds):
        keys = tmp_path / str(number)
        process = launch(spec_file, keys)
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        time.sleep(chance.random() * took)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=300)
        incomplete += not (keys / SECRET).exists()
        again = launch(spec_file, keys)
        assert again.communicate("\n", timeout=300)[0].strip() and again.returncode == 0
        assert Client.load(keys) and not (keys / NEW).exists()
        shutil.rmtree(keys)
    assert incomplete, "no process was killed before its keys were complete"


def test_keys_that_do_not_belong_together_are_refused(spec: ClientSpec, tmp_path: Path) -> None:
    for name in "ab":
        Client.keygen(spec, tmp_path / name)
    (tmp_path / "b" / EVALUATION).replace(tmp_path / "a" / EVALUATION)
    with pytest.raises(PolyNeXtError, match=r"evaluation.keys was made with key .*: use files of the same keygen"):
        Client.load(tmp_path / "a")
    assert Client.load(tmp_path / "b"), "evaluation keys may have been moved to the server"


def test_a_damaged_list_of_parts_is_made_again(spec: ClientSpec, tmp_path: Path) -> None:
    client = Client.keygen(spec, tmp_path / "keys")
    names = [part.name for part in Part.keys(spec.rotations)]
    made = manifest(tmp_path / "keys", client.key, names)
    for damage in (b"", b"[", (tmp_path / "keys" / PARTS).read_bytes().replace(client.key.encode(), b"other")):
        (tmp_path / "keys" / PARTS).write_bytes(damage)
        assert manifest(tmp_path / "keys", client.key, names) == made
