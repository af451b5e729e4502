"""Every operation against integer arithmetic, for each instruction set of this machine."""

import random
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import polynext_native as native
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import inverse_transform, primes_of, random_words, reverse_bits, transform

DEGREE = 256
SETS = native.instruction_sets()
LONGEST = {"avx512ifma": 50}


def lengths(instruction_set: str) -> list[int]:
    return [bits for bits in (24, 36, 49, 50, 60) if bits <= LONGEST.get(instruction_set, 60)]


def ring(bits: int, data: int, special: int = 1, degree: int = DEGREE) -> tuple[list[int], list[int]]:
    primes = primes_of(bits, data + special, degree)
    return primes[:data], primes[data:]


def evaluator(instruction_set: str, data: list[int], special: list[int], degree: int = DEGREE, **options):
    return native.evaluator(degree, data, special, instruction_set=instruction_set, **options)


@pytest.fixture(params=SETS)
def instruction_set(request: pytest.FixtureRequest) -> str:
    return request.param


def test_scalar_kernels_are_always_there() -> None:
    assert SETS[-1] == "scalar"


@pytest.mark.parametrize("degree", [256, 512, 1024, 2048])
def test_encoding_is_the_transform(instruction_set: str, degree: int) -> None:
    """Of signed coefficients, small, long and beyond 64 bits."""
    rng = random.Random(degree)
    for bits in lengths(instruction_set):
        data, special = ring(bits, 2, degree=degree)
        native_evaluator = evaluator(instruction_set, data, special, degree)
        coefficients = np.array([rng.choice((0, 1, -1, 2**40 - 3, -(2.0**61), 2.0**80)) for _ in range(degree)])
        plain = native_evaluator.encode(coefficients, 2)
        zero = native_evaluator.load(np.zeros((2, 2, degree), np.uint64))
        found = native_evaluator.add_plain(zero, plain).array()
        for i, q in enumerate(data):
            wanted = transform(np.array([int(c) % q for c in coefficients], dtype=object), q)
            assert found[0, i].tolist() == wanted.tolist()
        assert not found[1].any()


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    choice=st.sampled_from(SETS),
    primes=st.integers(1, 3),
    terms=st.integers(1, 40),
    data=st.data(),
)
def test_sums_of_products(seed: int, choice: str, primes: int, terms: int, data: st.DataObject) -> None:
    bits = data.draw(st.sampled_from(lengths(choice)))
    rng = random.Random(seed)
    moduli, special = ring(bits, primes)
    e = evaluator(choice, moduli, special, threads=data.draw(st.integers(1, 3)))
    ciphertexts = [random_words((2, primes, DEGREE), moduli, rng) for _ in range(2)]
    plains = [random_words((primes, DEGREE), moduli, rng) for _ in range(2)]
    loaded, ready = [e.load(c) for c in ciphertexts], [e.load_plaintext(p) for p in plains]
    picked = [(rng.randrange(2), rng.randrange(2)) for _ in range(terms)]
    sums = e.sums([[(loaded[c], ready[p]) for c, p in picked], [(loaded[0], ready[1])]])
    q = np.array(moduli, dtype=object)[None, :, None]
    total = sum(ciphertexts[c].astype(object) * plains[p].astype(object)[None] for c, p in picked) % q
    assert (sums[0].array().astype(object) == total).all()
    single = ciphertexts[0].astype(object) * plains[1].astype(object)[None] % q
    assert (sums[1].array().astype(object) == single).all()


@pytest.mark.parametrize("threads", [1, 2])
def test_compact_plaintexts_compute_the_same(instruction_set: str, threads: int) -> None:
    """Beside others in one sum, and in an addition; coefficients may be longer than a prime, but not than 62 bits."""
    rng = np.random.default_rng(0)
    for bits in lengths(instruction_set):
        data, special = ring(bits, 3)
        e = evaluator(instruction_set, data, special, threads=threads)
        factors = [e.load(random_words((2, 3, DEGREE), data, random.Random(i))) for i in range(5)]
        numbers = [np.rint(rng.uniform(-1, 1, DEGREE) * 2.0 ** (10 + 12 * i)) for i, _ in enumerate(factors)]
        plains = [e.encode(each, 3) for each in numbers]
        small = [e.encode(each, 3, compact=True) for each in numbers]
        assert all(plain.compact for plain in small) and not any(plain.compact for plain in plains)
        mixed = [small[0], plains[1], *small[2:]]
        wanted = e.sums([list(zip(factors, plains, strict=True)), [(factors[0], plains[1])]])
        found = e.sums([list(zip(factors, mixed, strict=True)), [(factors[0], small[1])]])
        for one, other in zip(wanted, found, strict=True):
            assert (one.array() == other.array()).all()
        assert (e.add_plain(factors[0], plains[0]).array() == e.add_plain(factors[0], small[0]).array()).all()
        assert not e.encode(np.full(DEGREE, 2.0**62), 3, compact=True).compact


