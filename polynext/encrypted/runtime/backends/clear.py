"""A backend without encryption, for tests: it computes what the encrypted program should compute.

Its files contain images and answers in plain text, and their headers say so.
"""

import json
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from polynext.arrays import Array
from polynext.encrypted.runtime.backends.protocol import (
    STANDARD_SECURITY,
    Backend,
    Costs,
    Engine,
    EvaluationKeys,
    Part,
    Ring,
    SecretKey,
    unexpected_ciphertext,
    unusable,
)
from polynext.encrypted.runtime.counting import CountingEvaluator, Slots
from polynext.encrypted.runtime.parameters import Parameters


class ClearBackend(Backend):
    """Has the same limits as an encrypting backend, so that its plans are the same."""

    name = "clear"
    library = f"numpy {np.__version__}"
    file_format = "clear 1"
    encrypts = False
    security = STANDARD_SECURITY
    engine = Engine("clear", hybrid_keys=True, hoists=False, centred=True, threads=False)

    def ring(self, parameters: Parameters) -> "ClearRing":
        self.security.check(parameters)
        return ClearRing(parameters)

    def costs(self, ring_degree: int, threads: int = 1, special_primes: int = 1, short_primes: bool = False) -> Costs:
        """Each operation takes a millisecond per prime, so that plans are the same on every machine."""
        operations = ("rotate", "rotate_again", "multiply", "multiply_plain", "add", "rescale", "drop", "encode")
        return Costs(ring_degree, dict.fromkeys(operations, (0.0, 1e-3)))


SECRET, RELINEARISATION, CIPHERTEXT = "a clear secret key", "a clear relinearisation key", "a clear ciphertext"
ROTATION = "a clear key for rotations by {}"
LONGEST_NUMBER = 28  # characters, including the separator


@dataclass(frozen=True)
class ClearPart:
    """A key or ciphertext in a file: its kind, and its numbers if it has any."""

    what: str
    numbers: tuple[float, ...] = ()

    def save(self, path: str) -> None:
        Path(path).write_text(json.dumps([self.what, *self.numbers]))

    @classmethod
    def load(cls, path: Path, what: str) -> "ClearPart":
        try:
            written, *numbers = json.loads(path.read_bytes())
            if written != what:
                raise ValueError(f"it is {written}")
            return cls(what, tuple(map(float, numbers)))
        except (TypeError, ValueError, RecursionError) as error:
            raise unusable(path, what, error) from error


@dataclass(eq=False)
class ClearCiphertext(Slots):
    """A ciphertext that everybody can read."""

    def save(self, path: str) -> None:
        assert self.values is not None
        ClearPart(CIPHERTEXT, (self.level, self.scale, *self.values.real.tolist())).save(path)


@dataclass(eq=False)
class ClearRing(Ring):
    parameters: Parameters

    def generate_key(self) -> "ClearKey":
        return ClearKey(self)

    def load_key(self, path: Path) -> "ClearKey":
        ClearPart.load(path, SECRET)
        return ClearKey(self)

    def load_evaluation_keys(self, relinearisation: Path, rotations: Mapping[int, Path]) -> EvaluationKeys:
        loaded = {step: ClearPart.load(path, ROTATION.format(step)) for step, path in rotations.items()}
        return EvaluationKeys(ClearPart.load(relinearisation, RELINEARISATION), loaded)

    def load_ciphertext(self, path: Path, level: int, scale: float) -> ClearCiphertext:
        numbers = ClearPart.load(path, CIPHERTEXT).numbers
        if numbers[:2] != (level, scale) or len(numbers) != 2 + self.parameters.slots:
            raise unexpected_ciphertext(path)
        return ClearCiphertext(level, scale, np.array(numbers[2:]))

    def most_bytes(self, part: Part) -> int:
        return LONGEST_NUMBER * (self.parameters.slots + 4 if part.kind == "ciphertext" else 4)

    def receive(self, source: Path, target: Path, part: Part) -> str:
        if part.kind == "ciphertext":
            self.load_ciphertext(source, 0, self.parameters.input_scale)
        else:
            ClearPart.load(source, RELINEARISATION if part.kind == "relinearisation" else ROTATION.format(part.step))
        shutil.copyfile(source, target)
        return ClearBackend.library

    def deliver(self, source: Path, target: Path, dialect: str) -> None:
        shutil.copyfile(source, target)

    def evaluator(self, keys: EvaluationKeys, threads: int | None = None) -> "ClearEvaluator":
        return ClearEvaluator(self.parameters, tuple(keys.rotations))


@dataclass(eq=False)
class ClearKey(SecretKey):
    """A key without a secret."""

    ring: ClearRing

    def save(self, path: str) -> None:
        ClearPart(SECRET).save(path)

    def evaluation_keys(self, rotations: Iterable[int]) -> EvaluationKeys:
        made = {step: ClearPart(ROTATION.format(step)) for step in rotations}
        return EvaluationKeys(ClearPart(RELINEARISATION), made)

    def encrypt(self, values: Array) -> ClearCiphertext:
        return ClearCiphertext(0, self.ring.parameters.input_scale, values)

    def decrypt(self, value: Slots) -> Array:
        assert value.values is not None
        return value.values.real


class ClearEvaluator(CountingEvaluator):
    """Computes exactly on slots, and counts."""

    needs_values = True

    def ciphertext(self, level: int, scale: float, values: Array | None) -> ClearCiphertext:
        return ClearCiphertext(level, scale, values)

    def sum(self, left: Any, right: Any) -> Array:
        return left + right

    def product(self, left: Any, right: Any) -> Array:
        return left * right

    def rolled(self, values: Any, steps: int) -> Array:
        return np.roll(values, -steps, axis=-1)

    def conjugated(self, values: Any) -> Array:
        return np.conj(values)


BACKEND = ClearBackend()
