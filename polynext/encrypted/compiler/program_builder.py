"""Packs a circuit into slots and makes a program of it."""

from collections.abc import Collection, Sequence
from dataclasses import replace

from polynext.circuit.graph import Circuit, Input, Node
from polynext.circuit.maps import LinearMap
from polynext.encrypted.compiler.packing import Maps, form_of, layout_of, next_power_of_two, target_of
from polynext.encrypted.compiler.stages import computed, operands_of, stages_of, terms_of
from polynext.encrypted.runtime.diagonals import Form
from polynext.encrypted.runtime.layout import Layout, same_slots
from polynext.encrypted.runtime.levels import Stage
from polynext.encrypted.runtime.program import Program, Step, Stride
from polynext.errors import PolyNeXtError


def build_program(
    circuit: Circuit,
    slots: int,
    images: int,
    spread: Collection[int] = (),
    draft: bool = False,
    lazy: bool = False,
) -> Program:
    """Packs the values of a circuit whose sums are unbuilt, and decides on giant steps. Rotation keys come later.

    `spread` says which values (by number) are laid out in groups, where that can be done. A `draft` has the diagonals
    of the first image only: its operations are the whole program's. `lazy` is explained in `levels.py`.
    """
    builder = Builder(circuit, slots, images, spread, draft)
    for node, stage in zip(computed(circuit), stages_of(circuit, lazy), strict=True):
        builder.add_step(node, stage)
    builder.program.layouts[0] = replace(builder.program.layouts[0], order=circuit.input.order)
    choose_giant_steps(builder.program)
    return builder.program


