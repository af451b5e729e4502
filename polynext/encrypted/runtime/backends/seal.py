"""CKKS by Microsoft SEAL, through `sealapi` of the `tenseal` wheel. No other module imports it."""

import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import tenseal.sealapi as seal

from polynext.arrays import Array
from polynext.encrypted.runtime.backends import seal_files
from polynext.encrypted.runtime.backends.calibration import machine_costs
from polynext.encrypted.runtime.backends.protocol import (
    CONJUGATION,
    STANDARD_SECURITY,
    Backend,
    Ciphertext,
    Costs,
    Engine,
    EvaluationKeys,
    Evaluator,
    Part,
    Ring,
    SecretKey,
    unexpected_ciphertext,
    unusable,
)
from polynext.encrypted.runtime.parameters import Parameters
from polynext.errors import PolyNeXtError


@cache
def own_version() -> seal_files.Version:
    """The version of SEAL inside the wheel, read from the header of a file that it writes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "parameters"
        seal.EncryptionParameters(seal.SCHEME_TYPE.CKKS).save(str(path))
        return seal_files.version_of(path)


def dialect_of(version: seal_files.Version) -> str:
    """The name of a version's file format. SEAL refuses files of other versions."""
    return f"SEAL {version[0]}.{version[1]}"


ENGINES = {
    "seal": Engine("seal", hybrid_keys=False, hoists=False, centred=False, threads=False),
    "native": Engine("native", hybrid_keys=True, hoists=True, centred=True, threads=True),
}


class SealBackend(Backend):
    """128-bit security."""

    name = "seal"
    library = f"tenseal {version('tenseal')}"
    file_format = dialect_of(own_version())
    encrypts = True
    security = STANDARD_SECURITY

    @property
    def engine(self) -> Engine:
        return evaluation_engine()

    def ring(self, parameters: Parameters) -> "SealRing":
        self.security.check(parameters)
        return SealRing(parameters)

    def costs(self, ring_degree: int, threads: int = 1, special_primes: int = 1, short_primes: bool = False) -> Costs:
        if special_primes > 1:
            require_hybrid_engine()
        return machine_costs(self, ring_degree, threads, special_primes, short_primes)


@dataclass(eq=False)
class SealCiphertext:
    body: Any
    level: int
    scale: float

    def save(self, path: str) -> None:
        self.body.save(path)


