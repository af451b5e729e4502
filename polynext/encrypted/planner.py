"""Decides how a circuit is to be run encrypted, and tells the bill before any key is made."""

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from polynext.circuit.graph import Circuit, Input, Linear, Node, Product, Sum, only_linear_users
from polynext.circuit.maps import Array
from polynext.circuit.rewrites import (
    factor_sums,
    keep,
    merge_linear_maps,
    normalise,
    rebase,
    split,
    unbuild_sums,
    written_out,
)
from polynext.encrypted.costs import Costs, machine_costs
from polynext.encrypted.engine import Slots, TallyEngine
from polynext.encrypted.execution import encode_program, execute
from polynext.encrypted.parameters import LONGEST_MODULUS, LONGEST_PRIME, SHORTEST_PRIME, Parameters
from polynext.encrypted.program import Program, build_program
from polynext.encrypted.rotations import choose_rotations
from polynext.errors import PolyNeXtError

MEBIBYTE = 2**20

# Python with numpy, scipy and SEAL, as `polynext encrypted run` has loaded them before it reads anything.
LIBRARY_BYTES = 64 * MEBIBYTE

# Operands of products are scaled to about this size. Larger ones stand out better from the noise of a rescale, smaller
# ones leave more digits to the plaintexts they are multiplied by.
OPERAND_SIZE = 8.0

# Rounding a value costs about 16 times the precision that rounding a weight at the same scale does.
WEIGHTS_TO_VALUES = 16
LEAST_PLAIN_BITS = 24
# The image is encrypted with this many bits more than the values have later.
INPUT_BITS_MORE = 8
MOST_SCALE_BITS, LEAST_SCALE_BITS = 34, 29


class DoesNotFitError(PolyNeXtError):
    """The network cannot be run encrypted within the limits."""


@dataclass(frozen=True)
class Limits:
    """What an encrypted run may take. Bytes."""

    memory: int = 2048 * MEBIBYTE
    keys: int = 300 * MEBIBYTE
    ring_degrees: tuple[int, ...] = (2**13, 2**14, 2**15)


@dataclass(frozen=True)
class Bill:
    """What a run takes: counts are exact, bytes and seconds predictions for this machine."""

    levels: int
    ciphertext_products: int
    plaintext_products: int
    rotations: int
    rotation_keys: int
    key_bytes: int
    program_bytes: int
    plaintext_bytes: int
    ciphertext_bytes: int
    seconds: float

    @property
    def peak_bytes(self) -> int:
        """All that the server's process has at once."""
        return LIBRARY_BYTES + self.key_bytes + self.program_bytes + self.plaintext_bytes + self.ciphertext_bytes

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, eq=False)
class Plan:
    """How to run a circuit: the circuit in its final form, packing, parameters and the bill."""

    circuit: Circuit
    program: Program
    parameters: Parameters
    bill: Bill
    packing: "Packing"


@dataclass(frozen=True)
class Packing:
    """The choices that make a circuit into a program."""

    images: int
    spread: tuple[int, ...]
    most_keys: int

    def program(self, circuit: Circuit, slots: int) -> Program:
        program = build_program(circuit, slots, self.images, self.spread)
        choose_rotations(program, self.most_keys)
        return program


def make_plan(
    circuit: Circuit,
    examples: Array,
    images: int = 1,
    limits: Limits | None = None,
    costs: Callable[[int], Costs] = machine_costs,
) -> Plan:
    """The fastest way found to run a circuit encrypted with 128-bit security, at the smallest ring degree that does.

    `circuit` is as lowered. `examples` (B, *image shape) are images like those to come: by them values are scaled and
    the room for the result is chosen. `images` is how many go into one ciphertext.
    """
    limits = limits or Limits()
    merged = merge_linear_maps(factor_sums(circuit))
    reasons = []
    for ring_degree in limits.ring_degrees:
        search = Search(ring_degree, examples, images, limits, costs(ring_degree))
        try:
            return search.best(merged)
        except DoesNotFitError as error:
            reasons.append(f"at ring degree {ring_degree} {error}")
    raise DoesNotFitError(
        f"this network does not fit for {images} image{'s' * (images > 1)} in a ciphertext: {'; '.join(reasons)}. "
        "Take a network with fewer or narrower layers, fewer images, or allow more memory."
    )


