"""Hybrid key-switching keys: several special primes, and few digits.

A digit stands for as many neighbouring primes as there are special ones. Its key is made as SEAL makes those of its own
keys: SEAL encrypts zero over all primes, with its own sampling and randomness, and P s' is added modulo the primes of
the digit. P is the product of the special primes and s' the other secret: rotated, or squared for relinearisation.
Nothing is sampled here. docs/inside/hybrid-keys.md describes the construction.
"""

import math
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from polynext.encrypted.runtime.backends import seal_files
from polynext.encrypted.runtime.backends.protocol import EvaluationKeys
from polynext.encrypted.runtime.backends.seal import (
    SealKey,
    SealRing,
    galois_element,
    own_version,
    seal,
)


@dataclass(eq=False)
class HybridKeyGenerator:
    """Makes hybrid keys from a secret key. Rows of words are modulo the primes in SEAL's order, without the special
    ones."""

    secret: SealKey

    @property
    def ring(self) -> SealRing:
        return self.secret.ring

    def keys(self, rotations: Iterable[int]) -> EvaluationKeys:
        made = {step: RotationKey(self, galois_element(step, self.ring.parameters)) for step in rotations}
        return EvaluationKeys(RelinearisationKey(self), made)

    @cached_property
    def data_primes(self) -> list[int]:
        return self.ring.key_primes[: -self.ring.parameters.special_primes]

    @cached_property
    def factors(self) -> list[int]:
        """P modulo each prime."""
        special = math.prod(self.ring.key_primes[len(self.data_primes) :])
        return [special % prime for prime in self.data_primes]

    @cached_property
    def secret_words(self) -> np.ndarray:
        """The secret in NTT form. It is read word by word, because SEAL would write a whole array to a file."""
        words, degree = self.secret.secret.data(), self.ring.parameters.ring_degree
        count = len(self.data_primes) * degree
        return np.fromiter((words[i] for i in range(count)), np.uint64, count).reshape(-1, degree)

    @cached_property
    def multiple(self) -> np.ndarray:
        """P times the secret."""
        rows = zip(self.secret_words, self.factors, self.data_primes, strict=True)
        return np.stack([(row.astype(object) * p % q).astype(np.uint64) for row, p, q in rows])

    @property
    def multiple_of_square(self) -> np.ndarray:
        rows = zip(self.multiple, self.secret_words, self.data_primes, strict=True)
        return np.stack([(row.astype(object) * s % q).astype(np.uint64) for row, s, q in rows])

    def write(self, path: str, element: int, multiple: np.ndarray) -> None:
        """Writes the key for another secret. `multiple` is P times that secret.

        SEAL gives its encryptions of zero away in files only. They reveal the secret to whoever has the key too, so
        they stay in a private folder beside the key.
        """
        expected = self.ring.expected_hybrid_key(element)
        with tempfile.TemporaryDirectory(dir=Path(path).parent) as folder, Path(path).open("wb") as file:
            expected.write(file, self.digits(multiple, expected, Path(folder)), own_version())

    def digits(self, multiple: np.ndarray, expected: seal_files.HybridKey, folder: Path) -> Iterator[bytes]:
        encryptor = seal.Encryptor(self.ring.context, self.secret.secret)
        size, primes = self.ring.parameters.special_primes, self.data_primes
        for start in range(0, len(primes), size):
            encryptor.encrypt_zero_symmetric(self.ring.context.key_parms_id()).save(str(folder / "zero"))
            seal_files.rewrite(folder / "zero", folder / "plain", expected.digit, own_version())
            digit = bytearray((folder / "plain").read_bytes())
            words = np.frombuffer(digit, np.uint64, multiple.shape[1] * len(primes), seal_files.FIRST_WORD)
            words = words.reshape(multiple.shape)
            for i in range(start, min(start + size, len(primes))):
                words[i] = (words[i] + multiple[i]) % np.uint64(primes[i])
            yield bytes(digit)


@dataclass(frozen=True, eq=False)
class RelinearisationKey:
    """A key that is made when it is saved."""

    generator: HybridKeyGenerator

    def save(self, path: str) -> None:
        self.generator.write(path, 1, self.generator.multiple_of_square)


@dataclass(frozen=True, eq=False)
class RotationKey:
    """A key that is made when it is saved: of a client's many keys, only one is in memory at a time."""

    generator: HybridKeyGenerator
    element: int  # of the automorphism

    def save(self, path: str) -> None:
        multiple = self.generator.multiple
        self.generator.write(path, self.element, multiple[:, automorphism(self.element, multiple.shape[1])])


def automorphism(element: int, degree: int) -> np.ndarray:
    """Word i of a polynomial in SEAL's NTT form after x -> x^element is word table[i] before it."""
    bits = degree.bit_length() - 1
    exponents = reversed_bits(np.arange(degree, 2 * degree), bits + 1)  # of the root of unity of each word
    return reversed_bits(element * exponents // 2 % degree, bits)


def reversed_bits(numbers: np.ndarray, count: int) -> np.ndarray:
    found = np.zeros_like(numbers)
    for bit in range(count):
        found |= (numbers >> bit & 1) << (count - 1 - bit)
    return found