class SealRing(Ring):
    """A SEAL context for some parameters, which `Security.check` has accepted."""

    def __init__(self, parameters: Parameters):
        self.moduli = seal.CoeffModulus.Create(parameters.ring_degree, in_seal_order(parameters))
        # All primes in SEAL's order: the last one to be dropped first, the special primes of the keys at the end.
        self.key_primes = [modulus.value() for modulus in self.moduli]
        data = self.key_primes[: parameters.depth + 1]
        self.parameters = replace(parameters, primes=tuple(reversed(data)))
        counts = range(len(data), 0, -1)
        self.levels = [seal_files.parameters_id(parameters.ring_degree, data[:count]) for count in counts]
        self.key_id = seal_files.parameters_id(parameters.ring_degree, self.key_primes)

    def make_context(self, primes: int, all_levels: bool) -> Any:
        """A context with the first primes."""
        degree = self.parameters.ring_degree
        chosen = seal.EncryptionParameters(seal.SCHEME_TYPE.CKKS)
        chosen.set_poly_modulus_degree(degree)
        chosen.set_coeff_modulus(self.moduli[:primes])
        # SEAL has no limits for rings that only hybrid keys use.
        levels = seal.SEC_LEVEL_TYPE
        level = levels.TC128 if degree in STANDARD_SECURITY.longest_modulus else levels.NONE
        context = seal.SEALContext(chosen, all_levels, level)
        if not context.parameters_set():
            raise PolyNeXtError(f"SEAL refuses these parameters ({context.parameters_error_message()}).")
        return context

    @cached_property
    def context(self) -> Any:
        """With all levels, for clients and for SEAL's own evaluator. SEAL's tables of all levels take several times the
        memory of those of one."""
        return self.make_context(len(self.moduli), all_levels=True)

    @cached_property
    def key_context(self) -> Any:
        """For loading keys. Where all levels are needed anyway, they share the tables."""
        if evaluation_engine().name == "seal" or "context" in self.__dict__:
            return self.context
        return self.make_context(len(self.moduli), all_levels=False)

    @cached_property
    def image_context(self) -> Any:
        """For loading ciphertexts of level 0. SEAL's contexts have one special prime more than ciphertexts have."""
        if not self.parameters.hybrid_keys or "context" in self.__dict__:
            return self.key_context
        return self.make_context(self.parameters.depth + 2, all_levels=False)

    @cached_property
    def encoder(self) -> Any:
        return seal.CKKSEncoder(self.context)

    def encode(self, values: Array, level: int, scale: float) -> Any:
        plain = seal.Plaintext()
        self.encoder.encode(values, self.levels[level], float(scale), plain)
        return plain

    def load(self, empty: Any, what: str, path: Path, context: Any) -> Any:
        """Loads a key or ciphertext from a file. SEAL checks it against the context."""
        try:
            empty.load(context, str(path))
        except (RuntimeError, ValueError) as error:
            raise unusable(path, what, error) from error
        return empty

    def generate_key(self) -> "SealKey":
        return SealKey(self, seal.KeyGenerator(self.context).secret_key())

    def load_key(self, path: Path) -> "SealKey":
        return SealKey(self, self.load(seal.SecretKey(), "a secret key", path, self.context))

    def load_evaluation_keys(self, relinearisation: Path, rotations: Mapping[int, Path]) -> EvaluationKeys:
        """SEAL checks each key. The native extension then converts it, so that only one is in memory in both forms."""
        self.require_engine()
        if self.parameters.hybrid_keys:
            from polynext.encrypted.runtime.backends.native import load_hybrid_keys

            return load_hybrid_keys(self, relinearisation, rotations)

        elements = {step: galois_element(step, self.parameters) for step in rotations}
        made = {
            step: self.load_evaluation_key(seal.GaloisKeys(), "a rotation key", path, elements[step])
            for step, path in rotations.items()
        }
        return EvaluationKeys(
            self.load_evaluation_key(seal.RelinKeys(), "a relinearisation key", relinearisation, 1), made
        )

    def load_evaluation_key(self, empty: Any, what: str, path: Path, element: int) -> Any:
        """A key in the form that the engine computes with."""
        key = self.load(empty, what, path, self.key_context)
        if evaluation_engine().name == "seal":
            return key
        from polynext.encrypted.runtime.backends.native import native_key

        return native_key(self, key, element)

    def load_ciphertext(self, path: Path, level: int, scale: float) -> SealCiphertext:
        context = self.context if level else self.image_context
        body = self.load(seal.Ciphertext(), "a ciphertext", path, context)
        if (body.parms_id(), body.size(), body.scale) != (self.levels[level], 2, scale) or body.is_transparent():
            raise unexpected_ciphertext(path)
        return SealCiphertext(body, level, scale)

    def expected(self, part: Part) -> seal_files.Content:
        """The expected content of a part's file."""
        parameters, degree = self.parameters, self.parameters.ring_degree
        if part.kind == "ciphertext":
            return self.expected_ciphertext(0, parameters.input_scale)
        if parameters.hybrid_keys:
            return self.expected_hybrid_key(
                1 if part.kind == "relinearisation" else galois_element(part.step, parameters)
            )
        digit = self.expected_digit(seeded=False)
        if part.kind == "relinearisation":
            return seal_files.SwitchingKeys(digit, parameters.depth + 1)
        at = (galois_element(part.step, parameters) - 1) // 2
        return seal_files.SwitchingKeys(digit, parameters.depth + 1, degree, at)

    def expected_digit(self, seeded: bool) -> seal_files.Ciphertext:
        """One digit of a key: an encryption over all primes."""
        identity, degree = seal_files.packed(self.key_id), self.parameters.ring_degree
        return seal_files.Ciphertext(identity, degree, len(self.key_primes), 1.0, seeded)

    def expected_hybrid_key(self, element: int) -> seal_files.HybridKey:
        return seal_files.HybridKey(self.expected_digit(seeded=True), self.parameters.digits_at(0), element)

    def expected_ciphertext(self, level: int, scale: float) -> seal_files.Ciphertext:
        identity = seal_files.packed(self.levels[level])
        return seal_files.Ciphertext(identity, self.parameters.ring_degree, self.parameters.primes_at(level), scale)

    def most_bytes(self, part: Part) -> int:
        wanted = self.expected(part)
        if isinstance(wanted, seal_files.HybridKey):
            return wanted.most_bytes  # it is never compressed
        return wanted.most_bytes + wanted.most_bytes // 256 + 1024  # compression may lengthen random data a little

    def upload_bytes(self, part: Part) -> int:
        """Clients send a seed instead of the random half of each of SEAL's keys."""
        return self.most_bytes(part) // (2 if isinstance(self.expected(part), seal_files.SwitchingKeys) else 1)

    def receive(self, source: Path, target: Path, part: Part) -> str:
        try:
            return dialect_of(seal_files.rewrite(source, target, self.expected(part), own_version()))
        except seal_files.NotThisError as error:
            raise unusable(source, f"a {part.kind}{' key' * (part.kind != 'ciphertext')}", error) from error

    def deliver(self, source: Path, target: Path, dialect: str) -> None:
        major, _, minor = dialect.removeprefix("SEAL ").partition(".")
        wanted = self.expected_ciphertext(self.parameters.depth, self.parameters.result_scale)
        seal_files.rewrite(source, target, wanted, (int(major), int(minor)))

    def require_engine(self) -> None:
        if self.parameters.hybrid_keys:
            require_hybrid_engine()

    def evaluator(self, keys: EvaluationKeys, threads: int | None = None) -> Evaluator:
        self.require_engine()
        if evaluation_engine().name == "seal":
            return SealEvaluator(self, keys)
        from polynext.encrypted.runtime.backends.native import NativeEvaluator

        return NativeEvaluator(self, keys, threads)

    def as_seal(self, value: Ciphertext) -> SealCiphertext:
        """A ciphertext as SEAL's object. One of the native extension goes through the file that SEAL reads."""
        if isinstance(value, SealCiphertext):
            return value
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "ciphertext"
            value.save(str(path))
            return self.load_ciphertext(path, value.level, value.scale)

    def browser_parameters(self, rotations: Iterable[int]) -> dict[str, Any] | None:
        """The arguments of SEAL's own constructors, for `node-seal`, which cannot make hybrid keys."""
        parameters = self.parameters
        if parameters.hybrid_keys:
            return None
        parts = [part for part in Part.keys(rotations) if part.kind == "rotation"]
        return {
            "poly_modulus_degree": parameters.ring_degree,
            "coeff_modulus_bits": in_seal_order(parameters),
            "input_scale": parameters.input_scale,
            "galois_elements": {part.name: galois_element(part.step, parameters) for part in parts},
        }


