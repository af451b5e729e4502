"""Two values in one ciphertext: the slots of CKKS are complex, and most values real.

    x = h + i k,    A h + B k = y + conjugate of y    with y = (A - i B) x / 2

The two share rotations and products with diagonals, and a form of them takes one conjugation, which costs as much as a
rotation. The earlier value joins the later one as soon as that is made; whoever takes either from then on takes both.
"""

from dataclasses import replace

from polynext.encrypted.runtime.diagonals import Form
from polynext.encrypted.runtime.layout import same_slots
from polynext.encrypted.runtime.levels import Stage
from polynext.encrypted.runtime.program import Program


def join_values(program: Program) -> None:
    """Joins every value with an earlier one that later forms take together with it, where that can be done."""
    taken: set[int] = set()
    for number in range(2, len(program.steps)):
        partner = next((k for k in range(1, number) if k not in taken and can_join(program, k, number)), None)
        if partner is not None:
            taken |= {partner, number}
            join(program, partner, number)


def can_join(program: Program, real: int, imaginary: int) -> bool:
    """Whether the values lie alike, can be brought to one level and scale, and are taken together afterwards."""
    steps = program.steps
    first, second = steps[real - 1].stage, steps[imaginary - 1].stage
    form, *others = steps[imaginary - 1].operands
    if first.multiplies or second.multiplies or others or not isinstance(form, Form) or form.conjugated:
        return False
    left, right = program.layouts[real], program.layouts[imaginary]
    if left.groups > 1 or right.groups > 1 or not same_slots(left, right):
        return False
    alike = second.level > first.level if first.lazy and second.lazy else not (first.lazy or second.lazy)
    users = [step for step in steps if {real, imaginary} & sources_of(step.stage)]
    later = [step for step in users if step.stage.level >= second.result_level and steps.index(step) >= imaginary]
    earlier = [step for step in users if steps.index(step) < imaginary]
    return (
        alike
        and len(later) + len(earlier) == len(users)
        and all(step.stage.level <= first.result_level for step in earlier if real in sources_of(step.stage))
        and all(isinstance(operand, Form) for step in later for operand in step.operands)
        and all(step.stage.joins is None for step in later)
        and any({real, imaginary} <= form.sources for step in later for form in step.forms)
    )


def sources_of(stage: Stage) -> set[int]:
    return {k for operand in stage.operands for k in ((operand,) if isinstance(operand, int) else operand)}


def join(program: Program, real: int, imaginary: int) -> None:
    steps = program.steps
    steps[imaginary - 1].stage = replace(steps[imaginary - 1].stage, joins=real)
    for step in steps[imaginary:]:
        step.operands = [o if isinstance(o, int) else joined_form(o, real, imaginary) for o in step.operands]
        forms = tuple(o if isinstance(o, int) else joined_sources(o, real, imaginary) for o in step.stage.operands)
        step.stage = replace(step.stage, operands=forms)


def joined_sources(sources: tuple[int, ...], real: int, imaginary: int) -> tuple[int, ...]:
    return tuple(dict.fromkeys(imaginary if k == real else k for k in sources))


def joined_form(form: Form, real: int, imaginary: int) -> Form:
    if not {real, imaginary} & form.sources:
        return form
    terms = {k: d for k, d in form.terms.items() if k not in (real, imaginary)}
    if real in form.terms:
        terms[imaginary] = form.terms[real]
    parts = dict(form.imaginary)
    if imaginary in form.terms:
        parts[imaginary] = form.terms[imaginary]
    return replace(form, terms=terms, imaginary=parts, conjugated=True)
