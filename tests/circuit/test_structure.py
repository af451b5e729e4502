"""Maps as sums of Kronecker products equal their matrices."""

import numpy as np
from hypothesis import given, settings

from polynext.circuit.maps import LinearMap, chain
from polynext.circuit.structure import kronecker
from tests.circuit.conftest import SIZE, layers


@given(layers())
@settings(deadline=None, max_examples=60)
def test_a_structured_map_equals_its_matrix(case: tuple[list[LinearMap], int]) -> None:
    made, _ = case
    whole = chain(made)
    found = kronecker(whole, SIZE * SIZE)
    assert found is not None
    np.testing.assert_allclose(found.matrix().toarray(), whole.matrix().toarray(), atol=1e-9)
    x = np.random.default_rng(0).normal(size=(3, whole.n_in))
    np.testing.assert_allclose(found(x), whole(x), atol=1e-9)
