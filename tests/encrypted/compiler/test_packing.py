"""Linear maps as diagonals: the Kronecker structure and the matrix give the same."""

import math

import numpy as np
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from polynext.circuit.maps import LinearMap, chain
from polynext.circuit.structure import kronecker
from polynext.encrypted.compiler.packing import make_diagonals, make_layout, make_target, matrix_diagonals
from tests.circuit.conftest import SIZE, layers


@given(layers(), st.sampled_from([1, 2]), st.booleans(), st.sampled_from([1, 2]))
@settings(deadline=None, max_examples=60)
def test_structured_diagonals_equal_those_of_the_matrix(
    case: tuple[list[LinearMap], int], images: int, mirrored: bool, phases: int
) -> None:
    made, channels = case
    found = kronecker(chain(made), SIZE * SIZE)
    assert found is not None
    side = math.isqrt(found.shape_out[1])
    source = make_layout((channels, SIZE, SIZE), range(3), images, 1024, mirrored, phases=phases)
    layout = make_layout(
        (found.shape_out[0], side, side), range(3), images, 1024, mirrored, phases=min(phases, side // 2)
    )
    assert source is not None and layout is not None
    target, _ = make_target(layout, 2)
    repeated = 1023 & ~target.used & ~source.used
    by_structure = make_diagonals([found, found], source, target, repeated, images)
    below = sp.vstack([found.matrix(), found.matrix()])
    written = matrix_diagonals(below, source, target, repeated, images)
    np.testing.assert_array_equal(by_structure.offsets, written.offsets)
    for i in range(len(written.offsets)):
        np.testing.assert_allclose(by_structure.vector(i), written.vector(i), atol=1e-9)
