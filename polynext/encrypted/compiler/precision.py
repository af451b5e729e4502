"""Predicts the error that encryption adds to the logits: runs the program in the clear with the noise of each step.

CKKS rounds. With ring degree N and secret coefficients from {-1, 0, 1}, each of the N coefficients of a polynomial has
a small error. A slot is a sum over all coefficients, so its real part has sqrt(N / 2) times that error:

    a plaintext     rounding to integers, variance 1/12
    encryption      the error of the scheme, standard deviation 3.2
    a rescale       rounding of two polynomials, one of which is multiplied by the secret: variance (1 + 2 N / 3) / 12
    key switching   a rescale by the special primes, and the errors of the keys, each times a digit

The native evaluator centres digits around zero. SEAL does not: every coefficient has a mean of half a prime. In the
slots this mean becomes 1 / (1 - root) for the slot's root of unity, which is a hundred times the rest in the first
slots, where roots are close to 1. Plans with SEAL's keys run on both, so the larger noise counts; hybrid keys need the
native evaluator.
"""

import math
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from polynext.arrays import Array
from polynext.encrypted.runtime.backends.clear import ClearEvaluator
from polynext.encrypted.runtime.counting import Constants, Slots
from polynext.encrypted.runtime.execution import encode_program, execute
from polynext.encrypted.runtime.parameters import Parameters
from polynext.encrypted.runtime.program import Program

ERROR = 3.2  # the standard deviation of the scheme's error

# The number of simulated images, and of ciphertexts and of their slots at a time, which limits memory.
SIMULATED, AT_A_TIME, SLOTS_AT_A_TIME = 32, 16, 2**18
# The predicted error in standard deviations of the noise: one logit in 16,000 has a larger error.
TAIL = 4


@dataclass(eq=False)
class NoisyEvaluator(ClearEvaluator):
    """Computes in the clear, on many ciphertexts at a time, and adds the noise of encryption."""

    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    centred: bool = False  # whether digits of SEAL's keys are centred too

    def noisy(self, values: Array, deviation: float | Array, scale: float) -> Array:
        """Adds noise. `deviation` is the standard deviation of a coefficient, for all slots or for each."""
        size = math.sqrt(self.parameters.ring_degree / 2) * deviation / scale
        noise = self.random.standard_normal(values.shape)
        if np.iscomplexobj(values):
            noise = noise + 1j * self.random.standard_normal(values.shape)
        return values + size * noise

    @property
    def rounding(self) -> float:
        """The standard deviation of a coefficient's error after a rescale."""
        return math.sqrt((1 + 2 * self.parameters.ring_degree / 3) / 12)

    def switching(self, level: int) -> Array:
        """The standard deviation of a coefficient's error after key switching, as it appears in each slot."""
        size, data = self.parameters.special_primes, self.parameters.depth + 1
        special = sum(self.parameters.prime_bits[data:])
        primes = self.parameters.prime_bits[level:data][::-1]  # digits begin at the prime that is dropped last
        digits = sum(4.0 ** (sum(primes[i : i + size]) - special) for i in range(0, len(primes), size))
        return np.hypot(ERROR * math.sqrt(digits) * self.digit, self.rounding)

    @cached_property
    def digit(self) -> Array:
        """The factor of a key's error in each slot, in units of the product of the digit's primes."""
        degree = self.parameters.ring_degree
        if self.centred or self.parameters.hybrid_keys:
            return np.full(degree // 2, math.sqrt(degree / 12))
        exponents = [pow(3, slot, 2 * degree) for slot in range(degree // 2)]
        distance = 2 * np.sin(np.pi * np.array(exponents) / (2 * degree))  # of each root from 1
        return np.sqrt(degree / 12 + distance**-2.0)

    def fresh(self, values: Array) -> Slots:
        scale = self.parameters.input_scale
        return self.slots(0, scale, self.noisy(values, ERROR, scale))

    def encode(self, values: Array | None, level: int, scale: float, compact: bool = False) -> Constants:
        assert values is not None
        return super().encode(self.noisy(values, math.sqrt(1 / 12), scale), level, scale, compact)

    def switched(self, value: Slots) -> Slots:
        """Adds the noise of key switching to a new ciphertext."""
        assert value.values is not None
        value.values = self.noisy(value.values, self.switching(value.level), value.scale)
        return value

    def multiply(self, left: Slots, right: Slots) -> Slots:
        return self.switched(super().multiply(left, right))

    def rotated(self, value: Slots, steps: int, operation: str) -> Slots:
        return self.switched(super().rotated(value, steps, operation))

    def conjugate(self, value: Slots) -> Slots:
        return self.switched(super().conjugate(value))

    def rescale(self, value: Slots, scale: float) -> Slots:
        result = super().rescale(value, scale)
        assert result.values is not None
        result.values = self.noisy(result.values, self.rounding, result.scale)
        return result


@dataclass(frozen=True)
class Precision:
    """The predicted precision of a plan."""

    error: float  # all but one logit in 16,000 have a smaller error, relative to the largest logit
    flips: float  # the share of the examples' predictions that change


def predict(program: Program, parameters: Parameters, examples: Array, wanted: Array) -> Precision:
    """Runs the program with noise on some examples, and estimates how many predictions of all examples change.

    `wanted` are the logits of all examples in the clear. The noise of the logits differs between images: the largest
    counts.
    """
    evaluator = NoisyEvaluator(parameters, program.rotations)
    layout = program.layouts[0]
    chosen = np.arange(-(-SIMULATED // layout.images) * layout.images).reshape(-1, layout.images) % len(examples)
    packed = np.stack([layout.pack(examples[each].reshape(layout.images, -1)) for each in chosen])
    encoded = encode_program(program, evaluator, cache=False)
    count = min(AT_A_TIME, SLOTS_AT_A_TIME // parameters.slots)
    results = [
        program.layouts[-1].unpack(result)
        for start in range(0, len(packed), count)
        for result in execute(program, encoded, evaluator, evaluator.fresh(packed[start : start + count])).values
    ]
    off = np.stack(results).real - wanted[chosen]
    deviations = np.sqrt((off**2).mean(axis=-1))  # of each image
    error = float(TAIL * deviations.max() / np.abs(wanted).max())
    return Precision(error, flipped(wanted, float(off.std())))


def flipped(logits: Array, deviation: float) -> float:
    """The share of predictions that change if logits have normally distributed errors with this deviation."""
    if logits.shape[1] < 2 or deviation == 0:
        return 0.0
    ordered = np.sort(logits, axis=1)
    margins = ordered[:, -1] - ordered[:, -2]
    return float(np.mean([math.erfc(margin / (2 * deviation)) / 2 for margin in margins]))
