"""The interface of an encryption library.

Arithmetic: a `Backend` defines what is secure and what operations cost. With parameters it becomes a `Ring`, which
makes keys and loads keys and ciphertexts. A `SecretKey` encrypts and decrypts; an `Evaluator` computes, with keys that
cannot decrypt. `Ciphertext` and `Plaintext` are types of the backend. Each ciphertext has a `level` (the number of
dropped primes) and a `scale` (the factor of its encoded numbers), and is `Savable`.

Uploads: `UploadHandling` is the part of a ring that a service needs to exchange files with untrusted clients.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from polynext.arrays import Array
from polynext.encrypted.runtime.parameters import Parameters
from polynext.errors import PolyNeXtError

Ciphertext = Any
Plaintext = Any


@dataclass(frozen=True)
class SlotPattern:
    """What a plaintext's memory depends on: the number of slots after which it repeats, and whether they are real."""

    period: int
    real: bool


# Conjugation needs a key like a rotation. It has the number 0 among the rotation steps, which no rotation has.
CONJUGATION = 0


class Savable(Protocol):
    """A key or ciphertext that can be written to a file."""

    def save(self, path: str) -> None: ...


@dataclass(frozen=True)
class Security:
    """The longest modulus in bits at each ring degree, including the special primes of keys, and the lengths of primes.

    Clients and servers both call `check` when they make a ring: it is the only place where the limits are enforced.
    """

    bits: int
    longest_modulus: Mapping[int, int]  # with one special prime
    longest_hybrid_modulus: Mapping[int, int]  # with hybrid keys
    longest_prime: int
    shortest_prime: int

    def limits(self, hybrid_keys: bool) -> Mapping[int, int]:
        """The longest modulus by ring degree."""
        return self.longest_hybrid_modulus if hybrid_keys else self.longest_modulus

    def check(self, parameters: Parameters) -> None:
        """Raises PolyNeXtError for parameters that are not secure."""
        if not (1 <= parameters.special_primes < len(parameters.prime_bits)) or any(
            not 2 <= bits <= self.longest_prime for bits in parameters.prime_bits
        ):
            raise PolyNeXtError(
                f"{parameters.special_primes} special primes and primes of {parameters.prime_bits} bits are not "
                "parameters of CKKS: prepare the network again."
            )
        limits = self.limits(parameters.hybrid_keys)
        longest = limits.get(parameters.ring_degree)
        if longest is None:
            raise PolyNeXtError(
                f"ring degree {parameters.ring_degree} with {parameters.special_primes} special primes is not "
                f"supported: choose among {', '.join(map(str, limits))}."
            )
        if parameters.modulus_bits > longest:
            raise PolyNeXtError(
                f"ring degree {parameters.ring_degree} with a modulus of {parameters.modulus_bits} bits has less than "
                f"{self.bits} bits of security, which allow {longest}: take a larger ring or a shallower network."
            )


# For a ternary secret. SEAL's keys have the limits that SEAL enforces, from the HomomorphicEncryption.org standard of
# 2018. Hybrid keys have those of the newer "Security Guidelines for Implementing Homomorphic Encryption" (Bossuat et
# al., 2024), which are a little stricter and include 2^16.
STANDARD_SECURITY = Security(
    bits=128,
    longest_modulus={2**13: 218, 2**14: 438, 2**15: 881},
    longest_hybrid_modulus={2**13: 214, 2**14: 430, 2**15: 868, 2**16: 1747},
    longest_prime=60,
    shortest_prime=24,
)


@dataclass(frozen=True)
class Engine:
    """What computes on ciphertexts. Costs and noise depend on it.

    `hybrid_keys`: whether it computes with several special primes. `hoists`: whether rotations of one value share work
    in `rotate_many`. `centred`: whether digits of key switching are centred around zero, which makes noise smaller.
    `threads`: whether it computes on several threads.
    """

    name: str
    hybrid_keys: bool
    hoists: bool
    centred: bool
    threads: bool


@dataclass(frozen=True)
class Costs:
    """Seconds of each operation, at one ring degree, number of special primes and length of primes, as a polynomial of
    the number of primes, lowest power first.

    Key switching, in rotations and products, is quadratic in the number of primes; other operations are linear.
    """

    ring_degree: int
    seconds: dict[str, tuple[float, ...]]

    @property
    def has_compact_plaintexts(self) -> bool:
        """Whether the engine has compact plaintexts, which are expanded when they are used."""
        return "expand" in self.seconds

    def __call__(self, operations: Mapping[tuple[str, int], float]) -> float:
        return sum(
            n * sum(c * primes**power for power, c in enumerate(self.seconds[name]))
            for (name, primes), n in operations.items()
        )


class Backend(ABC):
    """An encryption library. `library` is its name and version, which files record. It reads files whose `file_format`
    is its own."""

    name: str
    library: str
    file_format: str
    encrypts: bool
    security: Security

    @property
    @abstractmethod
    def engine(self) -> Engine:
        """What computes on ciphertexts on this machine."""

    @abstractmethod
    def ring(self, parameters: Parameters) -> "Ring": ...

    @abstractmethod
    def costs(self, ring_degree: int, threads: int = 1, special_primes: int = 1, short_primes: bool = False) -> Costs:
        """What operations cost on this machine, on so many threads if the engine has threads. `short_primes`: whether
        all primes are short (`Parameters.short_primes`)."""


@dataclass(eq=False)
class EvaluationKeys:
    """The keys for computing: one for products and one for each rotation. They are separate, because loading a file of
    many keys can take several times its size in memory. Those that a client makes are `Savable`; those that a server
    loads have the form that its engine computes with."""

    relinearisation: Any
    rotations: Mapping[int, Any]


