"""Programs."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from polynext.encrypted.runtime.program import Stride


@given(st.data())
@settings(deadline=None, max_examples=60)
def test_giant_and_baby_steps_add_up_to_the_offset(data: st.DataObject) -> None:
    period = 2 ** data.draw(st.integers(1, 10))
    stride = Stride(2 ** data.draw(st.integers(0, 10)))
    offsets = np.arange(period)
    giants, babies = stride.decompose(offsets, period)
    np.testing.assert_array_equal((giants + babies) % period, offsets)
