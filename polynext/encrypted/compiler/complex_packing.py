"""Complex packing: two real values in one ciphertext, because the slots of CKKS are complex.

    x = h + i k,    A h + B k = y + conjugate of y    with y = (A - i B) x / 2

Both values share rotations and products with diagonals. A linear combination of them needs one conjugation, which costs
as much as a rotation. The earlier value becomes the real part as soon as the later one is computed; all steps after
that use the packed ciphertext.
"""

from dataclasses import replace

from polynext.encrypted.runtime.diagonals import LinearCombination
from polynext.encrypted.runtime.layout import same_slots
from polynext.encrypted.runtime.program import Program


def pack_complex_values(program: Program) -> None:
    """Packs every value with an earlier one that later linear combinations use together with it, where possible."""
    packed: set[int] = set()
    for number in range(2, len(program.steps)):
        partner = next((k for k in range(1, number) if k not in packed and can_pack(program, k, number)), None)
        if partner is not None:
            packed |= {partner, number}
            pack(program, partner, number)


def can_pack(program: Program, real: int, imaginary: int) -> bool:
    """Whether both values have the same layout, can have one level and scale, and are used together afterwards."""
    steps = program.steps
    first, second = steps[real - 1].outline, steps[imaginary - 1].outline
    combination, *others = steps[imaginary - 1].operands
    if first.multiplies or second.multiplies or others:
        return False
    if not isinstance(combination, LinearCombination) or combination.conjugated:
        return False
    left, right = program.layouts[real], program.layouts[imaginary]
    if left.groups > 1 or right.groups > 1 or not same_slots(left, right):
        return False
    one_scale = second.level > first.level if first.lazy and second.lazy else not (first.lazy or second.lazy)
    users = [step for step in steps if {real, imaginary} & step.outline.sources]
    later = [step for step in users if step.outline.level >= second.result_level and steps.index(step) >= imaginary]
    earlier = [step for step in users if steps.index(step) < imaginary]
    return (
        one_scale
        and len(later) + len(earlier) == len(users)
        and all(step.outline.level <= first.result_level for step in earlier if real in step.outline.sources)
        and all(isinstance(operand, LinearCombination) for step in later for operand in step.operands)
        and all(step.outline.packed_with is None for step in later)
        and any({real, imaginary} <= combination.sources for step in later for combination in step.combinations)
    )


def pack(program: Program, real: int, imaginary: int) -> None:
    """Packs two values and lets all later steps use the packed ciphertext, which has the number of the second."""
    steps = program.steps
    steps[imaginary - 1].outline = replace(steps[imaginary - 1].outline, packed_with=real)
    for step in steps[imaginary:]:
        step.operands = [o if isinstance(o, int) else packed_combination(o, real, imaginary) for o in step.operands]
        sources = tuple(
            o if isinstance(o, int) else tuple(dict.fromkeys(imaginary if k == real else k for k in o))
            for o in step.outline.operands
        )
        step.outline = replace(step.outline, operands=sources)


def packed_combination(combination: LinearCombination, real: int, imaginary: int) -> LinearCombination:
    if not {real, imaginary} & combination.sources:
        return combination
    terms = {k: d for k, d in combination.terms.items() if k not in (real, imaginary)}
    if real in combination.terms:
        terms[imaginary] = combination.terms[real]
    parts = dict(combination.imaginary)
    if imaginary in combination.terms:
        parts[imaginary] = combination.terms[imaginary]
    return replace(combination, terms=terms, imaginary=parts, conjugated=True)
