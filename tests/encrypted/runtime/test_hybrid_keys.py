"""Hybrid keys: correct at every level, nothing of the secret in what is sent, and strict about files."""

import importlib.util
import itertools
import math
import struct
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polynext.encrypted.compiler.precision import NoisyEvaluator
from polynext.encrypted.runtime.backends import get_backend, seal_files
from polynext.encrypted.runtime.backends.protocol import CONJUGATION, EvaluationKeys, Part
from polynext.encrypted.runtime.parameters import Parameters
from polynext.errors import PolyNeXtError
from tests.encrypted.conftest import decrypted

pytest.importorskip("polynext_native", reason="polynext-native is not installed: it needs a C++ compiler")

from polynext.encrypted.runtime.backends.hybrid_keys import HybridKeyGenerator, automorphism, reversed_bits
from polynext.encrypted.runtime.backends.seal import SealKey, SealRing, galois_element, seal, seal_words

RINGS = {
    "two special primes": Parameters(2**13, (30, 30, 40, 40, 40), 26, 14, 26, 26, special_primes=2),
    "a last digit of one prime": Parameters(2**14, (50, 40, 60, 50, 60, 58, 60), 36, 20, 36, 36, special_primes=3),
    "one digit": Parameters(2**13, (34, 34, 36, 50, 50), 26, 14, 26, 26, special_primes=3),
}
STEPS = (1, 7, CONJUGATION)


def secret_key(parameters: Parameters) -> SealKey:
    key = get_backend("seal").ring(parameters).generate_key()
    assert isinstance(key, SealKey)
    return key


@pytest.fixture(scope="module", params=RINGS)
def secret(request: pytest.FixtureRequest) -> SealKey:
    return secret_key(RINGS[request.param])


@pytest.fixture(scope="module")
def small() -> SealKey:
    return secret_key(RINGS["two special primes"])


def written(key: Any) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        key.save(str(Path(folder) / "key"))
        return (Path(folder) / "key").read_bytes()


def test_rotations_and_products_are_correct_at_every_level(secret: SealKey) -> None:
    parameters = secret.ring.parameters
    evaluator = secret.ring.evaluator(secret.evaluation_keys(STEPS))
    values = np.random.default_rng(0).normal(size=parameters.slots)
    fresh = secret.encrypt(values)
    within = 100 * parameters.ring_degree / parameters.input_scale
    for level in range(parameters.depth + 1):
        value = evaluator.drop(fresh, level)
        for step, rotated in zip(STEPS[:2], evaluator.rotate_many(value, STEPS[:2]), strict=True):
            assert np.abs(decrypted(rotated, secret) - np.roll(values, -step)).max() < within
        assert np.abs(decrypted(evaluator.conjugate(value), secret) - values).max() < within
        if level < parameters.depth:  # one prime has no room for a product
            product = evaluator.multiply(value, value)
            assert np.abs(decrypted(product, secret) - values**2).max() < 10 * within


def test_the_automorphism_of_words_is_that_of_polynomials(small: SealKey) -> None:
    """SEAL rotates ciphertexts in the same form."""
    ring, element = small.ring, galois_element(7, small.ring.parameters)
    seal_keys = secret_key(Parameters(2**13, (40, 40), 30, 20, 30, 30))
    table = automorphism(element, ring.parameters.ring_degree)
    assert sorted(table) == list(range(ring.parameters.ring_degree))
    values = np.random.default_rng(0).normal(size=seal_keys.ring.parameters.slots)
    plain, rotated = (seal_words(seal_keys.ring.encode(v, 0, 2.0**20)) for v in (values, np.roll(values, -7)))
    np.testing.assert_array_equal(plain[table], rotated)


