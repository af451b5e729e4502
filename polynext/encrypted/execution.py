"""Runs a program on an engine. One and the same code counts, computes in the clear and computes on ciphertexts."""

from dataclasses import dataclass

import numpy as np

from polynext.encrypted.engine import Ciphertext, Engine, Plaintext
from polynext.encrypted.packing import Form
from polynext.encrypted.program import Program, Step


@dataclass(eq=False)
class EncodedForm:
    """A form's diagonals as plaintexts: for each giant step (source, baby step, plaintext)."""

    diagonals: dict[int, list[tuple[int, int, Plaintext]]]
    bias: Plaintext | None
    summed_bits: tuple[int, ...]


def value_scales(program: Program, engine: Engine) -> dict[int, float]:
    """The scale of each value: products that are not rescaled carry that of both operands."""
    parameters = engine.parameters
    scales = {0: parameters.input_scale}
    for step in program.steps:
        scale = parameters.scale
        if step.multiplies:
            sides = [scales[o] if isinstance(o, int) else parameters.scale for o in step.operands]
            scale = sides[0] * sides[-1]
            if step.target in program.rescaled:
                scale /= parameters.prime(program.levels[step.target] - 1)
        scales[step.target] = scale
    return scales


def encode_program(program: Program, engine: Engine) -> list[list[EncodedForm]]:
    """All constants of a program, encoded once."""
    scales = value_scales(program, engine)
    return [[encode_form(form, step, scales, engine) for form in step.forms] for step in program.steps]


def encode_form(form: Form, step: Step, scales: dict[int, float], engine: Engine) -> EncodedForm:
    parameters = engine.parameters
    # After the rescale every term is at the standard scale, whatever its source's was.
    plain_scales = {k: parameters.scale * parameters.prime(step.level) / scales[k] for k in form.terms}
    by_giant: dict[int, list[tuple[int, int, Plaintext]]] = {}
    for source, diagonals in form.terms.items():
        giants, babies = step.stride.decompose(diagonals.offsets, diagonals.period)
        for i, (giant, baby) in enumerate(zip(giants.tolist(), babies.tolist(), strict=True)):
            rolled = np.roll(diagonals.vector(i), giant * step.stride.size) if engine.needs_values else None
            plain = engine.encode(rolled, step.level, plain_scales[source])
            if plain is not None:
                by_giant.setdefault(giant, []).append((source, baby, plain))
    if not by_giant:
        # A ciphertext of zero takes a key to make. The smallest multiple of a source stands in: it drowns in the noise.
        source, scale = next(iter(plain_scales.items()))
        smallest = np.full(parameters.slots, 1 / scale)
        by_giant[0] = [(source, 0, engine.encode(smallest, step.level, scale))]
    bias = None if form.bias is None else engine.encode(form.bias, step.level + 1, parameters.scale)
    return EncodedForm(by_giant, bias, form.summed_bits)


def execute(program: Program, encoded: list[list[EncodedForm]], engine: Engine, image: Ciphertext) -> Ciphertext:
    """The program's result for an encrypted image."""
    # Of each value its rotations so far: rotating is what costs most, so that they are kept while they may be needed.
    held: dict[int, dict[int, Ciphertext]] = {0: {0: image}}
    last_uses = program.last_uses()
    scales = value_scales(program, engine)
    for number, step in enumerate(program.steps):
        for source, babies in step.babies.items():
            bring_down(held[source], step.level, engine)
            for new, start, rotation in babies:
                held[source][new] = engine.rotate(held[source][start], rotation)
        forms = iter(evaluate_form(form, step, held, engine) for form in encoded[number])
        operands = [held[o][0] if isinstance(o, int) else next(forms) for o in step.operands]
        result = operands[0]
        if step.multiplies:
            level = max(operand.level for operand in operands)
            left = engine.drop(operands[0], level)
            right = engine.rotate(left, step.pair) if step.pair else engine.drop(operands[-1], level)
            result = engine.multiply(left, right)
            if step.target in program.rescaled:
                result = engine.rescale(result, scales[step.target])
        del operands
        held[step.target] = {0: result}
        for source in [s for s in held if last_uses.get(s, len(program.steps)) <= number]:
            del held[source]
    return held[program.output][0]


def bring_down(rotations: dict[int, Ciphertext], level: int, engine: Engine) -> None:
    for baby, value in rotations.items():
        rotations[baby] = engine.drop(value, level)


def evaluate_form(form: EncodedForm, step: Step, held: dict[int, dict[int, Ciphertext]], engine: Engine) -> Ciphertext:
    """Giant steps by Horner's rule from either end, so that one key for each direction does for all of them."""
    total: Ciphertext = None
    for direction in (1, -1):
        part: Ciphertext = None
        for giant in range(max((direction * q for q in form.diagonals), default=0), 0, -1):
            for source, baby, plain in form.diagonals.get(direction * giant, ()):
                part = engine.accumulate(part, held[source][baby], plain)
            part = engine.rotate(part, direction * step.stride.size)
        total = part if total is None else total if part is None else engine.add(total, part)
    for source, baby, plain in form.diagonals.get(0, ()):
        total = engine.accumulate(total, held[source][baby], plain)
    total = engine.rescale(total, engine.parameters.scale)
    for bit in form.summed_bits:
        total = engine.add(total, engine.rotate(total, bit))
    return total if form.bias is None else engine.add_plain(total, form.bias)
