"""The native extension against SEAL: the same words, operation by operation, and the same answers."""

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polynext.encrypted.runtime.backends import get_backend
from polynext.encrypted.runtime.backends.protocol import CONJUGATION, EvaluationKeys, SlotPattern
from polynext.encrypted.runtime.counting import CountingEvaluator
from polynext.encrypted.runtime.execution import encode_program, execute
from polynext.encrypted.runtime.parameters import Parameters
from polynext.errors import PolyNeXtError
from tests.encrypted.conftest import decrypted, logits, promised

pytest.importorskip("polynext_native", reason="polynext-native is not installed: it needs a C++ compiler")

import polynext_native

from polynext.encrypted.runtime.backends.native import NativeCiphertext, NativeEvaluator, seal_words
from polynext.encrypted.runtime.backends.seal import SealEvaluator, evaluation_engine

RINGS = {
    "short primes": Parameters(2**13, (30, 30, 30, 36), 14, 10, 14, 14),
    "mixed primes": Parameters(2**13, (50, 40, 58, 60), 36, 20, 36, 36),
    "long primes": Parameters(2**14, (60, 60, 60, 60, 60), 40, 20, 40, 40),
}
STEPS = (1, 7, CONJUGATION)


class Pair:
    """A ring with keys, and an evaluator of each kind for it."""

    def __init__(self, parameters: Parameters):
        ring = get_backend("seal").ring(parameters)
        self.secret = ring.generate_key()
        keys = self.secret.evaluation_keys(STEPS)
        self.seal = SealEvaluator(ring, keys)
        self.native = NativeEvaluator(ring, keys, exact=True)
        self.fast = NativeEvaluator(ring, keys, threads=2)
        self.slots = parameters.slots


@pytest.fixture(scope="module", params=RINGS)
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    yield Pair(RINGS[request.param])


def words(value: Any) -> np.ndarray:
    return value.body.array().ravel() if isinstance(value, NativeCiphertext) else seal_words(value.body)


@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 2**32), size=st.sampled_from([0.0, 1e-6, 1.0, 1e3]), level=st.integers(0, 1))
def test_operations_equal_seals_word_for_word(pair: Pair, seed: int, size: float, level: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = (pair.secret.encrypt(size * rng.normal(size=pair.slots)) for _ in range(2))
    both = []
    for evaluator in (pair.seal, pair.native):
        x, y = evaluator.drop(a, level), evaluator.drop(b, level)
        both.append(
            [
                evaluator.add(x, y),
                evaluator.multiply(x, y),
                evaluator.multiply(x, x),
                evaluator.rescale(x, x.scale),
                evaluator.conjugate(x),
                *(evaluator.rotate(x, steps) for steps in STEPS[:2]),
                *evaluator.rotate_many(x, STEPS[:2]),
            ]
        )
    for theirs, ours in zip(*both, strict=True):
        assert (theirs.level, theirs.scale) == (ours.level, ours.scale)
        np.testing.assert_array_equal(words(theirs), words(ours))


@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 2**32), count=st.integers(1, 20))
def test_encoded_values_and_sums_agree(pair: Pair, seed: int, count: int) -> None:
    """Encoding uses another FFT, so that a coefficient may be rounded the other way."""
    rng = np.random.default_rng(seed)
    values = [rng.normal(size=pair.slots) + 1j * rng.normal(size=pair.slots) for _ in range(count)]
    image = pair.secret.encrypt(rng.normal(size=pair.slots))
    found = []
    for evaluator in (pair.seal, pair.native, pair.fast):
        terms = [(image, evaluator.encode(each, 0, 2.0**12)) for each in values]
        total, empty, again = evaluator.sums([terms, [], terms])
        assert empty is None and np.array_equal(words(total), words(again))
        saved = evaluator.add_plain(total, evaluator.encode(values[0], 0, total.scale))
        found.append(decrypted(saved, pair.secret))
    for other in found[1:]:
        np.testing.assert_allclose(other, found[0], atol=1e-2 * count)


def test_an_imaginary_constant_is_encoded(pair: Pair) -> None:
    """Its square is -1."""
    values = np.random.default_rng(0).normal(size=pair.slots)
    imaginary = pair.fast.encode(np.full(pair.slots, 1j), 0, 2.0**12)
    once = pair.fast.accumulate(None, pair.secret.encrypt(values), imaginary)
    twice = pair.fast.accumulate(None, once, imaginary)
    np.testing.assert_allclose(decrypted(twice, pair.secret), -values, atol=0.2)


def test_values_too_small_for_a_scale_have_no_plaintext(pair: Pair) -> None:
    assert pair.native.encode(np.full(pair.slots, 1e-9), 0, 2.0**12) is None


def test_rotations_that_share_work_are_as_precise(pair: Pair) -> None:
    values = np.random.default_rng(0).normal(size=pair.slots)
    image = pair.secret.encrypt(values)
    noise = {}
    for name, evaluator in (("seal", pair.seal), ("fast", pair.fast)):
        rotated = evaluator.rotate_many(image, STEPS[:2])
        noise[name] = [
            np.abs(decrypted(value, pair.secret) - np.roll(values, -by)).max()
            for value, by in zip(rotated, STEPS[:2], strict=True)
        ]
    assert np.max(noise["fast"]) <= 2 * np.max(noise["seal"])


