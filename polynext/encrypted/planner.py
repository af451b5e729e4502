"""Decides how a circuit is to be run encrypted, and tells the bill before any key is made."""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from polynext.circuit.graph import Circuit, Input, Linear, Node, Product, Sum
from polynext.circuit.maps import Array
from polynext.circuit.rewrites import (
    factor_sums,
    inverse,
    merge_linear_maps,
    mixes_positions_only,
    normalise,
    patches_first,
    rebase,
    split,
    structured,
    unbuild_sums,
)
from polynext.circuit.structure import Kronecker, TooWideError
from polynext.encrypted.backends import get_backend
from polynext.encrypted.backends.protocol import Backend, Costs, Security
from polynext.encrypted.execution import encode_program, execute
from polynext.encrypted.levels import Stage, needed_prime_bits, stages_of
from polynext.encrypted.parameters import Parameters
from polynext.encrypted.precision import predict
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
LEAST_PLAIN_BITS, LEAST_LAZY_PLAIN_BITS = 24, 15
# The image is encrypted with this many bits more than the values have later.
INPUT_BITS_MORE = 8
MOST_SCALE_BITS, LEAST_SCALE_BITS, LEAST_LAZY_SCALE_BITS = 34, 29, 24


class DoesNotFitError(PolyNeXtError):
    """The network cannot be run encrypted within the limits."""


@dataclass(frozen=True)
class Limits:
    """What an encrypted run may take: bytes, and the ring degrees to try, by default all that the backend has; and how
    far it may be off: its logits in units of the largest, and the share of predictions that change."""

    memory: int = 2048 * MEBIBYTE
    keys: int = 300 * MEBIBYTE
    ring_degrees: tuple[int, ...] | None = None
    error: float = 1e-3
    flips: float = 0.01


