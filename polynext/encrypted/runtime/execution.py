"""Runs a program with an evaluator. The same code counts, computes in the clear and computes on ciphertexts.

Every ciphertext that is computed here is released when it is not needed any more (`Evaluator.release`), so that a
counting evaluator knows how many are live. The image belongs to the caller and is not released.
"""

from collections import UserDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np

from polynext.encrypted.runtime.backends.protocol import Ciphertext, Evaluator, Plaintext
from polynext.encrypted.runtime.diagonals import LinearCombination
from polynext.encrypted.runtime.levels import Scales
from polynext.encrypted.runtime.program import Program, RotationTree, Step

# From this scale on, the noise of a rotation, about 2^16 units, is small compared to a value.
ROTATION_SAFE_SCALE = 2.0**29

Rotations = dict[int, Ciphertext]  # the rotations of one value that have been computed, and at 0 the value itself


@dataclass(eq=False)
class EncodedCombination:
    """A linear combination with its diagonals as plaintexts: `cached`, or if they are not to be, compact or, where the
    evaluator has no compact plaintexts, encoded each time they are used, which takes no memory."""

    combination: LinearCombination
    step: Step
    giants: RotationTree
    evaluator: Evaluator
    plain_scales: dict[int, float]  # by source
    sum_scale: float  # the scale of every term, whatever the scale of its source
    scale: float  # the scale after the rescale
    cache: bool
    cached: dict[int, list[tuple[int, int, Plaintext]]] | None = None
    bias: Plaintext | None = None

    def __post_init__(self) -> None:
        is_imaginary = self.step.outline.packed_with is not None
        self.factor = (1j if is_imaginary else 1.0) * (0.5 if self.combination.conjugated else 1.0)
        if self.combination.bias is not None:
            bias: Any = self.combination.bias * 1j if is_imaginary else self.combination.bias
            self.bias = self.evaluator.encode(bias, self.step.level, self.sum_scale)
        self.total_rotation = {0: 0}  # of each giant step, not reduced modulo the source's period
        for new, start, by in self.giants:
            self.total_rotation[new] = self.total_rotation[start] + by
        self.places: dict[int, list[tuple[int, int, int]]] = {}  # by giant step: source, baby step, offset
        for source in sorted(self.combination.sources):
            offsets = self.combination.offsets(source)
            giants, babies = self.step.stride.decompose(offsets, self.combination.period(source))
            for giant, baby, offset in zip(giants.tolist(), babies.tolist(), offsets.tolist(), strict=True):
                self.places.setdefault(giant, []).append((source, baby, offset))
        if self.cache or self.evaluator.compacts:
            self.cached = {giant: list(self.encode(giant)) for giant in self.places}

    def diagonals(self, giant: int) -> Iterable[tuple[int, int, Plaintext]]:
        """The diagonals of a giant step: source, baby step, plaintext."""
        return self.encode(giant) if self.cached is None else self.cached.get(giant, ())

    def encode(self, giant: int) -> Iterator[tuple[int, int, Plaintext]]:
        for source, baby, offset in self.places.get(giant, ()):
            values: Any
            if self.evaluator.needs_values:
                values = np.roll(self.factor * self.combination.vector(source, offset), self.total_rotation[giant])
            else:
                values = self.combination.pattern(source, self.factor)
            compact = self.evaluator.compacts and not self.cache
            plain = self.evaluator.encode(values, self.step.level, self.plain_scales[source], compact)
            if plain is not None:
                yield source, baby, plain

    def smallest_term(self) -> tuple[int, Plaintext]:
        """The smallest multiple of a source, for a combination whose weights all round to zero. It is far below the
        noise; a ciphertext of zero could not be made without a key."""
        source = min(self.combination.sources)
        scale = self.plain_scales[source]
        smallest = np.full(self.evaluator.parameters.slots, 1 / scale)
        return source, self.evaluator.encode(smallest, self.step.level, scale)


