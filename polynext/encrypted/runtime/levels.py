"""At which level and scale every value of a circuit is: what planner, bill and execution go by.

A level is the number of primes that are gone. Linear forms drop one, and bring what they are made of back to the
standard scale. Products are not rescaled: they have both operands' scales, and leave it to the next linear form to drop
one prime for both. Only a product that is multiplied again without a linear form between drops a prime of its own. A
kept value can be *lazy* and leave its rescale to those who take it as well, so that a product and two linear maps share
a prime; for those who need it after that level it is *settled*, which drops that level's prime. (A step that refreshes
a ciphertext would bring its level back down here, and nowhere else.)
"""

from collections.abc import Sequence
from dataclasses import dataclass

from polynext.encrypted.runtime.parameters import Parameters

# A settled value has so many bits less than a product.
SETTLED_BITS_LESS = 6


@dataclass(frozen=True)
class Stage:
    """How a value comes about; value 0 is the image, and stage k makes value k + 1.

    Each operand is a linear form of earlier values, by their numbers, or one of them as it is. Of values that are
    joined (`joining.py`) the later one has both in its ciphertext.
    """

    operands: tuple[tuple[int, ...] | int, ...]
    multiplies: bool
    rescales: bool
    level: int  # before its linear forms
    lazy: bool = False  # its linear form is not rescaled
    weight_bits: int = 0  # by how many bits its weights are longer than others
    joins: int | None = None  # the value whose ciphertext it goes into, as imaginary part

    @property
    def forms(self) -> tuple[tuple[int, ...], ...]:
        """The sources of each linear form."""
        return tuple(operand for operand in self.operands if isinstance(operand, tuple))

    @property
    def product_level(self) -> int:
        return self.level + bool(self.forms and not self.lazy)

    @property
    def result_level(self) -> int:
        return self.product_level + self.rescales


def value_scales(stages: Sequence[Stage], parameters: Parameters) -> list[float]:
    """The scale of each value at its own level."""
    scales = [parameters.input_scale]
    for stage in stages:
        if stage.lazy:
            (sources,) = stage.forms
            widest = max(scale_at(k, stage.level, stages, scales, parameters) for k in sources)
            scales.append(widest * 2.0 ** (parameters.plain_bits + stage.weight_bits))
            continue
        formed = form_scale(len(scales), stages, parameters)
        sides = [scales[o] if isinstance(o, int) else formed for o in stage.operands]
        scale = sides[0] * sides[-1] if stage.multiplies else sides[0]
        scales.append(scale / parameters.prime(stage.product_level) if stage.rescales else scale)
    return scales


def form_scale(number: int, stages: Sequence[Stage], parameters: Parameters) -> float:
    """What the linear forms of value `number` come to when they are rescaled."""
    return parameters.result_scale if number == len(stages) else parameters.scale


def scale_at(value: int, level: int, stages: Sequence[Stage], scales: Sequence[float], parameters: Parameters) -> float:
    """The scale of a value where it is used."""
    factor = settling(value, level, stages, scales, parameters)
    return scales[value] * factor / parameters.prime(stages[value - 1].result_level) if factor else scales[value]


def settling(value: int, level: int, stages: Sequence[Stage], scales: Sequence[float], parameters: Parameters) -> int:
    """The whole number that a lazy value is multiplied by when its level's prime is dropped; 0 for a value that keeps
    its scale. Both the settled value and the weights of those who take it are then longer than need be."""
    if not value or not stages[value - 1].lazy or level == stages[value - 1].result_level:
        return 0
    settled = 2.0 ** (2 * parameters.scale_bits - SETTLED_BITS_LESS)
    return max(round(settled * parameters.prime(stages[value - 1].result_level) / scales[value]), 1)


def joining(value: int, stages: Sequence[Stage], scales: Sequence[float], parameters: Parameters) -> int:
    """The whole number that brings a lazy value to the scale of the one that joins it, when a prime is dropped; 0 for a
    value that is not lazy and has the scale already."""
    real = stages[value - 1].joins
    assert real is not None
    if not stages[real - 1].lazy:
        return 0
    return round(scales[value] * parameters.prime(stages[real - 1].result_level) / scales[real])
