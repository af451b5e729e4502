"""Packs a circuit into slots and builds its program."""

from collections.abc import Collection, Sequence
from dataclasses import replace

from polynext.circuit.graph import Circuit, Input, Node
from polynext.circuit.rewrites import Affine
from polynext.encrypted.compiler.outlines import computed_values, linear_terms, outline_steps, step_operands
from polynext.encrypted.compiler.packing import make_layout, make_target, next_power_of_two, pack_combination
from polynext.encrypted.runtime.diagonals import LinearCombination
from polynext.encrypted.runtime.layout import Layout, same_slots
from polynext.encrypted.runtime.levels import StepOutline
from polynext.encrypted.runtime.program import Program, Step, Stride
from polynext.errors import PolyNeXtError


def build_program(
    circuit: Circuit,
    slots: int,
    images: int,
    spread: Collection[int] = (),
    trial: bool = False,
    lazy: bool = False,
) -> Program:
    """Packs the values of a circuit whose sums are expanded, and chooses giant steps. `choose_rotations` adds the keys.

    `spread` are the numbers of values to lay out in groups, where possible (`Layout`). A `trial` has the diagonals of
    the first image only, which need the same operations. `lazy` turns on lazy rescaling (`levels.py`).
    """
    builder = Builder(circuit, slots, images, spread, trial)
    for node, outline in zip(computed_values(circuit), outline_steps(circuit, lazy), strict=True):
        builder.add_step(node, outline)
    builder.program.layouts[0] = replace(builder.program.layouts[0], order=circuit.input.order)
    choose_giant_steps(builder.program)
    return builder.program