def encode_program(program: Program, evaluator: Evaluator, cache: bool = True) -> list[list[EncodedCombination]]:
    """The linear combinations of each step, ready to be executed. Plaintexts are cached for the steps that ask for it,
    unless `cache` is False."""
    parameters = evaluator.parameters
    scales = Scales(program.outlines, parameters)
    encoded = []
    for number, step in enumerate(program.steps):
        rescaled = scales.combination_scale(number + 1)
        sum_scale = scales.values[number + 1] if step.outline.lazy else rescaled * parameters.prime(step.level)
        sources = {k for combination in step.combinations for k in combination.sources}
        plain_scales = {k: sum_scale / scales.at_level(k, step.level) for k in sources}
        encoded.append(
            [
                EncodedCombination(
                    combination, step, tree, evaluator, plain_scales, sum_scale, rescaled, cache and step.keep_encoded
                )
                for combination, tree in zip(step.combinations, step.giants, strict=True)
            ]
        )
    return encoded


def execute(
    program: Program, encoded: list[list[EncodedCombination]], evaluator: Evaluator, image: Ciphertext
) -> Ciphertext:
    """The program's result for an encrypted image."""
    # Rotations cost most, so they are kept until the last step that may use them.
    values: dict[int, Rotations] = {0: {0: image}}
    last_uses = program.last_uses()
    scales = Scales(program.outlines, evaluator.parameters)
    for number, step in enumerate(program.steps):
        for source, babies in step.babies.items():
            bring_to_level(values[source], source, step.level, scales, evaluator, image)
            for start, branches in groupby(babies, key=itemgetter(1)):
                made, _, by = zip(*branches, strict=True)
                values[source] |= zip(made, evaluator.rotate_many(values[source][start], by), strict=True)
        computed = [operand for each in encoded[number] for operand in evaluate_combination(each, values, evaluator)]
        waiting = iter(computed)
        operands = [values[o][0] if isinstance(o, int) else next(waiting) for o in step.operands]
        operands += waiting  # the second operand of a pair
        result = operands[0]
        if step.outline.multiplies:
            result = multiply(operands[0], operands[-1], step, scales.values[number + 1], evaluator)
        if step.outline.packed_with is not None:
            real = values[step.outline.packed_with][0]
            result = pack_complex(real, scales.packing_factor(number + 1), result, evaluator)
        for operand in computed:
            if operand is not result:
                evaluator.release(operand)
        values[number + 1] = {0: result}
        for source in [k for k in values if last_uses.get(k, len(program.steps)) <= number]:
            for value in values.pop(source).values():
                release_unless(image, value, evaluator)
    return result


def release_unless(owned: Ciphertext, value: Ciphertext, evaluator: Evaluator) -> None:
    """Releases a value unless it is this one, which somebody else owns."""
    if value is not owned:
        evaluator.release(value)


def bring_to_level(
    rotations: Rotations, number: int, level: int, scales: Scales, evaluator: Evaluator, image: Ciphertext
) -> None:
    """Brings all rotations of a value to a level. A lazy value is rescaled when it first leaves its own level."""
    factor = scales.rescale_factor(number, level)
    if factor and rotations[0].level == scales.outlines[number - 1].result_level:
        own_level, scale = rotations[0].level, rotations[0].scale * factor / scales.own_prime(number)
        one = evaluator.encode(np.ones(evaluator.parameters.slots), own_level, float(factor))
        for baby, value in rotations.items():
            rotations[baby] = evaluator.rescale_to(value, one, scale)
            evaluator.release(value)
    for baby, value in rotations.items():
        rotations[baby] = evaluator.drop(value, level)
        if rotations[baby] is not value:
            release_unless(image, value, evaluator)


def multiply(left: Ciphertext, right: Ciphertext, step: Step, scale: float, evaluator: Evaluator) -> Ciphertext:
    """The product of two operands, rescaled to `scale` if the step rescales."""
    dropped = [evaluator.drop(operand, step.outline.product_level) for operand in (left, right)]
    product = evaluator.multiply(*dropped)
    for operand, original in zip(dropped, (left, right), strict=True):
        release_unless(original, operand, evaluator)
    if not step.outline.rescales:
        return product
    result = evaluator.rescale(product, scale)
    evaluator.release(product)
    return result