def test_both_engines_answer_alike(plan: Any, trained: Any, examples: np.ndarray, monkeypatch) -> None:
    """Whole programs, with keys and requests made once."""
    ring = get_backend("seal").ring(plan.parameters)
    secret = ring.generate_key()
    keys = secret.evaluation_keys(plan.program.rotations)
    count = plan.images
    image = secret.encrypt(plan.program.layouts[0].pack(examples[:count].reshape(count, -1)))
    wanted = logits(trained, examples[:count])
    for engine, kind in (("seal", SealEvaluator), ("native", NativeEvaluator)):
        monkeypatch.setenv("POLYNEXT_ENGINE", engine)
        evaluator = ring.evaluator(keys, threads=2)
        assert isinstance(evaluator, kind)
        answer = execute(plan.program, encode_program(plan.program, evaluator), evaluator, image)
        found = plan.program.layouts[-1].unpack(decrypted(answer, secret))
        assert np.abs(found - wanted).max() < promised(plan.cost)


def test_compact_weights_give_the_same_answer(plan: Any, examples: np.ndarray) -> None:
    """Weights that are not kept encoded are kept as coefficients, in less memory."""
    ring = get_backend("seal").ring(plan.parameters)
    secret = ring.generate_key()
    evaluator = NativeEvaluator(ring, secret.evaluation_keys(plan.program.rotations))
    image = secret.encrypt(plan.program.layouts[0].pack(examples[: plan.images].reshape(plan.images, -1)))
    answers, sizes = [], []
    for cache in (True, False):
        before = polynext_native.memory_in_use()
        encoded = encode_program(plan.program, evaluator, cache)
        sizes.append(polynext_native.memory_in_use() - before)
        answers.append(words(execute(plan.program, encoded, evaluator, image)))
        del encoded
    np.testing.assert_array_equal(*answers)
    assert sizes[1] < sizes[0]
    for size, cache in zip(sizes, (True, False), strict=True):  # plaintexts of zeros are left out
        counter = CountingEvaluator(plan.parameters, plan.program.rotations, compacts=True)
        encode_program(plan.program, counter, cache)
        assert size <= counter.plaintext_bytes


@pytest.mark.parametrize("period", [1, 64, 2**10, 2**12])
@pytest.mark.parametrize("scale", [2.0**12, 2.0**40])
@pytest.mark.parametrize("real", [True, False])
def test_the_counted_size_of_a_plaintext_is_its_size(period: int, scale: float, real: bool) -> None:
    ring = get_backend("seal").ring(RINGS["short primes"])
    evaluator = ring.evaluator(EvaluationKeys(None, {}))
    rng = np.random.default_rng(period)
    values = rng.uniform(1, 2, period) + (0 if real else 1j * rng.uniform(1, 2, period))
    values = np.tile(values, ring.parameters.slots // period)
    for compact in (False, True):
        plain = evaluator.encode(values, 1, scale, compact)
        counter = CountingEvaluator(ring.parameters, (), compacts=True)
        counter.encode(SlotPattern(period, real), 1, scale, compact)
        assert counter.plaintext_bytes == plain.body.nbytes


def test_seals_own_evaluator_has_its_tables_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The extension needs those of one level only, for loading keys."""
    monkeypatch.setenv("POLYNEXT_ENGINE", "seal")
    ring = get_backend("seal").ring(RINGS["short primes"])
    assert ring.key_context is ring.context
    monkeypatch.setenv("POLYNEXT_ENGINE", "native")
    other = get_backend("seal").ring(RINGS["short primes"])
    assert other.key_context is not other.context


def test_evaluators_of_a_ring_share_its_threads() -> None:
    """An evaluator that asks for no number of them leaves it as it is."""
    ring, no_keys = get_backend("seal").ring(RINGS["short primes"]), EvaluationKeys(None, {})
    first = ring.evaluator(no_keys, 2)
    assert ring.evaluator(no_keys).threads == first.threads == 2
    assert ring.evaluator(no_keys, 1).threads == first.threads == 1


def test_evaluators_can_be_made_while_others_compute() -> None:
    ring, no_keys = get_backend("seal").ring(RINGS["short primes"]), EvaluationKeys(None, {})
    values = np.arange(1.0, ring.parameters.slots + 1)

    def encode(caller: int) -> set[int]:
        made = (ring.evaluator(no_keys, 1 + (caller + i) % 3) for i in range(20))
        return {evaluator.encode(values, 0, 2.0**12).body.nbytes for evaluator in made}

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as callers:
            sizes = set().union(*callers.map(encode, range(4)))
    finally:
        sys.setswitchinterval(interval)
    assert len(sizes) == 1


def test_an_unknown_engine_is_refused(monkeypatch) -> None:
    monkeypatch.setenv("POLYNEXT_ENGINE", "gpu")
    with pytest.raises(PolyNeXtError, match="POLYNEXT_ENGINE is 'gpu': set it to seal or native"):
        evaluation_engine()


def test_the_extension_computes_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POLYNEXT_ENGINE", raising=False)
    assert evaluation_engine().name == "native"
    monkeypatch.setattr("polynext.encrypted.runtime.backends.seal.find_spec", lambda name: None)
    assert evaluation_engine().name == "seal"
    monkeypatch.setenv("POLYNEXT_ENGINE", "native")
    with pytest.raises(PolyNeXtError, match="polynext-native is not installed: pip install"):
        evaluation_engine()
