"""Decides how a circuit is to be run encrypted, and tells the bill before any key is made."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from polynext.circuit.graph import Circuit, Input, Linear, Node, Product, Sum
from polynext.circuit.maps import Array
from polynext.circuit.rewrites import (
    factor_sums,
    keep,
    merge_linear_maps,
    normalise,
    patches_first,
    rebase,
    split,
    structured,
    unbuild_sums,
)
from polynext.circuit.structure import TooWideError
from polynext.encrypted.backends import get_backend
from polynext.encrypted.backends.protocol import Backend, Costs, Security
from polynext.encrypted.execution import encode_program, execute
from polynext.encrypted.levels import Stage, needed_prime_bits, stages_of
from polynext.encrypted.parameters import Parameters
from polynext.encrypted.program import Program, build_program
from polynext.encrypted.rotations import choose_rotations
from polynext.encrypted.tally import Tally
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
    """What an encrypted run may take: bytes, and the ring degrees to try, by default all that the backend has."""

    memory: int = 2048 * MEBIBYTE
    keys: int = 300 * MEBIBYTE
    ring_degrees: tuple[int, ...] | None = None


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
    """How to run a circuit: the circuit in its final form, the program, the backend with its parameters, the bill."""

    circuit: Circuit
    program: Program
    backend: str
    parameters: Parameters
    bill: Bill

    @property
    def images(self) -> int:
        """How many go into one ciphertext."""
        return self.program.layouts[0].images


def make_plan(
    circuit: Circuit,
    examples: Array,
    images: int = 1,
    limits: Limits | None = None,
    backend: str = "seal",
    costs: Callable[[int], Costs] | None = None,
) -> Plan:
    """The fastest way found to run a circuit encrypted with 128-bit security, at the smallest ring degree that does.

    `circuit` is as lowered. `examples` (B, *image shape) are images like those to come: by them values are scaled and
    the room for the result is chosen. `images` is how many go into one ciphertext. `costs` are those of operations at a
    ring degree, by default the backend's on this machine.
    """
    limits = limits or Limits()
    chosen = get_backend(backend)
    possible = tuple(chosen.security.longest_modulus)
    merged = merge_linear_maps(factor_sums(structured(patches_first(circuit))))
    largest_result = float(np.abs(circuit(examples)).max())
    reasons = []
    for ring_degree in limits.ring_degrees or possible:
        if ring_degree not in possible:
            raise PolyNeXtError(
                f"the {backend} backend has no ring degree {ring_degree}: choose among {', '.join(map(str, possible))}."
            )
        cost = (costs or chosen.costs)(ring_degree)
        search = Search(ring_degree, examples, largest_result, images, limits, chosen, cost)
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
    largest_result: float
    images: int
    limits: Limits
    backend: Backend
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
            # Levels do not depend on what comes after, and what is too deep needs no packing.
            stages, security = stages_of(unbuilt), self.backend.security
            parameters = choose_parameters(stages, self.ring_degree, self.largest_result, security)
            longest = parameters.slots // self.images
            return self.plan(structured(split(unbuilt, longest)), parameters)
        except TooWideError:
            return DoesNotFitError("its maps grow too wide")
        except DoesNotFitError as error:
            return error

    def plan(self, final: Circuit, parameters: Parameters, spread: tuple[int, ...] = (), draft: bool = True) -> Plan:
        try:
            program = build_program(final, parameters.slots, self.images, spread, draft)
        except PolyNeXtError as error:
            raise DoesNotFitError(str(error).rstrip(".")) from error
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
        return Plan(final, program, self.backend.name, parameters, bill)

    def spread(self, best: Plan) -> Plan:
        chosen: tuple[int, ...] = ()
        best = replace(best, circuit=structured(normalise(best.circuit, self.examples, OPERAND_SIZE)))
        for number in range(len(best.program.steps)):
            try:
                plan = self.plan(best.circuit, best.parameters, (*chosen, number))
            except DoesNotFitError:
                continue
            if plan.bill.seconds < best.bill.seconds:
                best, chosen = plan, (*chosen, number)
        return self.plan(best.circuit, best.parameters, chosen, draft=False)


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


def choose_parameters(
    stages: Sequence[Stage], ring_degree: int, largest_result: float, security: Security
) -> Parameters:
    """The most precise primes that security allows for these stages at a ring degree."""
    limit = security.longest_modulus[ring_degree]
    depth = stages[-1].result_level
    headroom = max(math.ceil(math.log2(2 * largest_result)) + 2, 4)

    def parameters(scale_bits: int, plain_bits: int) -> Parameters:
        last, shortest = scale_bits + headroom, security.shortest_prime
        dropped: tuple[int, ...] = ()
        needed = (shortest,) * depth
        while needed != dropped:  # at most once for each level, because its prime depends on earlier ones only
            dropped = needed
            bits = (*dropped, last, max((*dropped, last)))
            made = Parameters(ring_degree, bits, scale_bits, plain_bits, scale_bits + INPUT_BITS_MORE)
            needed = needed_prime_bits(stages, made, shortest)
        return made

    scales = range(LEAST_SCALE_BITS, MOST_SCALE_BITS + 1)
    tried = [parameters(s, p) for s in scales for p in range(LEAST_PLAIN_BITS, s + 1)]
    fitting = [p for p in tried if p.modulus_bits <= limit and max(p.prime_bits) <= security.longest_prime]
    if not fitting:
        raise DoesNotFitError(
            f"its {depth} levels need a modulus of at least {tried[0].modulus_bits} bits where {security.bits}-bit "
            f"security allows {limit}"
        )
    return min(fitting, key=lambda p: WEIGHTS_TO_VALUES * 2.0**-p.scale_bits + 2.0**-p.plain_bits)


def make_bill(program: Program, parameters: Parameters, costs: Costs) -> Bill:
    """Runs the program without computing anything, and counts."""
    tally = Tally(parameters, program.rotations)
    execute(program, encode_program(program, tally), tally, tally.image())
    return Bill(
        levels=program.depth,
        ciphertext_products=tally.total("multiply"),
        plaintext_products=tally.total("multiply_plain"),
        rotations=tally.total("rotate"),
        rotation_keys=len(program.rotations),
        key_bytes=parameters.key_bytes * (len(program.rotations) + 1),
        program_bytes=sum(d.nbytes for step in program.steps for form in step.forms for d in form.terms.values()),
        plaintext_bytes=tally.plaintext_bytes,
        ciphertext_bytes=tally.ciphertext_bytes,
        seconds=round(costs(tally.operations), 3),
    )


def mebibytes(count: float) -> str:
    return f"{count / MEBIBYTE:,.0f} MB"
