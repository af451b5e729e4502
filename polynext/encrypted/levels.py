"""At which level and scale every value of a circuit is: what planner, bill and execution go by.

A level is the number of primes that are gone. Linear forms drop one, and bring what they are made of back to the
standard scale. Products are not rescaled: they have both operands' scales, and leave it to the next linear form to drop
one prime for both. Only a product that is multiplied again without a linear form between drops a prime of its own. A
kept value can be *lazy* and leave its rescale to those who take it as well, so that a product and two linear maps share
a prime; whoever needs it after that level gets it brought back to the standard scale. (A step that refreshes a
ciphertext would bring its level back down here, and nowhere else.)
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
    lazy: bool = False  # its linear form is not rescaled

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


def stages_of(circuit: Circuit, lazy: bool = False) -> list[Stage]:
    """The stages of a circuit whose sums are unbuilt, with `lazy` kept values where that is possible."""
    numbers: dict[Node, int] = {circuit.input: 0}
    levels = [0]
    stages: list[Stage] = []
    products = [node for node in circuit.order if isinstance(node, Product)]
    multiplied_again = {source for node in products for source in node.sources if isinstance(source, Product)}
    multiplied = {source for node in products for source in node.sources}
    for node in computed(circuit):
        operands = tuple(
            numbers[side] if side in numbers else tuple(dict.fromkeys(numbers[term.source] for term in terms_of(side)))
            for side in operands_of(node)
        )
        sources = [k for operand in operands for k in ((operand,) if isinstance(operand, int) else operand)]
        level = max(levels[k] for k in sources)
        # One of a lazy value at its own level would have three linear maps share a prime, which has no room for that.
        waits = any(k and stages[k - 1].lazy and levels[k] == level for k in sources)
        can_wait = node.kept and not waits and node is not circuit.output and node not in multiplied
        is_lazy = lazy and can_wait and not isinstance(node, Product)
        stages.append(Stage(operands, isinstance(node, Product), node in multiplied_again, level, is_lazy))
        levels.append(stages[-1].result_level)
        numbers[node] = len(stages)
    return stages


def value_scales(stages: Sequence[Stage], parameters: Parameters) -> list[float]:
    """The scale of each value at its own level."""
    scales = [parameters.input_scale]
    for stage in stages:
        if stage.lazy:
            (sources,) = stage.forms
            widest = max(scale_at(k, stage.level, stages, scales, parameters) for k in sources)
            scales.append(widest * 2.0**parameters.plain_bits)
            continue
        sides = [scales[o] if isinstance(o, int) else parameters.scale for o in stage.operands]
        scale = sides[0] * sides[-1] if stage.multiplies else sides[0]
        scales.append(scale / parameters.prime(stage.product_level) if stage.rescales else scale)
    return scales


def scale_at(value: int, level: int, stages: Sequence[Stage], scales: Sequence[float], parameters: Parameters) -> float:
    """The scale of a value where it is used."""
    factor = settling(value, level, stages, scales, parameters)
    return scales[value] * factor / parameters.prime(stages[value - 1].result_level) if factor else scales[value]


def settling(value: int, level: int, stages: Sequence[Stage], scales: Sequence[float], parameters: Parameters) -> int:
    """The whole number that brings a lazy value to about the standard scale when its level's prime is dropped; 0 for a
    value that keeps its scale."""
    if not value or not stages[value - 1].lazy or level == stages[value - 1].result_level:
        return 0
    return max(round(parameters.scale * parameters.prime(stages[value - 1].result_level) / scales[value]), 1)


def needed_prime_bits(stages: Sequence[Stage], parameters: Parameters, shortest: int) -> tuple[int, ...]:
    """For each level the prime that takes its linear forms, and the products rescaled at it, back to the scale.

    Scales depend on primes only through rescaled products and lazy values, and then on those of earlier levels.
    """
    scales = value_scales(stages, parameters)
    bits = [shortest] * stages[-1].result_level
    for stage, scale in zip(stages, scales[1:], strict=True):
        for sources in () if stage.lazy else stage.forms:
            used = max(scale_at(k, stage.level, stages, scales, parameters) for k in sources)
            widest = math.log2(used) - parameters.scale_bits + parameters.plain_bits
            bits[stage.level] = max(bits[stage.level], math.ceil(widest - 1e-3))
        if stage.rescales:
            product = scale * parameters.prime(stage.product_level)
            needed = math.ceil(math.log2(product)) - parameters.scale_bits
            bits[stage.product_level] = max(bits[stage.product_level], needed)
    return tuple(bits)
