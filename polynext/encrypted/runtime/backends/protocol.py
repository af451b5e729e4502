"""What polynext needs of an encryption library.

A `Backend` says what is safe and what operations cost. With parameters it becomes a `Ring`, which makes keys and reads
keys and ciphertexts from files. A `SecretKey` encrypts and decrypts; an `Evaluator` computes, with keys that cannot
decrypt. `Ciphertext` and `Plaintext` are whatever a backend makes them: each ciphertext has a `level` (how many primes
are gone), a `scale` (what its numbers are multiples of), and is `Savable`.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from polynext.arrays import Array
from polynext.encrypted.runtime.parameters import Parameters
from polynext.errors import PolyNeXtError

Ciphertext = Any
Plaintext = Any


class Savable(Protocol):
    """A key or ciphertext, which writes itself to a file."""

    def save(self, path: str) -> None: ...


# Conjugation takes a key like a rotation, and stands among their steps as the one that no rotation has.
CONJUGATION = 0


@dataclass(frozen=True)
class Security:
    """What a backend allows: the longest modulus in bits for each of its ring degrees, and the lengths of primes."""

    bits: int
    longest_modulus: Mapping[int, int]
    longest_prime: int
    shortest_prime: int


# With a ternary secret, by the HomomorphicEncryption.org standard's table.
STANDARD_SECURITY = Security(
    bits=128, longest_modulus={2**13: 218, 2**14: 438, 2**15: 881}, longest_prime=60, shortest_prime=24
)


@dataclass(frozen=True)
class Costs:
    """Seconds of each operation at one ring degree as a polynomial of the number of primes, lowest power first.

    Switching keys, which rotations and products need, takes the square of the number of primes; the others grow with
    their number.
    """

    ring_degree: int
    seconds: dict[str, tuple[float, ...]]

    def __call__(self, operations: Counter[tuple[str, int]]) -> float:
        return sum(
            n * sum(c * primes**power for power, c in enumerate(self.seconds[name]))
            for (name, primes), n in operations.items()
        )


class Backend(ABC):
    """An encryption library. `library` is its name and version, as files record them, and `file_format` which files it
    reads: those that say the same."""

    name: str
    library: str
    file_format: str
    encrypts: bool
    security: Security

    @abstractmethod
    def ring(self, parameters: Parameters) -> "Ring": ...

    @abstractmethod
    def costs(self, ring_degree: int) -> Costs: ...


@dataclass(eq=False)
class EvaluationKeys:
    """What computing takes: a key for products, and one for each rotation, apart, because loading a file of keys can
    take several times its size in memory."""

    relinearisation: Savable
    rotations: Mapping[int, Savable]


@dataclass(frozen=True)
class Part:
    """What a client sends in one piece: the key for products, that for rotations by `step`, or a fresh ciphertext."""

    kind: Literal["relinearisation", "rotation", "ciphertext"]
    step: int = 0

    @property
    def name(self) -> str:
        return f"rotation-{self.step}" if self.kind == "rotation" else self.kind

    @classmethod
    def keys(cls, rotations: Iterable[int]) -> "list[Part]":
        """All that evaluation keys consist of."""
        return [cls("relinearisation"), *(cls("rotation", step) for step in rotations)]


class Ring(ABC):
    """A backend with its parameters, which have the backend's own primes.

    What it loads may come from strangers: a file that is not what it should be is refused with a sentence.
    """

    parameters: Parameters

    @abstractmethod
    def generate_key(self) -> "SecretKey": ...

    @abstractmethod
    def load_key(self, path: Path) -> "SecretKey": ...

    @abstractmethod
    def load_evaluation_keys(self, relinearisation: Path, rotations: Mapping[int, Path]) -> EvaluationKeys: ...

    @abstractmethod
    def load_ciphertext(self, path: Path, level: int, scale: float) -> Ciphertext:
        """Refuses one of another level, size or scale, and one that is not encrypted though it should be."""

    @abstractmethod
    def most_bytes(self, part: Part) -> int:
        """The longest that a part can be."""

    @abstractmethod
    def receive(self, source: Path, target: Path, part: Part) -> str:
        """A stranger's part into a file that this ring loads, if it is that part, as far as can be told without
        loading it. Returns the dialect it was in: clients may have another version of the library."""

    @abstractmethod
    def deliver(self, source: Path, target: Path, dialect: str) -> None:
        """A result that was saved here into a file for a client who speaks this dialect."""

    @abstractmethod
    def evaluator(self, keys: EvaluationKeys) -> "Evaluator": ...

    def browser_parameters(self, rotations: Iterable[int]) -> dict[str, Any] | None:
        """What a browser needs to create the same ring and these rotation keys; None if no browser library can."""
        return None


class SecretKey(ABC):
    """What stays with the client."""

    ring: Ring

    @abstractmethod
    def save(self, path: str) -> None: ...

    @abstractmethod
    def evaluation_keys(self, rotations: Iterable[int]) -> EvaluationKeys:
        """What the server needs to compute, and cannot decrypt with."""

    def sendable_keys(self, rotations: Iterable[int]) -> EvaluationKeys:
        """The same, to be saved only: a library may write them shorter than those it computes with."""
        return self.evaluation_keys(rotations)

    @abstractmethod
    def encrypt(self, values: Array) -> Ciphertext:
        """At level 0 and the parameters' input scale."""

    @abstractmethod
    def decrypt(self, value: Ciphertext) -> Array: ...


