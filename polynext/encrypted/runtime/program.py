"""A program: the linear combinations and products that a server computes, with their levels and rotations.

Every product, every materialised value and the output is one step. A step computes its operands, which are linear
combinations of earlier values, and multiplies them:

    operand = rescale(sum over giant steps g of rotate(sum over baby steps b of diagonal * rotate(x, b), g)) + bias

If both operands of a product fit into one ciphertext, they are computed as one linear combination, and the product is
`ct * rotate(ct, pair)`. `levels.py` defines the level and scale of each value.
"""

from dataclasses import dataclass, field

import numpy as np

from polynext.arrays import Indices
from polynext.encrypted.runtime.backends.protocol import CONJUGATION
from polynext.encrypted.runtime.diagonals import LinearCombination
from polynext.encrypted.runtime.layout import Layout
from polynext.encrypted.runtime.levels import StepOutline

RotationTree = list[tuple[int, int, int]]  # (new rotation, the rotation it is computed from, the key to rotate by)


@dataclass(frozen=True)
class Stride:
    """Splits an offset into a giant step, a multiple of `size`, and a baby step around zero, both modulo the source's
    period."""

    size: int

    def decompose(self, offsets: Indices, period: int) -> tuple[Indices, Indices]:
        if self.size >= period:
            return np.zeros_like(offsets), offsets % period
        giants = (offsets + self.size // 2) // self.size * self.size
        return giants % period, (offsets - giants) % period


@dataclass(eq=False)
class Step:
    """One step with its weights in slots. An operand is a linear combination, or the number of an earlier value."""

    outline: StepOutline
    operands: list[LinearCombination | int]
    keep_encoded: bool = True  # whether its diagonals stay encoded between runs
    pair: int = 0  # the distance of two operands in one ciphertext; 0 if they are in two
    stride: Stride = field(default_factory=lambda: Stride(1))
    babies: dict[int, RotationTree] = field(default_factory=dict)  # by source
    giants: list[RotationTree] = field(default_factory=list)  # one per linear combination
    paths: dict[int, list[int]] = field(default_factory=dict)  # by rotation: the keys to rotate by, in turn

    @property
    def combinations(self) -> list[LinearCombination]:
        return [operand for operand in self.operands if isinstance(operand, LinearCombination)]

    @property
    def level(self) -> int:
        return self.outline.level


@dataclass(eq=False)
class Program:
    """What a server runs. `layouts` has one entry for each value: the image, then the result of each step."""

    slots: int
    layouts: list[Layout] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    rotations: tuple[int, ...] = ()

    @property
    def outlines(self) -> list[StepOutline]:
        return [step.outline for step in self.steps]

    @property
    def depth(self) -> int:
        """The number of primes that the program drops."""
        return self.steps[-1].outline.result_level

    def last_uses(self) -> dict[int, int]:
        """For each value, the last step that uses it."""
        uses: dict[int, int] = {}
        for number, step in enumerate(self.steps):
            for operand in step.operands:
                uses |= dict.fromkeys({operand} if isinstance(operand, int) else operand.sources, number)
            if step.outline.packed_with is not None:
                uses[step.outline.packed_with] = number
        return uses


def used_rotations(program: Program) -> set[int]:
    """Every rotation that the program needs a key for."""
    used: set[int] = {CONJUGATION} if conjugates(program) else set()
    for step in program.steps:
        used |= {by for tree in [*step.babies.values(), *step.giants] for _, _, by in tree}
        used |= {by for path in step.paths.values() for by in path}
    return used


def conjugates(program: Program) -> bool:
    return any(combination.conjugated for step in program.steps for combination in step.combinations)