class Builder:
    """A program under construction."""

    def __init__(self, circuit: Circuit, slots: int, images: int, spread: Collection[int], trial: bool):
        self.circuit, self.images, self.spread, self.trial = circuit, images, spread, trial
        self.block = block_size(circuit, images, spread)
        self.most_reduced = max((self.reduction(node.shape) for node in computed_values(circuit)), default=1)
        self.groups = max(slots // 2 // self.block, 1) if self.block else 1
        self.program = Program(slots)
        fitting = self.candidates(circuit.input)
        if not fitting:
            raise self.too_long(circuit.input)
        self.numbers: dict[Node, int] = {circuit.input: 0}
        self.program.layouts.append(self.in_groups(fitting[0], 0))

    def add_step(self, node: Node, outline: StepOutline) -> None:
        number = len(self.numbers)
        sides = list(zip(step_operands(node), outline.operands, strict=True))
        wanted = [self.numbered_maps(operand) for operand, sources in sides if isinstance(sources, tuple)]
        ready = [sources for _, sources in sides if isinstance(sources, int)]
        layout, combinations, pair = self.best_layout(node, number, wanted, ready)
        made = iter(combinations)
        operands = [o if isinstance(o, int) else next(made) for _, o in sides[: len(ready) + len(combinations)]]
        self.program.steps.append(Step(outline, operands, pair=pair))
        self.program.layouts.append(layout)
        self.numbers[node] = number

    def numbered_maps(self, node: Node) -> Affine[int]:
        """A sum of linear maps, by the numbers of their sources."""
        total: Affine[int] = Affine({})
        for term in linear_terms(node):
            total = total.plus(Affine({self.numbers[term.source]: term.map}, term.bias))
        return total

    def best_layout(
        self, node: Node, number: int, wanted: list[Affine[int]], ready: list[int]
    ) -> tuple[Layout, list[LinearCombination], int]:
        """The layout of a value that needs the fewest diagonals, in groups if requested and possible."""
        layouts = self.program.layouts
        plain = self.candidates(node, [layouts[k] for affine in wanted for k in affine.maps])
        grouped = [self.in_groups(layout, number) for layout in plain]
        for candidates in (grouped, plain):
            found = []
            for layout in candidates:
                combinations, pair = operand_combinations(wanted, layouts, layout, self.trial)
                usable = node is self.circuit.output or all(each.repeats for each in combinations)
                if usable and all(same_slots(layouts[k], layout) for k in ready):
                    cost = sum(
                        len(d.offsets) + 2 * len(each.summed_bits) for each in combinations for d in each.terms.values()
                    )
                    found.append((cost, layout, combinations, pair))
            if found:
                return min(found, key=lambda candidate: candidate[0])[1:]
        raise self.too_long(node)

    def in_groups(self, layout: Layout, number: int) -> Layout:
        fits = self.groups > 1 and number in self.spread and self.groups <= layout.period <= self.block
        return layout.spread(self.groups, self.block) if fits else layout

    def candidates(self, node: Node, sources: Sequence[Layout] = ()) -> list[Layout]:
        """Layouts with different orders of a value's axes. A vector can also have the strides of its sources."""
        images, slots = self.images, self.program.slots
        shape = node.shape[1:] if len(node.shape) == 4 and node.shape[0] == 1 else node.shape  # traced with one image
        if len(shape) == 1:
            strides = {1} | {source.strides[0] // images for source in sources if source.strides}
            found = [make_layout(shape, (0,), images, slots, stride=s) for s in sorted(strides)]
        else:
            # Channels come first in a feature map. If its positions have been flattened, channels may come second.
            orders = [(0, 1), (1, 0)] if len(shape) == 2 else [tuple(range(len(shape)))]
            mirrored = not isinstance(node, Input)  # a network flips its own channels, never the image's
            phases = self.phases(shape)
            found = [make_layout(shape, axes, images, slots, mirrored, phases=phases) for axes in orders]
        return [layout for layout in found if layout is not None]

    def phases(self, shape: Sequence[int]) -> int:
        """The side of a feature map divided by the side of the smallest one."""
        reduction = self.reduction(shape)
        return self.most_reduced // reduction if reduction and self.most_reduced % reduction == 0 else 1

    def reduction(self, shape: Sequence[int]) -> int:
        """The image's side divided by the side of a feature map; 0 for other values."""
        image = self.circuit.input.shape
        if min(len(image), len(shape)) < 3 or tuple(shape[-2:]) == (1, 1):
            return 0
        by = image[-1] // shape[-1]
        return by if (by * shape[-2], by * shape[-1]) == tuple(image[-2:]) else 0

    def too_long(self, node: Node) -> PolyNeXtError:
        return PolyNeXtError(
            f"a value of {node.size} entries for {self.images} images does not fit into {self.program.slots} "
            "slots: put fewer images into a ciphertext, or take a larger ring degree."
        )


def operand_combinations(
    wanted: list[Affine[int]], layouts: Sequence[Layout], layout: Layout, trial: bool
) -> tuple[list[LinearCombination], int]:
    """The linear combinations of a step's operands, and the distance of two that fit into one ciphertext."""
    images = 1 if trial else layout.images
    room = layout.groups * layout.block if layout.groups > 1 else layout.period
    together = len(wanted) == 2 and 2 * room <= layout.slots
    if not together:
        target, _ = make_target(layout, 1)
        return [pack_combination([affine] * layout.groups, layouts, target, images) for affine in wanted], 0
    target, distance = make_target(layout, 2)
    copies = [affine for affine in wanted for _ in range(layout.groups)]
    return [pack_combination(copies, layouts, target, images)], distance


def block_size(circuit: Circuit, images: int, spread: Collection[int]) -> int:
    """The slots of one group: twice the longest spread value, for two operands computed from it; 0 if there is none."""
    numbered = [circuit.input, *computed_values(circuit)]
    return max((2 * next_power_of_two(numbered[k].size * images) for k in spread if k < len(numbered)), default=0)


def giant_steps(combination: LinearCombination, stride: Stride) -> set[int]:
    return {int(g) for _, d in combination.diagonals for g in stride.decompose(d.offsets, d.period)[0]}


def choose_giant_steps(program: Program, again: float = 1.0) -> None:
    """Chooses for each step the stride with the cheapest rotations, given the baby steps of earlier steps.

    `again` is the cost of a further rotation of a value, relative to the first one. Baby steps rotate one value.
    """
    made: dict[int, set[int]] = {}
    strides = [Stride(1 << i) for i in range(program.slots.bit_length())]
    for step in program.steps:
        if not step.combinations:
            continue

        def rotations(stride: Stride, step: Step = step) -> tuple[float, int]:
            giants = sum(len(giant_steps(combination, stride) - {0}) for combination in step.combinations)
            new = [len(steps - made.get(source, {0})) for source, steps in wanted_babies(step, stride).items()]
            return giants + again * sum(new) + (1 - again) * sum(map(bool, new)), sum(new)

        # With equal costs, fewer baby steps are better: they take memory, and time to bring to another level.
        step.stride = min(reversed(strides), key=rotations)
        for source, wanted in wanted_babies(step, step.stride).items():
            made.setdefault(source, {0}).update(wanted)


def wanted_babies(step: Step, stride: Stride) -> dict[int, set[int]]:
    """The baby steps of each source."""
    found: dict[int, set[int]] = {}
    for combination in step.combinations:
        for source, diagonals in combination.diagonals:
            _, babies = stride.decompose(diagonals.offsets, diagonals.period)
            found.setdefault(source, set()).update(babies.tolist())
    return found
