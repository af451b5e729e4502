"""A circuit as a program for ciphertexts: which linear forms to compute, at which level, by which rotations.

Each product, each kept value and the output takes a step, which computes its operands, linear forms of earlier values,
and multiplies them:

    operand = rescale(sum over giant steps g of rotate(sum over baby steps b of diagonal * rotate(x, b), g)) + bias

Both operands of a product go into alternate blocks of one ciphertext when that has room, and the product is then
`ct * rotate(ct, block)`. `levels.py` says at which level and scale each value is.
"""

from dataclasses import dataclass, field

import numpy as np

from polynext.arrays import Indices
from polynext.encrypted.runtime.backends.protocol import CONJUGATION
from polynext.encrypted.runtime.diagonals import Form
from polynext.encrypted.runtime.layout import Layout
from polynext.encrypted.runtime.levels import Stage

Tree = list[tuple[int, int, int]]  # (new rotation, from which one, by which key)


@dataclass(eq=False)
class Step:
    """A stage with its values in slots. Operands are forms, or the numbers of earlier values taken as they are."""

    stage: Stage
    operands: list[Form | int]
    held: bool = True  # whether its diagonals stay encoded between runs
    pair: int = 0  # how far apart the two operands lie in one ciphertext; 0 if they are not together
    stride: "Stride" = field(default_factory=lambda: Stride(1))  # between giant steps
    babies: dict[int, Tree] = field(default_factory=dict)  # of each source
    giants: list[Tree] = field(default_factory=list)  # of each form
    paths: dict[int, list[int]] = field(default_factory=dict)  # the keys that make up other rotations

    @property
    def forms(self) -> list[Form]:
        return [operand for operand in self.operands if isinstance(operand, Form)]

    @property
    def level(self) -> int:
        return self.stage.level


@dataclass(eq=False)
class Program:
    """What a server runs. `layouts` has a place for each value: the image, then what each step makes."""

    slots: int
    layouts: list[Layout] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    rotations: tuple[int, ...] = ()

    @property
    def stages(self) -> list[Stage]:
        return [step.stage for step in self.steps]

    @property
    def depth(self) -> int:
        """How many primes the whole program drops."""
        return self.steps[-1].stage.result_level

    def last_uses(self) -> dict[int, int]:
        """After which step a value is not needed any more."""
        uses: dict[int, int] = {}
        for number, step in enumerate(self.steps):
            for operand in step.operands:
                for source in operand.sources if isinstance(operand, Form) else (operand,):
                    uses[source] = number
            if step.stage.joins is not None:
                uses[step.stage.joins] = number
        return uses


@dataclass(frozen=True)
class Stride:
    """How offsets split into giant and baby steps: a multiple of `size`, and a rest around zero, both modulo the
    source's period."""

    size: int

    def decompose(self, offsets: Indices, period: int) -> tuple[Indices, Indices]:
        if self.size >= period:
            return np.zeros_like(offsets), offsets % period
        giants = (offsets + self.size // 2) // self.size * self.size
        return giants % period, (offsets - giants) % period


def used_rotations(program: Program) -> set[int]:
    """Every rotation that running the program takes a key for."""
    used: set[int] = {CONJUGATION} if conjugates(program) else set()
    for step in program.steps:
        used |= {by for tree in [*step.babies.values(), *step.giants] for _, _, by in tree}
        used |= {by for path in step.paths.values() for by in path}
    return used


def conjugates(program: Program) -> bool:
    return any(form.conjugated for step in program.steps for form in step.forms)
