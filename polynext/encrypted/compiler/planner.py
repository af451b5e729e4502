"""Decides how a circuit is to be run encrypted, and tells the bill before any key is made."""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from polynext.arrays import Array
from polynext.circuit.graph import Circuit, Product
from polynext.circuit.rewrites import (
    factor_sums,
    merge_linear_maps,
    normalise,
    patches_first,
    split,
    structured,
)
from polynext.circuit.structure import TooWideError
from polynext.encrypted.compiler.complex_packing import join_values
from polynext.encrypted.compiler.materialised import Choices, Kept
from polynext.encrypted.compiler.precision import predict
from polynext.encrypted.compiler.program_builder import build_program, choose_giant_steps
from polynext.encrypted.compiler.rotations import choose_rotations
from polynext.encrypted.compiler.stages import computed, needed_prime_bits, operands_of, stages_of, terms_of
from polynext.encrypted.runtime.backends import get_backend
from polynext.encrypted.runtime.backends.protocol import Backend, Costs, Security
from polynext.encrypted.runtime.cost import MEBIBYTE, CostEstimate, estimate_cost, mebibytes
from polynext.encrypted.runtime.counting import CountingEvaluator
from polynext.encrypted.runtime.execution import encode_program
from polynext.encrypted.runtime.levels import Stage
from polynext.encrypted.runtime.parameters import Parameters
from polynext.encrypted.runtime.program import Program
from polynext.encrypted.runtime.sharing import Shared
from polynext.errors import PolyNeXtError, require_share

# Operands of products are scaled to about this size. Larger ones stand out better from the noise of a rescale, smaller
# ones leave more digits to the plaintexts they are multiplied by.
OPERAND_SIZE = 8.0

# Rounding a value costs about 4 times the precision that rounding a weight at the same scale does.
WEIGHTS_TO_VALUES = 4
LEAST_PLAIN_BITS, LEAST_LAZY_PLAIN_BITS = 20, 15
# The image is encrypted with this many bits more than the values have later.
INPUT_BITS_MORE = 8
# The largest logit of the examples has so many bits, far above its noise, and there is room for so many more.
RESULT_BITS, RESULT_ROOM_BITS, MOST_RESULT_BITS = 28, 4, 44
MOST_SCALE_BITS, LEAST_SCALE_BITS, LEAST_LAZY_SCALE_BITS = 34, 26, 20

# So many choices of kept values are tried before the best so far is good enough.
PATIENCE = 20
# So many drafts become whole plans, of which the fastest is taken.
FINALISTS = 3
# A draft that should be off by more than so many times what is allowed is not made a whole plan.
HOPELESS = 1.5


class DoesNotFitError(PolyNeXtError):
    """The network cannot be run encrypted within the limits: it takes `excess` times as much as one allows."""

    def __init__(self, sentence: str, excess: float = math.inf):
        super().__init__(sentence)
        self.excess = excess


class TooImpreciseError(DoesNotFitError):
    """It can, and its result would be off by more than is allowed."""


@dataclass(frozen=True)
class Limits:
    """What an encrypted run may take: bytes, and the ring degrees to try, by default all that the backend has; and how
    far it may be off: its logits in units of the largest, and the share of predictions that change."""

    memory: int = 2048 * MEBIBYTE
    keys: int = 300 * MEBIBYTE
    ring_degrees: tuple[int, ...] | None = None
    error: float = 1e-3
    flips: float = 0.01

    def __post_init__(self) -> None:
        require_share(error=self.error, flips=self.flips)