def pack_complex(real: Ciphertext, factor: int, imaginary: Ciphertext, evaluator: Evaluator) -> Ciphertext:
    """Two values in one ciphertext, at the level and scale of the second."""
    rescaled = real
    if factor:
        one = evaluator.encode(np.ones(evaluator.parameters.slots), real.level, float(factor))
        rescaled = evaluator.rescale_to(real, one, imaginary.scale)
    dropped = evaluator.drop(rescaled, imaginary.level)
    result = evaluator.add(dropped, imaginary)
    release_unless(rescaled, dropped, evaluator)
    release_unless(real, rescaled, evaluator)
    return result


class Variables(UserDict[int | str, Ciphertext]):
    """Ciphertexts by name. One that has no name any more is released."""

    def __init__(self, evaluator: Evaluator):
        super().__init__()
        self.evaluator = evaluator

    def __setitem__(self, name: int | str, value: Ciphertext) -> None:
        previous = self.data.get(name)
        self.data[name] = value
        self.release_unnamed(previous)

    def __delitem__(self, name: int | str) -> None:
        self.release_unnamed(self.data.pop(name))

    def release_unnamed(self, value: Ciphertext | None) -> None:
        if value is not None and not any(value is each for each in self.data.values()):
            self.evaluator.release(value)

    def add(self, name: int | str, value: Ciphertext) -> None:
        self[name] = self.evaluator.add(self[name], value) if name in self else value


def evaluate_combination(
    encoded: EncodedCombination, values: dict[int, Rotations], evaluator: Evaluator
) -> list[Ciphertext]:
    """The operand that a linear combination computes, or the two operands of a pair.

    Giant steps go from the leaves of their tree to the root, so that few keys are enough. Rotations come before the
    rescale, where their noise is small compared to the larger scale. The second operand of a pair is cheaper to compute
    after the rescale, if its scale is safe for a rotation.
    """
    combination, step = encoded.combination, encoded.step
    sums = Variables(evaluator)  # by giant step
    giants = [*reversed(encoded.giants), (0, None, 0)]
    terms = (((values[source][baby], plain) for source, baby, plain in encoded.diagonals(g)) for g, _, _ in giants)
    for (giant, parent, by), total in zip(giants, evaluator.sums(terms), strict=True):
        if total is not None:
            sums["total"] = total
            sums.add(giant, total)
        if parent is not None and giant in sums:
            sums["rotated"] = evaluator.rotate(sums[giant], by)
            del sums[giant]
            sums.add(parent, sums["rotated"])
        sums.pop("total", None)
    if 0 not in sums:
        source, plain = encoded.smallest_term()
        sums[0] = evaluator.accumulate(None, values[source][0], plain)
    sums["total"] = sums[0]
    for bit in combination.summed_bits:
        rotated = rotate_along(sums["total"], step.paths[bit], evaluator)
        sums.add("total", rotated)
        evaluator.release(rotated)
    if combination.conjugated:
        conjugate = evaluator.conjugate(sums["total"])
        sums.add("total", conjugate)
        evaluator.release(conjugate)
    if encoded.bias is not None:
        sums["total"] = evaluator.add_plain(sums["total"], encoded.bias)
    if step.outline.lazy:
        operands = [sums.data.pop("total")]
        sums.data = {name: value for name, value in sums.data.items() if value is not operands[0]}
    else:
        operands = rescale_operands(sums["total"], encoded, evaluator)
    sums.clear()
    return operands


def rescale_operands(total: Ciphertext, encoded: EncodedCombination, evaluator: Evaluator) -> list[Ciphertext]:
    """One operand, or both of a pair, with the scale of a rescaled combination."""
    result = evaluator.rescale(total, encoded.scale)
    if not encoded.step.pair:
        return [result]
    path = encoded.step.paths[encoded.step.pair]
    if encoded.scale >= ROTATION_SAFE_SCALE:
        return [result, rotate_along(result, path, evaluator)]
    rotated = rotate_along(total, path, evaluator)
    second = evaluator.rescale(rotated, encoded.scale)
    evaluator.release(rotated)
    return [result, second]


def rotate_along(value: Ciphertext, path: list[int], evaluator: Evaluator) -> Ciphertext:
    """Rotates a value by one key after another."""
    start = value
    for by in path:
        rotated = evaluator.rotate(value, by)
        release_unless(start, value, evaluator)
        value = rotated
    return value
