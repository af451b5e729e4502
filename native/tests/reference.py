"""The arithmetic of the ring on Python integers, written from its definition: slow, and obviously right."""

import random
from functools import lru_cache

import numpy as np


def is_prime(q: int) -> bool:
    """Miller and Rabin's test, which is exact below 2^64 with these bases."""
    odd, twos = q - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37):
        x = pow(base, odd, q)
        if x in (1, q - 1):
            continue
        for _ in range(twos - 1):
            x = x * x % q
            if x == q - 1:
                break
        else:
            return False
    return True


def primes_of(bits: int, count: int, degree: int) -> list[int]:
    """The largest primes of this length that are 1 modulo twice the ring degree."""
    found: list[int] = []
    q = (1 << bits) - (1 << bits) % (2 * degree) + 1
    while len(found) < count:
        q -= 2 * degree
        if is_prime(q):
            found.append(q)
    return found


@lru_cache
def smallest_root(q: int, degree: int) -> int:
    """The smallest primitive root of unity of order twice the ring degree."""
    for base in range(2, 1000):
        root = pow(base, (q - 1) // (2 * degree), q)
        if pow(root, degree, q) == q - 1:
            return min(pow(root, k, q) for k in range(1, 2 * degree, 2))
    raise AssertionError(f"{q} is not a prime")


def reverse_bits(i: int, bits: int) -> int:
    return int(f"{i:0{bits}b}"[::-1], 2)


@lru_cache
def points(q: int, degree: int) -> tuple[int, ...]:
    """Where word i of a transform evaluates the polynomial."""
    root, bits = smallest_root(q, degree), degree.bit_length() - 1
    return tuple(pow(root, 2 * reverse_bits(i, bits) + 1, q) for i in range(degree))


def transform(coefficients: np.ndarray, q: int) -> np.ndarray:
    """The values of a polynomial at all points."""
    degree = len(coefficients)
    at = np.array(points(q, degree), dtype=object)
    total = np.zeros(degree, dtype=object)
    for coefficient in reversed(coefficients.tolist()):  # Horner's rule
        total = (total * at + coefficient) % q
    return total


def inverse_transform(values: np.ndarray, q: int) -> np.ndarray:
    """The polynomial with these values: its coefficients are sums over all points."""
    degree = len(values)
    back = np.array([pow(p, q - 2, q) for p in points(q, degree)], dtype=object)
    power, scaled, coefficients = np.ones(degree, dtype=object), np.array(values, dtype=object), []
    for _ in range(degree):
        coefficients.append(int((scaled * power).sum()) % q)
        power = power * back % q
    return np.array(coefficients, dtype=object) * pow(degree, q - 2, q) % q


def random_words(shape: tuple[int, ...], primes: list[int], rng: random.Random) -> np.ndarray:
    """Words modulo the primes of the last but one axis, extreme ones among them."""
    array = np.empty(shape, dtype=np.uint64)
    for index in np.ndindex(shape[:-1]):
        q = primes[index[-1]]
        array[index] = [rng.choice((0, 1, q - 1, q // 2, rng.randrange(q))) for _ in range(shape[-1])]
    return array
