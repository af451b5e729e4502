"""Encrypted inference: packing and programs exactly, ciphertexts within the noise their scale allows."""

import json
import shutil
import tempfile
import zipfile
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from polynext.circuit.graph import Circuit, Input, Linear, Product
from polynext.circuit.lowering import lower
from polynext.circuit.maps import Matrix
from polynext.cli import main
from polynext.encrypted.ckks import CkksEngine, EvaluationKeys, Ring, SecretKeys, seal
from polynext.encrypted.client import EVALUATION, SECRET, Client
from polynext.encrypted.costs import Costs
from polynext.encrypted.engine import ClearEngine
from polynext.encrypted.execution import encode_program, execute
from polynext.encrypted.files import HEADER, LONGEST_HEADER, numbered, read_header, unpacked, write_parts
from polynext.encrypted.offer import Offer
from polynext.encrypted.packing import layout_of
from polynext.encrypted.parameters import LONGEST_MODULUS, Parameters
from polynext.encrypted.planner import DoesNotFitError, Limits, Plan, choose_parameters, make_bill, make_plan
from polynext.encrypted.program import Program, Stride, build_program
from polynext.encrypted.rotations import choose_rotations, grow
from polynext.encrypted.server import Server, save_server
from polynext.errors import PolyNeXtError
from polynext.preprocessing import Preprocessing
from tests.test_circuit import settled, small_network

OPERATIONS = ("rotate", "multiply", "multiply_plain", "add", "rescale", "drop")


def unit_costs(ring_degree: int) -> Costs:
    """A machine on which everything takes a millisecond for each prime."""
    return Costs(ring_degree, dict.fromkeys(OPERATIONS, (0.0, 1e-3)))


def run_clear(program: Program, parameters: Parameters, images: np.ndarray) -> tuple[np.ndarray, ClearEngine]:
    engine = ClearEngine(parameters, program.rotations)
    encoded = encode_program(program, engine)
    packed = program.layouts[0].pack(images.reshape(len(images), -1))
    result = execute(program, encoded, engine, engine.encrypt(packed))
    return program.layouts[program.output].unpack(engine.decrypt(result)), engine