@dataclass(eq=False)
class SealKey(SecretKey):
    ring: SealRing
    secret: Any

    def save(self, path: str) -> None:
        self.secret.save(path)

    def evaluation_keys(self, rotations: Iterable[int]) -> EvaluationKeys:
        if self.ring.parameters.hybrid_keys:
            return self.loaded(self.sendable_keys(rotations))
        generator = seal.KeyGenerator(self.ring.context, self.secret)
        relinearisation = seal.RelinKeys()
        generator.create_relin_keys(relinearisation)
        made = {}
        for step in rotations:
            made[step] = seal.GaloisKeys()
            generator.create_galois_keys([galois_element(step, self.ring.parameters)], made[step])
        return EvaluationKeys(relinearisation, made)

    def sendable_keys(self, rotations: Iterable[int]) -> EvaluationKeys:
        """Half of each key is random. SEAL saves the seed of that half, if the key was created for saving."""
        if self.ring.parameters.hybrid_keys:
            from polynext.encrypted.runtime.backends.hybrid_keys import HybridKeyGenerator

            return HybridKeyGenerator(self).keys(rotations)
        generator = seal.KeyGenerator(self.ring.context, self.secret)
        made = {s: generator.create_galois_keys([galois_element(s, self.ring.parameters)]) for s in rotations}
        return EvaluationKeys(generator.create_relin_keys(), made)

    def loaded(self, keys: EvaluationKeys) -> EvaluationKeys:
        """Keys as a server loads them from files."""
        with tempfile.TemporaryDirectory(dir=scratch_folder()) as folder:
            relinearisation, *parts = Part.keys(keys.rotations)
            files = {part.step: Path(folder) / part.name for part in parts}
            keys.relinearisation.save(str(Path(folder) / relinearisation.name))
            for step, path in files.items():
                keys.rotations[step].save(str(path))
            return self.ring.load_evaluation_keys(Path(folder) / relinearisation.name, files)

    def encrypt(self, values: Array) -> SealCiphertext:
        parameters = self.ring.parameters
        encryptor = seal.Encryptor(self.ring.context, self.secret)
        body = seal.Ciphertext(self.ring.context)
        encryptor.encrypt_symmetric(self.ring.encode(values, 0, parameters.input_scale), body)
        return SealCiphertext(body, 0, parameters.input_scale)

    def decrypt(self, value: Ciphertext) -> Array:
        plain = seal.Plaintext()
        seal.Decryptor(self.ring.context, self.secret).decrypt(self.ring.as_seal(value).body, plain)
        return np.array(self.ring.encoder.decode_double(plain))


def in_seal_order(parameters: Parameters) -> list[int]:
    """The lengths of the primes in SEAL's order: the first one is dropped last, the special ones are at the end."""
    bits, count = parameters.prime_bits, parameters.depth + 1
    return [*reversed(bits[:count]), *bits[count:]]


