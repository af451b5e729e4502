"""Runs a program with an evaluator. One and the same code counts, computes in the clear and computes on ciphertexts."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

import numpy as np

from polynext.encrypted.backends.protocol import Ciphertext, Evaluator, Plaintext
from polynext.encrypted.levels import form_scale, joining, scale_at, settling, value_scales
from polynext.encrypted.packing import Form
from polynext.encrypted.program import Program, Step, Tree

# The scale from which on the noise of a rotation, some 2^16 units, is small beside a value.
BEARS_ROTATIONS = 2.0**29


@dataclass(eq=False)
class EncodedForm:
    """A form's diagonals as plaintexts: for each giant step (source, baby step, plaintext)."""

    diagonals: dict[int, list[tuple[int, int, Plaintext]]]
    giants: Tree
    bias: Plaintext | None
    summed_bits: tuple[int, ...]
    conjugated: bool
    scale: float  # what a rescale brings it to


def encode_program(program: Program, evaluator: Evaluator) -> list[list[EncodedForm]]:
    """All constants of a program, encoded once."""
    scales = value_scales(program.stages, evaluator.parameters)
    stages, parameters = program.stages, evaluator.parameters
    encoded = []
    for number, step in enumerate(program.steps):
        # Every term comes to the scale that its step's result has, or has before its rescale, whatever its source's is.
        formed = form_scale(number + 1, stages, parameters)
        common = scales[number + 1] if step.stage.lazy else formed * parameters.prime(step.level)
        sources = {k for form in step.forms for k in form.sources}
        used = {k: common / scale_at(k, step.level, stages, scales, parameters) for k in sources}
        trees = zip(step.forms, step.giants, strict=True)
        encoded.append([encode_form(form, tree, step, used, common, formed, evaluator) for form, tree in trees])
    return encoded


def encode_form(
    form: Form,
    giants_tree: Tree,
    step: Step,
    plain_scales: dict[int, float],
    common: float,
    formed: float,
    evaluator: Evaluator,
) -> EncodedForm:
    parameters = evaluator.parameters
    by_giant: dict[int, list[tuple[int, int, Plaintext]]] = {}
    turns = {0: 0}  # by how much the giant steps turn in all, which the source's period hides
    for new, start, by in giants_tree:
        turns[new] = turns[start] + by
    factor = (1j if step.stage.joins is not None else 1.0) * (0.5 if form.conjugated else 1.0)
    for source in sorted(form.sources):
        offsets = form.offsets(source)
        giants, babies = step.stride.decompose(offsets, form.period(source))
        for offset, giant, baby in zip(offsets.tolist(), giants.tolist(), babies.tolist(), strict=True):
            rolled = None
            if evaluator.needs_values:
                rolled = np.roll(factor * form.vector(source, offset), turns[giant])
            plain = evaluator.encode(rolled, step.level, plain_scales[source])
            if plain is not None:
                by_giant.setdefault(giant, []).append((source, baby, plain))
    if not by_giant:
        # A ciphertext of zero takes a key to make. The smallest multiple of a source stands in: it drowns in the noise.
        source = min(form.sources)
        scale = plain_scales[source]
        smallest = np.full(parameters.slots, 1 / scale)
        by_giant[0] = [(source, 0, evaluator.encode(smallest, step.level, scale))]
    bias = None
    if form.bias is not None:
        bias = evaluator.encode(form.bias if step.stage.joins is None else 1j * form.bias, step.level, common)
    return EncodedForm(by_giant, giants_tree, bias, form.summed_bits, form.conjugated, formed)


