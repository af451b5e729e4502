"""How far encryption will put the logits off, told beforehand: the program in the clear, with the noise of each step.

CKKS rounds. With ring degree N and secret coefficients from {-1, 0, 1}, each of the N coefficients of a polynomial is
off by a little, and a slot, a sum over all of them, by sqrt(N / 2) times that in its real part:

    a plaintext     rounding to whole numbers, variance 1/12
    encryption      the error of the scheme, standard deviation 3.2
    a rescale       rounding of both polynomials, one of which meets the secret: variance (1 + 2 N / 3) / 12
    switching keys  a rescale by the special prime, and the keys' errors, each times a digit as long as a prime

Digits are not centred: half a prime in every coefficient, besides what varies. In the slots that is 1 / (1 - root) for
the root of unity that a slot belongs to, a hundred times the rest in the first slots, where roots are next to 1.
"""

import math
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from polynext.arrays import Array
from polynext.encrypted.runtime.backends.clear import ClearCiphertext, ClearEvaluator
from polynext.encrypted.runtime.counting import Constants, Slots
from polynext.encrypted.runtime.execution import encode_program, execute
from polynext.encrypted.runtime.parameters import Parameters
from polynext.encrypted.runtime.program import Program

ERROR = 3.2  # the standard deviation of the scheme's error

# So many images are simulated, in at most so many ciphertexts at a time, for the memory that they take.
SIMULATED, AT_A_TIME = 32, 16
# In deviations of its noise, how far off a logit may be said to be: one in 16,000 is further.
TAIL = 4


@dataclass(eq=False)
class NoisyEvaluator(ClearEvaluator):
    """Computes in the clear, on many ciphertexts at a time, and adds the noise that encryption would."""

    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def noisy(self, values: Array, deviation: float | Array, scale: float) -> Array:
        """`deviation` is that of a coefficient, or what it comes to in each slot."""
        size = math.sqrt(self.parameters.ring_degree / 2) * deviation / scale
        noise = self.random.standard_normal(values.shape)
        if np.iscomplexobj(values):
            noise = noise + 1j * self.random.standard_normal(values.shape)
        return values + size * noise

    @property
    def rounding(self) -> float:
        """What a coefficient of a ciphertext is off after a rescale."""
        return math.sqrt((1 + 2 * self.parameters.ring_degree / 3) / 12)

    def switching(self, level: int) -> Array:
        """What a coefficient is off after switching keys, as it is felt in each slot."""
        *primes, special = self.parameters.prime_bits
        digits = sum(4.0 ** (bits - special) for bits in primes[level:])
        return np.hypot(ERROR * math.sqrt(digits) * self.digit, self.rounding)

    @cached_property
    def digit(self) -> Array:
        """What a digit multiplies a key's error by in each slot, in units of its prime."""
        degree = self.parameters.ring_degree
        exponents = [pow(3, slot, 2 * degree) for slot in range(degree // 2)]
        distance = 2 * np.sin(np.pi * np.array(exponents) / (2 * degree))  # of each root from 1
        return np.sqrt(degree / 12 + distance**-2.0)

    def fresh(self, values: Array) -> ClearCiphertext:
        scale = self.parameters.input_scale
        return self.slots(0, scale, self.noisy(values, ERROR, scale))

    def encode(self, values: Array | None, level: int, scale: float) -> Constants:
        assert values is not None
        return super().encode(self.noisy(values, math.sqrt(1 / 12), scale), level, scale)

    def switched(self, value: Slots) -> ClearCiphertext:
        assert value.values is not None
        return self.slots(value.level, value.scale, self.noisy(value.values, self.switching(value.level), value.scale))

    def multiply(self, left: Slots, right: Slots) -> Slots:
        return self.switched(super().multiply(left, right))

    def rotate(self, value: Slots, steps: int) -> Slots:
        return self.switched(super().rotate(value, steps))

    def conjugate(self, value: Slots) -> Slots:
        return self.switched(super().conjugate(value))

    def rescale(self, value: Slots, scale: float) -> Slots:
        result = super().rescale(value, scale)
        assert result.values is not None
        return self.slots(result.level, result.scale, self.noisy(result.values, self.rounding, result.scale))


@dataclass(frozen=True)
class Precision:
    """What a plan's logits are expected to be off."""

    error: float  # what all but one logit in 16,000 are off at most, in units of the largest
    flips: float  # the share of the examples' predictions that change


def predict(program: Program, parameters: Parameters, examples: Array, wanted: Array) -> Precision:
    """Runs the program with noise on some examples, and looks how many of all lie that close to another class.

    `wanted` are all examples' logits in the clear. How much of the noise arrives at the logits differs from image to
    image: the noisiest counts.
    """
    evaluator = NoisyEvaluator(parameters, program.rotations)
    layout = program.layouts[0]
    chosen = np.arange(-(-SIMULATED // layout.images) * layout.images).reshape(-1, layout.images) % len(examples)
    packed = np.stack([layout.pack(examples[each].reshape(layout.images, -1)) for each in chosen])
    encoded = encode_program(program, evaluator, hold=False)
    results = [
        program.layouts[-1].unpack(result)
        for start in range(0, len(packed), AT_A_TIME)
        for result in execute(program, encoded, evaluator, evaluator.fresh(packed[start : start + AT_A_TIME])).values
    ]
    off = np.stack(results).real - wanted[chosen]
    deviations = np.sqrt((off**2).mean(axis=-1))  # of each image
    error = float(TAIL * deviations.max() / np.abs(wanted).max())
    return Precision(error, flipped(wanted, float(off.std())))


def flipped(logits: Array, deviation: float) -> float:
    """The share of predictions that change if each logit is off by so much, normally distributed."""
    if logits.shape[1] < 2 or deviation == 0:
        return 0.0
    ordered = np.sort(logits, axis=1)
    margins = ordered[:, -1] - ordered[:, -2]
    return float(np.mean([math.erfc(margin / (2 * deviation)) / 2 for margin in margins]))
