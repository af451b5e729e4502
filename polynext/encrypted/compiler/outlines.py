"""The outline of every step of a circuit: what it computes and at which level, and the primes that this needs."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from polynext.circuit.graph import Circuit, Linear, Node, Product, Sum
from polynext.encrypted.runtime.levels import Scales, StepOutline
from polynext.encrypted.runtime.parameters import Parameters


def computed_values(circuit: Circuit) -> Iterator[Node]:
    """The values that become ciphertexts: products, materialised values and the output."""
    return (n for n in circuit.order if isinstance(n, Product) or n.materialised or n is circuit.output)


def linear_terms(node: Node) -> Iterator[Linear]:
    """The linear maps that a value is the sum of, in a circuit whose sums are expanded."""
    for term in node.terms if isinstance(node, Sum) else (node,):
        assert isinstance(term, Linear)
        yield term


def step_operands(node: Node) -> list[Node]:
    """The factors of a product, one for a square. Any other value is its own operand."""
    return list(dict.fromkeys(node.sources)) if isinstance(node, Product) else [node]


def outline_steps(circuit: Circuit, lazy: bool = False) -> list[StepOutline]:
    """The steps of a circuit whose sums are expanded, with lazy rescaling of materialised values if `lazy`."""
    numbers: dict[Node, int] = {circuit.input: 0}
    levels = [0]
    outlines: list[StepOutline] = []
    products = [node for node in circuit.order if isinstance(node, Product)]
    factors = {source for node in products for source in node.sources}
    for node in computed_values(circuit):
        is_product = isinstance(node, Product)
        operands = tuple(
            numbers[side]
            if side in numbers
            else tuple(dict.fromkeys(numbers[term.source] for term in linear_terms(side)))
            for side in step_operands(node)
        )
        outline = StepOutline(operands, is_product, is_product and node in factors, level=0)
        level = max(levels[k] for k in outline.sources)
        # A lazy map of a lazy value at the same level would make three linear maps share a prime, which is too short.
        after_lazy = any(k and outlines[k - 1].lazy and levels[k] == level for k in outline.sources)
        can_be_lazy = node.materialised and not after_lazy and node is not circuit.output and node not in factors
        outlines.append(replace(outline, level=level, lazy=lazy and can_be_lazy and not is_product))
        levels.append(outlines[-1].result_level)
        numbers[node] = len(outlines)
    return share_weight_bits(outlines, list(computed_values(circuit)))


def share_weight_bits(outlines: list[StepOutline], nodes: Sequence[Node]) -> list[StepOutline]:
    """Of two linear maps that share a prime, gives more of its bits to the one that sums over more entries, because the
    rounding errors of weights add up."""
    widths = [max(map(mean_row_entries, step_operands(node))) for node in nodes]
    for number in [k for k, outline in enumerate(outlines, 1) if outline.lazy]:
        level = outlines[number - 1].result_level
        users = [
            k
            for k, outline in enumerate(outlines, 1)
            if outline.level == level and any(number in sources for sources in outline.combinations)
        ]
        if users:
            ratio = widths[number - 1] / max(widths[k - 1] for k in users)
            more = round(math.log(ratio, 4) / 2)
            for k, bits in ((number, more), *((k, -more) for k in users)):
                outlines[k - 1] = replace(outlines[k - 1], weight_bits=bits)
    return outlines


def mean_row_entries(node: Node) -> float:
    """The number of entries that a linear combination sums over, on average; 1 for a product."""
    if isinstance(node, Product):
        return 1.0
    return max(sum(term.map.entries for term in linear_terms(node)) / node.size, 1.0)


def needed_prime_bits(outlines: Sequence[StepOutline], parameters: Parameters, shortest: int) -> tuple[int, ...]:
    """For each level, the length of the prime that brings its linear combinations and rescaled products to the scale.

    Scales depend on primes only through rescaled products and lazy values, and then only on primes of earlier levels.
    """
    scales = Scales(outlines, parameters)
    bits = [shortest] * outlines[-1].result_level
    for number, outline in enumerate(outlines, 1):
        for sources in () if outline.lazy else outline.combinations:
            used = max(scales.at_level(k, outline.level) for k in sources)
            widest = math.log2(used / scales.combination_scale(number))
            widest += parameters.plain_bits + outline.weight_bits
            bits[outline.level] = max(bits[outline.level], math.ceil(widest - 1e-3))
        if outline.rescales:
            product = scales.values[number] * parameters.prime(outline.product_level)
            needed = math.ceil(math.log2(product)) - parameters.scale_bits
            bits[outline.product_level] = max(bits[outline.product_level], needed)
    return tuple(bits)