def execute(program: Program, encoded: list[list[EncodedForm]], evaluator: Evaluator, image: Ciphertext) -> Ciphertext:
    """The program's result for an encrypted image."""
    # Of each value its rotations so far: rotating is what costs most, so that they are kept while they may be needed.
    held: dict[int, dict[int, Ciphertext]] = {0: {0: image}}
    last_uses = program.last_uses()
    scales = value_scales(program.stages, evaluator.parameters)
    for number, step in enumerate(program.steps):
        for source, babies in step.babies.items():
            factor = settling(source, step.level, program.stages, scales, evaluator.parameters)
            if factor and held[source][0].level == program.stages[source - 1].result_level:
                settle(held[source], factor, evaluator)
            bring_down(held[source], step.level, evaluator)
            for start, branches in groupby(babies, key=itemgetter(1)):
                made, _, steps = zip(*branches, strict=True)
                held[source] |= zip(made, evaluator.rotate_many(held[source][start], steps), strict=True)
        joins = step.stage.joins
        forms = iter(form for each in encoded[number] for form in evaluate_form(each, step, held, evaluator))
        operands = [held[o][0] if isinstance(o, int) else next(forms) for o in step.operands]
        operands += forms  # the other operand of a pair
        result = operands[0]
        if step.stage.multiplies:
            level = step.stage.product_level
            result = evaluator.multiply(evaluator.drop(operands[0], level), evaluator.drop(operands[-1], level))
            if step.stage.rescales:
                result = evaluator.rescale(result, scales[number + 1])
        if joins is not None:
            factor = joining(number + 1, program.stages, scales, evaluator.parameters)
            result = joined(held[joins][0], factor, result, evaluator)
        del operands
        held[number + 1] = {0: result}
        for source in [s for s in held if last_uses.get(s, len(program.steps)) <= number]:
            del held[source]
    return result


def bring_down(rotations: dict[int, Ciphertext], level: int, evaluator: Evaluator) -> None:
    for baby, value in rotations.items():
        rotations[baby] = evaluator.drop(value, level)


def settle(rotations: dict[int, Ciphertext], factor: int, evaluator: Evaluator) -> None:
    """Brings a lazy value to the standard scale, which drops its level's prime."""
    level, scale = rotations[0].level, rotations[0].scale
    once = evaluator.encode(np.ones(evaluator.parameters.slots), level, float(factor))
    for baby, value in rotations.items():
        larger = evaluator.accumulate(None, value, once)
        rotations[baby] = evaluator.rescale(larger, scale * factor / evaluator.parameters.prime(level))


def joined(real: Ciphertext, factor: int, imaginary: Ciphertext, evaluator: Evaluator) -> Ciphertext:
    """Two values in one ciphertext, at the level and scale of the second."""
    if factor:
        once = evaluator.encode(np.ones(evaluator.parameters.slots), real.level, float(factor))
        real = evaluator.rescale(evaluator.accumulate(None, real, once), imaginary.scale)
    return evaluator.add(evaluator.drop(real, imaginary.level), imaginary)


def evaluate_form(
    form: EncodedForm, step: Step, held: dict[int, dict[int, Ciphertext]], evaluator: Evaluator
) -> Iterator[Ciphertext]:
    """The operand that a form is, or the two that lie in it.

    Giant steps go from the leaves of their tree to its root, so that few keys do for all of them. Rotations come before
    the rescale, where what they add to the noise is small beside the larger scale; at a scale that bears it, the other
    operand of a pair is cheaper to have after it.
    """
    parts: dict[int, Ciphertext] = {}
    for giant, towards, by in [*reversed(form.giants), (0, None, 0)]:
        for source, baby, plain in form.diagonals.get(giant, ()):
            parts[giant] = evaluator.accumulate(parts.get(giant), held[source][baby], plain)
        if towards is not None and giant in parts:
            part = evaluator.rotate(parts.pop(giant), by)
            parts[towards] = evaluator.add(parts[towards], part) if towards in parts else part
    total = parts[0]
    for bit in form.summed_bits:
        total = evaluator.add(total, turned(total, step.paths[bit], evaluator))
    if form.conjugated:
        total = evaluator.add(total, evaluator.conjugate(total))
    if form.bias is not None:
        total = evaluator.add_plain(total, form.bias)
    if step.stage.lazy:
        yield total
        return
    yield (result := evaluator.rescale(total, form.scale))
    if step.pair:
        path = step.paths[step.pair]
        if form.scale >= BEARS_ROTATIONS:
            yield turned(result, path, evaluator)
        else:
            yield evaluator.rescale(turned(total, path, evaluator), form.scale)


def turned(value: Ciphertext, path: list[int], evaluator: Evaluator) -> Ciphertext:
    for by in path:
        value = evaluator.rotate(value, by)
    return value