@dataclass(frozen=True)
class Bill:
    """What a run takes: counts are exact, bytes and seconds predictions for this machine, and so is how far the logits
    are off: in units of the largest, and the share of predictions that change for it."""

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
    error: float = math.nan
    flips: float = math.nan

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
        for lazy in (True, False):
            search = Search(ring_degree, examples, largest_result, images, limits, chosen, cost, lazy)
            try:
                return search.best(merged)
            except DoesNotFitError as error:
                reason = f"at ring degree {ring_degree} {error}"
        reasons.append(reason)
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
    lazy: bool

    def best(self, merged: Circuit) -> Plan:
        """The best of keeping all values of some kinds; from there greedily one more or one less, as long as that saves
        time and patience lasts; then spreads one more."""
        candidates = worth_keeping(merged)
        found: dict[frozenset[Node], Plan | DoesNotFitError] = {}

        def attempt(kept: frozenset[Node]) -> None:
            if kept not in found:
                found[kept] = self.attempt(with_kept(merged, kept, candidates))

        def seconds(kept: frozenset[Node]) -> float:
            plan = found[kept]
            return plan.bill.seconds if isinstance(plan, Plan) else math.inf

        kinds = sorted(set(candidates.values()))
        for count in reversed(range(len(kinds) + 1)):
            for chosen in itertools.combinations(kinds, count):
                attempt(frozenset(node for node, kind in candidates.items() if kind in chosen))
        best = min(found, key=seconds)
        while len(found) < PATIENCE:
            for node in list(candidates)[: PATIENCE - len(found)]:
                attempt(best ^ {node})
            if seconds(min(found, key=seconds)) == seconds(best):
                break
            best = min(found, key=seconds)
        plan = found[best]
        if not isinstance(plan, Plan):
            raise plan
        return self.spread(plan)

    def attempt(self, merged: Circuit) -> "Plan | DoesNotFitError":
        try:
            unbuilt = unbuild_sums(merged)
            # Levels do not depend on what comes after, and what is too deep needs no packing.
            stages, security = stages_of(unbuilt, self.lazy), self.backend.security
            parameters = choose_parameters(stages, self.ring_degree, self.largest_result, security)
            final = structured(split(unbuilt, parameters.slots // self.images))
            least = fewest_diagonals(final) * parameters.ciphertext_bytes(parameters.depth) // 2
            if least > self.limits.memory:
                raise DoesNotFitError(
                    f"its weights take at least {mebibytes(least)} of memory where {mebibytes(self.limits.memory)} are "
                    "allowed"
                )
            return self.plan(final, parameters)
        except TooWideError:
            return DoesNotFitError("its maps grow too wide")
        except DoesNotFitError as error:
            return error

    def plan(self, final: Circuit, parameters: Parameters, spread: tuple[int, ...] = (), draft: bool = True) -> Plan:
        try:
            program = build_program(final, parameters.slots, self.images, spread, draft, self.lazy)
        except PolyNeXtError as error:
            raise DoesNotFitError(str(error).rstrip(".")) from error
        most_keys = int(self.limits.keys // parameters.key_bytes)

        def rotation(level: int) -> float:
            return self.costs(Counter({("rotate", parameters.primes_at(level)): 1}))

        choose_rotations(program, most_keys, rotation, draft)
        bill = make_bill(program, parameters, self.costs)
        if len(program.rotations) > most_keys and not draft:
            raise DoesNotFitError(
                f"its {len(program.rotations)} rotation keys take {mebibytes(bill.key_bytes)} where "
                f"{mebibytes(self.limits.keys)} are allowed"
            )
        if bill.peak_bytes - draft * bill.key_bytes > self.limits.memory:
            raise DoesNotFitError(
                f"it takes {mebibytes(bill.peak_bytes)} of memory where {mebibytes(self.limits.memory)} are allowed"
            )
        return Plan(final, program, self.backend.name, parameters, bill)

    def spread(self, best: Plan) -> Plan:
        chosen: tuple[int, ...] = ()
        best = replace(best, circuit=structured(normalise(best.circuit, self.examples, OPERAND_SIZE)))
        room = best.parameters.slots // 4  # for two groups of two operands
        sizes = [layout.period for layout in best.program.layouts[:-1]]
        for number in [i for i, size in enumerate(sizes) if 2 * size <= room]:
            try:
                plan = self.plan(best.circuit, best.parameters, (*chosen, number))
            except DoesNotFitError:
                continue
            if plan.bill.seconds < best.bill.seconds:
                best, chosen = plan, (*chosen, number)
        return self.precise_enough(self.plan(best.circuit, best.parameters, chosen, draft=False))

    def precise_enough(self, plan: Plan) -> Plan:
        found = predict(plan.program, plan.parameters, plan.circuit, self.examples)
        for what, value, allowed in (
            ("logits would be off by {} of the largest", found.error, self.limits.error),
            ("noise would change {} of the predictions", found.flips, self.limits.flips),
        ):
            if not value <= allowed:
                raise DoesNotFitError(f"its {what.format(f'{value:.1g}')} where {allowed:g} is allowed")
        return replace(plan, bill=replace(plan.bill, error=found.error, flips=found.flips))


def fewest_diagonals(circuit: Circuit) -> int:
    """At least so many diagonals all maps together have, by their structure."""
    maps = [node.map for node in circuit.order if isinstance(node, Linear)]
    return sum(m.fewest_diagonals() for m in maps if isinstance(m, Kronecker)) // 2  # two maps may share them


# Why a value may be worth computing for its own sake: as a well-conditioned map of a sum it can stand for the sum, it
# mixes positions before channels are mixed, or several products need it.
BASIS, POSITIONS, SHARED = "basis", "positions", "shared"
# So many choices of kept values are tried before the best so far is good enough.
PATIENCE = 20


def worth_keeping(merged: Circuit) -> dict[Node, str]:
    """Values that may be worth computing for their own sake, and why."""
    users = merged.users()
    served: dict[Node, set[Node]] = {merged.output: {merged.output}}  # the products that take a value, through maps
    for node in reversed(merged.order):
        for user in users[node]:
            served.setdefault(node, set()).update({user} if isinstance(user, Product) else served[user])
    found: dict[Node, str] = {}
    for node in merged.order:
        if isinstance(node, Input | Product) or node is merged.output:
            continue
        shared = len(users[node]) > 1
        match node:
            case Linear(source=Product(), map=m) if mixes_positions_only(m):
                found[node] = POSITIONS
            case Linear(source=Sum(), map=m) if shared and inverse(m) is not None:
                found[node] = BASIS
            case _ if shared and len(served[node]) > 1:
                found[node] = SHARED
    return found


def with_kept(merged: Circuit, values: Collection[Node], why: dict[Node, str]) -> Circuit:
    """The circuit with these values kept; a sum that one of them can stand for is not."""
    bases = [node for node in values if why[node] == BASIS and isinstance(node, Linear)]
    kept = set(values) - {base.source for base in bases}
    rebased = rebase(merged, *bases, kept=kept)
    assert rebased is not None
    return rebased


def choose_parameters(
    stages: Sequence[Stage], ring_degree: int, largest_result: float, security: Security
) -> Parameters:
    """The most precise primes that security allows for these stages at a ring degree."""
    limit = security.longest_modulus[ring_degree]
    depth = stages[-1].result_level
    lazy = any(stage.lazy for stage in stages)
    headroom = max(math.ceil(math.log2(2 * largest_result)) + 2, 4)

    def parameters(scale_bits: int, plain_bits: int) -> Parameters:
        last, shortest = scale_bits + headroom, security.shortest_prime
        dropped: tuple[int, ...] = ()
        needed = (shortest,) * depth
        while needed != dropped:  # at most once for each level, because its prime depends on earlier ones only
            dropped = needed
            bits = (*dropped, last, max((*dropped, last)))
            input_bits = 2 * scale_bits if lazy else scale_bits + INPUT_BITS_MORE  # if lazy, like a product's
            made = Parameters(ring_degree, bits, scale_bits, plain_bits, input_bits)
            needed = needed_prime_bits(stages, made, shortest)
        return made

    scales = range(LEAST_LAZY_SCALE_BITS if lazy else LEAST_SCALE_BITS, MOST_SCALE_BITS + 1)
    least_plain = LEAST_LAZY_PLAIN_BITS if lazy else LEAST_PLAIN_BITS
    tried = [parameters(s, p) for s in scales for p in range(least_plain, s + 1)]
    fitting = [p for p in tried if p.modulus_bits <= limit and max(p.prime_bits) <= security.longest_prime]
    if not fitting:
        raise DoesNotFitError(
            f"its {depth} levels need a modulus of at least {tried[0].modulus_bits} bits where {security.bits}-bit "
            f"security allows {limit}"
        )
    best = min(fitting, key=lambda p: WEIGHTS_TO_VALUES * 2.0**-p.scale_bits + 2.0**-p.plain_bits)
    # What is left of the modulus costs no time: it goes to the weights, those of the classifier first, which sum over
    # most values, and to the room for results.
    *bits, special = best.prime_bits
    left = limit - best.modulus_bits
    bound = {stage.product_level for stage in stages if stage.rescales}  # what these drop sets a scale
    for level in [n for n in (*reversed(range(depth)), depth) if n not in bound]:
        more = min(left, special - bits[level])
        bits[level] += more
        left -= more
    return replace(best, prime_bits=(*bits, special))


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
