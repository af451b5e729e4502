"""At which level and scale every value of a circuit is: what planner, bill and execution go by.

A level is the number of primes that are gone. Linear forms drop one, and bring what they are made of back to the
standard scale. Products are not rescaled: they have both operands' scales, and leave it to the next linear form to drop
one prime for both. Only a product that is multiplied again without a linear form between drops a prime of its own. A
kept value can be *lazy* and leave its rescale to those who take it as well, so that a product and two linear maps share
a prime; for those who need it after that level it is *settled*, which drops that level's prime. (A step that refreshes
a ciphertext would bring its level back down here, and nowhere else.)
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from polynext.circuit.graph import Circuit, Linear, Node, Product, Sum
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
    return with_weight_bits(stages, list(computed(circuit)))


def with_weight_bits(stages: list[Stage], nodes: Sequence[Node]) -> list[Stage]:
    """Of two linear maps that share a prime, the one that sums over more entries gets more of its bits: rounding of
    weights adds up."""
    widths = {number: max(map(width, operands_of(nodes[number - 1]))) for number in range(1, len(stages) + 1)}
    for lazy in [k + 1 for k, stage in enumerate(stages) if stage.lazy]:
        level = stages[lazy - 1].result_level
        users = [
            k + 1
            for k, stage in enumerate(stages)
            if stage.level == level and any(lazy in form for form in stage.forms)
        ]
        if users:
            wider = widths[lazy] / max(widths[k] for k in users)
            more = round(math.log(wider, 4) / 2)
            for k, bits in ((lazy, more), *((k, -more) for k in users)):
                stages[k - 1] = replace(stages[k - 1], weight_bits=bits)
    return stages


def width(node: Node) -> float:
    """How many entries a linear form sums over, on average; 1 for a value as it is."""
    if isinstance(node, Product):
        return 1.0
    return max(sum(term.map.entries for term in terms_of(node)) / node.size, 1.0)


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


def needed_prime_bits(stages: Sequence[Stage], parameters: Parameters, shortest: int) -> tuple[int, ...]:
    """For each level the prime that takes its linear forms, and the products rescaled at it, back to the scale.

    Scales depend on primes only through rescaled products and lazy values, and then on those of earlier levels.
    """
    scales = value_scales(stages, parameters)
    bits = [shortest] * stages[-1].result_level
    for number, (stage, scale) in enumerate(zip(stages, scales[1:], strict=True), 1):
        for sources in () if stage.lazy else stage.forms:
            used = max(scale_at(k, stage.level, stages, scales, parameters) for k in sources)
            widest = math.log2(used / form_scale(number, stages, parameters))
            widest += parameters.plain_bits + stage.weight_bits
            bits[stage.level] = max(bits[stage.level], math.ceil(widest - 1e-3))
        if stage.rescales:
            product = scale * parameters.prime(stage.product_level)
            needed = math.ceil(math.log2(product)) - parameters.scale_bits
            bits[stage.product_level] = max(bits[stage.product_level], needed)
    return tuple(bits)
