"""Evaluation by the native extension (`polynext-native`) on SEAL's ciphertexts and keys.

Keys, encryption, decryption, files and the checks of untrusted input stay with SEAL; only the arithmetic is done here.
A client cannot tell which of the two answered its request.
"""

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import polynext_native

from polynext.arrays import Array
from polynext.encrypted.runtime.backends import seal_files
from polynext.encrypted.runtime.backends.protocol import CONJUGATION, EvaluationKeys, Evaluator, unusable
from polynext.encrypted.runtime.backends.seal import (
    SealCiphertext,
    SealRing,
    galois_element,
    own_version,
    scratch_folder,
    seal,
    seal_words,
)

# Products that are computed in one call. Plaintexts that are not cached exist all at once.
MOST_TERMS = 256


@dataclass(eq=False)
class NativeCiphertext:
    """A ciphertext in the extension's memory."""

    ring: SealRing
    body: polynext_native.Ciphertext
    level: int
    scale: float

    def save(self, path: str) -> None:
        """Writes the file that SEAL would write."""
        expected = self.ring.expected_ciphertext(self.level, self.scale)
        seal_files.write_ciphertext(Path(path), expected, self.body.array(), own_version())


@dataclass(eq=False)
class NativePlaintext:
    body: polynext_native.Plaintext
    scale: float


