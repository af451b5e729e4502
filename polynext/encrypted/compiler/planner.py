"""Plans how to run a circuit encrypted, and estimates the cost before any key is made."""

import itertools
import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache, partial

import numpy as np

from polynext.arrays import Array
from polynext.circuit.graph import Circuit, Product
from polynext.circuit.rewrites import factor_sums, merge_linear_maps, normalise, patches_first, split, structured
from polynext.circuit.structure import TooWideError
from polynext.encrypted.compiler.complex_packing import pack_complex_values
from polynext.encrypted.compiler.limits import (
    DoesNotFitError,
    Limits,
    Progress,
    TooImpreciseError,
    raised_limits,
)
from polynext.encrypted.compiler.materialised import Candidates, Materialised
from polynext.encrypted.compiler.outlines import (
    computed_values,
    linear_terms,
    outline_steps,
    step_operands,
)
from polynext.encrypted.compiler.parameter_choice import (
    MOST_SPECIAL_PRIMES,
    choose_parameters,
    choose_special_primes,
    rounding_error,
)
from polynext.encrypted.compiler.precision import predict
from polynext.encrypted.compiler.program_builder import build_program, choose_giant_steps
from polynext.encrypted.compiler.rotations import RotationSeconds, choose_rotations
from polynext.encrypted.runtime.backends import get_backend
from polynext.encrypted.runtime.backends.protocol import Backend, Costs
from polynext.encrypted.runtime.cost import CostEstimate, estimate_cost, mebibytes
from polynext.encrypted.runtime.parameters import Parameters
from polynext.encrypted.runtime.program import Program
from polynext.errors import PolyNeXtError

# Operands of products are scaled to about this size. Larger ones are less affected by the noise of a rescale, smaller
# ones leave more digits to the plaintexts that they are multiplied by.
OPERAND_SIZE = 8.0

# The number of choices of materialised values that are tried.
MOST_TRIALS = 20
# The number of trial plans that are completed; the fastest of these is chosen.
FINALISTS = 3
# A trial plan is not completed if its predicted error is more than this many times the limit.
HOPELESS = 1.5

# The costs of operations by ring degree, threads, special primes and whether all primes are short (`Backend.costs`).
CostsOf = Callable[[int, int, int, bool], Costs]


@dataclass(frozen=True, eq=False)
class Plan:
    """How to run a circuit: the rewritten circuit, its program, the backend and parameters, and the cost."""

    circuit: Circuit
    program: Program
    backend: str
    parameters: Parameters
    cost: CostEstimate

    @property
    def images(self) -> int:
        """The number of images in one ciphertext."""
        return self.program.layouts[0].images


def make_plan(
    circuit: Circuit,
    examples: Array,
    images: int = 1,
    limits: Limits | None = None,
    backend: str = "seal",
    costs: CostsOf | None = None,
    progress: Progress | None = None,
) -> Plan:
    """The fastest plan found for running a circuit encrypted with 128-bit security.

    `circuit` is as lowered. `examples` (B, *image shape) are typical images: values are scaled and the range of the
    result is chosen by them. `images` is the number of images in one ciphertext. `costs` returns the costs of
    operations, by default those of the backend on this machine. `progress` is called with what the planner does. If the
    network does not fit, the message names limits that it fits.
    """
    limits = limits or Limits()
    chosen = get_backend(backend)
    possible = tuple(chosen.security.limits(limits.hybrid_keys))
    for ring_degree in limits.ring_degrees or ():
        if ring_degree not in possible:
            raise PolyNeXtError(
                f"the {backend} backend has no ring degree {ring_degree} for {limits.clients} clients: choose among "
                f"{', '.join(map(str, possible))}."
            )
    merged = merge_linear_maps(factor_sums(structured(patches_first(circuit))))
    logits = circuit(examples).reshape(len(examples), -1)
    candidates = Candidates(merged)
    known_costs, report = cache(costs or chosen.costs), progress or (lambda what: None)

    def search(limits: Limits) -> Plan:
        def at(ring_degree: int, lazy: bool) -> Search:
            return Search(ring_degree, examples, logits, images, limits, chosen, known_costs, lazy, report)

        return best_plan(candidates, [(at(n, True), at(n, False)) for n in limits.ring_degrees or possible])

    try:
        plan = search(limits)
        made = plan.parameters
        two_threads = known_costs(made.ring_degree, 2, made.special_primes, made.short_primes)
        seconds = estimate_cost(plan.program, made, two_threads).seconds
        return replace(plan, cost=replace(plan.cost, seconds_on_two_cores=seconds))
    except DoesNotFitError as error:
        fitting = raised_limits(limits, error, search, report)
        fix = "Take a network with fewer or narrower layers, or fewer images."
        raise DoesNotFitError(
            f"this network does not fit for {images} image{'s' * (images > 1)} in a ciphertext: {error}. "
            f"{fix if fitting is None else f'It fits with {fitting.options(limits)}.'}",
            error.excess,
            error.needs,
        ) from None
    finally:
        report("")


