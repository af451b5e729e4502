"""Chooses the parameters of CKKS for the levels of a circuit: ring, primes and scales."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from polynext.encrypted.compiler.limits import DoesNotFitError
from polynext.encrypted.compiler.outlines import needed_prime_bits
from polynext.encrypted.runtime.backends.protocol import Security
from polynext.encrypted.runtime.levels import StepOutline
from polynext.encrypted.runtime.parameters import Parameters

# Rounding a value costs about 4 times the precision of rounding a weight at the same scale.
WEIGHTS_TO_VALUES = 4
LEAST_PLAIN_BITS, LEAST_LAZY_PLAIN_BITS = 20, 15
# The image is encrypted with this many bits more than later values have.
INPUT_BITS_MORE = 8
# The bits of the examples' largest logit, which put it far above its noise, and the room above it.
RESULT_BITS, RESULT_ROOM_BITS, MOST_RESULT_BITS = 28, 4, 44
MOST_SCALE_BITS, LEAST_SCALE_BITS, LEAST_LAZY_SCALE_BITS = 34, 26, 20

# The most special primes of hybrid keys.
MOST_SPECIAL_PRIMES = 8


def choose_parameters(
    outlines: Sequence[StepOutline],
    ring_degree: int,
    largest_logit: float,
    security: Security,
    special_primes: int = 1,
) -> Parameters:
    """The parameters of highest precision that are secure at a ring degree."""
    limit = security.limits(special_primes > 1)[ring_degree]
    depth = outlines[-1].result_level
    lazy = any(outline.lazy for outline in outlines)
    largest = math.log2(largest_logit) if largest_logit > 0 else 0.0
    result_bits = min(max(RESULT_BITS - math.floor(largest), 1), MOST_RESULT_BITS)
    headroom = max(math.ceil(largest + 1), 0) + RESULT_ROOM_BITS

    def parameters(scale_bits: int, plain_bits: int) -> Parameters:
        last, shortest = result_bits + headroom, security.shortest_prime
        dropped: tuple[int, ...] = ()
        needed = (shortest,) * depth
        while needed != dropped:  # at most once per level, because a prime depends on those of earlier levels only
            dropped = needed
            bits = (*dropped, last, *(max((*dropped, last)),) * special_primes)
            input_bits = 2 * scale_bits if lazy else scale_bits + INPUT_BITS_MORE  # if lazy, as for a product
            made = Parameters(
                ring_degree, bits, scale_bits, plain_bits, input_bits, result_bits, special_primes=special_primes
            )
            needed = needed_prime_bits(outlines, made, shortest)
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
    best = min(fitting, key=rounding_error)
    # The rest of the modulus costs no time. It goes to the weights, those of the classifier first, which sum over most
    # values, and to the range of the result. A prime that rescales a product determines a scale and stays.
    bits, special = list(best.prime_bits[: depth + 1]), best.prime_bits[depth + 1 :]
    left = limit - best.modulus_bits
    fixed = {outline.product_level for outline in outlines if outline.rescales}
    for level in [n for n in (*reversed(range(depth)), depth) if n not in fixed]:
        more = min(left, special[0] - bits[level])
        bits[level] += more
        left -= more
    return replace(best, prime_bits=(*bits, *special))


def choose_special_primes(chosen: Callable[[int], Parameters]) -> Parameters:
    """Parameters for hybrid keys with as many special primes as save time and cost no precision. `chosen` returns the
    parameters for a number of special primes."""
    possible = [chosen(2)]
    for special_primes in range(3, MOST_SPECIAL_PRIMES + 1):
        try:
            more = chosen(special_primes)
        except DoesNotFitError:
            break
        if rounding_error(more) > rounding_error(possible[0]):
            break
        possible.append(more)
    return min(possible, key=key_switching_products)


def key_switching_products(parameters: Parameters) -> float:
    """The products per coefficient of one rotation at each level. It compares numbers of special primes, before costs
    are measured: with more of them there are fewer transforms, and each conversion between primes is longer."""
    special = parameters.special_primes
    transform = math.log2(parameters.ring_degree) / 2
    converted = transform + special + 1  # a transform after the conversion from a digit's primes to another prime
    total = 0.0
    for level in range(parameters.depth + 1):
        primes, digits = parameters.primes_at(level), parameters.digits_at(level)
        rows = digits * (primes + special)
        decomposition = primes * transform + (rows - primes) * converted
        division = 2 * special * transform + 2 * primes * converted
        total += decomposition + 2 * rows + division
    return total


def rounding_error(parameters: Parameters) -> float:
    """A rule of thumb for the error of rounding values and weights. It compares parameters; `precision.py` predicts."""
    return WEIGHTS_TO_VALUES * 2.0**-parameters.scale_bits + 2.0**-parameters.plain_bits
