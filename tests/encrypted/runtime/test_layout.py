"""Layouts."""

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from polynext.encrypted.compiler.packing import make_layout


@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=3),
    st.sampled_from([1, 2, 4]),
    st.booleans(),
    st.sampled_from([1, 2]),
)
@settings(deadline=None, max_examples=50)
def test_packed_values_can_be_unpacked(shape: list[int], images: int, mirrored: bool, groups: int) -> None:
    layout = make_layout(shape, range(len(shape)), images, 256, mirrored)
    assert layout is not None
    if groups > 1:
        assume(1 < layout.period <= 64)
        layout = layout.spread(groups, 64)
    values = np.random.default_rng(0).normal(size=(images, int(np.prod(shape))))
    vector = layout.pack(values)
    np.testing.assert_array_equal(layout.unpack(vector), values)
    for g, codes in enumerate(layout.copies()):
        np.testing.assert_array_equal(vector[codes], values)
        assert ((codes // layout.block == g) if groups > 1 else (codes >= 0)).all()
