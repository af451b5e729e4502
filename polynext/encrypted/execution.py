"""Runs a program with an evaluator. One and the same code counts, computes in the clear and computes on ciphertexts."""

from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

import numpy as np

from polynext.encrypted.backends.protocol import Ciphertext, Evaluator, Plaintext
from polynext.encrypted.levels import value_scales
from polynext.encrypted.packing import Form
from polynext.encrypted.program import Program, Step


@dataclass(eq=False)
class EncodedForm:
    """A form's diagonals as plaintexts: for each giant step (source, baby step, plaintext)."""

    diagonals: dict[int, list[tuple[int, int, Plaintext]]]
    bias: Plaintext | None
    summed_bits: tuple[int, ...]


def encode_program(program: Program, evaluator: Evaluator) -> list[list[EncodedForm]]:
    """All constants of a program, encoded once."""
    scales = value_scales(program.stages, evaluator.parameters)
    return [[encode_form(form, step, scales, evaluator) for form in step.forms] for step in program.steps]


def encode_form(form: Form, step: Step, scales: list[float], evaluator: Evaluator) -> EncodedForm:
    parameters = evaluator.parameters
    # After the rescale every term is at the standard scale, whatever its source's was.
    plain_scales = {k: parameters.scale * parameters.prime(step.level) / scales[k] for k in form.terms}
    by_giant: dict[int, list[tuple[int, int, Plaintext]]] = {}
    for source, diagonals in form.terms.items():
        giants, babies = step.stride.decompose(diagonals.offsets, diagonals.period)
        for i, (giant, baby) in enumerate(zip(giants.tolist(), babies.tolist(), strict=True)):
            rolled = np.roll(diagonals.vector(i), giant * step.stride.size) if evaluator.needs_values else None
            plain = evaluator.encode(rolled, step.level, plain_scales[source])
            if plain is not None:
                by_giant.setdefault(giant, []).append((source, baby, plain))
    if not by_giant:
        # A ciphertext of zero takes a key to make. The smallest multiple of a source stands in: it drowns in the noise.
        source, scale = next(iter(plain_scales.items()))
        smallest = np.full(parameters.slots, 1 / scale)
        by_giant[0] = [(source, 0, evaluator.encode(smallest, step.level, scale))]
    bias = None if form.bias is None else evaluator.encode(form.bias, step.level + 1, parameters.scale)
    return EncodedForm(by_giant, bias, form.summed_bits)


def execute(program: Program, encoded: list[list[EncodedForm]], evaluator: Evaluator, image: Ciphertext) -> Ciphertext:
    """The program's result for an encrypted image."""
    # Of each value its rotations so far: rotating is what costs most, so that they are kept while they may be needed.
    held: dict[int, dict[int, Ciphertext]] = {0: {0: image}}
    last_uses = program.last_uses()
    scales = value_scales(program.stages, evaluator.parameters)
    for number, step in enumerate(program.steps):
        for source, babies in step.babies.items():
            bring_down(held[source], step.level, evaluator)
            for start, branches in groupby(babies, key=itemgetter(1)):
                made, _, steps = zip(*branches, strict=True)
                held[source] |= zip(made, evaluator.rotate_many(held[source][start], steps), strict=True)
        forms = iter(evaluate_form(form, step, held, evaluator) for form in encoded[number])
        operands = [held[o][0] if isinstance(o, int) else next(forms) for o in step.operands]
        result = operands[0]
        if step.stage.multiplies:
            level = step.stage.product_level
            left = evaluator.drop(operands[0], level)
            right = evaluator.rotate(left, step.pair) if step.pair else evaluator.drop(operands[-1], level)
            result = evaluator.multiply(left, right)
            if step.stage.rescales:
                result = evaluator.rescale(result, scales[number + 1])
        del operands
        held[number + 1] = {0: result}
        for source in [s for s in held if last_uses.get(s, len(program.steps)) <= number]:
            del held[source]
    return result


def bring_down(rotations: dict[int, Ciphertext], level: int, evaluator: Evaluator) -> None:
    for baby, value in rotations.items():
        rotations[baby] = evaluator.drop(value, level)


def evaluate_form(
    form: EncodedForm, step: Step, held: dict[int, dict[int, Ciphertext]], evaluator: Evaluator
) -> Ciphertext:
    """Giant steps by Horner's rule from either end, so that one key for each direction does for all of them."""
    total: Ciphertext = None
    for direction in (1, -1):
        part: Ciphertext = None
        for giant in range(max((direction * q for q in form.diagonals), default=0), 0, -1):
            for source, baby, plain in form.diagonals.get(direction * giant, ()):
                part = evaluator.accumulate(part, held[source][baby], plain)
            part = evaluator.rotate(part, direction * step.stride.size)
        total = part if total is None else total if part is None else evaluator.add(total, part)
    for source, baby, plain in form.diagonals.get(0, ()):
        total = evaluator.accumulate(total, held[source][baby], plain)
    total = evaluator.rescale(total, evaluator.parameters.scale)
    for bit in form.summed_bits:
        total = evaluator.add(total, evaluator.rotate(total, bit))
    return total if form.bias is None else evaluator.add_plain(total, form.bias)