class Digit:
    """A digit as sent: its words b, its seed, and the words a that SEAL expands from the seed."""

    def __init__(self, ring: SealRing, body: bytes):
        shape = (len(ring.key_primes), ring.parameters.ring_degree)
        count = shape[0] * shape[1]
        self.b = np.frombuffer(body, np.uint64, count, seal_files.FIRST_WORD).reshape(shape)
        self.seed = body[-64:]
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "digit").write_bytes(body)
            loaded = ring.load(seal.PublicKey(), "a digit", Path(folder) / "digit", ring.key_context)
        words = seal_words(loaded.data()).reshape(2, *shape)
        np.testing.assert_array_equal(words[0], self.b)
        self.a = words[1]


def digits_sent(secret: SealKey, key: Any, element: int) -> list[Digit]:
    expected, data = secret.ring.expected_hybrid_key(element), written(key)
    start = seal_files.HEADER.size + len(expected.head)
    size = expected.digit.most_bytes
    assert len(data) == start + expected.digits * size, "and nothing else is sent"
    return [Digit(secret.ring, data[start + i * size : start + (i + 1) * size]) for i in range(expected.digits)]


@pytest.mark.parametrize("name", ["two special primes", "one digit"])
def test_a_key_is_an_encryption_of_zero_and_a_multiple_of_the_other_secret(name: str) -> None:
    """b + a s is P s' modulo the primes of the digit and 0 modulo all others, up to SEAL's error of at most 21."""
    secret = secret_key(RINGS[name])
    ring, parameters = secret.ring, secret.ring.parameters
    keys, special = HybridKeyGenerator(secret).keys([1]), parameters.special_primes
    s = seal_words(secret.secret.data()).reshape(-1, parameters.ring_degree).astype(object)
    element = galois_element(1, parameters)
    rotated = s[:, automorphism(element, parameters.ring_degree)]
    factor = math.prod(ring.key_primes[-special:])
    for key, number, other in ((keys.relinearisation, 1, s * s), (keys.rotations[1], element, rotated)):
        for g, digit in enumerate(digits_sent(secret, key, number)):
            own = range(g * special, min((g + 1) * special, parameters.depth + 1))
            for i, q in enumerate(ring.key_primes):
                error = coefficients(digit.b[i] + digit.a[i] * s[i] - (factor * other[i] if i in own else 0), q)
                assert 0 < np.abs(error).max() <= 21
                assert 2.8 < error.astype(float).std() < 3.6


