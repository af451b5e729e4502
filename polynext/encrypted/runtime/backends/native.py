"""Evaluation by the native extension (`polynext-native`) on SEAL's ciphertexts and keys.

Keys, encryption, decryption, files and the checks of untrusted input stay with SEAL; only the arithmetic is done here.
A client cannot tell which of the two answered its request.
"""

import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polynext_native

from polynext.arrays import Array
from polynext.encrypted.runtime.backends import seal_files
from polynext.encrypted.runtime.backends.protocol import CONJUGATION, EvaluationKeys, Evaluator
from polynext.encrypted.runtime.backends.seal import SealCiphertext, SealRing, galois_element, own_version

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
    """Arithmetic by the extension, on `threads` threads. `exact` results equal SEAL's bit for bit, for tests."""

    def __init__(self, ring: SealRing, keys: EvaluationKeys, threads: int = 1, exact: bool = False):
        self.ring, self.parameters = ring, ring.parameters
        primes = ring.key_primes
        self.native = polynext_native.evaluator(
            self.parameters.ring_degree, primes[:-1], primes[-1:], threads=threads, exact=exact
        )
        self.relinearisation = keys.relinearisation and self.native.load_key(1, self.digits(keys.relinearisation, 2))
        self.rotations = {}
        for step, key in keys.rotations.items():
            element = galois_element(step, self.parameters)
            self.rotations[step] = self.native.load_key(element, self.digits(key, element))

    def digits(self, key: Any, element: int) -> list[np.ndarray]:
        """The arrays of a SEAL key's digits."""
        shape = (2, len(self.ring.key_primes), self.parameters.ring_degree)
        return [seal_words(digit.data()).reshape(shape) for digit in key.key(element)]

    def wrap(self, body: polynext_native.Ciphertext, level: int, scale: float) -> NativeCiphertext:
        return NativeCiphertext(self.ring, body, level, scale)

    def body(self, value: NativeCiphertext | SealCiphertext) -> polynext_native.Ciphertext:
        """The extension's form of a ciphertext; SEAL's is converted where it comes in."""
        if isinstance(value, NativeCiphertext):
            return value.body
        shape = (2, self.parameters.primes_at(value.level), self.parameters.ring_degree)
        return self.native.load(seal_words(value.body).reshape(shape))

    @cached_property
    def slot_places(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """How slots become coefficients: the places of slots and their conjugates among the values of a polynomial
        at all odd powers of zeta = exp(i pi / n), and the factors that follow an FFT of these values. Slot j is the
        value at zeta^(3^j)."""
        n = self.parameters.ring_degree
        powers = np.array([pow(3, j, 2 * n) for j in range(n // 2)])
        return (powers - 1) // 2, (2 * n - powers - 1) // 2, np.exp(-1j * np.pi * np.arange(n) / n) / n

    def encode(self, values: Array | None, level: int, scale: float) -> NativePlaintext | None:
        assert values is not None
        places, conjugates, factors = self.slot_places
        at_powers = np.empty(self.parameters.ring_degree, dtype=np.complex128)
        at_powers[places], at_powers[conjugates] = values, np.conj(values)
        coefficients = np.rint((np.fft.fft(at_powers) * factors).real * scale)
        if not coefficients.any():
            return None
        return NativePlaintext(self.native.encode(coefficients, self.parameters.primes_at(level)), scale)

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


def seal_words(thing: Any) -> np.ndarray:
    """The words of a SEAL ciphertext, key digit or plaintext, which it gives away only in files."""
    with tempfile.TemporaryDirectory(dir=scratch_folder()) as folder:
        path = Path(folder) / "words"
        thing.dyn_array().save(str(path))
        return seal_files.read_words(path)


@cache
def scratch_folder() -> str | None:
    """A folder in memory, where the system has one."""
    shared = Path("/dev/shm")
    return str(shared) if shared.is_dir() else None