@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=3),
    st.sampled_from([1, 2, 4]),
    st.booleans(),
    st.sampled_from([1, 2]),
)
@settings(deadline=None, max_examples=50)
def test_what_is_packed_can_be_unpacked(shape: list[int], images: int, mirrored: bool, groups: int) -> None:
    layout = layout_of(shape, range(len(shape)), images, 256, mirrored)
    assert layout is not None
    if groups > 1:
        assume(1 < layout.period <= 64)
        layout = layout.spread(groups, 64)
    values = np.random.default_rng(0).normal(size=(images, int(np.prod(shape))))
    vector = layout.pack(values)
    np.testing.assert_array_equal(layout.unpack(vector), values)
    for g, codes in enumerate(layout.copies()):
        np.testing.assert_array_equal(vector[codes], values)
        assert ((codes // layout.block == g) if groups > 1 else (codes >= 0)).all()


@st.composite
def bilinear(draw: st.DrawFn) -> tuple[Circuit, int, int]:
    """`C ((A x) * (B x))` for random sparse maps of random shapes."""
    shape = (draw(st.integers(1, 3)), draw(st.integers(1, 4)), draw(st.integers(1, 4)))
    inner = (draw(st.integers(1, 4)), draw(st.integers(1, 4)), draw(st.integers(1, 4)))
    classes, images = draw(st.integers(1, 5)), draw(st.sampled_from([1, 2, 4]))
    rng = np.random.default_rng(draw(st.integers(0, 999)))

    def random_map(rows: int, columns: int) -> Matrix:
        dense = rng.normal(size=(rows, columns)) * (rng.random((rows, columns)) < 0.5)
        dense[0, 0] = 1.0
        return Matrix(sp.csr_array(dense))

    image = Input(shape=shape)
    size = int(np.prod(inner))
    operands = [Linear(shape=inner, map=random_map(size, image.size), source=image, bias=rng.normal(size=size))]
    operands.append(Linear(shape=inner, map=random_map(size, image.size), source=image))
    product = Product(shape=inner, left=operands[0], right=operands[-draw(st.integers(1, 2))])
    output = Linear(shape=(classes,), map=random_map(classes, size), source=product, bias=rng.normal(size=classes))
    return Circuit(image, output), images, draw(st.sampled_from([0, 1, 2]))


@given(bilinear())
@settings(deadline=None, max_examples=80)
def test_a_program_computes_its_circuit(case: tuple[Circuit, int, int]) -> None:
    circuit, images, spread = case
    program = build_program(circuit, 1024, images, spread=range(spread))
    choose_rotations(program, most_keys=40)
    parameters = Parameters(2048, (30, 50, 40, 50), 30, 26, 34)
    x = np.random.default_rng(0).normal(size=(images, *circuit.input.shape))
    parameters = replace(parameters, prime_bits=(*parameters.prime_bits[: program.depth], 40, 50))
    result, _ = run_clear(program, parameters, x)
    np.testing.assert_allclose(result, circuit(x), atol=1e-9)


@given(st.data())
@settings(deadline=None, max_examples=60)
def test_giant_and_baby_steps_make_up_the_offset(data: st.DataObject) -> None:
    period = 2 ** data.draw(st.integers(1, 10))
    stride = Stride(2 ** data.draw(st.integers(0, 10)), data.draw(st.booleans()), data.draw(st.sampled_from([0, 4, 8])))
    offsets = np.arange(period)
    giants, babies = stride.decompose(offsets, period)
    np.testing.assert_array_equal((giants * stride.size + babies) % period, offsets)


@given(st.sets(st.integers(0, 63), min_size=1), st.sets(st.integers(1, 63), max_size=4))
def test_baby_steps_are_reached_with_the_keys_there_are(want: set[int], more: set[int]) -> None:
    keys = {1, 2, 4, 8, 16, 32} | more
    reached = {0}
    tree = grow({0}, want, keys, 64)
    assert tree is not None
    for new, start, key in tree:
        assert start in reached and key in keys and (start + key) % 64 == new
        reached.add(new)
    assert want <= reached
    assert grow({0}, want | {1}, {2, 32}, 64) is None


@pytest.fixture(scope="module")
def trained() -> Any:
    torch.manual_seed(1)
    return small_network()


@pytest.fixture(scope="module")
def examples() -> np.ndarray:
    return np.random.default_rng(3).normal(size=(32, 1, 4, 4))


@pytest.fixture(scope="module", params=[1, 4], ids=lambda n: f"{n} images")
def plan(request: pytest.FixtureRequest, trained: Any, examples: np.ndarray) -> Plan:
    return make_plan(lower(trained), examples, request.param, costs=unit_costs)


@pytest.fixture(scope="module")
def offer(plan: Plan) -> Offer:
    return Offer.of(plan, Preprocessing(size=4, resize=4), ("a", "b", "c"))


@pytest.fixture(scope="module")
def folders(plan: Plan, offer: Offer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A server's and a client's folder."""
    root = tmp_path_factory.mktemp("encrypted")
    save_server(plan, offer, root / "server")
    Client.keygen(Offer.load(root / "server" / "offer.json"), root / "client")
    return root


def logits(model: Any, images: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return model.double()(torch.from_numpy(images)).numpy()


def test_the_clear_engine_agrees_with_the_model_and_the_bill(plan: Plan, trained: Any, examples: np.ndarray) -> None:
    images = examples[: plan.packing.images]
    result, engine = run_clear(plan.program, plan.parameters, images)
    np.testing.assert_allclose(result, logits(trained, images), atol=1e-9)
    assert engine.total("rotate") == plan.bill.rotations
    assert engine.total("multiply") == plan.bill.ciphertext_products
    assert engine.total("multiply_plain") == plan.bill.plaintext_products
    assert engine.ciphertext_bytes == plan.bill.ciphertext_bytes


def test_a_plan_keeps_to_128_bits(plan: Plan) -> None:
    parameters = plan.parameters
    assert parameters.modulus_bits <= LONGEST_MODULUS[parameters.ring_degree]
    assert plan.bill.levels == parameters.depth == plan.program.depth
    Ring(parameters)  # SEAL checks for itself
    longer = replace(parameters, prime_bits=(60,) * 8)
    with pytest.raises(PolyNeXtError, match="128 bits of security"):
        Ring(longer)


class CountingEngine(CkksEngine):
    """SEAL, counted."""

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        self.counts: Counter[str] = Counter()

    def rotate(self, *arguments: Any) -> Any:
        self.counts["rotate"] += 1
        return super().rotate(*arguments)

    def multiply(self, *arguments: Any) -> Any:
        self.counts["multiply"] += 1
        return super().multiply(*arguments)

    def accumulate(self, *arguments: Any) -> Any:
        self.counts["multiply_plain"] += 1
        return super().accumulate(*arguments)


def test_ciphertexts_give_the_models_logits(plan: Plan, offer: Offer, trained: Any, examples: np.ndarray) -> None:
    ring = Ring(plan.parameters)
    keys = SecretKeys.generate(ring)
    engine = CountingEngine(ring, keys.evaluation_keys(plan.program.rotations))
    images = examples[: plan.packing.images]
    encoded = encode_program(plan.program, engine)
    answer = execute(plan.program, encoded, engine, keys.encrypt(offer.pack(images)))
    result = offer.result_layout.unpack(keys.decrypt(answer))
    wanted = logits(trained, images)
    # A rescale rounds to about 2^12 of the scale's units in each slot; the levels after it amplify that.
    assert np.abs(result - wanted).max() < 64 * 2**12 / plan.parameters.scale
    assert np.abs(result - wanted).max() < 1e-3 * np.abs(wanted).max()
    bill = plan.bill
    assert engine.counts["rotate"] == bill.rotations
    assert engine.counts["multiply"] == bill.ciphertext_products
    assert engine.counts["multiply_plain"] == bill.plaintext_products
    assert (answer.level, answer.scale) == (bill.levels, plan.parameters.scale)


@pytest.mark.parametrize("tiny", [1e-9, 0.0])
@pytest.mark.parametrize("ordinary", [1.0, 0.0])
def test_weights_that_round_to_nothing_are_left_out(tiny: float, ordinary: float) -> None:
    """Some of a map's diagonals, or all of them."""
    image = Input(shape=(4,))
    weights = ordinary * np.eye(4) + tiny * np.roll(np.eye(4), 1, axis=1)
    operand = Linear(shape=(4,), map=Matrix(sp.csr_array(weights)), source=image, bias=np.array([1.0, 2.0, 3.0, 0.5]))
    product = Product(shape=(4,), left=operand, right=operand)
    output = Linear(shape=(2,), map=Matrix(sp.csr_array([[1.0, 1, 0, 0], [0, tiny, 1, -1]])), source=product)
    circuit, x = Circuit(image, output), np.array([[0.5, -1.0, 2.0, 1.5]])
    program = build_program(circuit, 4096, images=1)
    choose_rotations(program, most_keys=20)
    parameters = choose_parameters(program, 2**13, 20.0)
    np.testing.assert_allclose(run_clear(program, parameters, x)[0], circuit(x), atol=1e-9)

    ring = Ring(parameters)
    keys = SecretKeys.generate(ring)
    engine = CkksEngine(ring, keys.evaluation_keys(program.rotations))
    encoded = encode_program(program, engine)
    answer = execute(program, encoded, engine, keys.encrypt(program.layouts[0].pack(x)))
    np.testing.assert_allclose(program.layouts[program.output].unpack(keys.decrypt(answer)), circuit(x), atol=1e-3)


@pytest.mark.parametrize("processes", [1, 2])
def test_files_go_from_client_to_server_and_back(
    folders: Path, trained: Any, examples: np.ndarray, tmp_path: Path, processes: int
) -> None:
    images = examples[:3]  # more than one ciphertext, or one that is not full
    client = Client.load(folders / "client")
    client.write_request(images, tmp_path / "request.enc")
    server = Server.load(folders / "server", folders / "client" / EVALUATION)
    server.answer_request(tmp_path / "request.enc", tmp_path / "answer.enc", processes)
    result = client.read_answer(tmp_path / "answer.enc")
    wanted = logits(trained, images)
    assert np.abs(result - wanted).max() < 1e-3 * np.abs(wanted).max()


def test_the_server_never_sees_the_secret_key(folders: Path) -> None:
    assert {f.name for f in (folders / "server").iterdir()} == {"circuit.npz", "packing.json", "offer.json"}
    with zipfile.ZipFile(folders / "client" / SECRET) as archive:
        secret = archive.read("secret")
    with zipfile.ZipFile(folders / "client" / EVALUATION) as archive:
        assert all(n.startswith(("header.json", "relinearisation", "rotation-")) for n in archive.namelist())
        sent = [archive.read(name) for name in archive.namelist()]
    sent += [f.read_bytes() for f in (folders / "server").iterdir()]
    assert not any(secret[64:128] in data for data in sent)
    for private in (folders / "client", folders / "client" / SECRET):
        assert private.stat().st_mode & 0o077 == 0


def test_the_offer_holds_no_weights(plan: Plan, offer: Offer) -> None:
    shown = json.dumps(offer.to_json())
    weights = [v for node in plan.circuit.order if isinstance(node, Linear) for v in node.map.matrix().data[:50]]
    assert not any(repr(float(w)) in shown for w in weights if w not in (0.0, 0.5, 1.0))


def test_encrypted_twice_is_two_ciphertexts(folders: Path, examples: np.ndarray, tmp_path: Path) -> None:
    client = Client.load(folders / "client")
    for name in ("a", "b"):
        client.write_request(examples[:1], tmp_path / name)
    assert (tmp_path / "a").read_bytes() != (tmp_path / "b").read_bytes()


def test_files_that_do_not_go_together_are_refused(
    folders: Path, offer: Offer, examples: np.ndarray, tmp_path: Path
) -> None:
    client = Client.load(folders / "client")
    request, answer, keys = tmp_path / "request.enc", tmp_path / "answer.enc", folders / "client" / EVALUATION
    client.write_request(examples[:1], request)
    server = Server.load(folders / "server", keys)

    with pytest.raises(PolyNeXtError, match=r"is a request.*expected evaluation keys"):
        Server.load(folders / "server", request)
    with pytest.raises(PolyNeXtError, match=r"is a request.*expected an answer"):
        client.read_answer(request)
    with pytest.raises(PolyNeXtError, match="there is no file"):
        server.answer_request(tmp_path / "missing", answer)
    with pytest.raises(PolyNeXtError, match="holds a secret key already"):
        Client.keygen(offer, folders / "client")
    with pytest.raises(PolyNeXtError, match="images are 1x8x8, and the network takes 1x4x4"):
        client.write_request(np.zeros((1, 1, 8, 8)), request)

    (tmp_path / "cut.enc").write_bytes(request.read_bytes()[:5000])
    with pytest.raises(PolyNeXtError, match="cut short"):
        server.answer_request(tmp_path / "cut.enc", answer)
    (tmp_path / "foreign.enc").write_bytes(b"GIF89a" * 100)
    with pytest.raises(PolyNeXtError, match="no file of encrypted inference"):
        server.answer_request(tmp_path / "foreign.enc", answer)
    damaged = bytearray(request.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    (tmp_path / "damaged.enc").write_bytes(damaged)
    with pytest.raises(PolyNeXtError, match="is damaged"):
        server.answer_request(tmp_path / "damaged.enc", answer)

    (tmp_path / "other").mkdir(mode=0o755)
    other = Client.keygen(offer, tmp_path / "other")
    assert (tmp_path / "other").stat().st_mode & 0o777 == 0o755
    other.write_request(examples[:1], tmp_path / "other.enc")
    with pytest.raises(PolyNeXtError, match="was made with key"):
        server.answer_request(tmp_path / "other.enc", answer)
    changed = replace(offer, preprocessing=replace(offer.preprocessing, mean=(0.4,)))
    client.offer = changed
    client.write_request(examples[:1], tmp_path / "changed.enc")
    with pytest.raises(PolyNeXtError, match="was made for parameters"):
        server.answer_request(tmp_path / "changed.enc", answer)
    assert not answer.exists()

    shutil.copytree(folders / "server", tmp_path / "server")
    (tmp_path / "server" / "packing.json").write_text(json.dumps({"images": 1, "mirrored": True, "spread": []}))
    with pytest.raises(PolyNeXtError, match="prepared by another version"):
        Server.load(tmp_path / "server", keys)
    (tmp_path / "server" / "circuit.npz").unlink()
    with pytest.raises(PolyNeXtError, match=r"has no circuit\.npz"):
        Server.load(tmp_path / "server", keys)
    (tmp_path / "server" / "offer.json").write_text("{}")
    with pytest.raises(PolyNeXtError, match="is no offer"):
        Offer.load(tmp_path / "server" / "offer.json")


class Letters:
    """Saves itself as a SEAL object does."""

    def __init__(self, text: bytes):
        self.text = text

    def save(self, path: str) -> None:
        Path(path).write_bytes(self.text)


HEADER_FIELDS = {"offer": "an offer", "key": "a key", "images": 2}


def read_parts(path: Path) -> list[bytes]:
    header = read_header(path, "request")
    with unpacked(path, numbered("image", header["images"])) as parts:
        return [part.read_bytes() for part in parts.values()]


def archive(path: Path, header: Any, members: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> None:
    with zipfile.ZipFile(path, "w", compression) as made:
        made.writestr(HEADER, header if isinstance(header, str) else json.dumps(header))
        for name, data in members.items():
            made.writestr(name, data)


GOOD = {"format": "polynext-encrypted", "version": 1, "kind": "request", **HEADER_FIELDS}
PARTS = {"image-000000": b"a" * 100, "image-000001": b"b" * 100}
BAD_FILES: dict[str, Callable[[Path], None]] = {
    "compressed": lambda p: archive(p, GOOD, PARTS, zipfile.ZIP_DEFLATED),
    "other folders": lambda p: archive(p, GOOD, {"image-000000": b"a", "../image-000001": b"b"}),
    "absolute": lambda p: archive(p, GOOD, {"image-000000": b"a", "/image-000001": b"b"}),
    "more than it says": lambda p: archive(p, {**GOOD, "images": 1}, PARTS),
    "fewer than it says": lambda p: archive(p, {**GOOD, "images": 10**15}, PARTS),
    "something beside": lambda p: archive(p, GOOD, {**PARTS, "virus": b"c"}),
    "header is no table": lambda p: archive(p, [GOOD], PARTS),
    "header is no JSON": lambda p: archive(p, "{", PARTS),
    "header is deep": lambda p: archive(p, "[" * 4000, PARTS),
    "header is long": lambda p: archive(p, {**GOOD, "more": "x" * LONGEST_HEADER}, PARTS),
    "kind is a list": lambda p: archive(p, {**GOOD, "kind": []}, PARTS),
    "offer is a number": lambda p: archive(p, {**GOOD, "offer": 1}, PARTS),
    "images is a text": lambda p: archive(p, {**GOOD, "images": "2"}, PARTS),
    "no images": lambda p: archive(p, {**GOOD, "images": 0}, {}),
    "another version": lambda p: archive(p, {**GOOD, "version": 2}, PARTS),
    **{
        f"without {field}": lambda p, field=field: archive(p, {k: v for k, v in GOOD.items() if k != field}, PARTS)
        for field in GOOD
    },
}


@pytest.mark.parametrize("bad", BAD_FILES)
def test_bad_files_are_refused_with_a_sentence(tmp_path: Path, bad: str) -> None:
    BAD_FILES[bad](tmp_path / "request.enc")
    with pytest.raises(PolyNeXtError, match=r"request\.enc .*: .*\.$"):
        read_parts(tmp_path / "request.enc")
    assert [f.name for f in tmp_path.iterdir()] == ["request.enc"]


@given(st.data())
@settings(deadline=None, max_examples=300)
def test_files_with_changed_bytes_are_whole_or_refused(data: st.DataObject) -> None:
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


def test_keys_never_lie_where_others_can_read_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_ciphertexts_unlike_those_expected_are_refused(folders: Path, examples: np.ndarray, tmp_path: Path) -> None:
    client = Client.load(folders / "client")
    server = Server.load(folders / "server", folders / "client" / EVALUATION)
    count = client.offer.images + 1
    fresh, other = client.encrypt(examples[:count])
    engine = CkksEngine(client.keys.ring, EvaluationKeys(None, {}))
    triple = seal.Ciphertext(client.keys.ring.context)
    engine.evaluator.square(fresh.body, triple)
    triple.scale = fresh.scale
    wide = engine.add(fresh, other).body
    wide.scale = 2 * fresh.scale
    header = {"offer": client.offer.fingerprint, "key": client.key, "images": count}
    for bad in (engine.drop(fresh, 1).body, triple, wide, seal.Ciphertext(client.keys.ring.context)):
        for kind, name in (("request", "image"), ("answer", "result")):
            write_parts(tmp_path / kind, kind, header, dict(zip(numbered(name, 2), (bad, fresh.body), strict=True)))
        with pytest.raises(PolyNeXtError, match="image-000000 is"):
            server.answer_request(tmp_path / "request", tmp_path / "reply")
        with pytest.raises(PolyNeXtError, match="result-000000 is"):
            client.read_answer(tmp_path / "answer")
    with pytest.raises(PolyNeXtError, match="image-000000 is"):
        server.answer_request(tmp_path / "request", tmp_path / "reply", processes=2)


def test_logits_too_large_for_the_parameters_are_no_result(offer: Offer) -> None:
    class Keys:
        size = 1.0

        def decrypt(self, _: Any) -> np.ndarray:
            return np.full(offer.parameters.slots, self.size)

    keys: Any = Keys()
    client = Client(offer, keys, "")
    keys.size = -offer.parameters.largest_result
    assert client.decrypt([None], 1).shape == (1, 3)  # type: ignore[list-item]
    keys.size *= 1.1
    with pytest.raises(PolyNeXtError, match=r"image 0 has a logit of size .* leave it out"):
        client.decrypt([None], 1)  # type: ignore[list-item]


def test_a_demo_replaces_only_what_a_demo_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from polynext.cli.encrypted_demo import make_folders

    make_folders(tmp_path / "demo")
    (tmp_path / "demo" / "client" / SECRET).touch()
    make_folders(tmp_path / "demo")
    assert not (tmp_path / "demo" / "client" / SECRET).exists()

    (tmp_path / "client").mkdir()
    (tmp_path / "client" / SECRET).touch()
    assert main(["encrypted", "demo", "--out", str(tmp_path)]) == 2
    assert "no demo made it" in capsys.readouterr().err
    assert (tmp_path / "client" / SECRET).exists() and not (tmp_path / "server").exists()


def test_what_does_not_fit_says_how_far_it_is(trained: Any, examples: np.ndarray) -> None:
    circuit = lower(trained)
    with pytest.raises(DoesNotFitError, match=r"need a modulus of .* bits where 128-bit security allows 218"):
        make_plan(circuit, examples, limits=Limits(ring_degrees=(2**13,)), costs=unit_costs)
    with pytest.raises(DoesNotFitError, match=r"rotation keys take .* MB where 20 MB are allowed"):
        make_plan(circuit, examples, limits=Limits(keys=20 * 2**20), costs=unit_costs)
    with pytest.raises(DoesNotFitError, match=r"of memory where 50 MB are allowed"):
        make_plan(circuit, examples, limits=Limits(memory=50 * 2**20), costs=unit_costs)
    with pytest.raises(DoesNotFitError, match="does not fit into 8192 slots: put fewer images"):
        make_plan(circuit, examples, images=1024, limits=Limits(ring_degrees=(2**14,)), costs=unit_costs)


def test_fewer_keys_take_more_rotations(plan: Plan) -> None:
    """The key budget is kept, and only costs time."""
    program = plan.packing.program(plan.circuit, plan.parameters.slots)
    many = make_bill(program, plan.parameters, unit_costs(2**14))
    frugal = replace(plan.packing, most_keys=1).program(plan.circuit, plan.parameters.slots)
    few = make_bill(frugal, plan.parameters, unit_costs(2**14))
    assert few.rotation_keys <= many.rotation_keys and few.rotations >= many.rotations


def test_attention_runs_in_the_clear_engine() -> None:
    from polynext.circuit.rewrites import merge_linear_maps, split, unbuild_sums, written_out
    from polynext.models.network import FullyPolynomialBlocks, PolyNeXt, PolyNeXtConfig, StageConfig

    stages = (
        StageConfig(width=4, cells=1, stacks=1, coarse_kernel=3),
        StageConfig(width=4, cells=1, stacks=1, mixer="attention"),
    )
    config = PolyNeXtConfig(stages=stages, scale_logits=(1.0, 0.5), stem_kernel=3, stem_stride=1)
    model = PolyNeXt(config, in_chans=1, num_classes=3, img_size=4, blocks=FullyPolynomialBlocks())
    settled(model, torch.randn(64, 1, 4, 4))
    circuit = written_out(split(unbuild_sums(merge_linear_maps(lower(model))), 2**14))
    program = build_program(circuit, 2**14, images=1)
    choose_rotations(program, most_keys=60)
    images = np.random.default_rng(0).normal(size=(1, 1, 4, 4))
    largest = float(np.abs(circuit(images)).max())
    parameters = choose_parameters(program, 2**15, largest)
    result, _ = run_clear(program, parameters, images)
    np.testing.assert_allclose(result, logits(model, images), atol=1e-8)


def test_the_commands_say_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, sentence in [
        (["plan", str(tmp_path)], "is not a finished run"),
        (["keygen", str(tmp_path / "offer.json")], "there is no offer"),
        (["encrypt"], "give image files to encrypt"),
        (["encrypt", "--digits", "2", "--client", str(tmp_path)], "there is no offer"),
        (["demo", "--images", "0"], "images is 0: give at least 1"),
        (["conjure"], "choose one of demo, plan, prepare"),
    ]:
        assert main(["encrypted", *arguments]) == 2
        assert sentence in capsys.readouterr().err
    assert main(["encrypted", "--help"]) == 0


@pytest.mark.slow
def test_a_hundred_encrypted_digits(tmp_path: Path) -> None:
    """What the README promises: a trained network answers encrypted digits as it answers them in the clear."""
    from polynext.cli.encrypted import train_digits
    from polynext.encrypted.prepare import prepare
    from polynext.runs import load_run

    train_digits(tmp_path / "run")
    trained = load_run(tmp_path / "run")
    everything, labels, _ = trained.images("test", 10_000)
    assert (logits(trained.model, everything).argmax(axis=1) == labels).mean() >= 0.97
    images, wanted = everything[:100], logits(trained.model, everything[:100])
    prepare(trained, tmp_path / "server", images=8)
    client = Client.keygen(Offer.load(tmp_path / "server" / "offer.json"), tmp_path / "client")
    server = Server.load(tmp_path / "server", tmp_path / "client" / EVALUATION)
    client.write_request(images, tmp_path / "request.enc")
    server.answer_request(tmp_path / "request.enc", tmp_path / "answer.enc", processes=2)
    result = client.read_answer(tmp_path / "answer.enc")
    assert (result.argmax(axis=1) == wanted.argmax(axis=1)).all()
    assert np.abs(result - wanted).max() < 1e-3 * np.abs(wanted).max()