@dataclass(frozen=True, eq=False)
class Plan:
    """How to run a circuit: the circuit in its final form, the program, the backend with its parameters, the bill."""

    circuit: Circuit
    program: Program
    backend: str
    parameters: Parameters
    cost: CostEstimate

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
    logits = circuit(examples).reshape(len(examples), -1)
    choices = Choices(merged)
    longest = max((node.size for node in merged.order if isinstance(node, Product)), default=0)
    reasons = []
    best: Found | None = None
    for ring_degree in limits.ring_degrees or possible:
        if ring_degree not in possible:
            raise PolyNeXtError(
                f"the {backend} backend has no ring degree {ring_degree}: choose among {', '.join(map(str, possible))}."
            )
        at_degree = (costs or chosen.costs)(ring_degree)
        reason = ""
        for lazy in (True, False):
            search = Search(ring_degree, examples, logits, images, limits, chosen, at_degree, lazy)
            best, failure = search.best(choices, best)
            if best is not None and not isinstance(failure, TooImpreciseError):
                break  # without lazy values there are more primes, and longer scales
            reason = reason or f"at ring degree {ring_degree} {failure}"
        if best is not None and longest * images <= ring_degree // 2:
            break  # in a larger ring each operation takes longer, and there are as many if nothing had to be cut
        reasons.append(reason)
    if best is not None:
        return best.plan
    raise DoesNotFitError(
        f"this network does not fit for {images} image{'s' * (images > 1)} in a ciphertext: {'; '.join(reasons)}. "
        "Take a network with fewer or narrower layers, fewer images, or allow more memory."
    )


@dataclass(frozen=True, eq=False)
class Draft:
    """What remains of a plan that was only tried."""

    parameters: Parameters
    seconds: float
    periods: tuple[int, ...]  # of the layouts of its values, but for the result's


@dataclass(frozen=True)
class Found:
    """A plan, and the values it keeps."""

    plan: Plan
    kept: Kept