class Evaluator(ABC):
    """Arithmetic on ciphertexts. Nothing is changed in place, except by `accumulate`."""

    parameters: Parameters
    needs_values = True  # False for one that only counts

    @abstractmethod
    def encode(self, values: Array | None, level: int, scale: float) -> Plaintext | None:
        """The values as a plaintext; None if they are so small that all of them round to zero at this scale."""

    @abstractmethod
    def add(self, left: Ciphertext, right: Ciphertext) -> Ciphertext: ...

    @abstractmethod
    def add_plain(self, left: Ciphertext, right: Plaintext) -> Ciphertext: ...

    @abstractmethod
    def multiply(self, left: Ciphertext, right: Ciphertext) -> Ciphertext:
        """The product, relinearised and not rescaled."""

    @abstractmethod
    def accumulate(self, total: Ciphertext | None, factor: Ciphertext, plain: Plaintext) -> Ciphertext:
        """`total + factor * plain`, where None is zero. `total` may be overwritten."""

    @abstractmethod
    def rotate(self, value: Ciphertext, steps: int) -> Ciphertext:
        """Slot s of the result is slot s + steps of the value."""

    @abstractmethod
    def conjugate(self, value: Ciphertext) -> Ciphertext:
        """The complex conjugate in every slot."""

    def rotate_many(self, value: Ciphertext, steps: Iterable[int]) -> list[Ciphertext]:
        """Several rotations of one value, for libraries that share work between them (hoisting)."""
        return [self.rotate(value, by) for by in steps]

    @abstractmethod
    def rescale(self, value: Ciphertext, scale: float) -> Ciphertext:
        """Divides by the level's prime, which brings the scale to about `scale`, and drops it."""

    def settle(self, value: Ciphertext, once: Plaintext, scale: float) -> Ciphertext:
        """The value at another scale, and without its level's prime; `once` is 1 at the scale that does it."""
        return self.rescale(self.accumulate(None, value, once), scale)

    @abstractmethod
    def drop(self, value: Ciphertext, level: int) -> Ciphertext:
        """The value with its primes dropped down to a level."""


def unusable(path: Path, what: str, reason: object) -> PolyNeXtError:
    return PolyNeXtError(
        f"{path.name} is not {what} for these parameters ({reason}): make it again with the keys at hand."
    )


def unexpected_ciphertext(path: Path) -> PolyNeXtError:
    return PolyNeXtError(
        f"{path.name} is a ciphertext of another level, size or scale than this offer's, or not encrypted: "
        "make it again with the same offer and version of polynext on both sides."
    )
