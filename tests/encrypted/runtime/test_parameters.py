"""Parameters, and the limits of 128-bit security that clients and servers enforce."""

from dataclasses import replace

import pytest

from polynext.encrypted.runtime.backends import get_backend
from polynext.encrypted.runtime.parameters import Parameters
from polynext.errors import PolyNeXtError

SEAL_KEYS = Parameters(2**13, (40, 40, 50, 60), 30, 20, 30, 30)
HYBRID = Parameters(2**15, (60,) * 12, 30, 20, 30, 30, special_primes=3)


def test_digits_and_key_sizes_follow_from_the_special_primes() -> None:
    assert (SEAL_KEYS.depth, SEAL_KEYS.digits_at(0), SEAL_KEYS.digits_at(2)) == (2, 3, 1)
    assert SEAL_KEYS.key_bytes == 3 * 2 * 4 * 2**13 * 8
    assert (HYBRID.depth, HYBRID.digits_at(0), HYBRID.digits_at(6), HYBRID.digits_at(7)) == (8, 3, 1, 1)
    assert HYBRID.key_bytes == 3 * 2 * 12 * 2**15 * 8
    assert Parameters.from_json(HYBRID.to_json()) == HYBRID


def test_parameters_of_older_files_have_one_special_prime() -> None:
    fields = SEAL_KEYS.to_json()
    del fields["special_primes"]
    assert Parameters.from_json(fields) == SEAL_KEYS


@pytest.mark.parametrize("backend", ["seal", "clear"])
@pytest.mark.parametrize(
    ("degree", "special", "longest"),
    [
        *((2**13, 1, 218), (2**14, 1, 438), (2**15, 1, 881)),
        *((2**13, 2, 214), (2**14, 2, 430), (2**15, 3, 868), (2**16, 5, 1747)),
    ],
)
def test_a_modulus_beyond_128_bits_is_refused(backend: str, degree: int, special: int, longest: int) -> None:
    count, rest = divmod(longest - 30, 50)
    bits = (*(50,) * count, 30 + rest // 2, rest - rest // 2) if rest > 4 else (*(50,) * count, 30 + rest)
    parameters = Parameters(degree, bits, 30, 20, 30, 30, special_primes=special)
    assert parameters.modulus_bits == longest
    get_backend(backend).security.check(parameters)
    with pytest.raises(PolyNeXtError, match=f"less than 128 bits of security, which allow {longest}"):
        get_backend(backend).ring(replace(parameters, prime_bits=(bits[0] + 1, *bits[1:])))


@pytest.mark.parametrize("special", [0, 4, -1])
def test_impossible_numbers_of_special_primes_are_refused(special: int) -> None:
    with pytest.raises(PolyNeXtError, match="special primes"):
        get_backend("seal").ring(replace(SEAL_KEYS, special_primes=special))


def test_a_ring_of_65536_takes_hybrid_keys() -> None:
    with pytest.raises(PolyNeXtError, match="ring degree 65536 with 1 special primes is not supported"):
        get_backend("seal").ring(Parameters(2**16, (50,) * 8, 30, 20, 30, 30))
