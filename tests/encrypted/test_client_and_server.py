"""Clients and servers: the files between them, what they may contain, and what is refused."""

import json
import re
import shutil
import tempfile
import zipfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import polynext.encrypted
from polynext.circuit.graph import Linear
from polynext.cli import main
from polynext.encrypted import Client, ClientSpec, Plan, Server, get_backend
from polynext.encrypted.client import EVALUATION, SECRET, OutOfRangeError
from polynext.encrypted.files import (
    HEADER,
    LONGEST_HEADER,
    header_for,
    numbered,
    read_header,
    unpacked,
    write_parts,
)
from polynext.encrypted.runtime.backends.protocol import EvaluationKeys, Part, Savable
from polynext.encrypted.runtime.execution import encode_program, execute
from polynext.encrypted.runtime.program_file import save_program
from polynext.errors import PolyNeXtError
from polynext.threads import cores
from tests.encrypted.conftest import logits, promised


def load_client(folders: Path) -> Client:
    return Client.load(folders / "client", allow_unencrypted=True)


@pytest.mark.parametrize("threads", [1, 2])
def test_files_go_from_client_to_server_and_back(
    folders: Path, trained: Any, examples: np.ndarray, tmp_path: Path, threads: int
) -> None:
    images = examples[:3]  # more than one ciphertext, or one that is not full
    client = load_client(folders)
    client.write_request(images, tmp_path / "request.enc")
    server = Server.load(folders / "server", folders / "client" / EVALUATION, threads)
    server.answer_request(tmp_path / "request.enc", tmp_path / "answer.enc")
    result = client.read_answer(tmp_path / "answer.enc")
    wanted = logits(trained, images)
    assert np.abs(result - wanted).max() < promised(client.spec.cost)


@pytest.mark.parametrize("backend", ["seal"], indirect=True)
def test_the_server_never_sees_the_secret_key(folders: Path) -> None:
    assert {f.name for f in (folders / "server").iterdir()} == {"program.npz", "client_spec.json"}
    with zipfile.ZipFile(folders / "client" / SECRET) as archive:
        secret = archive.read("secret")
    with zipfile.ZipFile(folders / "client" / EVALUATION) as archive:
        assert all(n.startswith(("header.json", "relinearisation", "rotation-")) for n in archive.namelist())
        sent = [archive.read(name) for name in archive.namelist()]
    sent += [f.read_bytes() for f in (folders / "server").iterdir()]
    assert not any(secret[64:128] in data for data in sent)
    for private in (folders / "client", folders / "client" / SECRET):
        assert private.stat().st_mode & 0o077 == 0


def test_the_old_name_of_client_specs_is_deprecated() -> None:
    with pytest.warns(DeprecationWarning, match="ClientSpec"):
        assert polynext.encrypted.Offer is ClientSpec


def test_the_client_spec_has_no_weights(plan: Plan, spec: ClientSpec) -> None:
    shown = json.dumps(spec.to_json())
    weights = [v for node in plan.circuit.order if isinstance(node, Linear) for v in node.map.matrix().data[:50]]
    assert not any(repr(float(w)) in shown for w in weights if w not in (0.0, 0.5, 1.0))


@pytest.mark.parametrize("backend", ["seal"], indirect=True)
def test_encryption_is_randomised(folders: Path, examples: np.ndarray, tmp_path: Path) -> None:
    client = load_client(folders)
    for name in ("a", "b"):
        client.write_request(examples[:1], tmp_path / name)
    assert (tmp_path / "a").read_bytes() != (tmp_path / "b").read_bytes()