def best_plan(candidates: Candidates, searches: Iterable[tuple["Search", "Search"]]) -> Plan:
    """The fastest plan of searches at growing ring degrees, each with lazy rescaling and without it."""
    longest = max((node.size for node in candidates.merged.order if isinstance(node, Product)), default=0)
    reasons: list[DoesNotFitError] = []
    best: ChosenPlan | None = None
    for lazy, eager in searches:
        best, failure = lazy.best(candidates, best)
        if best is None or isinstance(failure, TooImpreciseError):
            first = failure
            best, failure = eager.best(candidates, best)  # which has more primes, and longer scales
            if (reason := first or failure) is not None:
                message = f"at ring degree {lazy.ring_degree} {reason}"
                reasons.append(DoesNotFitError(message, reason.excess, reason.needs))
        if best is not None and longest * lazy.images <= lazy.ring_degree // 2:
            break  # a larger ring makes operations slower, and does not save any if no value had to be split
    if best is not None:
        return best.plan
    nearest = min(reasons, key=lambda reason: reason.excess if reason.needs else math.inf)
    raise DoesNotFitError("; ".join(map(str, reasons)), nearest.excess, nearest.needs)


@dataclass(frozen=True, eq=False)
class TrialPlan:
    """The result of trying a choice of materialised values: an estimate, without scales and with all useful keys."""

    parameters: Parameters
    seconds: float
    periods: tuple[int, ...]  # of the layouts of all values but the result


@dataclass(frozen=True)
class ChosenPlan:
    """A complete plan and the values that it materialises."""

    plan: Plan
    materialised: Materialised