def structured(degree: int, shift: int, mirrored: bool, largest: float) -> np.ndarray:
    """Coefficients of a polynomial in x^(2^shift), and with real slots if it is mirrored."""
    coefficients = np.zeros(degree)
    numbers = np.random.default_rng(shift).uniform(-1, 1, degree >> shift)
    coefficients[:: 1 << shift] = np.rint(largest * numbers)
    if mirrored:
        coefficients[degree // 2] = 0
        coefficients[degree // 2 + 1 :] = -coefficients[1 : degree // 2][::-1]
    return coefficients


@pytest.mark.parametrize("largest", [2.0**15, 2.0**40, 2.0**70])
def test_plaintexts_are_stored_without_repetitions(instruction_set: str, largest: float) -> None:
    """A period of the slots, and slots that are real, save memory and change nothing."""
    degree, primes = 1024, 2
    data, special = ring(49, primes, degree=degree)
    e = evaluator(instruction_set, data, special, degree, threads=2)
    factor = random_words((2, primes, degree), data, random.Random(0))
    loaded, q = e.load(factor), np.array(data, dtype=object)[:, None]
    for shift in (0, 1, 2):
        for mirrored in (False, True):
            coefficients = structured(degree, shift, mirrored, largest)
            words = np.stack([transform(np.array([int(c) % q for c in coefficients], dtype=object), q) for q in data])
            product, total = factor.astype(object) * words[None], factor[0].astype(object) + words
            length = degree >> shift >> mirrored
            whole, compact = e.encode(coefficients, primes), e.encode(coefficients, primes, compact=True)
            assert 0 <= whole.nbytes - 8 * primes * length <= 64
            assert compact.compact == (largest < 2.0**62)
            if compact.compact:
                assert compact.nbytes == (4 if largest < 2.0**31 else 8) * (degree >> shift)
            for plain in (whole, compact):
                for terms in (1, 3):
                    (found,) = e.sums([[(loaded, plain)] * terms])
                    assert (found.array().astype(object) == terms * product % q).all()
                assert (e.add_plain(loaded, plain).array()[0].astype(object) == total % q).all()


def test_the_number_of_threads_can_change(instruction_set: str) -> None:
    data, special = ring(36, 3)
    e = evaluator(instruction_set, data, special)
    a = e.load(random_words((2, 3, DEGREE), data, random.Random(0)))
    wanted = e.add(a, a).array()
    for threads in (3, 1, 2):
        e.threads = threads
        assert e.threads == threads and (e.add(a, a).array() == wanted).all()
    with pytest.raises(ValueError, match="at least one thread"):
        e.threads = 0


def test_several_callers_share_the_threads(instruction_set: str) -> None:
    data, special = ring(36, 3)
    e = evaluator(instruction_set, data, special, threads=2)
    values = [e.load(random_words((2, 3, DEGREE), data, random.Random(i))) for i in range(4)]
    wanted = [e.rescale(e.add(value, value)).array() for value in values]
    with ThreadPoolExecutor(4) as callers:
        found = list(callers.map(lambda value: e.rescale(e.add(value, value)).array(), values * 25))
    for i, array in enumerate(found):
        assert (array == wanted[i % 4]).all()


def test_the_number_of_threads_can_change_while_others_compute() -> None:
    data, special = ring(36, 3)
    e = native.evaluator(DEGREE, data, special)
    a = e.load(random_words((2, 3, DEGREE), data, random.Random(0)))
    wanted = e.add(a, a).array()

    def compute(seed: int) -> bool:
        rng = random.Random(seed)
        for _ in range(200):
            e.threads = rng.randint(1, 3)
            if (e.add(a, a).array() != wanted).any():
                return False
        return True

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as callers:
            assert all(callers.map(compute, range(4)))
    finally:
        sys.setswitchinterval(interval)
    e.threads = 2
    assert e.threads == 2 and (e.add(a, a).array() == wanted).all()


def test_sums_and_dropped_primes(instruction_set: str) -> None:
    rng = random.Random(3)
    for bits in lengths(instruction_set):
        data, special = ring(bits, 3)
        e = evaluator(instruction_set, data, special)
        a, b = (random_words((2, 3, DEGREE), data, rng) for _ in range(2))
        p = random_words((3, DEGREE), data, rng)
        q = np.array(data, dtype=object)[None, :, None]
        total = e.add(e.load(a), e.load(b)).array().astype(object)
        assert (total == (a.astype(object) + b.astype(object)) % q).all()
        total = e.add_plain(e.load(a), e.load_plaintext(p)).array().astype(object)
        assert (total[0] == (a[0].astype(object) + p.astype(object)) % q[0]).all()
        assert (total[1] == a[1]).all()
        assert (e.drop(e.load(a), 2).array() == a[:, :2]).all()


@pytest.mark.parametrize("bits", [24, 49, 60])
def test_rescaling_divides_with_rounding(instruction_set: str, bits: int) -> None:
    if bits > LONGEST.get(instruction_set, 60):
        pytest.skip("for shorter primes")
    rng = random.Random(bits)
    data, special = ring(bits, 2)
    a = random_words((2, 2, DEGREE), data, rng)
    e = evaluator(instruction_set, data, special)
    found = e.rescale(e.load(a)).array()
    first, last = data
    for poly in range(2):
        low, high = (inverse_transform(a[poly, i], data[i]) for i in range(2))
        numbers = [chinese_remainder(int(x), int(y), first, last) for x, y in zip(low, high, strict=True)]
        rounded = np.array([(x + last // 2) // last % first for x in numbers], dtype=object)
        assert found[poly, 0].tolist() == transform(rounded, first).tolist()


def chinese_remainder(x: int, y: int, p: int, q: int) -> int:
    return x + p * ((y - x) * pow(p, -1, q) % q)


class Secret:
    """A secret key and the encryptions that tests need, without noise."""

    def __init__(self, data: list[int], special: list[int], rng: random.Random):
        self.primes, self.data, self.special, self.rng = [*data, *special], data, special, rng
        self.key = [rng.choice((-1, 0, 1)) for _ in range(DEGREE)]
        self.values = self.at(self.key)

    def at(self, coefficients: list[int]) -> list[np.ndarray]:
        return [transform(np.array([c % q for c in coefficients], dtype=object), q) for q in self.primes]

    def switching_key(self, other: list[np.ndarray]) -> list[np.ndarray]:
        """A key from another secret: a digit encrypts P times it modulo its own primes, and 0 modulo the others."""
        size, product = len(self.special), int(np.prod(np.array(self.special, dtype=object)))
        digits = []
        for start in range(0, len(self.data), size):
            a = random_words((len(self.primes), DEGREE), self.primes, self.rng).astype(object)
            digit = np.empty((2, len(self.primes), DEGREE), dtype=np.uint64)
            for i, q in enumerate(self.primes):
                message = product * other[i] if start <= i < min(start + size, len(self.data)) else 0
                digit[0, i] = (message - a[i] * self.values[i]) % q
                digit[1, i] = a[i]
            digits.append(digit)
        return digits

    def decrypt(self, array: np.ndarray) -> list[int]:
        """Coefficients between -Q/2 and Q/2."""
        primes = self.data[: array.shape[1]]
        rows = [
            inverse_transform((array[0, i].astype(object) + array[1, i].astype(object) * self.values[i]) % q, q)
            for i, q in enumerate(primes)
        ]
        product = int(np.prod(np.array(primes, dtype=object)))
        found = []
        for words in zip(*rows, strict=True):
            x = (
                sum(int(w) * (product // q) * pow(product // q, -1, q) for w, q in zip(words, primes, strict=True))
                % product
            )
            found.append(x - product if x > product // 2 else x)
        return found

    def encrypt(self, coefficients: list[int], primes: int) -> np.ndarray:
        a = random_words((primes, DEGREE), self.primes, self.rng).astype(object)
        message = self.at(coefficients)
        array = np.empty((2, primes, DEGREE), dtype=np.uint64)
        for i, q in enumerate(self.primes[:primes]):
            array[0, i], array[1, i] = (message[i] - a[i] * self.values[i]) % q, a[i]
        return array


def rotated(coefficients: list[int], element: int) -> list[int]:
    """x -> x^element."""
    found = [0] * DEGREE
    for k, c in enumerate(coefficients):
        place = k * element % (2 * DEGREE)
        found[place % DEGREE] = -c if place >= DEGREE else c
    return found


@pytest.mark.parametrize("special", [1, 2, 3, 5])
@pytest.mark.parametrize("bits", [36, 60])
def test_rotations_and_products(instruction_set: str, special: int, bits: int) -> None:
    """With keys without noise only rounding remains: a rotation is off by less than the length of the secret key, at
    every level, and the same whether rotations share work or not."""
    if bits > LONGEST.get(instruction_set, 60) or (instruction_set != SETS[0] and special in (2, 5)):
        pytest.skip("covered by others")
    rng = random.Random(special)
    data, extra = ring(bits, 4, special)
    secret = Secret(data, extra, rng)
    e = evaluator(instruction_set, data, extra, threads=2)
    elements = [3, 2 * DEGREE - 1]
    keys = [e.load_key(element, secret.switching_key(secret.at(rotated(secret.key, element)))) for element in elements]
    squared = [v * v % q for v, q in zip(secret.values, secret.primes, strict=True)]
    relinearisation = e.load_key(1, secret.switching_key(squared))
    message = [rng.randrange(-(2**20), 2**20) for _ in range(DEGREE)]
    bound = special * DEGREE
    for primes in (4, 3, 1):
        value = e.load(secret.encrypt(message, primes))
        many = e.rotate_many(value, keys)
        for key, element, hoisted in zip(keys, elements, many, strict=True):
            assert (e.rotate(value, key).array() == hoisted.array()).all()
            off = np.subtract(secret.decrypt(hoisted.array()), rotated(message, element))
            assert 0 < np.abs(off).max() < bound
    other = [0] * DEGREE
    other[1] = 5  # 5 x
    product = e.multiply(e.load(secret.encrypt(message, 3)), e.load(secret.encrypt(other, 3)), relinearisation)
    wanted = [-5 * message[-1], *(5 * c for c in message[:-1])]
    assert np.abs(np.subtract(secret.decrypt(product.array()), wanted)).max() < bound


def test_all_instruction_sets_and_threads_agree() -> None:
    rng = random.Random(5)
    data, special = ring(49, 3, 2)
    secret = Secret(data, special, rng)
    digits = secret.switching_key(secret.at(rotated(secret.key, 5)))
    a = random_words((2, 3, DEGREE), data, rng)
    found = []
    for name in SETS:
        for threads in (1, 2, 4):
            e = evaluator(name, data, special, threads=threads)
            found.append(e.rotate(e.load(a), e.load_key(5, digits)).array())
    for other in found[1:]:
        assert (other == found[0]).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(ring_degree=1000), "power of two"),
        (dict(ring_degree=128), "2\\^8 to 2\\^17"),
        (dict(data_primes=[97]), "1 modulo twice"),
        (dict(data_primes=[512 * 17 + 1]), "not a prime"),
        (dict(threads=0), "at least one thread"),
        (dict(instruction_set="mmx"), "no kernels 'mmx'"),
        (dict(exact=True, special_primes=primes_of(40, 2, DEGREE)), "one special prime"),
    ],
)
def test_impossible_rings_are_refused(arguments: dict, message: str) -> None:
    data, special = ring(30, 2)
    given = dict(ring_degree=DEGREE, data_primes=data, special_primes=special) | arguments
    with pytest.raises(ValueError, match=message):
        native.evaluator(**given)


def test_arrays_of_another_shape_or_range_are_refused() -> None:
    data, special = ring(30, 2)
    e = native.evaluator(DEGREE, data, special)
    good = np.zeros((2, 2, DEGREE), np.uint64)
    for bad in (
        good[:1],
        good[:, :, :5].copy(),
        np.zeros((2, 3, DEGREE), np.uint64),
        np.zeros((2, 0, DEGREE), np.uint64),
    ):
        with pytest.raises(ValueError, match=r"shape|primes"):
            e.load(bad)
    large = good.copy()
    large[1, 0, 7] = data[0]
    with pytest.raises(ValueError, match="not reduced"):
        e.load(large)
    with pytest.raises(ValueError, match="not reduced"):
        e.load_plaintext(large[1])
    with pytest.raises(ValueError, match="shape"):
        e.load_key(3, [good])
    with pytest.raises(ValueError, match="odd"):
        e.load_key(4, [np.zeros((2, 3, DEGREE), np.uint64)])
    with pytest.raises(ValueError, match="2 and 1 primes"):
        e.add(e.load(good), e.load(good[:, :1].copy()))
    with pytest.raises(ValueError, match="cannot be dropped"):
        e.rescale(e.load(good[:, :1].copy()))
    with pytest.raises(ValueError, match="no terms"):
        e.sums([[]])


@pytest.mark.parametrize("degree", [DEGREE, 2**13])
def test_memory_is_given_back(degree: int) -> None:
    """And reused for buffers of any size, beside those that stay."""
    data, special = ring(30, 4, degree=degree)
    e = native.evaluator(degree, data, special)
    arrays = [random_words((2, primes, degree), data, random.Random(primes)) for primes in (1, 4, 2, 3)]
    before = native.memory_in_use()
    values = [e.load(array) for array in arrays]
    assert native.memory_in_use() >= before + sum(array.nbytes for array in arrays)
    for kept in (slice(0, None, 2), slice(1, None, 2)):
        del values[kept]
        values += [e.load(array) for array in reversed(arrays)]
    for value, array in zip(values[-4:], reversed(arrays), strict=True):
        assert (value.array() == array).all()
    del values, value
    assert native.memory_in_use() == before


def test_bits_are_reversed() -> None:
    assert [reverse_bits(i, 3) for i in range(8)] == [0, 4, 2, 6, 1, 5, 3, 7]
