"""The stages of a circuit: what each step computes, at which level, and the primes that takes."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from polynext.circuit.graph import Circuit, Linear, Node, Product, Sum
from polynext.encrypted.runtime.levels import Stage, form_scale, scale_at, value_scales
from polynext.encrypted.runtime.parameters import Parameters


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
