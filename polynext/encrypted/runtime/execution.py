"""Runs a program with an evaluator. One and the same code counts, computes in the clear and computes on ciphertexts."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np

from polynext.encrypted.runtime.backends.protocol import Ciphertext, Evaluator, Plaintext
from polynext.encrypted.runtime.diagonals import Form
from polynext.encrypted.runtime.levels import form_scale, joining, scale_at, settling, value_scales
from polynext.encrypted.runtime.program import Program, Step, Tree

# The scale from which on the noise of a rotation, some 2^16 units, is small beside a value.
BEARS_ROTATIONS = 2.0**29


@dataclass(eq=False)
class EncodedForm:
    """A form with its diagonals as plaintexts: `held`, or encoded each time they are needed, and then they take no
    memory."""

    form: Form
    step: Step
    giants: Tree
    evaluator: Evaluator
    plain_scales: dict[int, float]  # of each source
    common: float  # the scale that every term comes to
    scale: float  # what a rescale brings it to
    hold: bool
    held: dict[int, list[tuple[int, int, Plaintext]]] | None = None
    bias: Plaintext | None = None

    def __post_init__(self) -> None:
        joins = self.step.stage.joins is not None
        self.factor = (1j if joins else 1.0) * (0.5 if self.form.conjugated else 1.0)
        if self.form.bias is not None:
            bias: Any = self.form.bias * 1j if joins else self.form.bias
            self.bias = self.evaluator.encode(bias, self.step.level, self.common)
        self.turns = {0: 0}  # by how much the giant steps turn in all, which the source's period hides
        for new, start, by in self.giants:
            self.turns[new] = self.turns[start] + by
        self.places: dict[int, list[tuple[int, int, int]]] = {}  # of each giant step: source, baby step, offset
        for source in sorted(self.form.sources):
            offsets = self.form.offsets(source)
            giants, babies = self.step.stride.decompose(offsets, self.form.period(source))
            for giant, baby, offset in zip(giants.tolist(), babies.tolist(), offsets.tolist(), strict=True):
                self.places.setdefault(giant, []).append((source, baby, offset))
        if self.hold:
            self.held = {giant: list(self.encoded(giant)) for giant in self.places}

    def diagonals(self, giant: int) -> Iterable[tuple[int, int, Plaintext]]:
        """Those of a giant step: source, baby step, plaintext."""
        return self.encoded(giant) if self.held is None else self.held.get(giant, ())

    def encoded(self, giant: int) -> Iterator[tuple[int, int, Plaintext]]:
        for source, baby, offset in self.places.get(giant, ()):
            rolled: Any = None
            if self.evaluator.needs_values:
                rolled = np.roll(self.factor * self.form.vector(source, offset), self.turns[giant])
            plain = self.evaluator.encode(rolled, self.step.level, self.plain_scales[source])
            if plain is not None:
                yield source, baby, plain

    def nothing(self) -> tuple[int, Plaintext]:
        """The smallest multiple of a source, for a form whose weights all round to zero: a ciphertext of zero takes a
        key to make, and this one drowns in the noise."""
        source = min(self.form.sources)
        scale = self.plain_scales[source]
        smallest = np.full(self.evaluator.parameters.slots, 1 / scale)
        return source, self.evaluator.encode(smallest, self.step.level, scale)


def encode_program(program: Program, evaluator: Evaluator, hold: bool = True) -> list[list[EncodedForm]]:
    """All constants of a program; those of steps that say so are encoded now and held, unless none are to be."""
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
        encoded.append(
            [EncodedForm(form, step, tree, evaluator, used, common, formed, hold and step.held) for form, tree in trees]
        )
    return encoded


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
        rotations[baby] = evaluator.settle(value, once, scale * factor / evaluator.parameters.prime(level))


def joined(real: Ciphertext, factor: int, imaginary: Ciphertext, evaluator: Evaluator) -> Ciphertext:
    """Two values in one ciphertext, at the level and scale of the second."""
    if factor:
        once = evaluator.encode(np.ones(evaluator.parameters.slots), real.level, float(factor))
        real = evaluator.settle(real, once, imaginary.scale)
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
        total: Ciphertext | None = None
        for source, baby, plain in form.diagonals(giant):
            total = evaluator.accumulate(total, held[source][baby], plain)
        if total is not None:
            parts[giant] = evaluator.add(total, parts[giant]) if giant in parts else total
        if towards is not None and giant in parts:
            part = evaluator.rotate(parts.pop(giant), by)
            parts[towards] = evaluator.add(parts[towards], part) if towards in parts else part
    if 0 not in parts:
        source, plain = form.nothing()
        parts[0] = evaluator.accumulate(None, held[source][0], plain)
    total = parts[0]
    for bit in form.form.summed_bits:
        total = evaluator.add(total, turned(total, step.paths[bit], evaluator))
    if form.form.conjugated:
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