@dataclass(frozen=True, eq=False)
class Search:
    """The search at one ring degree."""

    ring_degree: int
    examples: Array
    images: int
    limits: Limits
    costs: Costs

    def best(self, merged: Circuit) -> Plan:
        """Greedy: keeps one more value as long as that saves time, then spreads one more."""
        first = self.attempt(merged)
        best = first if isinstance(first, Plan) else None
        improved = True
        while improved:
            improved = False
            for candidate in materialisations(merged):
                plan = self.attempt(candidate)
                if isinstance(plan, Plan) and (best is None or plan.bill.seconds < best.bill.seconds):
                    best, chosen, improved = plan, candidate, True
            if improved:
                merged = chosen
        if best is None:
            assert isinstance(first, DoesNotFitError)
            raise first
        return self.spread(best)

    def attempt(self, merged: Circuit) -> "Plan | DoesNotFitError":
        try:
            unbuilt = unbuild_sums(merged)
            self.check_depth(unbuilt)
            longest = self.ring_degree // 2 // self.images
            final = written_out(normalise(written_out(split(unbuilt, longest)), self.examples, OPERAND_SIZE))
            return self.plan(final, Packing(self.images, (), 0))
        except DoesNotFitError as error:
            return error

    def check_depth(self, unbuilt: Circuit) -> None:
        """Says early, before anything is packed, what `choose_parameters` would say later."""
        fewest, limit = fewest_bits(unbuilt), LONGEST_MODULUS[self.ring_degree]
        if fewest > limit:
            raise DoesNotFitError(
                f"its {unbuilt.multiplicative_depth()} products in a row need a modulus of at least {fewest} bits "
                f"where 128-bit security allows {limit}"
            )

    def plan(self, final: Circuit, packing: Packing, draft: bool = True) -> Plan:
        slots = self.ring_degree // 2
        try:
            program = build_program(final, slots, packing.images, packing.spread, draft)
        except PolyNeXtError as error:
            raise DoesNotFitError(str(error).rstrip(".")) from error
        largest = float(np.abs(final(self.examples)).max())
        parameters = choose_parameters(program, self.ring_degree, largest)
        most_keys = int(self.limits.keys // parameters.key_bytes)
        choose_rotations(program, most_keys)
        bill = make_bill(program, parameters, self.costs)
        if len(program.rotations) > most_keys:
            raise DoesNotFitError(
                f"its {len(program.rotations)} rotation keys take {mebibytes(bill.key_bytes)} where "
                f"{mebibytes(self.limits.keys)} are allowed"
            )
        if bill.peak_bytes > self.limits.memory:
            raise DoesNotFitError(
                f"it takes {mebibytes(bill.peak_bytes)} of memory where {mebibytes(self.limits.memory)} are allowed"
            )
        return Plan(final, program, parameters, bill, replace(packing, most_keys=most_keys))

    def spread(self, best: Plan) -> Plan:
        for number in range(len(best.program.steps)):
            packing = best.packing
            try:
                plan = self.plan(best.circuit, replace(packing, spread=(*packing.spread, number)))
            except DoesNotFitError:
                continue
            if plan.bill.seconds < best.bill.seconds:
                best = plan
        return self.plan(best.circuit, best.packing, draft=False)


def materialisations(merged: Circuit) -> Iterator[Circuit]:
    """The circuit with one more value kept: one that several products need, or that can stand for a sum below it."""
    users = merged.users()
    served: dict[Node, set[Node]] = {merged.output: {merged.output}}  # the products that take a value, through maps
    for node in reversed(merged.order):
        for user in users[node]:
            served.setdefault(node, set()).update({user} if isinstance(user, Product) else served[user])
    for node in merged.order:
        if node.kept or isinstance(node, Input | Product) or len(users[node]) < 2:
            continue
        on_a_sum = isinstance(node, Linear) and isinstance(node.source, Sum) and not node.source.kept
        rebased = rebase(merged, node) if isinstance(node, Linear) and on_a_sum else None
        if rebased is not None:
            yield rebased
        elif len(served[node]) > 1:
            yield keep(merged, [node])


def choose_parameters(program: Program, ring_degree: int, largest_result: float) -> Parameters:
    """The most precise primes that 128-bit security allows for a program at this ring degree."""
    limit = LONGEST_MODULUS[ring_degree]
    headroom = max(math.ceil(math.log2(2 * largest_result)) + 2, 4)

    def parameters(scale_bits: int, plain_bits: int) -> Parameters:
        input_bits = scale_bits + INPUT_BITS_MORE
        dropped = prime_bits(program, scale_bits, plain_bits, input_bits)
        bits = (*dropped, scale_bits + headroom, max(*dropped, scale_bits + headroom))
        return Parameters(ring_degree, bits, scale_bits, plain_bits, input_bits)

    scales = range(LEAST_SCALE_BITS, MOST_SCALE_BITS + 1)
    tried = [parameters(s, p) for s in scales for p in range(LEAST_PLAIN_BITS, s + 1)]
    fitting = [p for p in tried if p.modulus_bits <= limit and max(p.prime_bits) <= LONGEST_PRIME]
    if not fitting:
        raise DoesNotFitError(
            f"its {program.depth} levels need a modulus of {tried[0].modulus_bits} bits where 128-bit security allows "
            f"{limit}"
        )
    return min(fitting, key=lambda p: WEIGHTS_TO_VALUES * 2.0**-p.scale_bits + 2.0**-p.plain_bits)


def fewest_bits(unbuilt: Circuit) -> int:
    """The shortest modulus that a circuit could do with: its longest path, and the last and the special prime."""
    users = unbuilt.users()
    product = LEAST_SCALE_BITS + LEAST_PLAIN_BITS
    bits: dict[Node, int] = {}
    for node in unbuilt.order:
        bits[node] = max((bits[source] for source in node.sources), default=0)
        if isinstance(node, Linear):
            shared = isinstance(node.source, Product) and only_linear_users(node.source, users)
            bits[node] += product if shared else SHORTEST_PRIME
        elif isinstance(node, Product) and not only_linear_users(node, users):
            bits[node] += LEAST_SCALE_BITS
    return bits[unbuilt.output] + LEAST_SCALE_BITS + product


def prime_bits(program: Program, scale_bits: int, plain_bits: int, input_bits: int) -> list[int]:
    """For each level the prime that takes its linear forms, and its products without any, back to the scale."""
    bits = [SHORTEST_PRIME] * program.depth
    scales = {0: input_bits}
    for step in program.steps:
        for form in step.forms:
            widest = max(scales[source] for source in form.terms)
            bits[step.level] = max(bits[step.level], widest - scale_bits + plain_bits)
        scale = scale_bits
        if step.multiplies:
            sides = [scales[o] if isinstance(o, int) else scale_bits for o in step.operands]
            scale = sides[0] + sides[-1]
            if step.target in program.rescaled:
                level = program.levels[step.target] - 1
                bits[level] = max(bits[level], scale - scale_bits)
                scale = scale - bits[level]
        scales[step.target] = scale
    return bits


def make_bill(program: Program, parameters: Parameters, costs: Costs) -> Bill:
    """Runs the program without computing anything, and counts."""
    engine = TallyEngine(parameters, program.rotations)
    encoded = encode_program(program, engine)
    execute(program, encoded, engine, Slots(0, parameters.input_scale, None, engine))
    return Bill(
        levels=program.depth,
        ciphertext_products=engine.total("multiply"),
        plaintext_products=engine.total("multiply_plain"),
        rotations=engine.total("rotate"),
        rotation_keys=len(program.rotations),
        key_bytes=parameters.key_bytes * (len(program.rotations) + 1),
        program_bytes=sum(d.nbytes for step in program.steps for form in step.forms for d in form.terms.values()),
        plaintext_bytes=engine.plaintext_bytes,
        ciphertext_bytes=engine.ciphertext_bytes,
        seconds=round(costs(engine.operations), 3),
    )


def mebibytes(count: float) -> str:
    return f"{count / MEBIBYTE:,.0f} MB"