@dataclass(frozen=True, eq=False)
class Search:
    """The search at one ring degree."""

    ring_degree: int
    examples: Array
    logits: Array
    images: int
    limits: Limits
    backend: Backend
    costs: Costs
    lazy: bool

    @property
    def largest_logit(self) -> float:
        return float(np.abs(self.logits).max())

    def best(self, choices: Choices, other: Found | None) -> tuple[Found | None, DoesNotFitError | None]:
        """The fastest plan, or another one that is faster; and why it could not be a faster one."""
        if other is not None and other.plan.parameters.ring_degree != self.ring_degree:
            again = self.draft(choices, other.kept)
            if isinstance(again, DoesNotFitError) or again.seconds >= other.plan.cost.seconds:
                return other, None
        found, reason = self.finished(choices, self.drafts(choices), other)
        if isinstance(reason, TooImpreciseError) and choices.skewed:
            found, _ = self.finished(choices, self.drafts(choices.without_skewed()), found)
        return found, reason

    def drafts(self, choices: Choices) -> dict[Kept, Draft | DoesNotFitError]:
        """The fastest first, then those that nearly fit. All values that there are some reasons for are kept; from the
        best of these on greedily one more or one less, as long as that saves time and patience lasts."""
        made: dict[Kept, Draft | DoesNotFitError] = {}

        def merit(kept: Kept) -> tuple[float, float]:
            draft = made[kept]
            return (draft.seconds, 0.0) if isinstance(draft, Draft) else (math.inf, draft.excess)

        def seconds(kept: Kept) -> float:
            return merit(kept)[0]

        for kept in dict.fromkeys(choices.by_reason()):
            made[kept] = self.draft(choices, kept, min(map(seconds, made), default=math.inf))
        first = min(made, key=seconds)
        while len(made) < PATIENCE and seconds(first) < math.inf:
            untried = (kept for kept in choices.near(first) if kept not in made)
            for kept in itertools.islice(untried, PATIENCE - len(made)):
                made[kept] = self.draft(choices, kept, seconds(first))
            better = min(made, key=seconds)
            if seconds(better) == seconds(first):
                break
            first = better
        return {kept: made[kept] for kept in sorted(made, key=merit)}

    def finished(
        self, choices: Choices, drafts: dict[Kept, Draft | DoesNotFitError], best: Found | None
    ) -> tuple[Found | None, DoesNotFitError | None]:
        """The fastest whole plan of these drafts, or another one that is faster; and why the first draft that failed
        did. Only drafts that promise to be precise enough become whole plans."""
        reason: DoesNotFitError | None = None
        excess, made = 0.0, 0
        for kept, draft in drafts.items():
            if isinstance(draft, DoesNotFitError):
                reason = reason or draft
                break
            limit = best.plan.cost.seconds if best else math.inf
            if draft.seconds >= limit or made == FINALISTS:
                break
            if excess * coarseness(draft.parameters) > HOPELESS:
                continue
            try:
                plan = self.whole(draft, self.cut(choices.circuit(kept)))
                made += 1
                if plan.cost.seconds < limit:
                    best = Found(plan, kept)
            except TooImpreciseError as error:
                reason = reason or error
                excess = error.excess / coarseness(draft.parameters)
            except DoesNotFitError as error:
                reason = reason or error
        return best, reason

    def draft(self, choices: Choices, kept: Kept, limit: float = math.inf) -> Draft | DoesNotFitError:
        """A plan without its scales, and with more keys than there may be; none that takes longer than a limit for
        certain."""
        try:
            unbuilt = choices.circuit(kept)
            # Levels do not depend on what comes after, and what is too deep or too slow needs no packing.
            if self.least_seconds(unbuilt, self.parameters(unbuilt)) > limit:
                raise DoesNotFitError("it is faster otherwise")
            plan = self.plan(self.cut(unbuilt))
            periods = tuple(layout.period for layout in plan.program.layouts[:-1])
            return Draft(plan.parameters, plan.cost.seconds, periods)
        except TooWideError:
            return DoesNotFitError("its maps grow too wide")
        except DoesNotFitError as error:
            return DoesNotFitError(str(error), error.excess)  # without its traceback, which holds the circuit

    def cut(self, unbuilt: Circuit) -> Circuit:
        """With no value longer than a ciphertext."""
        return structured(split(unbuilt, self.ring_degree // 2 // self.images))

    def least_seconds(self, circuit: Circuit, parameters: Parameters) -> float:
        """What the products with weights take if each has a weight in every slot, and two of them for joined values."""
        products: Counter[tuple[str, int]] = Counter()
        for node, stage in zip(computed(circuit), stages_of(circuit, self.lazy), strict=True):
            for operand, how in zip(operands_of(node), stage.operands, strict=True):
                entries = 0 if isinstance(how, int) else sum(term.map.entries for term in terms_of(operand))
                products["multiply_plain", parameters.primes_at(stage.level)] += entries * self.images
        return self.costs(products) / (2 * parameters.slots)

    def parameters(self, circuit: Circuit) -> Parameters:
        stages = stages_of(circuit, self.lazy)
        return choose_parameters(stages, self.ring_degree, self.largest_logit, self.backend.security)

    def plan(self, final: Circuit, spread: tuple[int, ...] = (), join: bool = False, draft: bool = True) -> Plan:
        parameters = self.parameters(final)
        try:
            program = build_program(final, parameters.slots, self.images, spread, draft, self.lazy)
        except PolyNeXtError as error:
            raise DoesNotFitError(str(error).rstrip(".")) from error
        if join:
            join_values(program)
            choose_giant_steps(program)
        most_keys = int(self.limits.keys // parameters.key_bytes)

        def rotation(level: int) -> float:
            return self.costs(Counter({("rotate", parameters.primes_at(level)): 1}))

        choose_rotations(program, most_keys, rotation, draft)
        cost = estimate_cost(program, parameters, self.costs)
        room = self.limits.memory - cost.peak_bytes + draft * cost.key_bytes
        for step in program.steps:  # the first ones have the most primes, and their plaintexts the most bytes
            if room < 0:
                step.held = False
                count = sum(len(form.offsets(k)) for form in step.forms for k in form.sources)
                room += count * parameters.ciphertext_bytes(step.level) // 2
        if not all(step.held for step in program.steps):
            cost = estimate_cost(program, parameters, self.costs)
        if len(program.rotations) > most_keys and not draft:
            raise DoesNotFitError(
                f"its {len(program.rotations)} rotation keys take {mebibytes(cost.key_bytes)} where "
                f"{mebibytes(self.limits.keys)} are allowed",
                cost.key_bytes / max(self.limits.keys, 1),
            )
        if cost.peak_bytes - draft * cost.key_bytes > self.limits.memory:
            raise DoesNotFitError(
                f"it takes {mebibytes(cost.peak_bytes)} of memory where {mebibytes(self.limits.memory)} are allowed",
                cost.peak_bytes / max(self.limits.memory, 1),
            )
        return Plan(final, program, self.backend.name, parameters, cost)

    def whole(self, draft: Draft, circuit: Circuit) -> Plan:
        """A draft made better, by joining values and by spreading one more at a time, and made a whole plan."""
        circuit = structured(normalise(circuit, self.examples, OPERAND_SIZE))
        room = self.ring_degree // 8  # of the slots, for two groups of two operands
        seconds, join = draft.seconds, False
        spread: tuple[int, ...] = ()
        for number in [None, *(i for i, period in enumerate(draft.periods) if 2 * period <= room)]:
            tried = (spread, True) if number is None else ((*spread, number), join)
            try:
                plan = self.plan(circuit, *tried)
            except DoesNotFitError:
                continue
            if plan.cost.seconds < seconds:
                seconds, (spread, join) = plan.cost.seconds, tried
        return self.precise_enough(self.plan(circuit, spread, join, draft=False))

    def precise_enough(self, plan: Plan) -> Plan:
        found = predict(plan.program, plan.parameters, self.examples, self.logits)
        for what, value, allowed in (
            ("logits would be off by {} of the largest", found.error, self.limits.error),
            ("noise would change {} of the predictions", found.flips, self.limits.flips),
        ):
            if not value <= allowed:
                sentence = f"its {what.format(f'{value:.2g}')} where {allowed:g} is allowed"
                raise TooImpreciseError(sentence, found.error / self.limits.error)
        counter = CountingEvaluator(plan.parameters, plan.program.rotations)
        shared = Shared(plan.program, encode_program(plan.program, counter), counter, self.costs, processes=2)
        cost = replace(
            plan.cost,
            seconds_on_two_cores=round(shared.best().seconds, 3),
            largest_logit=self.largest_logit,
            error=found.error,
            flips=found.flips,
        )
        return replace(plan, cost=cost)


def choose_parameters(
    stages: Sequence[Stage], ring_degree: int, largest_logit: float, security: Security
) -> Parameters:
    """The most precise primes that security allows for these stages at a ring degree."""
    limit = security.longest_modulus[ring_degree]
    depth = stages[-1].result_level
    lazy = any(stage.lazy for stage in stages)
    largest = math.log2(largest_logit) if largest_logit > 0 else 0.0
    result_bits = min(max(RESULT_BITS - math.floor(largest), 1), MOST_RESULT_BITS)
    headroom = max(math.ceil(largest + 1), 0) + RESULT_ROOM_BITS

    def parameters(scale_bits: int, plain_bits: int) -> Parameters:
        last, shortest = result_bits + headroom, security.shortest_prime
        dropped: tuple[int, ...] = ()
        needed = (shortest,) * depth
        while needed != dropped:  # at most once for each level, because its prime depends on earlier ones only
            dropped = needed
            bits = (*dropped, last, max((*dropped, last)))
            input_bits = 2 * scale_bits if lazy else scale_bits + INPUT_BITS_MORE  # if lazy, like a product's
            made = Parameters(ring_degree, bits, scale_bits, plain_bits, input_bits, result_bits)
            needed = needed_prime_bits(stages, made, shortest)
        return made

    def fits(made: Parameters) -> bool:
        return made.modulus_bits <= limit and max(made.prime_bits) <= security.longest_prime

    scales = range(LEAST_LAZY_SCALE_BITS if lazy else LEAST_SCALE_BITS, MOST_SCALE_BITS + 1)
    least_plain = LEAST_LAZY_PLAIN_BITS if lazy else LEAST_PLAIN_BITS
    smallest = parameters(scales[0], least_plain)
    if not fits(smallest):
        raise DoesNotFitError(
            f"its {depth} levels need a modulus of at least {smallest.modulus_bits} bits where {security.bits}-bit "
            f"security allows {limit}",
            smallest.modulus_bits / limit,
        )
    fitting = [smallest]
    plain_bits = MOST_SCALE_BITS
    for scale_bits in scales:  # the longer the scale, the shorter the weights
        while plain_bits >= least_plain and not fits(made := parameters(scale_bits, min(plain_bits, scale_bits))):
            plain_bits -= 1
        if plain_bits < least_plain:
            break
        fitting.append(made)
    best = min(fitting, key=coarseness)
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


def coarseness(parameters: Parameters) -> float:
    """How much rounding values and weights costs, by a rule of thumb: for comparing, not for telling."""
    return WEIGHTS_TO_VALUES * 2.0**-parameters.scale_bits + 2.0**-parameters.plain_bits
