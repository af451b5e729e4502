"""At which level and scale every value of a circuit is: what planner, bill and execution go by.

A level is the number of primes that are gone. Linear forms drop one, and bring what they are made of back to the
standard scale. Products are not rescaled: they have both operands' scales, and leave it to the next linear form to drop
one prime for both. Only a product that is multiplied again without a linear form between drops a prime of its own. (A
step that refreshes a ciphertext would bring its level back down here, and nowhere else.)
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from polynext.circuit.graph import Circuit, Linear, Node, Product, Sum
from polynext.encrypted.parameters import Parameters


@dataclass(frozen=True)
class Stage:
    """How a value comes about; value 0 is the image, and stage k makes value k + 1.

    Each operand is a linear form of earlier values, by their numbers, or one of them as it is.
    """

    operands: tuple[tuple[int, ...] | int, ...]
    multiplies: bool
    rescales: bool
    level: int  # before its linear forms

    @property
    def forms(self) -> tuple[tuple[int, ...], ...]:
        """The sources of each linear form."""
        return tuple(operand for operand in self.operands if isinstance(operand, tuple))

    @property
    def product_level(self) -> int:
        return self.level + bool(self.forms)

    @property
    def result_level(self) -> int:
        return self.product_level + self.rescales


def computed(circuit: Circuit) -> Iterator[Node]:
    """The values that become ciphertexts: products, kept values and the output."""
    return (n for n in circuit.order if isinstance(n, Product) or n.kept or n is circuit.output)


def terms_of(node: Node) -> Iterator[Linear]:
    """A value as a sum of linear maps, which it is in a circuit whose sums are unbuilt."""
    for term in node.terms if isinstance(node, Sum) else (node,):
        assert isinstance(term, Linear)
        yield term


def operands_of(node: Node) -> list[Node]:
    """What is multiplied for a product, once if it is a square; any other value is its own operand."""
    return list(dict.fromkeys(node.sources)) if isinstance(node, Product) else [node]


def stages_of(circuit: Circuit) -> list[Stage]:
    """The stages of a circuit whose sums are unbuilt."""
    numbers: dict[Node, int] = {circuit.input: 0}
    levels = [0]
    stages = []
    products = [node for node in circuit.order if isinstance(node, Product)]
    multiplied_again = {source for node in products for source in node.sources if isinstance(source, Product)}
    for node in computed(circuit):
        operands = tuple(
            numbers[side] if side in numbers else tuple(dict.fromkeys(numbers[term.source] for term in terms_of(side)))
            for side in operands_of(node)
        )
        level = max(levels[k] for operand in operands for k in ((operand,) if isinstance(operand, int) else operand))
        stages.append(Stage(operands, isinstance(node, Product), node in multiplied_again, level))
        levels.append(stages[-1].result_level)
        numbers[node] = len(stages)
    return stages


def value_scales(stages: Sequence[Stage], parameters: Parameters) -> list[float]:
    """The scale of each value."""
    scales = [parameters.input_scale]
    for stage in stages:
        sides = [scales[o] if isinstance(o, int) else parameters.scale for o in stage.operands]
        scale = sides[0] * sides[-1] if stage.multiplies else sides[0]
        scales.append(scale / parameters.prime(stage.product_level) if stage.rescales else scale)
    return scales


def needed_prime_bits(stages: Sequence[Stage], parameters: Parameters, shortest: int) -> tuple[int, ...]:
    """For each level the prime that takes its linear forms, and the products rescaled at it, back to the scale.

    Scales depend on primes only through rescaled products, and then on those of earlier levels.
    """
    scales = value_scales(stages, parameters)
    bits = [shortest] * stages[-1].result_level
    for stage, scale in zip(stages, scales[1:], strict=True):
        for sources in stage.forms:
            widest = math.log2(max(scales[k] for k in sources)) - parameters.scale_bits + parameters.plain_bits
            bits[stage.level] = max(bits[stage.level], math.ceil(widest))
        if stage.rescales:
            product = scale * parameters.prime(stage.product_level)
            needed = math.ceil(math.log2(product)) - parameters.scale_bits
            bits[stage.product_level] = max(bits[stage.product_level], needed)
    return tuple(bits)