class NativeEvaluator(Evaluator):
    """Arithmetic by the extension, on the threads of its ring, whose number `threads` changes unless it is None.
    `exact` results equal SEAL's bit for bit, for tests."""

    compacts = True

    def __init__(self, ring: SealRing, keys: EvaluationKeys, threads: int | None = None, exact: bool = False):
        self.ring, self.parameters = ring, ring.parameters
        self.native = native_ring(ring, exact)
        if threads is not None:
            self.use_threads(threads)
        self.converted: WeakKeyDictionary[SealCiphertext, polynext_native.Ciphertext] = WeakKeyDictionary()
        self.relinearisation = keys.relinearisation and native_key(ring, keys.relinearisation, 1, exact)
        self.rotations = {
            step: native_key(ring, key, galois_element(step, self.parameters), exact)
            for step, key in keys.rotations.items()
        }

    @property
    def threads(self) -> int:
        return self.native.threads

    def use_threads(self, count: int) -> None:
        self.native.threads = count

    def wrap(self, body: polynext_native.Ciphertext, level: int, scale: float) -> NativeCiphertext:
        return NativeCiphertext(self.ring, body, level, scale)

    def body(self, value: NativeCiphertext | SealCiphertext) -> polynext_native.Ciphertext:
        """The extension's form of a ciphertext. SEAL's is converted when it is first used."""
        if isinstance(value, NativeCiphertext):
            return value.body
        if value not in self.converted:
            shape = (2, self.parameters.primes_at(value.level), self.parameters.ring_degree)
            self.converted[value] = self.native.load(seal_words(value.body).reshape(shape))
        return self.converted[value]

    @cached_property
    def slot_order(self) -> tuple[np.ndarray, np.ndarray]:
        """How slots become coefficients. The slots in the order of an FFT, and the factors that follow it.

        Slot j is the value of the polynomial at zeta^(3^j), with zeta = exp(i pi / n), and its conjugate the value at
        zeta^(-3^j). One of the two exponents is 4 t + 1 for some t. With zeta^(n / 2) = i, coefficients c satisfy

            value at zeta^(4 t + 1) = sum over k < n / 2 of (c[k] + i c[k + n / 2]) zeta^k exp(2 pi i k t / (n / 2))

        A place below n / 2 is a slot, any other one the conjugate of slot `place - n / 2`.
        """
        n = self.parameters.ring_degree
        powers = np.array([pow(3, j, 2 * n) for j in range(n // 2)])
        order = np.empty(n // 2, dtype=np.intp)
        conjugated = powers % 4 == 3
        order[np.where(conjugated, 2 * n - powers - 1, powers - 1) // 4] = np.arange(n // 2) + conjugated * (n // 2)
        return order, np.exp(-1j * np.pi * np.arange(n // 2) / n) / (n // 2)

    def encode(self, values: Array, level: int, scale: float, compact: bool = False) -> NativePlaintext | None:
        order, factors = self.slot_order
        ordered = np.concatenate([values, np.conj(values)])[order]
        halves = np.fft.fft(ordered) * (factors * scale)
        coefficients = without_rounding_errors(np.rint(np.concatenate([halves.real, halves.imag])), values)
        if not coefficients.any():
            return None
        return NativePlaintext(self.native.encode(coefficients, self.parameters.primes_at(level), compact), scale)

    def add(self, left: Any, right: Any) -> NativeCiphertext:
        return self.wrap(self.native.add(self.body(left), self.body(right)), left.level, left.scale)

    def add_plain(self, left: Any, right: NativePlaintext) -> NativeCiphertext:
        return self.wrap(self.native.add_plain(self.body(left), right.body), left.level, left.scale)

    def multiply(self, left: Any, right: Any) -> NativeCiphertext:
        product = self.native.multiply(self.body(left), self.body(right), self.relinearisation)
        return self.wrap(product, left.level, left.scale * right.scale)

    def accumulate(self, total: NativeCiphertext | None, factor: Any, plain: NativePlaintext) -> NativeCiphertext:
        (product,) = self.native.sums([[(self.body(factor), plain.body)]])
        made = self.wrap(product, factor.level, factor.scale * plain.scale)
        return made if total is None else self.add(total, made)

    def sums(self, sums: Iterable[Iterable[tuple[Any, NativePlaintext]]]) -> Iterator[NativeCiphertext | None]:
        """Many sums in one call: the ciphertexts that they share come from memory once."""
        waiting: list[list[tuple[Any, NativePlaintext]]] = []
        for terms in sums:
            waiting.append(list(terms))
            if sum(map(len, waiting)) >= MOST_TERMS:
                yield from self.computed(waiting)
                waiting = []
        yield from self.computed(waiting)

    def computed(self, sums: list[list[tuple[Any, NativePlaintext]]]) -> Iterator[NativeCiphertext | None]:
        bodies = {id(value): self.body(value) for terms in sums for value, _ in terms}
        found = iter(self.native.sums([[(bodies[id(v)], plain.body) for v, plain in terms] for terms in sums if terms]))
        for terms in sums:
            yield self.wrap(next(found), terms[0][0].level, terms[0][0].scale * terms[0][1].scale) if terms else None

    def rotate(self, value: Any, steps: int) -> NativeCiphertext:
        return self.switched(value, steps % self.parameters.slots)

    def conjugate(self, value: Any) -> NativeCiphertext:
        return self.switched(value, CONJUGATION)

    def switched(self, value: Any, steps: int) -> NativeCiphertext:
        return self.wrap(self.native.rotate(self.body(value), self.rotations[steps]), value.level, value.scale)

    def rotate_many(self, value: Any, steps: Iterable[int]) -> list[NativeCiphertext]:
        keys = [self.rotations[by % self.parameters.slots] for by in steps]
        return [self.wrap(body, value.level, value.scale) for body in self.native.rotate_many(self.body(value), keys)]

    def rescale(self, value: Any, scale: float) -> NativeCiphertext:
        return self.wrap(self.native.rescale(self.body(value)), value.level + 1, scale)

    def drop(self, value: Any, level: int) -> NativeCiphertext:
        if level == value.level:
            return value
        return self.wrap(self.native.drop(self.body(value), self.parameters.primes_at(level)), level, value.scale)


def without_rounding_errors(coefficients: Array, values: Array) -> Array:
    """Restores what the extension stores plaintexts by, which a rounding error of long coefficients would hide. Values
    with a period p > 1 are a polynomial in x^(n / 2p); equal values have period 2, since i is a multiple of
    x^(n / 4) + x^(3n / 4). If values are real, coefficient n - k is minus coefficient k."""
    n, period = len(coefficients), len(values)
    while period > 2 and np.array_equal(values[: period // 2], values[period // 2 : period]):
        period //= 2
    kept = np.zeros(n)
    kept[:: len(values) // period] = coefficients[:: len(values) // period]
    if not np.iscomplexobj(values) or not values.imag.any():
        kept[n // 2] = 0
        kept[n // 2 + 1 :] = -kept[1 : n // 2][::-1]
    return kept


RINGS: WeakKeyDictionary[SealRing, dict[bool, polynext_native.Evaluator]] = WeakKeyDictionary()
RINGS_LOCK = Lock()


def native_ring(ring: SealRing, exact: bool = False) -> polynext_native.Evaluator:
    """The extension's form of a ring. All evaluators of a ring share its tables and its threads."""
    with RINGS_LOCK:
        made = RINGS.setdefault(ring, {})
        if exact not in made:
            primes, special = ring.key_primes, ring.parameters.special_primes
            made[exact] = polynext_native.evaluator(
                ring.parameters.ring_degree, primes[:-special], primes[-special:], exact=exact
            )
        return made[exact]


def native_key(ring: SealRing, key: Any, element: int, exact: bool = False) -> polynext_native.Key:
    """The extension's form of a key; element 1 is relinearisation."""
    if isinstance(key, polynext_native.Key):
        return key
    digits = key.key(2 if element == 1 else element)
    return native_ring(ring, exact).load_key(element, [digit_words(ring, digit) for digit in digits])


def digit_words(ring: SealRing, digit: Any) -> np.ndarray:
    """The array of one digit of a key, which to SEAL is a public key."""
    return seal_words(digit.data()).reshape(2, len(ring.key_primes), ring.parameters.ring_degree)


def load_hybrid_keys(ring: SealRing, relinearisation: Path, rotations: Mapping[int, Path]) -> EvaluationKeys:
    """Loads hybrid keys into the extension's memory. Files may come from untrusted clients."""
    made = {
        step: load_hybrid_key(ring, path, galois_element(step, ring.parameters), "a rotation key")
        for step, path in rotations.items()
    }
    return EvaluationKeys(load_hybrid_key(ring, relinearisation, 1, "a relinearisation key"), made)


def load_hybrid_key(ring: SealRing, path: Path, element: int, what: str) -> polynext_native.Key:
    """Loads one key. Its structure is checked here, before anything is allocated. SEAL then loads each digit as it
    loads those of its own keys: it checks parameters and the range of every word, and expands the seed."""
    expected, digits = ring.expected_hybrid_key(element), []
    with tempfile.TemporaryDirectory(dir=scratch_folder()) as folder:
        checked, part = Path(folder) / "checked", Path(folder) / path.name
        try:
            seal_files.rewrite(path, checked, expected, own_version())
        except seal_files.NotThisError as error:
            raise unusable(path, what, error) from error
        for body in expected.read(checked):
            part.write_bytes(body)
            digits.append(digit_words(ring, ring.load(seal.PublicKey(), what, part, ring.key_context)))
    return native_ring(ring).load_key(element, digits)