def coefficients(words: np.ndarray, q: int) -> np.ndarray:
    """The polynomial of a row in SEAL's NTT form, with coefficients around zero."""
    n, values = len(words), words.astype(object) % q
    inverse = pow(smallest_root(q, n), -1, q)
    exponents = reversed_bits(np.arange(n), n.bit_length() - 1).tolist()
    powers = np.array([pow(inverse, e, q) for e in exponents], dtype=object)
    groups = n // 2
    while groups:
        pairs = values.reshape(groups, 2, -1)
        left, right = pairs[:, 0], pairs[:, 1]
        values = np.stack([left + right, (left - right) * powers[groups : 2 * groups, None]], axis=1) % q
        groups //= 2
    found = values.ravel() * pow(n, -1, q) % q
    return np.where(found > q // 2, found - q, found)


def smallest_root(q: int, degree: int) -> int:
    """The smallest primitive root of unity of order twice the ring degree, which SEAL uses."""
    bases = (pow(base, (q - 1) // (2 * degree), q) for base in itertools.count(2))
    root = next(r for r in bases if pow(r, degree, q) == q - 1)
    return min(pow(root, k, q) for k in range(1, 2 * degree, 2))


def test_nothing_of_the_secret_is_in_what_is_sent(small: SealKey) -> None:
    """Both halves of every digit look uniform, and neither depends on the secret; all seeds differ."""
    ring, parameters = small.ring, small.ring.parameters
    s = seal_words(small.secret.data()).reshape(-1, parameters.ring_degree)
    keys = small.sendable_keys([1, 7])
    sent = {1: keys.relinearisation} | {galois_element(k, parameters): key for k, key in keys.rotations.items()}
    seeds = []
    for element, key in sent.items():
        data = written(key)
        assert not any(row[:8].tobytes() in data for row in s)
        for digit in digits_sent(small, key, element):
            seeds.append(digit.seed)
            for i, q in enumerate(ring.key_primes):
                for words in (digit.a[i], digit.b[i]):
                    shares = words / q
                    counts = np.histogram(shares, bins=64, range=(0, 1))[0]
                    expected = parameters.ring_degree / 64
                    assert ((counts - expected) ** 2 / expected).sum() < 130  # 63 on average, with a deviation of 11
                    assert abs(np.corrcoef(shares, s[i] / q)[0, 1]) < 6 / np.sqrt(parameters.ring_degree)
    assert len(set(seeds)) == len(seeds)


def test_no_two_keys_are_the_same(small: SealKey) -> None:
    first, second = (written(small.sendable_keys([1]).rotations[1]) for _ in range(2))
    assert len(first) == len(second) and first != second


def test_a_file_has_half_the_size_of_a_key(secret: SealKey) -> None:
    parameters = secret.ring.parameters
    size = len(written(secret.sendable_keys([1]).rotations[1]))
    assert parameters.key_bytes / 2 < size < parameters.key_bytes / 2 * 1.01
    assert size == secret.ring.most_bytes(Part("rotation", 1)) == secret.ring.upload_bytes(Part("rotation", 1))


def load_rotation(secret: SealKey, data: bytes) -> EvaluationKeys:
    """Loads a key for rotations by one, with a valid relinearisation key beside it, as the service receives it."""
    with tempfile.TemporaryDirectory() as folder:
        received, path, other = (Path(folder) / name for name in ("received", "rotation-1", "relinearisation"))
        received.write_bytes(data)
        secret.ring.receive(received, path, Part("rotation", 1))
        secret.sendable_keys([]).relinearisation.save(str(other))
        return secret.ring.load_evaluation_keys(other, {1: path})


BODY = seal_files.HEADER.size + 32 + 2 * seal_files.COUNT.size  # where the digits begin
WORDS = BODY + seal_files.FIRST_WORD


def changed(data: bytes, place: int, content: bytes) -> bytes:
    return data[:place] + content + data[place + len(content) :]


def longer(data: bytes) -> bytes:
    header = seal_files.Header((4, 1), seal_files.PLAIN, len(data) + 8)
    return header.pack() + data[seal_files.HEADER.size :] + bytes(8)


BAD_KEYS = {
    "cut short": (lambda data: data[:-1], "longer or shorter"),
    "something behind": (lambda data: data + b"x", "longer or shorter"),
    "something behind that the header counts": (longer, "longer than such a part can be"),
    "another file": (lambda data: b"GIF89a" + data[6:], "not a SEAL file"),
    "other parameters": (lambda data: changed(data, seal_files.HEADER.size, b"x"), "made for other parameters"),
    "another rotation": (lambda data: changed(data, seal_files.HEADER.size + 32, b"\5"), "another rotation"),
    "more digits": (lambda data: changed(data, BODY - 8, struct.pack("<Q", 2**60)), "another number of digits"),
    "a longer digit": (lambda data: changed(data, BODY + 8, struct.pack("<Q", 2**60)), "another length"),
    "a digit of other parameters": (lambda data: changed(data, BODY + 16, b"x"), "made for other parameters"),
    "words out of range": (lambda data: changed(data, WORDS, struct.pack("<Q", 2**64 - 1)), "invalid"),
    "an unknown generator": (lambda data: changed(data, len(data) - 65, b"\x7f"), "invalid"),
}


@pytest.mark.parametrize("bad", BAD_KEYS)
def test_bad_keys_are_refused(small: SealKey, bad: str) -> None:
    change, message = BAD_KEYS[bad]
    good = written(small.sendable_keys([1]).rotations[1])
    assert load_rotation(small, good).rotations.keys() == {1}
    with pytest.raises(PolyNeXtError, match=f"is not a rotation key for these parameters .*{message}"):
        load_rotation(small, change(good))


def test_a_word_equal_to_its_prime_is_refused(small: SealKey) -> None:
    """In every row: the check is exact."""
    good, degree = written(small.sendable_keys([1]).rotations[1]), small.ring.parameters.ring_degree
    for i, q in enumerate(small.ring.key_primes):
        place = WORDS + 8 * (i * degree + 5)
        load_rotation(small, changed(good, place, struct.pack("<Q", q - 1)))
        with pytest.raises(PolyNeXtError, match="invalid"):
            load_rotation(small, changed(good, place, struct.pack("<Q", q)))


def test_keys_of_other_kinds_are_refused(small: SealKey) -> None:
    other = secret_key(Parameters(2**13, (30, 30, 40, 40, 40), 26, 14, 26, 26))
    keys = small.sendable_keys([1, 7])
    for key in (keys.relinearisation, keys.rotations[7], other.sendable_keys([1]).rotations[1], small):
        with pytest.raises(PolyNeXtError, match="is not a rotation key"):
            load_rotation(small, written(key))
    with pytest.raises(PolyNeXtError, match="is not a rotation key"):  # a hybrid key for a network with SEAL's keys
        load_rotation(other, written(keys.rotations[1]))


@pytest.fixture(scope="module")
def good_key(small: SealKey) -> bytes:
    return written(small.sendable_keys([1]).rotations[1])


@given(data=st.data())
@settings(deadline=None, max_examples=60)
def test_changed_keys_load_or_are_refused(small: SealKey, good_key: bytes, data: st.DataObject) -> None:
    """Bytes of headers are changed more often than words."""
    made = bytearray(good_key)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, WORDS) | st.integers(-90, -1) | st.integers(0, len(made) - 1))
        made[place] = data.draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]) | st.integers(0, 255))
    with suppress(PolyNeXtError):
        load_rotation(small, bytes(made[: data.draw(st.none() | st.integers(0, len(made)))]))