def test_files_that_do_not_match_are_refused(
    folders: Path, spec: ClientSpec, examples: np.ndarray, tmp_path: Path
) -> None:
    client = load_client(folders)
    request, answer, keys = tmp_path / "request.enc", tmp_path / "answer.enc", folders / "client" / EVALUATION
    client.write_request(examples[:1], request)
    server = Server.load(folders / "server", keys)

    with pytest.raises(PolyNeXtError, match=r"is a request.*expected evaluation keys"):
        Server.load(folders / "server", request)
    with pytest.raises(PolyNeXtError, match=r"is a request.*expected an answer"):
        client.read_answer(request)
    with pytest.raises(PolyNeXtError, match="there is no file"):
        server.answer_request(tmp_path / "missing", answer)
    with pytest.raises(PolyNeXtError, match="already has a secret key"):
        Client.keygen(spec, folders / "client", allow_unencrypted=True)
    with pytest.raises(PolyNeXtError, match="images are 1x8x8, and the network takes 1x4x4"):
        client.write_request(np.zeros((1, 1, 8, 8)), request)

    (tmp_path / "cut.enc").write_bytes(request.read_bytes()[:5000])
    with pytest.raises(PolyNeXtError, match="incomplete"):
        server.answer_request(tmp_path / "cut.enc", answer)
    (tmp_path / "foreign.enc").write_bytes(b"GIF89a" * 100)
    with pytest.raises(PolyNeXtError, match="is not a file of encrypted inference"):
        server.answer_request(tmp_path / "foreign.enc", answer)
    damaged = bytearray(request.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    (tmp_path / "damaged.enc").write_bytes(damaged)
    with pytest.raises(PolyNeXtError, match="is damaged"):
        server.answer_request(tmp_path / "damaged.enc", answer)

    (tmp_path / "other").mkdir(mode=0o755)
    other = Client.keygen(spec, tmp_path / "other", allow_unencrypted=True)
    assert (tmp_path / "other").stat().st_mode & 0o777 == 0o755
    other.write_request(examples[:1], tmp_path / "other.enc")
    with pytest.raises(PolyNeXtError, match="was made with key"):
        server.answer_request(tmp_path / "other.enc", answer)
    changed = replace(spec, preprocessing=replace(spec.preprocessing, mean=(0.4,)))
    client.spec = changed
    client.write_request(examples[:1], tmp_path / "changed.enc")
    with pytest.raises(PolyNeXtError, match="was made for client spec"):
        server.answer_request(tmp_path / "changed.enc", answer)
    assert not answer.exists()


def test_a_server_folder_that_does_not_match_is_refused(folders: Path, plan: Plan, tmp_path: Path) -> None:
    server, keys = tmp_path / "server", folders / "client" / EVALUATION
    shutil.copytree(folders / "server", server)
    plan.program.rotations += (5,)
    save_program(plan.program, server / "program.npz")
    plan.program.rotations = plan.program.rotations[:-1]
    with pytest.raises(PolyNeXtError, match=r"program\.npz and client_spec\.json in .* do not match"):
        Server.load(server, keys)
    (server / "program.npz").rename(server / "circuit.npz")  # as earlier versions had it
    with pytest.raises(
        PolyNeXtError, match=r"has no program\.npz: write it with this version's `polynext encrypted prepare`"
    ):
        Server.load(server, keys)
    (server / "client_spec.json").write_text("{}")
    with pytest.raises(PolyNeXtError, match="is not a client spec"):
        ClientSpec.load(server / "client_spec.json")


def test_files_of_another_backend_are_refused(spec: ClientSpec, folders: Path, tmp_path: Path) -> None:
    library = get_backend(spec.backend).library
    assert read_header(folders / "client" / EVALUATION, "evaluation")["library"] == library
    assert json.loads((folders / "server" / "client_spec.json").read_text())["library"] == library
    other = {"clear": "seal", "seal": "clear"}[spec.backend]
    shutil.copytree(folders / "server", tmp_path / "server")
    replace(spec, backend=other).save(tmp_path / "server" / "client_spec.json")
    with pytest.raises(
        PolyNeXtError, match=f"was made for the {spec.backend} backend, and the client spec has the {other}"
    ):
        Server.load(tmp_path / "server", folders / "client" / EVALUATION)


@pytest.mark.parametrize("backend", ["clear"], indirect=True)
def test_a_backend_that_does_not_encrypt_is_refused(
    spec: ClientSpec, folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    message = "uses the clear backend, which does not encrypt: everybody could read your images"
    with pytest.raises(PolyNeXtError, match=message):
        Client.keygen(spec, tmp_path / "client")
    with pytest.raises(PolyNeXtError, match=message):
        Client.load(folders / "client")
    out = ["--out", str(tmp_path / "client")]
    assert main(["encrypted", "keygen", str(folders / "server" / "client_spec.json"), *out]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "client").exists()


class Letters:
    """Some bytes with the interface of a key."""

    def __init__(self, text: bytes):
        self.text = text

    def save(self, path: str) -> None:
        Path(path).write_bytes(self.text)


HEADER_FIELDS = {
    "client_spec": "a spec",
    "backend": "seal",
    "library": "a version",
    "file_format": "SEAL 4.1",
    "key": "a key",
    "images": 2,
}


def read_parts(path: Path) -> list[bytes]:
    header = read_header(path, "request")
    with unpacked(path, numbered("image", header["images"])) as parts:
        return [part.read_bytes() for part in parts.values()]


def archive(path: Path, header: Any, members: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> None:
    with zipfile.ZipFile(path, "w", compression) as made:
        made.writestr(HEADER, header if isinstance(header, str) else json.dumps(header))
        for name, data in members.items():
            made.writestr(name, data)


GOOD = {"format": "polynext-encrypted", "version": 2, "kind": "request", **HEADER_FIELDS}
PARTS = {"image-000000": b"a" * 100, "image-000001": b"b" * 100}
BAD_FILES: dict[str, Callable[[Path], None]] = {
    "compressed": lambda p: archive(p, GOOD, PARTS, zipfile.ZIP_DEFLATED),
    "other folders": lambda p: archive(p, GOOD, {"image-000000": b"a", "../image-000001": b"b"}),
    "absolute": lambda p: archive(p, GOOD, {"image-000000": b"a", "/image-000001": b"b"}),
    "more than it says": lambda p: archive(p, {**GOOD, "images": 1}, PARTS),
    "fewer than it says": lambda p: archive(p, {**GOOD, "images": 10**15}, PARTS),
    "something beside": lambda p: archive(p, GOOD, {**PARTS, "virus": b"c"}),
    "header is not a table": lambda p: archive(p, [GOOD], PARTS),
    "header is not JSON": lambda p: archive(p, "{", PARTS),
    "header is deep": lambda p: archive(p, "[" * 4000, PARTS),
    "header is long": lambda p: archive(p, {**GOOD, "more": "x" * LONGEST_HEADER}, PARTS),
    "kind is a list": lambda p: archive(p, {**GOOD, "kind": []}, PARTS),
    "client spec is a number": lambda p: archive(p, {**GOOD, "client_spec": 1}, PARTS),
    "images is a text": lambda p: archive(p, {**GOOD, "images": "2"}, PARTS),
    "no images": lambda p: archive(p, {**GOOD, "images": 0}, {}),
    "another version": lambda p: archive(p, {**GOOD, "version": 1}, PARTS),
    **{
        f"without {field}": lambda p, field=field: archive(p, {k: v for k, v in GOOD.items() if k != field}, PARTS)
        for field in GOOD
    },
}


@pytest.mark.parametrize("bad", BAD_FILES)
def test_bad_files_are_refused_with_a_message(tmp_path: Path, bad: str) -> None:
    BAD_FILES[bad](tmp_path / "request.enc")
    with pytest.raises(PolyNeXtError, match=r"request\.enc .*: .*\.$"):
        read_parts(tmp_path / "request.enc")
    assert [f.name for f in tmp_path.iterdir()] == ["request.enc"]


@given(st.data())
@settings(deadline=None, max_examples=300)
def test_files_with_changed_bytes_are_equal_or_refused(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "request.enc"
        write_parts(path, "request", HEADER_FIELDS, {name: Letters(text) for name, text in PARTS.items()})
        assert read_parts(path) == list(PARTS.values())
        changed = bytearray(path.read_bytes())
        for _ in range(data.draw(st.integers(1, 4))):
            place = data.draw(st.integers(-len(changed), -1))
            changed[place] = data.draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]) | st.integers(0, 255))
        path.write_bytes(changed[: data.draw(st.none() | st.integers(0, len(changed)))])
        with suppress(PolyNeXtError):
            assert read_parts(path) == list(PARTS.values())


def test_other_users_can_never_read_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    path = tmp_path / "secret.key"

    class Watched(Letters):
        def save(self, path: str) -> None:
            super().save(path)
            folder = Path(path).parent
            assert folder.parent == tmp_path and folder.stat().st_mode & 0o077 == 0
            assert (folder / "whole").stat().st_mode & 0o077 == 0

    class Failing(Letters):
        def save(self, path: str) -> None:
            super().save(path)
            raise RuntimeError("the disk is full")

    with pytest.raises(RuntimeError, match="the disk is full"):
        write_parts(path, "secret", HEADER_FIELDS, {"secret": Failing(b"s")})
    assert not list(tmp_path.iterdir())
    write_parts(path, "secret", HEADER_FIELDS, {"secret": Watched(b"s")}, mode=0o600)
    assert path.stat().st_mode & 0o777 == 0o600
    with unpacked(path, ["secret"]) as parts:
        assert parts["secret"].read_bytes() == b"s"
        assert parts["secret"].parent.stat().st_mode & 0o077 == 0
    assert list(tmp_path.iterdir()) == [path]


def unexpected_ciphertexts(client: Client, fresh: Any) -> list[Savable]:
    """Another level or scale, other files, and with SEAL also three polynomials and an empty ciphertext."""
    ring = client.secret.ring
    evaluator = ring.evaluator(EvaluationKeys(None, {}))
    scaled = evaluator.accumulate(None, fresh, evaluator.encode(np.ones(ring.parameters.slots), 0, 2.0))
    found = [evaluator.drop(fresh, 1), scaled, Letters(b"[1, 2]"), Letters(b"")]
    if client.spec.backend == "seal":
        from polynext.encrypted.runtime.backends.seal import SealRing, seal

        context = cast(SealRing, ring).context
        triple, empty = (seal.Ciphertext(context) for _ in range(2))
        seal.Evaluator(context).square(fresh.body, triple)
        triple.scale = fresh.scale
        found += [triple, empty]
    return found


def test_unexpected_ciphertexts_are_refused(folders: Path, examples: np.ndarray, tmp_path: Path) -> None:
    client = load_client(folders)
    server = Server.load(folders / "server", folders / "client" / EVALUATION, threads=2)
    count = client.spec.images + 1
    fresh, _ = client.encrypt(examples[:count])
    header = header_for(client.spec, client.key, images=count)
    for bad in unexpected_ciphertexts(client, fresh):
        for kind, name in (("request", "image"), ("answer", "result")):
            write_parts(tmp_path / kind, kind, header, dict(zip(numbered(name, 2), (bad, fresh), strict=True)))
        with pytest.raises(PolyNeXtError, match="image-000000 is"):
            server.answer_request(tmp_path / "request", tmp_path / "reply")
        with pytest.raises(PolyNeXtError, match="result-000000 is"):
            client.read_answer(tmp_path / "answer")


def test_unexpected_keys_are_refused(folders: Path, tmp_path: Path) -> None:
    client = load_client(folders)
    header = header_for(client.spec, client.key)
    names = [part.name for part in Part.keys(client.spec.rotations)]
    write_parts(tmp_path / "keys", "evaluation", header, dict.fromkeys(names, client.secret))
    with pytest.raises(PolyNeXtError, match=r"rotation-[0-9]+ is not a .*key"):
        Server.load(folders / "server", tmp_path / "keys")


def test_logits_beyond_the_limit_are_refused(spec: ClientSpec) -> None:
    class Keys:
        size = 1.0

        def decrypt(self, _: Any) -> np.ndarray:
            return np.full(spec.parameters.slots, self.size)

    keys: Any = Keys()
    client = Client(spec, keys, "", allow_unencrypted=True)
    keys.size = -spec.largest_logit
    assert client.decrypt([None], 1).shape == (1, 3)
    keys.size *= 1.1
    with pytest.raises(OutOfRangeError, match=r"image 0 has logits up to .* Leave it out") as raised:
        client.decrypt([None], 1)
    assert np.isnan(raised.value.logits).all()


@pytest.mark.parametrize("backend", ["seal"], indirect=True)
def test_an_image_out_of_range_does_not_affect_the_others(
    folders: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def read_answer(self: Client, path: Path) -> np.ndarray:
        raise OutOfRangeError(np.array([[0.0, 2.0, 1.0], [0.0, 900.0, 1.0]]), 8.0)

    monkeypatch.setattr(Client, "read_answer", read_answer)
    command = ["encrypted", "decrypt", "answer.enc", "--client", str(folders / "client")]
    assert main([*command, "--json"]) != 0
    printed = capsys.readouterr()
    first, second = json.loads(printed.out)
    assert first == {"image": "0", "class": "b", "logits": [0, 2, 1]}
    assert second == {"image": "1", "class": None, "logits": None}
    assert "image 1 has logits up to 900" in printed.err
    assert main(command) != 0
    assert re.search(r"0 +b +2\.000\n1 +- +-", capsys.readouterr().out)


@pytest.mark.parametrize("backend", ["seal"], indirect=True)
def test_wrong_logits_are_always_refused(plan: Plan, spec: ClientSpec, trained: Any, examples: np.ndarray) -> None:
    """Images less and less like the examples, far beyond overflow: correct or refused."""
    key = get_backend(spec.backend).ring(plan.parameters).generate_key()
    client = Client(spec, key, "")
    evaluator = key.ring.evaluator(key.evaluation_keys(plan.program.rotations))
    encoded = encode_program(plan.program, evaluator)
    refused = []
    for factor in 2.0 ** np.arange(0, 24, 1.5):
        images = factor * examples[: plan.images]
        wanted = logits(trained, images)
        answer = execute(plan.program, encoded, evaluator, client.encrypt(images)[0])
        try:
            found = client.decrypt([answer], plan.images)
        except OutOfRangeError as error:
            refused.append(factor)
            found = error.logits
        unrefused = ~np.isnan(found).any(axis=1)
        np.testing.assert_allclose(found[unrefused], wanted[unrefused], atol=1e-2 * spec.largest_logit)
    assert refused[0] > 1
    assert refused[-1] == 2.0**22.5


def test_a_demo_replaces_only_folders_of_a_demo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from polynext.encrypted.compiler.demo import make_demo_folders

    make_demo_folders(tmp_path / "demo")
    (tmp_path / "demo" / "client" / SECRET).touch()
    make_demo_folders(tmp_path / "demo")
    assert not (tmp_path / "demo" / "client" / SECRET).exists()

    (tmp_path / "client").mkdir()
    (tmp_path / "client" / SECRET).touch()
    assert main(["encrypted", "demo", "--out", str(tmp_path)]) == 2
    assert "no demo created it" in capsys.readouterr().err
    assert (tmp_path / "client" / SECRET).exists() and not (tmp_path / "server").exists()


def test_messages_of_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, message in [
        (["plan", str(tmp_path)], "is not a finished run"),
        (["keygen", str(tmp_path / "client_spec.json")], "there is no client spec"),
        (["encrypt"], "give image files, or --digits"),
        (["encrypt", "--digits", "2", "--client", str(tmp_path)], "there is no client spec"),
        (["demo", "--images", "0"], "images is 0: give at least 1"),
        (["conjure"], "choose one of demo, design, fit, plan"),
    ]:
        assert main(["encrypted", *arguments]) == 2
        assert message in capsys.readouterr().err
    assert main(["encrypted", "--help"]) == 0


def test_shipped_networks_have_short_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from polynext.encrypted.compiler.shipped import CIFAR10, DIGITS, find_shipped

    assert find_shipped("digits") is DIGITS and find_shipped("cifar10") is CIFAR10
    assert find_shipped("imagenet") is None
    monkeypatch.chdir(tmp_path)
    (tmp_path / "digits").mkdir()
    assert find_shipped("digits") is None, "a folder of that name comes first"


@pytest.mark.slow
def test_the_demo_classifies_encrypted_digits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["encrypted", "demo", "--images", "2"]) == 0
    assert "predicted on one core" in capsys.readouterr().out
    assert (tmp_path / "encrypted-demo" / "demo.png").is_file()


@pytest.mark.slow
def test_a_hundred_encrypted_digits(tmp_path: Path) -> None:
    """The claim of the README: encrypted predictions equal those in the clear."""
    from polynext.encrypted import Limits, prepare
    from polynext.encrypted.compiler.shipped import DIGITS

    trained = DIGITS.load()
    everything, labels, _ = trained.images("test", 10_000)
    assert (logits(trained.model, everything).argmax(axis=1) == labels).mean() >= 0.97
    images, wanted = everything[:100], logits(trained.model, everything[:100])
    prepare(trained, images=8, limits=Limits(error=1e-3)).save(tmp_path / "server")
    client = Client.keygen(ClientSpec.load(tmp_path / "server" / "client_spec.json"), tmp_path / "client")
    server = Server.load(tmp_path / "server", tmp_path / "client" / EVALUATION, cores())
    client.write_request(images, tmp_path / "request.enc")
    server.answer_request(tmp_path / "request.enc", tmp_path / "answer.enc")
    result = client.read_answer(tmp_path / "answer.enc")
    assert (result.argmax(axis=1) == wanted.argmax(axis=1)).all()
    assert np.abs(result - wanted).max() < 1e-3 * np.abs(wanted).max()


@pytest.mark.slow
def test_two_hundred_encrypted_photographs(tmp_path: Path) -> None:
    """The claim of the README for CIFAR-10. This takes an hour on one core."""
    from polynext.encrypted.compiler.shipped import CIFAR10, shipped_server

    trained, prepared = CIFAR10.load(), shipped_server(CIFAR10)
    images, labels, _ = trained.images("test", 200)
    wanted = logits(trained.model, images)
    assert (wanted.argmax(axis=1) == labels).mean() >= 0.75
    client = Client.keygen(ClientSpec.load(prepared / "client_spec.json"), tmp_path / "client")
    server = Server.load(prepared, tmp_path / "client" / EVALUATION, cores())
    client.write_request(images, tmp_path / "request.enc")
    server.answer_request(tmp_path / "request.enc", tmp_path / "answer.enc")
    with pytest.raises(OutOfRangeError) as raised:  # one of the 200 overflows in the clear too
        client.read_answer(tmp_path / "answer.enc")
    result, bounded = raised.value.logits, np.abs(wanted).max(axis=1) < client.spec.largest_logit
    assert bounded.sum() == 199
    assert (np.isnan(result).any(axis=1) == ~bounded).all()
    assert (result[bounded].argmax(axis=1) == wanted[bounded].argmax(axis=1)).all()
    assert np.abs(result - wanted)[bounded].max() < 1e-2 * np.abs(wanted[bounded]).max()