class Builder:
    """A program in the making."""

    def __init__(self, circuit: Circuit, slots: int, images: int, spread: Collection[int], draft: bool):
        self.circuit, self.images, self.spread, self.draft = circuit, images, spread, draft
        self.block = block_size(circuit, images, spread)
        self.coarsest = max((self.coarseness(node.shape) for node in computed(circuit)), default=1)
        self.groups = max(slots // 2 // self.block, 1) if self.block else 1
        self.program = Program(slots)
        fitting = self.candidates(circuit.input)
        if not fitting:
            raise self.too_long(circuit.input)
        self.numbers: dict[Node, int] = {circuit.input: 0}
        self.program.layouts.append(self.in_groups(fitting[0], 0))

    def add_step(self, node: Node, stage: Stage) -> None:
        number = len(self.numbers)
        sides = list(zip(operands_of(node), stage.operands, strict=True))
        wanted = [self.maps_of(operand) for operand, how in sides if isinstance(how, tuple)]
        ready = [how for _, how in sides if isinstance(how, int)]
        layout, forms, pair = self.best_layout(node, number, wanted, ready)
        made = iter(forms)
        operands = [how if isinstance(how, int) else next(made) for _, how in sides[: len(ready) + len(forms)]]
        self.program.steps.append(Step(stage, operands, pair=pair))
        self.program.layouts.append(layout)
        self.numbers[node] = number

    def maps_of(self, node: Node) -> Maps:
        """A sum of linear maps by the numbers of its sources."""
        maps: dict[int, LinearMap] = {}
        bias = None
        for term in terms_of(node):
            source = self.numbers[term.source]
            maps[source] = maps[source].plus(term.map) if source in maps else term.map
            bias = term.bias if bias is None else bias if term.bias is None else bias + term.bias
        return maps, bias

    def best_layout(
        self, node: Node, number: int, wanted: list[Maps], ready: list[int]
    ) -> tuple[Layout, list[Form], int]:
        """The layout of a value that takes the fewest diagonals to make, in groups if it is to be and can be."""
        layouts = self.program.layouts
        plain = self.candidates(node, [layouts[k] for maps, _ in wanted for k in maps])
        grouped = [self.in_groups(layout, number) for layout in plain]
        for choices in (grouped, plain):
            found = []
            for layout in choices:
                forms, pair = operand_forms(wanted, layouts, layout, self.draft)
                usable = node is self.circuit.output or all(form.repeats for form in forms)
                if usable and all(same_slots(layouts[k], layout) for k in ready):
                    cost = sum(
                        len(d.offsets) + 2 * len(form.summed_bits) for form in forms for d in form.terms.values()
                    )
                    found.append((cost, layout, forms, pair))
            if found:
                return min(found, key=lambda choice: choice[0])[1:]
        raise self.too_long(node)

    def in_groups(self, layout: Layout, number: int) -> Layout:
        fits = self.groups > 1 and number in self.spread and self.groups <= layout.period <= self.block
        return layout.spread(self.groups, self.block) if fits else layout

    def candidates(self, node: Node, sources: Sequence[Layout] = ()) -> list[Layout]:
        """Orders of a value's axes; for a plain vector also one entry per channel of what it is made from."""
        images, slots = self.images, self.program.slots
        shape = node.shape[1:] if len(node.shape) == 4 and node.shape[0] == 1 else node.shape  # as traced, one image
        if len(shape) == 1:
            strides = {1} | {source.strides[0] // images for source in sources if source.strides}
            found = [layout_of(shape, (0,), images, slots, stride=s) for s in sorted(strides)]
        else:
            # Channels come first in a feature map; where positions were flattened, they may come second.
            orders = [(0, 1), (1, 0)] if len(shape) == 2 else [tuple(range(len(shape)))]
            mirrored = not isinstance(node, Input)  # only the network's own channels are ever flipped
            phases = self.phases(shape)
            found = [layout_of(shape, axes, images, slots, mirrored, phases=phases) for axes in orders]
        return [layout for layout in found if layout is not None]

    def phases(self, shape: Sequence[int]) -> int:
        """By how much the sides of a feature map are longer than those of the coarsest one."""
        coarseness = self.coarseness(shape)
        return self.coarsest // coarseness if coarseness and self.coarsest % coarseness == 0 else 1

    def coarseness(self, shape: Sequence[int]) -> int:
        """By how much the sides of a feature map are shorter than the image's; 0 for what is no feature map."""
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


def operand_forms(wanted: list[Maps], layouts: Sequence[Layout], layout: Layout, draft: bool) -> tuple[list[Form], int]:
    """The forms of the operands of a step, two of them side by side in one if there is room."""
    images = 1 if draft else layout.images
    room = layout.groups * layout.block if layout.groups > 1 else layout.period
    together = len(wanted) == 2 and 2 * room <= layout.slots
    if not together:
        target, _ = target_of(layout, 1)
        return [form_of([maps] * layout.groups, layouts, target, images) for maps in wanted], 0
    target, distance = target_of(layout, 2)
    copies = [maps for maps in wanted for _ in range(layout.groups)]
    return [form_of(copies, layouts, target, images)], distance


def block_size(circuit: Circuit, images: int, spread: Collection[int]) -> int:
    """The slots of one group: twice what the longest spread value needs, for the two operands of those made from it;
    0 if there is none."""
    numbered = [circuit.input, *computed(circuit)]
    return max((2 * next_power_of_two(numbered[k].size * images) for k in spread if k < len(numbered)), default=0)


def giant_steps(form: Form, stride: Stride) -> set[int]:
    return {int(g) for _, d in form.diagonals for g in stride.decompose(d.offsets, d.period)[0]}


def choose_giant_steps(program: Program) -> None:
    """For each step the stride that needs the fewest rotations, given the baby steps already made for earlier ones."""
    made: dict[int, set[int]] = {}
    strides = [Stride(1 << i) for i in range(program.slots.bit_length())]
    for step in program.steps:
        if not step.forms:
            continue

        def rotations(stride: Stride, step: Step = step) -> tuple[int, int]:
            giants = sum(len(giant_steps(form, stride) - {0}) for form in step.forms)
            wanted = wanted_babies(step, stride)
            babies = sum(len(steps - made.get(source, {0})) for source, steps in wanted.items())
            return giants + babies, babies

        # Of equals the one with the fewest baby steps: they take memory, and time when they are brought down a level.
        step.stride = min(reversed(strides), key=rotations)
        for source, wanted in wanted_babies(step, step.stride).items():
            made.setdefault(source, {0}).update(wanted)


def wanted_babies(step: Step, stride: Stride) -> dict[int, set[int]]:
    found: dict[int, set[int]] = {}
    for form in step.forms:
        for source, diagonals in form.diagonals:
            _, r = stride.decompose(diagonals.offsets, diagonals.period)
            found.setdefault(source, set()).update(r.tolist())
    return found