def test_a_server_without_the_extension_refuses(small: SealKey, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a client without it makes keys and requests."""
    monkeypatch.delenv("POLYNEXT_ENGINE", raising=False)  # a wider fixture may have set it
    find = importlib.util.find_spec
    hidden = "polynext.encrypted.runtime.backends.seal.find_spec"
    monkeypatch.setattr(hidden, lambda name: None if name == "polynext_native" else find(name))
    small.sendable_keys([1])
    small.encrypt(np.zeros(small.ring.parameters.slots))
    no_key: Any = None
    with pytest.raises(PolyNeXtError, match=r"hybrid keys.*: install polynext-native .*`--clients any`"):
        small.ring.evaluator(EvaluationKeys(no_key, {}))
    with pytest.raises(PolyNeXtError, match="install polynext-native"):
        small.ring.load_evaluation_keys(Path("a"), {})


def test_a_server_that_must_use_seal_refuses(small: SealKey, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYNEXT_ENGINE", "seal")
    with pytest.raises(PolyNeXtError, match=r"hybrid keys.*do not set POLYNEXT_ENGINE to seal"):
        small.evaluation_keys([1])


def test_browsers_cannot_make_hybrid_keys(small: SealKey) -> None:
    assert small.ring.browser_parameters([1]) is None


@pytest.mark.slow
def test_a_ring_of_65536_up_to_its_limit() -> None:
    """Correct at every level, with the predicted noise."""
    parameters = Parameters(2**16, (60,) * 29, 40, 20, 40, 40, special_primes=5)
    secret = secret_key(parameters)
    test_rotations_and_products_are_correct_at_every_level(secret)
    evaluator = secret.ring.evaluator(secret.evaluation_keys([1]))
    for level in (0, 20):
        zero = evaluator.drop(secret.encrypt(np.zeros(parameters.slots)), level)
        noise = decrypted(evaluator.rotate(zero, 1), secret)
        predicted = NoisyEvaluator(parameters, (1,)).switching(level) * np.sqrt(parameters.slots)
        np.testing.assert_allclose(noise.std(), predicted[0] / parameters.input_scale, rtol=0.1)
