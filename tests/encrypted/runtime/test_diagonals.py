"""Diagonals and linear combinations."""

import numpy as np
import scipy.sparse as sp

from polynext.encrypted.compiler.packing import make_layout, make_target, matrix_diagonals
from polynext.encrypted.runtime.diagonals import Diagonals, Factor, LinearCombination


def random_diagonals(seed: int) -> tuple[np.ndarray, Diagonals]:
    matrix = np.random.default_rng(seed).normal(size=(4, 4))
    layout = make_layout((4,), (0,), images=1, slots=8)
    assert layout is not None
    target, _ = make_target(layout, 1)
    return matrix, matrix_diagonals(sp.csr_array(matrix), layout, target, repeated=4, images=1)


def test_a_map_is_the_sum_of_its_rotated_diagonals() -> None:
    matrix, diagonals = random_diagonals(0)
    x = np.random.default_rng(1).normal(size=4)
    packed = np.tile(x, 2)
    total = sum(diagonals.vector(i) * np.roll(packed, -offset) for i, offset in enumerate(diagonals.offsets))
    np.testing.assert_allclose(total, np.tile(matrix @ x, 2), atol=1e-12)


def test_real_and_imaginary_parts_are_combined() -> None:
    """y = (A - i B) x / 2, and y plus its conjugate is A h + B k for x = h + i k."""
    (a, real), (b, imaginary) = random_diagonals(0), random_diagonals(1)
    combination = LinearCombination({1: real}, None, (), True, {1: imaginary}, conjugated=True)
    assert combination.sources == {1} and combination.period(1) == 4
    h, k = np.random.default_rng(2).normal(size=(2, 4))
    packed = np.tile(h + 1j * k, 2)
    y = sum(combination.vector(1, offset) * np.roll(packed, -offset) for offset in combination.offsets(1)) / 2
    np.testing.assert_allclose((y + np.conj(y)).real, np.tile(a @ h + b @ k, 2), atol=1e-12)


def test_slots_are_grouped_by_key() -> None:
    keys, factor = Factor.grouped(
        np.array([5, 2, 5]), np.array([0, 1, 2]), np.array([[1.0, 0.0, 3.0], [0.0, 2.0, 0.0]])
    )
    np.testing.assert_array_equal(keys, [2, 5])
    where, values = factor.group(1)
    np.testing.assert_array_equal(where, [0, 2])
    np.testing.assert_array_equal(values, [[1.0, 3.0], [0.0, 0.0]])
    np.testing.assert_array_equal(factor.active(), [[False, True], [True, False]])
