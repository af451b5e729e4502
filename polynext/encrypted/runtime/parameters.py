"""The parameters of CKKS: ring, primes and scales."""

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

# Primes of up to so many bits are short. Processors have instructions for their products.
SHORT_PRIME_BITS = 50


@dataclass(frozen=True)
class Parameters:
    """`prime_bits` are the lengths of the primes in the order they are dropped, then of the last prime, then of the
    special primes, which only keys have.

    With one special prime the keys are SEAL's own: a digit for each other prime. With several the keys are hybrid: each
    digit stands for as many primes as there are special ones, so that there are fewer digits.

    Values have a scale of 2^scale_bits, the weights of linear maps 2^plain_bits, the image 2^input_bits and the result
    2^result_bits.
    """

    ring_degree: int
    prime_bits: tuple[int, ...]
    scale_bits: int
    plain_bits: int
    input_bits: int
    result_bits: int
    primes: tuple[int, ...] = ()
    special_primes: int = 1

    @property
    def slots(self) -> int:
        return self.ring_degree // 2

    @property
    def scale(self) -> float:
        return 2.0**self.scale_bits

    @property
    def input_scale(self) -> float:
        return 2.0**self.input_bits

    @property
    def result_scale(self) -> float:
        return 2.0**self.result_bits

    @property
    def depth(self) -> int:
        return len(self.prime_bits) - 1 - self.special_primes

    @property
    def hybrid_keys(self) -> bool:
        return self.special_primes > 1

    @property
    def short_primes(self) -> bool:
        """Whether all primes are short. An engine may then compute faster."""
        return max(self.prime_bits) <= SHORT_PRIME_BITS

    @property
    def modulus_bits(self) -> int:
        """Of all primes, also the special ones: this is what security depends on."""
        return sum(self.prime_bits)

    def prime(self, level: int) -> float:
        """The prime that a rescale at this level divides by."""
        return float(self.primes[level]) if self.primes else 2.0 ** self.prime_bits[level]

    def primes_at(self, level: int) -> int:
        """The number of primes of a ciphertext at a level."""
        return self.depth + 1 - level

    def ciphertext_bytes(self, level: int) -> int:
        return 2 * self.primes_at(level) * self.ring_degree * 8

    def plaintext_bytes(self, level: int) -> int:
        return self.ciphertext_bytes(level) // 2

    def digits_at(self, level: int) -> int:
        """The number of digits that key switching at a level uses."""
        return -(-self.primes_at(level) // self.special_primes)

    @cached_property
    def key_bytes(self) -> int:
        """The size of one key: a pair of polynomials over all primes for each digit."""
        return self.digits_at(0) * 2 * len(self.prime_bits) * self.ring_degree * 8

    @property
    def switching_bytes(self) -> int:
        """The memory that the native evaluator works with while it switches keys: the digits modulo all primes, and
        their products with a key."""
        return (self.digits_at(0) + 4) * len(self.prime_bits) * self.ring_degree * 8

    def ring_bytes(self, native: bool) -> int:
        """The tables of a server's ring, about 72 bytes for each prime and coefficient. SEAL has tables for all levels
        if it computes. If the native evaluator does, SEAL has those of keys and of images."""
        primes = len(self.prime_bits)
        images = 2 * (self.depth + 1) + 1 if self.hybrid_keys else 0
        return 72 * self.ring_degree * (3 * primes - 1 + images if native else primes * (primes + 1) // 2)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> "Parameters":
        return cls(**{**fields, "prime_bits": tuple(fields["prime_bits"]), "primes": tuple(fields["primes"])})
