"""The level and scale of every value of a program. Planner, cost estimate and execution all use these functions.

The level of a ciphertext is the number of primes that have been dropped. A linear combination drops one prime, which
brings its result to the standard scale. A product is not rescaled: its scale is the product of its operands' scales,
and the next linear combination drops one prime for both. Only a product that is multiplied again, without a linear
combination in between, drops a prime of its own.

Lazy rescaling: a materialised value can leave its rescale to the steps that use it, so that a product and two linear
maps share one prime. A step at a later level first multiplies the lazy value by an integer and rescales it, which drops
the prime of the value's own level. (Bootstrapping would lower a level here, and nowhere else.)
"""

from collections.abc import Sequence
from dataclasses import dataclass

from polynext.encrypted.runtime.parameters import Parameters

# A lazy value that is rescaled has this many bits less than a product. It is longer than it needs to be, and so are
# the weights that it is multiplied by.
RESCALED_BITS_LESS = 6


@dataclass(frozen=True)
class StepOutline:
    """What a step computes and at which level, without weights and slots. Step k computes value k + 1; value 0 is the
    image.

    An operand is a linear combination, given by the numbers of the values in it, or the number of one value.
    """

    operands: tuple[tuple[int, ...] | int, ...]
    multiplies: bool
    rescales: bool
    level: int  # before its linear combinations
    lazy: bool = False  # its linear combination is not rescaled
    weight_bits: int = 0  # added to the parameters' `plain_bits`
    packed_with: int | None = None  # this earlier value becomes the real part of the result, and the result imaginary

    @property
    def combinations(self) -> tuple[tuple[int, ...], ...]:
        """The sources of each linear combination."""
        return tuple(operand for operand in self.operands if isinstance(operand, tuple))

    @property
    def sources(self) -> set[int]:
        """All values that the operands are computed from."""
        return {k for operand in self.operands for k in ((operand,) if isinstance(operand, int) else operand)}

    @property
    def product_level(self) -> int:
        return self.level + bool(self.combinations and not self.lazy)

    @property
    def result_level(self) -> int:
        return self.product_level + self.rescales


class Scales:
    """The scale of every value: `values[k]` is the scale of value k at its own level."""

    def __init__(self, outlines: Sequence[StepOutline], parameters: Parameters):
        self.outlines, self.parameters = outlines, parameters
        self.values = [parameters.input_scale]
        for outline in outlines:
            self.values.append(self.result_scale(outline))

    def result_scale(self, outline: StepOutline) -> float:
        """The scale of the next value, which this step computes."""
        if outline.lazy:
            (sources,) = outline.combinations
            widest = max(self.at_level(k, outline.level) for k in sources)
            return widest * 2.0 ** (self.parameters.plain_bits + outline.weight_bits)
        rescaled = self.combination_scale(len(self.values))
        sides = [self.values[o] if isinstance(o, int) else rescaled for o in outline.operands]
        scale = sides[0] * sides[-1] if outline.multiplies else sides[0]
        return scale / self.parameters.prime(outline.product_level) if outline.rescales else scale

    def combination_scale(self, number: int) -> float:
        """The scale of the linear combinations of value `number` after their rescale."""
        return self.parameters.result_scale if number == len(self.outlines) else self.parameters.scale

    def at_level(self, value: int, level: int) -> float:
        """The scale of a value when it is used at this level."""
        factor = self.rescale_factor(value, level)
        return self.values[value] * factor / self.own_prime(value) if factor else self.values[value]

    def own_prime(self, value: int) -> float:
        return self.parameters.prime(self.outlines[value - 1].result_level)

    def rescale_factor(self, value: int, level: int) -> int:
        """The integer that a lazy value is multiplied by before the prime of its own level is dropped; 0 for a value
        that keeps its scale."""
        if not value or not self.outlines[value - 1].lazy or level == self.outlines[value - 1].result_level:
            return 0
        wanted = 2.0 ** (2 * self.parameters.scale_bits - RESCALED_BITS_LESS)
        return max(round(wanted * self.own_prime(value) / self.values[value]), 1)

    def packing_factor(self, value: int) -> int:
        """The integer that brings a lazy real part to the scale of its imaginary part `value`, with a rescale; 0 for a
        real part that is not lazy and has this scale already."""
        real = self.outlines[value - 1].packed_with
        assert real is not None
        if not self.outlines[real - 1].lazy:
            return 0
        return round(self.values[value] * self.own_prime(real) / self.values[real])