def evaluation_engine() -> Engine:
    """What computes on ciphertexts: the native extension if it is installed, otherwise SEAL.

    The environment variable POLYNEXT_ENGINE chooses one of them. This is the only place that reads it.
    """
    installed = find_spec("polynext_native") is not None
    chosen = os.environ.get("POLYNEXT_ENGINE") or ("native" if installed else "seal")
    if chosen not in ENGINES:
        raise PolyNeXtError(f"POLYNEXT_ENGINE is {chosen!r}: set it to {' or '.join(ENGINES)}, or leave it out.")
    if chosen == "native" and not installed:
        raise PolyNeXtError(
            "POLYNEXT_ENGINE is native, but polynext-native is not installed: pip install ./native in a checkout."
        )
    return ENGINES[chosen]


def require_hybrid_engine() -> None:
    """Raises PolyNeXtError if the engine of this machine cannot compute with hybrid keys."""
    if not evaluation_engine().hybrid_keys:
        raise PolyNeXtError(
            "this network was prepared with hybrid keys, and SEAL cannot compute with them: install polynext-native "
            "(pip install ./native in a checkout) and do not set POLYNEXT_ENGINE to seal, or prepare the network with "
            "`--clients any`."
        )


def galois_element(steps: int, parameters: Parameters) -> int:
    """The Galois element of a rotation, or of conjugation."""
    if steps == CONJUGATION:
        return 2 * parameters.ring_degree - 1
    return pow(3, steps % parameters.slots, 2 * parameters.ring_degree)


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


class SealEvaluator(Evaluator):
    def __init__(self, ring: SealRing, keys: EvaluationKeys):
        self.ring, self.keys, self.parameters = ring, keys, ring.parameters
        self.evaluator = seal.Evaluator(ring.context)
        self.scratch = seal.Ciphertext(ring.context)

    def encode(self, values: Array, level: int, scale: float, compact: bool = False) -> Any:
        assert not compact
        plain = self.ring.encode(values, level, scale)
        return None if plain.is_zero() else plain  # SEAL refuses to multiply by zero

    def add(self, left: SealCiphertext, right: SealCiphertext) -> SealCiphertext:
        body = seal.Ciphertext(self.ring.context)
        self.evaluator.add(left.body, right.body, body)
        return SealCiphertext(body, left.level, left.scale)

    def add_plain(self, left: SealCiphertext, right: Any) -> SealCiphertext:
        body = seal.Ciphertext(self.ring.context)
        self.evaluator.add_plain(left.body, right, body)
        return SealCiphertext(body, left.level, left.scale)

    def multiply(self, left: SealCiphertext, right: SealCiphertext) -> SealCiphertext:
        body = seal.Ciphertext(self.ring.context)
        if left is right:
            self.evaluator.square(left.body, body)
        else:
            self.evaluator.multiply(left.body, right.body, body)
        self.evaluator.relinearize_inplace(body, self.keys.relinearisation)
        return SealCiphertext(body, left.level, left.scale * right.scale)

    def accumulate(self, total: SealCiphertext | None, factor: SealCiphertext, plain: Any) -> SealCiphertext:
        if total is None:
            body = seal.Ciphertext(self.ring.context)
            self.evaluator.multiply_plain(factor.body, plain, body)
            return SealCiphertext(body, factor.level, body.scale)
        self.evaluator.multiply_plain(factor.body, plain, self.scratch)
        self.scratch.scale = total.body.scale  # SEAL refuses scales that differ by rounding
        self.evaluator.add_inplace(total.body, self.scratch)
        return total

    def rotate(self, value: SealCiphertext, steps: int) -> SealCiphertext:
        return self.switched(value, steps % self.parameters.slots)

    def conjugate(self, value: SealCiphertext) -> SealCiphertext:
        return self.switched(value, CONJUGATION)

    def switched(self, value: SealCiphertext, steps: int) -> SealCiphertext:
        body = seal.Ciphertext(self.ring.context)
        keys = self.keys.rotations[steps]
        self.evaluator.apply_galois(value.body, galois_element(steps, self.parameters), keys, body)
        return SealCiphertext(body, value.level, value.scale)

    def rescale(self, value: SealCiphertext, scale: float) -> SealCiphertext:
        body = seal.Ciphertext(self.ring.context)
        self.evaluator.rescale_to_next(value.body, body)
        body.scale = scale
        return SealCiphertext(body, value.level + 1, scale)

    def drop(self, value: SealCiphertext, level: int) -> SealCiphertext:
        if level == value.level:
            return value
        body = seal.Ciphertext(self.ring.context)
        self.evaluator.mod_switch_to(value.body, self.ring.levels[level], body)
        return SealCiphertext(body, level, value.scale)


BACKEND = SealBackend()