@dataclass(frozen=True)
class Part:
    """One upload of a client: the relinearisation key, the key for rotations by `step`, or a fresh ciphertext."""

    kind: Literal["relinearisation", "rotation", "ciphertext"]
    step: int = 0

    @property
    def name(self) -> str:
        return f"rotation-{self.step}" if self.kind == "rotation" else self.kind

    @classmethod
    def keys(cls, rotations: Iterable[int]) -> "list[Part]":
        """The parts of evaluation keys."""
        return [cls("relinearisation"), *(cls("rotation", step) for step in rotations)]


class UploadHandling(ABC):
    """How a service exchanges files with untrusted clients, which may have another version of the library.

    A file in a `dialect` is a file as that version writes it.
    """

    @abstractmethod
    def most_bytes(self, part: Part) -> int:
        """The largest possible size of a part."""

    def upload_bytes(self, part: Part) -> int:
        """About the size of a part as our clients send it."""
        return self.most_bytes(part)

    @abstractmethod
    def receive(self, source: Path, target: Path, part: Part) -> str:
        """Rewrites a client's part into a file that this ring loads, and returns its dialect.

        Refuses a file that is not this part, as far as this can be checked without loading it.
        """

    @abstractmethod
    def deliver(self, source: Path, target: Path, dialect: str) -> None:
        """Rewrites a result for a client of this dialect."""

    def browser_parameters(self, rotations: Iterable[int]) -> dict[str, Any] | None:
        """What a browser needs to create the same ring and these rotation keys; None if no browser library can."""
        return None


class Ring(UploadHandling):
    """A backend with parameters, which contain the backend's own primes.

    Files that it loads may come from untrusted clients: an invalid file is refused with a PolyNeXtError.
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
        """Refuses a ciphertext of another level, size or scale, and one that is not encrypted."""

    def require_engine(self) -> None:
        """Raises PolyNeXtError if this machine cannot compute with these parameters. Clients need no engine."""
        return

    @abstractmethod
    def evaluator(self, keys: EvaluationKeys, threads: int | None = None) -> "Evaluator":
        """Computes with these keys. Libraries with threads use `threads` of them, for all evaluators of the ring
        together. None leaves their number as it is, at first 1."""


class SecretKey(ABC):
    """The client's key. It never leaves the client."""

    ring: Ring

    @abstractmethod
    def save(self, path: str) -> None: ...

    @abstractmethod
    def evaluation_keys(self, rotations: Iterable[int]) -> EvaluationKeys:
        """The keys that the server computes with. They cannot decrypt."""

    def sendable_keys(self, rotations: Iterable[int]) -> EvaluationKeys:
        """The same keys for saving only: a library may write them shorter than those that it computes with."""
        return self.evaluation_keys(rotations)

    @abstractmethod
    def encrypt(self, values: Array) -> Ciphertext:
        """At level 0 and the parameters' input scale."""

    @abstractmethod
    def decrypt(self, value: Ciphertext) -> Array: ...


class Evaluator(ABC):
    """Arithmetic on ciphertexts. Operands are not changed, except by `accumulate`."""

    parameters: Parameters
    needs_values = True  # False if it only counts
    # Whether it can make compact plaintexts, which take little memory and more time when they are used.
    compacts = False

    @property
    def threads(self) -> int:
        """The number of threads that compute. Callers may use so many Python threads, too."""
        return 1

    def use_threads(self, count: int) -> None:
        """Computes on so many threads from now on, in libraries with threads. A process must use one when it forks."""
        return

    @abstractmethod
    def encode(self, values: Any, level: int, scale: float, compact: bool = False) -> Plaintext | None:
        """The values as a plaintext; None if all of them round to zero at this scale. Only an evaluator that `compacts`
        can make a `compact` one. One that only counts takes a `SlotPattern` instead of values."""

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

    def sums(self, sums: Iterable[Iterable[tuple[Ciphertext, Plaintext]]]) -> Iterator[Ciphertext | None]:
        """Sums of products of ciphertexts and plaintexts, each computed when it is asked for; None for an empty one.
        Libraries may compute several at once: they share ciphertexts."""
        for terms in sums:
            total: Ciphertext | None = None
            for factor, plain in terms:
                previous, total = total, self.accumulate(total, factor, plain)
                if previous is not None and previous is not total:
                    self.release(previous)
            yield total

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
        """Divides by the level's prime and drops it, which brings the scale to about `scale`."""

    def rescale_to(self, value: Ciphertext, one: Plaintext, scale: float) -> Ciphertext:
        """Multiplies by `one`, a plaintext of ones, and rescales, which brings the scale to about `scale`."""
        product = self.accumulate(None, value, one)
        result = self.rescale(product, scale)
        self.release(product)
        return result

    @abstractmethod
    def drop(self, value: Ciphertext, level: int) -> Ciphertext:
        """Drops primes down to a level, without rescaling."""

    def release(self, value: Ciphertext) -> None:
        """Called when a ciphertext is not needed any more. Python frees it; only counting needs to know."""
        return


def unusable(path: Path, what: str, reason: object) -> PolyNeXtError:
    return PolyNeXtError(f"{path.name} is not {what} for these parameters ({reason}): make it again with these keys.")


def unexpected_ciphertext(path: Path) -> PolyNeXtError:
    return PolyNeXtError(
        f"{path.name} is not an encrypted ciphertext of the expected level, size and scale: make it again with the "
        "same client spec and version of polynext on both sides."
    )