@dataclass(frozen=True, eq=False)
class Search:
    """The search at one ring degree."""

    ring_degree: int
    examples: Array
    logits: Array
    images: int
    limits: Limits
    backend: Backend
    costs: CostsOf
    lazy: bool
    report: Progress
    special_primes: int | None = None  # of hybrid keys; by default as many as cost no precision

    def costs_with(self, parameters: Parameters) -> Costs:
        """On one thread."""
        return self.costs(self.ring_degree, 1, parameters.special_primes, parameters.short_primes)

    @property
    def largest_logit(self) -> float:
        return float(np.abs(self.logits).max())

    def best(
        self, candidates: Candidates, other: ChosenPlan | None
    ) -> tuple[ChosenPlan | None, DoesNotFitError | None]:
        """The fastest plan, which may be the `other` one, and why the first choice failed, if it did."""
        if other is not None and other.plan.parameters.ring_degree != self.ring_degree:
            again = self.try_plan(candidates, other.materialised)
            if isinstance(again, DoesNotFitError) or again.seconds >= other.plan.cost.seconds:
                return other, None
        found, reason = self.complete_best(candidates, self.trials(candidates), other)
        if isinstance(reason, TooImpreciseError) and candidates.has_skewed:
            found, _ = self.complete_best(candidates, self.trials(candidates.without_skewed()), found)
        if found is not None and found is not other and self.limits.hybrid_keys:
            found = self.with_more_special_primes(candidates, found)
        return found, reason

    def with_more_special_primes(self, candidates: Candidates, best: ChosenPlan) -> ChosenPlan:
        """Adds special primes at the cost of precision, as long as this saves time."""
        for special_primes in range(best.plan.parameters.special_primes + 1, MOST_SPECIAL_PRIMES + 1):
            search = replace(self, special_primes=special_primes)
            trial = search.try_plan(candidates, best.materialised)
            if isinstance(trial, DoesNotFitError) or trial.seconds >= best.plan.cost.seconds:
                break
            if best.plan.cost.error / rounding_error(best.plan.parameters) * rounding_error(trial.parameters) > (
                HOPELESS * self.limits.error
            ):
                break
            better, _ = search.complete_best(candidates, {best.materialised: trial}, best)
            assert better is not None
            if better is best:
                break
            best = better
        return best

    def trials(self, candidates: Candidates) -> dict[Materialised, TrialPlan | DoesNotFitError]:
        """Trial plans, the fastest first, then those that nearly fit.

        First tries all values that share some reasons. From the best of these, adds, removes or changes one value at a
        time, as long as this saves time.
        """
        made: dict[Materialised, TrialPlan | DoesNotFitError] = {}

        def merit(chosen: Materialised) -> tuple[float, float]:
            trial = made[chosen]
            return (trial.seconds, 0.0) if isinstance(trial, TrialPlan) else (math.inf, trial.excess)

        def seconds(chosen: Materialised) -> float:
            return merit(chosen)[0]

        def report() -> None:
            fastest = min(map(seconds, made), default=math.inf)
            found = f", the fastest {fastest:.2f} s" if fastest < math.inf else ""
            self.report(f"planning at ring degree {self.ring_degree}: {len(made)} of {MOST_TRIALS} trial plans{found}")

        for chosen in dict.fromkeys(candidates.by_reason()):
            made[chosen] = self.try_plan(candidates, chosen, min(map(seconds, made), default=math.inf))
            report()
        first = min(made, key=seconds)
        while len(made) < MOST_TRIALS and seconds(first) < math.inf:
            untried = (chosen for chosen in candidates.neighbours(first) if chosen not in made)
            for chosen in itertools.islice(untried, MOST_TRIALS - len(made)):
                made[chosen] = self.try_plan(candidates, chosen, seconds(first))
                report()
            better = min(made, key=seconds)
            if seconds(better) == seconds(first):
                break
            first = better
        return {chosen: made[chosen] for chosen in sorted(made, key=merit)}

    def complete_best(
        self,
        candidates: Candidates,
        trials: dict[Materialised, TrialPlan | DoesNotFitError],
        best: ChosenPlan | None,
    ) -> tuple[ChosenPlan | None, DoesNotFitError | None]:
        """Completes the fastest trial plans that are likely to be precise enough.

        Returns the fastest complete plan, which may be the given `best`, and why the first trial that failed did.
        """
        reason: DoesNotFitError | None = None
        excess, completed = 0.0, 0
        for chosen, trial in trials.items():
            if isinstance(trial, DoesNotFitError):
                reason = reason or trial
                break
            limit = best.plan.cost.seconds if best else math.inf
            if trial.seconds >= limit or completed == FINALISTS:
                break
            if excess * rounding_error(trial.parameters) > HOPELESS:
                continue
            self.report(f"planning at ring degree {self.ring_degree}: completing a plan of about {trial.seconds:.2f} s")
            try:
                plan = self.complete(trial, self.split(candidates.circuit(chosen)))
                completed += 1
                if plan.cost.seconds < limit:
                    best = ChosenPlan(plan, chosen)
            except TooImpreciseError as error:
                reason = reason or error
                excess = error.excess / rounding_error(trial.parameters)
            except DoesNotFitError as error:
                reason = reason or error
        return best, reason

    def try_plan(
        self, candidates: Candidates, chosen: Materialised, limit: float = math.inf
    ) -> TrialPlan | DoesNotFitError:
        """A trial plan with these values materialised, unless it certainly takes longer than `limit` seconds."""
        try:
            expanded = candidates.circuit(chosen)
            # Levels do not depend on the packing: a circuit that is too deep or too slow is not packed.
            if self.least_seconds(expanded, self.parameters(expanded)) > limit:
                raise DoesNotFitError("another plan is faster")
            plan = self.plan(self.split(expanded))
            periods = tuple(layout.period for layout in plan.program.layouts[:-1])
            return TrialPlan(plan.parameters, plan.cost.seconds, periods)
        except TooWideError:
            return DoesNotFitError("its maps grow too wide")
        except DoesNotFitError as error:
            return DoesNotFitError(
                str(error), error.excess, error.needs
            )  # without the traceback, which refers to the circuit

    def split(self, expanded: Circuit) -> Circuit:
        """Splits values that are longer than a ciphertext."""
        return structured(split(expanded, self.ring_degree // 2 // self.images))

    def least_seconds(self, circuit: Circuit, parameters: Parameters) -> float:
        """The time of all products with plaintexts if no slot of a plaintext were zero, with complex packing."""
        products: Counter[tuple[str, int]] = Counter()
        for node, outline in zip(computed_values(circuit), outline_steps(circuit, self.lazy), strict=True):
            for operand, sources in zip(step_operands(node), outline.operands, strict=True):
                entries = 0 if isinstance(sources, int) else sum(term.map.entries for term in linear_terms(operand))
                products["multiply_plain", parameters.primes_at(outline.level)] += entries * self.images
        return self.costs_with(parameters)(products) / (2 * parameters.slots)

    def parameters(self, circuit: Circuit) -> Parameters:
        outlines = outline_steps(circuit, self.lazy)
        chosen = partial(choose_parameters, outlines, self.ring_degree, self.largest_logit, self.backend.security)
        if not self.limits.hybrid_keys:
            return chosen(1)
        return chosen(self.special_primes) if self.special_primes else choose_special_primes(chosen)

    def plan(
        self, circuit: Circuit, spread: tuple[int, ...] = (), pack_complex: bool = False, trial: bool = True
    ) -> Plan:
        """A plan for a rewritten circuit. The keys of a trial do not count towards the limits."""
        parameters = self.parameters(circuit)
        try:
            program = build_program(circuit, parameters.slots, self.images, spread, trial, self.lazy)
        except PolyNeXtError as error:
            raise DoesNotFitError(str(error).rstrip(".")) from error
        if pack_complex:
            pack_complex_values(program)
        most_keys = int(self.limits.keys // parameters.key_bytes)
        cost = self.fitted_cost(program, parameters, most_keys, trial)
        if len(program.rotations) > most_keys and not trial:
            raise DoesNotFitError(
                f"its {len(program.rotations)} rotation keys take {mebibytes(cost.key_bytes)} where "
                f"{mebibytes(self.limits.keys)} are allowed",
                cost.key_bytes / max(self.limits.keys, 1),
                ("keys", len(program.rotations) * parameters.key_bytes),
            )
        if cost.peak_bytes - trial * cost.key_bytes > self.limits.memory:
            raise DoesNotFitError(
                f"it takes {mebibytes(cost.peak_bytes)} of memory where {mebibytes(self.limits.memory)} are allowed",
                cost.peak_bytes / max(self.limits.memory, 1),
                ("memory", cost.peak_bytes),
            )
        return Plan(circuit, program, self.backend.name, parameters, cost)

    def fitted_cost(self, program: Program, parameters: Parameters, most_keys: int, trial: bool) -> CostEstimate:
        """Chooses rotations, and keeps the plaintexts of as many steps encoded as the memory limit allows. Those of the
        first steps are not kept: they have the most primes and are the largest."""
        costs, steps = self.costs_with(parameters), program.steps

        def keep_from(first: int) -> None:
            for number, step in enumerate(steps):
                step.keep_encoded = number >= first

        keep_from(0)
        all_kept = cheapest_rotations(program, parameters, most_keys, costs, trial)

        def cost_from(first: int) -> CostEstimate:
            keep_from(first)
            return estimate_cost(program, parameters, costs) if first else all_kept

        def fits(first: int) -> bool:
            cost = cost_from(first)
            return cost.peak_bytes - trial * cost.key_bytes <= self.limits.memory

        return cost_from(min(bisect_left(range(len(steps) + 1), True, key=fits), len(steps)))

    def complete(self, trial: TrialPlan, circuit: Circuit) -> Plan:
        """Completes a trial plan. Tries complex packing, then spreading one more value at a time, and keeps what saves
        time."""
        circuit = structured(normalise(circuit, self.examples, OPERAND_SIZE))
        room = self.ring_degree // 8  # slots for two groups of two operands
        seconds, pack_complex = trial.seconds, False
        spread: tuple[int, ...] = ()
        for number in [None, *(i for i, period in enumerate(trial.periods) if 2 * period <= room)]:
            tried = (spread, True) if number is None else ((*spread, number), pack_complex)
            try:
                plan = self.plan(circuit, *tried)
            except DoesNotFitError:
                continue
            if plan.cost.seconds < seconds:
                seconds, (spread, pack_complex) = plan.cost.seconds, tried
        return self.with_precision(self.plan(circuit, spread, pack_complex, trial=False))

    def with_precision(self, plan: Plan) -> Plan:
        """Adds the predicted error to a plan's cost. Raises TooImpreciseError if it is beyond the limits."""
        found = predict(plan.program, plan.parameters, self.examples, self.logits)
        for name, what, value, allowed in (
            ("error", "logits would be off by {} of the largest", found.error, self.limits.error),
            ("flips", "noise would change {} of the predictions", found.flips, self.limits.flips),
        ):
            if not value <= allowed:
                message = f"its {what.format(f'{value:.2g}')} where {allowed:g} is allowed"
                raise TooImpreciseError(message, found.error / self.limits.error, (name, value))
        cost = replace(
            plan.cost,
            largest_logit=self.largest_logit,
            error=found.error,
            flips=found.flips,
        )
        return replace(plan, cost=cost)


def cheapest_rotations(
    program: Program, parameters: Parameters, most_keys: int, costs: Costs, trial: bool
) -> CostEstimate:
    """Chooses giant steps, keys and rotations; returns the cost.

    If rotations of one value share work, more baby steps and fewer giant steps may be faster, if there are keys for
    them. Both are tried, unless this is a trial, which has all keys.
    """

    def rotation_seconds(level: int) -> RotationSeconds:
        primes = parameters.primes_at(level)
        return RotationSeconds(*(costs(Counter({(name, primes): 1})) for name in ("rotate", "rotate_again")))

    def chosen(again: float) -> CostEstimate:
        choose_giant_steps(program, again)
        choose_rotations(program, most_keys, rotation_seconds, trial)
        return estimate_cost(program, parameters, costs)

    first, again = rotation_seconds(program.depth // 2)
    ratios = [again / first] if trial or again >= first else [again / first, 1.0]
    found = [chosen(ratio) for ratio in ratios]
    best = min(range(len(found)), key=lambda i: found[i].seconds)
    return found[best] if ratios[best] == ratios[-1] else chosen(ratios[best])
